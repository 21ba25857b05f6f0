"""How often 95 % intervals contain the truth, over sizes, classes and degrees of miscalibration.

Prints the table of ``docs/intervals.md``::

    python benchmarks/coverage.py [--repeats 200] [--resamples 200] [--metrics ece sce]
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from macc.metrics import evaluate
from synthetic import SHARPNESS, Population, draw

METRICS = (
    *("accuracy", "nll", "brier", "auroc", "failure_auroc", "aurc"),
    *(
        "ece",
        "mce",
        "rmsce",
        "over_confidence",
        "smooth_ece",
        "ks_error",
        "sce",
        "ace",
        "tace",
        "brier_calibration",
    ),
)


def main() -> None:
    """Run the grid and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--metrics", nargs="+", default=METRICS)
    parser.add_argument("--sizes", nargs="+", type=int, default=(500, 2000, 8000))
    parser.add_argument("--classes", nargs="+", type=int, default=(2, 10, 100))
    options = parser.parse_args()
    names = options.metrics
    print("| K | model | n |", *(f"{name} |" for name in names))
    print("|---" * (3 + len(names)) + "|")
    worst: dict[str, float] = defaultdict(lambda: 1.0)
    for k in options.classes:
        for label, sharpness in SHARPNESS.items():
            population = Population(k, sharpness)
            for n in options.sizes:
                hits = dict.fromkeys(names, 0)
                for repeat in range(options.repeats):
                    probs, _, labels = draw(n, k, sharpness, torch.Generator().manual_seed(repeat))
                    report = evaluate(probs, labels, metrics=names, resamples=options.resamples, seed=repeat)
                    filled = torch.tensor([row.samples > 0 for row in report.bins])
                    truth = {**population.values, "mce": population.largest_gap(filled)}
                    for name, threshold in (("ace", None), ("tace", 0.01)):
                        if name in names:
                            truth[name] = population.adaptive(probs, threshold)
                    for name in names:
                        estimate = report[name]
                        assert estimate.low <= estimate.value <= estimate.high, (name, estimate)
                        hits[name] += estimate.low <= truth[name] <= estimate.high
                shares = {name: count / options.repeats for name, count in hits.items()}
                print(
                    f"| {k} | {label} | {n} |", *(f"{share:.3f} |" for share in shares.values()), flush=True
                )
                for name, share in shares.items():
                    worst[name] = min(worst[name], share)
    print("| | worst | |", *(f"{worst[name]:.3f} |" for name in names))


if __name__ == "__main__":
    main()

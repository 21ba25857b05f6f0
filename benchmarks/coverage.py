r"""How often 95 % intervals contain the truth, over sizes, classes and degrees of miscalibration.

Prints the table of ``docs/intervals.md``::

    python benchmarks/coverage.py [--repeats 200] [--resamples 200] [--metrics ece sce] \
        [--cases grid hard]

The hard cases are models that always state the same confidence: some are so often right that a
sample shows few errors or none, and in the others a single bin carries all the noise.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from helpers.synthetic import SHARPNESS, Constant, Population
from macc.metrics import evaluate

METRICS = (
    *("accuracy", "nll", "refinement", "brier", "auroc", "failure_auroc", "aurc"),
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


# Classes, confidence, accuracy, samples.
HARD = (
    (2, 0.999, 0.99, 60),
    (2, 0.999, 0.98, 143),
    (2, 0.9999, 0.995, 200),
    (2, 0.9999, 0.995, 1000),
    (2, 0.7, 0.7, 200),
    (2, 0.7, 0.65, 200),
    (2, 0.7, 0.68, 1000),
    (2, 0.5, 0.5, 200),
    (10, 0.1, 0.1, 500),
    (10, 0.1, 0.12, 500),
    (10, 0.999, 0.99, 60),
)


def grid(
    classes: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[int, str, int, Population | Constant]]:
    """Classes, name of the model, size of a sample, and what it is drawn from."""
    for k in classes:
        for label, sharpness in SHARPNESS.items():
            population = Population(k, sharpness)
            for n in sizes:
                yield k, label, n, population


def hard() -> Iterator[tuple[int, str, int, Population | Constant]]:
    """The same of models that always state the same."""
    for k, confidence, accuracy, n in HARD:
        yield (
            k,
            f"states {100 * confidence:g} %, right {100 * accuracy:g} %",
            n,
            Constant(k, confidence, accuracy),
        )


def main() -> None:
    """Run the cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--metrics", nargs="+", default=METRICS)
    parser.add_argument("--cases", nargs="+", choices=("grid", "hard"), default=("grid", "hard"))
    parser.add_argument("--sizes", nargs="+", type=int, default=(500, 2000, 8000))
    parser.add_argument("--classes", nargs="+", type=int, default=(2, 10, 100))
    options = parser.parse_args()
    cases = {"grid": lambda: grid(options.classes, options.sizes), "hard": hard}
    print("| K | model | n |", *(f"{name} |" for name in options.metrics))
    print("|---" * (3 + len(options.metrics)) + "|")
    worst: dict[str, float] = defaultdict(lambda: 1.0)
    for k, label, n, population in chain.from_iterable(cases[name]() for name in options.cases):
        shares = covered(population, n, options.metrics, options.repeats, options.resamples)
        written = (f"{shares[name]:.3f} |" if name in shares else "- |" for name in options.metrics)
        print(f"| {k} | {label} | {n} |", *written, flush=True)
        for name, share in shares.items():
            worst[name] = min(worst[name], share)
    print("| | worst | |", *(f"{worst[name]:.3f} |" for name in options.metrics))


def covered(
    population: Population | Constant, n: int, metrics: Sequence[str], repeats: int, resamples: int
) -> dict[str, float]:
    """Share of samples, drawn with seeds from 0 on, whose interval contains what is known of the
    population.
    """
    names = [name for name in metrics if name in population.values or name in ("mce", "ace", "tace")]
    hits = dict.fromkeys(names, 0)
    for repeat in range(repeats):
        probs, labels = population.draw(n, torch.Generator().manual_seed(repeat))
        report = evaluate(probs, labels, metrics=names, resamples=resamples, seed=repeat)
        filled = torch.tensor([row.samples > 0 for row in report.bins])
        truth = {**population.values, "mce": population.largest_gap(filled)}
        for name, threshold in (("ace", None), ("tace", 0.01)):
            if name in names:
                truth[name] = population.adaptive(probs, threshold)
        for name in names:
            estimate = report[name]
            assert estimate.low <= estimate.value <= estimate.high, (name, estimate)
            # Rounding alone may set a constant score apart from its mean.
            hits[name] += estimate.low - 1e-9 <= truth[name] <= estimate.high + 1e-9
    return {name: count / repeats for name, count in hits.items()}


if __name__ == "__main__":
    main()

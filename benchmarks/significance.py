"""How often tests of calibration reject what is calibrated: the tables of ``docs/operation.md``.

Run as ``python -m benchmarks.significance [--repeats 2000]``; every number should be about 5 % or
less.
"""

import argparse

import numpy as np

from macc import metrics
from macc.metrics.groups import equal_calibration


def main() -> None:
    """Run the simulations and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    options = parser.parse_args()
    print("| classes | samples | Spiegelhalter | Kuiper | Kolmogorov-Smirnov | equal groups |")
    print("|--:|--:|--:|--:|--:|--:|")
    for classes in (2, 10):
        for samples in (100, 1000, 10_000):
            rejected = np.zeros(4)
            for repeat in range(options.repeats):
                rng = np.random.default_rng([repeat, classes, samples])
                logits = 2 * rng.normal(size=(samples, classes))
                labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
                probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
                found = list(metrics.calibration_tests(probs, labels).values())
                groups = rng.choice(4, samples, p=[0.4, 0.3, 0.2, 0.1])
                top = probs[:, 1] if classes == 2 else probs.max(1)
                right = labels == (1 if classes == 2 else probs.argmax(1))
                found.append(equal_calibration(top, right.astype(float), groups, simulations=99, seed=repeat))
                rejected += np.array(found) <= 0.05
            shares = " | ".join(f"{100 * share:.1f} %" for share in rejected / options.repeats)
            print(f"| {classes} | {samples} | {shares} |", flush=True)


if __name__ == "__main__":
    main()

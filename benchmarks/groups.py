"""Maps of groups against the common map, in simulated groups that are alike or differ.

    python -m benchmarks.groups [REPEATS]

NLL on new samples with :class:`macc.posthoc.Grouped`, minus that of the common map: how often a
group got a map of its own, what that gained, and how far behind it was at worst.
"""

import sys
from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track
from rich.table import Table

from macc import posthoc

Floats = npt.NDArray[np.float64]
GROUPS = np.array(["a", "b", "c", "d"])
FITTED, MEASURED = (600, 3000), 40_000
SCALES = {
    "alike, calibrated": (1.0, 1.0, 1.0, 1.0),
    "alike, twice as sure": (2.0, 2.0, 2.0, 2.0),
    "1.8 to 2.2 times as sure": (1.8, 1.93, 2.07, 2.2),
    "1 to 3 times as sure": (1.0, 1.67, 2.33, 3.0),
}
"""How much too large the logits of each group are."""
METHODS: dict[str, tuple[Callable[..., posthoc.Calibrator], int]] = {
    "temperature": (posthoc.Temperature.fit, 3),
    "platt": (posthoc.Platt.fit, 2),
}
"""The common map, and how many classes there are."""


def sample(
    rng: np.random.Generator, rows: int, classes: int, scales: tuple[float, ...]
) -> tuple[Floats, npt.NDArray[np.int64], npt.NDArray[np.str_]]:
    """Logits, labels and groups."""
    groups = rng.integers(0, len(GROUPS), rows)
    truth = 1.5 * rng.normal(size=(rows, classes))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    return truth * np.array(scales)[groups][:, None], labels, GROUPS[groups]


def gain(seed: list[int], fitted: int, method: str, scales: tuple[float, ...]) -> float:
    """NLL of the common map minus that with groups, on new samples; 0 if no group has a map."""
    rng = np.random.default_rng(seed)
    common, classes = METHODS[method]
    logits, labels, groups = sample(rng, fitted, classes, scales)
    new_logits, new_labels, new_groups = sample(rng, MEASURED, classes, scales)
    grouped = posthoc.Grouped.fit(logits, labels, groups, method=method)
    likely = [
        np.asarray(probs)[np.arange(MEASURED), new_labels]
        for probs in (grouped(new_logits, new_groups), common(logits, labels)(new_logits))
    ]
    return float((np.log(likely[0]) - np.log(likely[1])).mean())


def main(arguments: list[str]) -> int:
    """Simulate and print."""
    repeats = int(arguments[0]) if arguments else 20
    cases = list(product(SCALES, FITTED, METHODS))
    found: dict[tuple[str, int, str], list[float]] = {case: [] for case in cases}
    for seed in track(range(repeats), description="simulating"):
        for number, (name, fitted, method) in enumerate(cases):
            found[name, fitted, method].append(gain([seed, number], fitted, method, SCALES[name]))
    table = Table("groups", "samples", "method", "own maps", "mean gain in NLL", "at worst")
    for (name, fitted, method), gains in found.items():
        own = sum(value != 0 for value in gains)
        table.add_row(
            name,
            f"{fitted}",
            method,
            f"{own} of {repeats}",
            f"{np.mean(gains):+.4f}",
            f"{min(gains):+.4f}",
        )
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

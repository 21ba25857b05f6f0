"""How often the alarm of the monitor is false over whole lives, and how soon it comes after a
change.

Prints the tables of ``docs/operation.md``::

    python -m benchmarks.monitor [--lives 1000] [--rows 100000] [--changed 200]
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from macc.monitor import Evidence

Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


def steady(rng: np.random.Generator, rows: int) -> Floats:
    """Confidences of a good classifier, 87 % on average."""
    return rng.beta(8, 1.2, rows)


def sure(_: np.random.Generator, rows: int) -> Floats:
    """Always 99 %."""
    return np.full(rows, 0.99)


def wandering(rng: np.random.Generator, rows: int) -> Floats:
    """Confidences that drift over the life, as inputs become harder and easier, with accuracy
    beside them.
    """
    level = np.cumsum(rng.normal(0, 0.02, rows))
    return 0.5 + 0.49 / (1 + np.exp(-level))


STREAMS: dict[str, Draw] = {"steady, 87 %": steady, "always 99 %": sure, "drifting": wandering}


def false_alarms(draw: Draw, lives: int, rows: int, alpha: float) -> int:
    """In how many lives of a calibrated stream the alarm is raised; the null has no tolerance."""
    raised = 0
    for life in range(lives):
        rng = np.random.default_rng([life, rows])
        confidence = draw(rng, rows)
        right = rng.random(rows) < confidence
        raised += (
            Evidence(0.0, 0.0).update(right - confidence, np.zeros(rows), limit=-math.log(alpha)) is not None
        )
    return raised


def delays(before: int, tolerance: float, alpha: float, lives: int) -> tuple[list[float], list[int], int]:
    """Rows from a drop of 5 points of accuracy to the alarm and to the change it names, and how
    many came earlier.
    """
    found: list[float] = []
    changes, early = [], 0
    for life in range(lives):
        rng = np.random.default_rng([life, before])
        rows = before + 30_000
        confidence = steady(rng, rows)
        accuracy = confidence.copy()
        accuracy[before:] -= 0.05
        right = rng.random(rows) < accuracy
        alarm = Evidence(-tolerance, tolerance).update(
            right - confidence, np.zeros(rows), limit=-math.log(alpha)
        )
        if alarm is None:
            found.append(math.inf)
        elif alarm.row <= before:
            early += 1
        else:
            found.append(alarm.row - before)
            changes.append(alarm.change_row - before - 1)
    return found, changes, early


def main() -> None:
    """Run the simulations and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lives", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--changed", type=int, default=200)
    options = parser.parse_args()
    print(
        "| rows before the drop | tolerance | alpha | median delay | 90 % within | change found, median error | too early |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for before in (1000, 10_000, 100_000):
        for tolerance in (0.0, 0.01):
            found, changes, early = delays(before, tolerance, 0.01, options.changed)
            delay, late = np.median(found), np.quantile(found, 0.9, method="higher")
            off = np.median(np.abs(changes))
            print(
                f"| {before} | {tolerance} | 0.01 | {delay:.0f} | {late:.0f} | {off:.0f} | {early} |",
                flush=True,
            )
    print("| calibrated stream | lives | rows each | alpha | false alarms |")
    print("|---|--:|--:|--:|--:|")
    for name, draw in STREAMS.items():
        raised = false_alarms(draw, options.lives, options.rows, 0.05)
        print(f"| {name} | {options.lives} | {options.rows} | 0.05 | {raised} |", flush=True)


if __name__ == "__main__":
    main()

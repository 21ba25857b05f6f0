"""Commands that are killed, each with the files that it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers import killed
from helpers.command import run
from helpers.predictions import sample, sharpened, write_csv
from macc.io.arrays import write_arrays

GRID = """
datasets: digits
seeds: 1
tests: {test: test}
set: {epochs: 2, subset: {train: 320}, selection: last}
methods: [CrossEntropy, CrossEntropy + MACC]
"""
NAMES = ["cat", "dog", "owl"]


@dataclass(frozen=True)
class Scenario:
    """What is done in a folder, again and again until it is done.

    Args:
        prepare: Writes what the command reads.
        act: Gives the command, with the folder as the working folder.
        shared: Whether two processes may work in one folder at once.
    """

    prepare: Callable[[Path], object]
    act: Callable[[], object]
    shared: bool = False


class RefusedError(Exception):
    """A command that should have ended well did not."""


def macc(*words: str) -> None:
    """A command, which has to end well."""
    ended = run(*words)
    if ended.code:
        raise RefusedError(f"macc {' '.join(words)}: {ended.err.strip()}")


def predictions(folder: Path) -> None:
    for name, seed in (("val", 0), ("test", 1)):
        probs, labels = sharpened(400, seed=seed)
        write_arrays(folder / f"{name}.npz", {"probs": probs, "labels": labels})


def parts(folder: Path) -> None:
    for part in range(2):
        probs, labels = sample(n=400, k=3, seed=part)
        write_csv(folder / f"{part}.csv", probs, [NAMES[k] for k in labels], ["label", *NAMES])


def states(folder: Path) -> None:
    parts(folder)
    for part in range(2):
        macc("evaluate", str(folder / f"{part}.csv"), "--state", str(folder / f"state{part}"))


def log(folder: Path) -> None:
    for day in (1, 2):
        probs, labels = sample(n=200, k=3, seed=day)
        rows = [
            f"2026-01-{day:02}T{k // 60:02}:{k % 60:02}:00,{NAMES[y]},"
            + ",".join(repr(float(p)) for p in row)
            for k, (row, y) in enumerate(zip(probs, labels, strict=True))
        ]
        (folder / f"day{day}.csv").write_text("\n".join(["time,label," + ",".join(NAMES), *rows]) + "\n")


def monitored() -> None:
    """A cron job that was killed gives its last batch again, and the state knows it."""
    for day in ("day1", "day2"):
        ended = run("monitor", "update", "m.state", f"{day}.csv", "--time", "time", "--batch", day)
        if ended.code and "counted" not in ended.err + ended.out:
            raise RefusedError(ended.err.strip())


SCENARIOS = {
    "train": Scenario(lambda _: None, lambda: killed.fit("runs")),
    "run": Scenario(
        lambda folder: (folder / "grid.yaml").write_text(GRID),
        lambda: macc("run", "grid.yaml", "--out", "runs"),
        shared=True,
    ),
    "calibrate": Scenario(
        predictions,
        lambda: macc(
            "calibrate", "--fit", "val.npz", "--apply", "test.npz", "--json", "c.json", "-o", "out.npz"
        ),
        shared=True,
    ),
    "evaluate": Scenario(
        parts, lambda: macc("evaluate", "0.csv", "--state", "s", "--json", "r.json"), shared=True
    ),
    "merge": Scenario(
        states,
        lambda: macc("merge", "state0", "state1", "--state", "both", "--json", "all.json"),
        shared=True,
    ),
    "monitor": Scenario(log, monitored),
}

"""Commands that are killed, each with the files that it needs."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from helpers import killed
from helpers.command import run
from helpers.predictions import sample, sharpened, write_csv
from macc import experiments, metrics
from macc.experiments import auto, workers
from macc.io.arrays import write_arrays
from macc.io.yaml import parse

GRID = """
datasets: digits
seeds: 1
tests: {test: test}
set: {epochs: 1, subset: {train: 320}, selection: last}
methods: [CrossEntropy, CrossEntropy + MACC]
"""
AUTO = """
methods: [{name: CE, loss: CrossEntropy}, {name: LS, loss: LabelSmoothing}]
seeds: 1
recipes: {features: {model: linear, epochs: 2, batch_size: 64, optimiser: {name: adam, lr: 0.01}}}
common: {selection: val_refinement, calibrate: temperature}
"""
SEARCH = GRID.replace("[CrossEntropy, CrossEntropy + MACC]", "['CrossEntropy + {1,3}*MACC']")
NAMES = ["cat", "dog", "owl"]


@dataclass(frozen=True)
class Scenario:
    """What is done in a folder, again and again until it is done.

    Args:
        prepare: Writes what the command reads.
        act: Gives the command, with the folder as the working folder.
        shared: Whether two processes may work in one folder at once.
        share: Of the time there is for kills, against the others.
        database: Whether it needs a PostgreSQL server.
        warm: Whether it can be done in the campaign's own process first.
    """

    prepare: Callable[[Path], object]
    act: Callable[[], object]
    shared: bool = False
    share: float = 1.0
    database: bool = False
    warm: bool = True


class RefusedError(Exception):
    """A command that should have ended well did not."""


def macc(*words: str) -> None:
    """A command, which has to end well."""
    ended = run(*words)
    if ended.code:
        raise RefusedError(f"macc {' '.join(words)}: {ended.err.strip()}")


def predictions(folder: Path) -> None:
    for name, seed in (("val", 0), ("test", 1)):
        probs, labels = sharpened(200, seed=seed)
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


def calibrated() -> None:
    """With the fewest resamples there can be: intervals are not what is tested."""
    for call in (metrics.evaluate, metrics.compare):
        call.__kwdefaults__["resamples"] = 100
    macc("calibrate", "--fit", "val.npz", "--apply", "test.npz", "--json", "c.json", "-o", "out.npz")


def experiment(text: str) -> dict[str, Callable]:
    """What is prepared and done for an experiment without its page; those that died are noticed
    after seconds.
    """

    def act() -> None:
        workers.execute.__kwdefaults__["heartbeat"] = 1
        experiments.run("grid.yaml", out="runs", workers=1, storage=os.environ.get("MACC_STORAGE"))

    return {"prepare": lambda folder: (folder / "grid.yaml").write_text(text), "act": act}


def features(folder: Path) -> None:
    draw = np.random.default_rng(0)
    labels = np.arange(400) % 3
    write_arrays(
        folder / "mine.npz",
        {
            "features": (draw.normal(size=(400, 6)) + 2 * np.eye(6)[labels]).astype("float32"),
            "labels": labels,
        },
    )


def automatic() -> None:
    """With two methods of its own, and more time than they need: all have their epochs."""
    auto._name = lambda *_: "auto-mine"  # and not by the folder that the file lies in
    auto._known = lambda: parse(AUTO, "auto.yaml")
    macc("auto", "arrays:mine.npz", "--budget", "1h", "-o", "model.safetensors")


def with_page() -> None:
    """Two processes of its own, and the page at the end."""
    macc("run", "grid.yaml", "--out", "runs", "--workers", "2")


SCENARIOS = {
    "train": Scenario(lambda _: None, lambda: killed.fit("runs"), share=2),
    "run": Scenario(**experiment(GRID), shared=True, share=2),
    "search": Scenario(**experiment(SEARCH), shared=True, share=2),
    "workers": Scenario(experiment(GRID)["prepare"], with_page, warm=False),
    "auto": Scenario(features, automatic),
    "postgres": Scenario(**experiment(SEARCH), shared=True, share=2, database=True),
    "calibrate": Scenario(predictions, calibrated, shared=True),
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

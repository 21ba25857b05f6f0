"""A small finished experiment for tests of its report and figures: two seeds, epochs, moments and a
shifted set.
"""

import functools
from pathlib import Path

from helpers.report_runs import HOSTILE, folder
from macc import experiments, training
from macc.experiments.running import folder_of


@functools.cache
def finished_experiment():
    """Its folder and result."""
    out = Path(folder()) / "experiment"
    mine = experiments.Experiment(
        name="mine",
        title=f"Mine {HOSTILE}",
        figure="certainty",
        kind="convergence",
        moments=True,
        datasets=["digits"],
        seeds=2,
        scale="smoke",
        set={"epochs": 2, "head.p": 0.2},
        tests={"test": "test", "shifted": "own/noise-1"},
        methods=["CrossEntropy", {"name": HOSTILE, "loss": "CrossEntropy + 5*MACC(warmup=10)"}],
    )
    result = experiments.run(mine, out=out, workers=1)
    return folder_of(mine, out), result


def run_of(method, seed=0):
    """The run of a method with a seed."""
    folder, result = finished_experiment()
    member = next(run for run in result.runs if (run.method, run.seed) == (method, seed))
    return training.open_run(folder.parent.parent / member.folder)

"""Starts training again and again in real processes and kills them:
``python killed.py FOLDER PLAN``.

One process imports everything and forks, so that a start costs no imports. A plan is a list of
``["time", share]`` or ``["sync", share]``: the child is killed with SIGKILL after that share of the
time of a whole run, or kills itself when it is about to sync a file, that is in the middle of
writing it, after that share of them.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from sklearn import datasets as _  # noqa: F401 - imported before forking

from macc import training
from macc.training import fitting

RECIPE = [
    "epochs=3",
    "subset.train=320",
    "loss=CrossEntropy + MACC(warmup=8)",
    "optimiser={name: adam, lr: 0.01}",
    "epoch_predictions=[test]",
    "selection=val_sce",
]


def fit(out, at_sync=None):
    if at_sync is not None:
        sync, calls = os.fsync, iter(range(10**9))

        def deadly(handle):
            if next(calls) == at_sync:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(handle)

        os.fsync = deadly
    fitting.RESAMPLES = 100  # the fewest there can be: intervals are not what is tested
    # Checkpoints after every other step or so: mid-epoch states are tested along with those at
    # epoch ends.
    training.fit(training.load("digits", overrides=RECIPE), out=out, checkpoint_seconds=0.02)


def count_syncs():
    """A list that gets longer with every file synced from here on."""
    sync, calls = os.fsync, []

    def counted(handle):
        calls.append(handle)
        sync(handle)

    os.fsync = counted
    return calls


def start(out, after_seconds=None, at_sync=None):
    """Whether a child that trains in ``out`` lived to the end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fit(out, at_sync)
            code = 0
        finally:
            os._exit(code)
    if after_seconds is not None:
        time.sleep(after_seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a child failed")
    return os.WIFEXITED(status)


if __name__ == "__main__":
    folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    syncs = count_syncs()
    # In this process, so that children inherit what a first step sets up; one thread, so that they
    # can.
    fit(folder / "warm")
    syncs = tuple(syncs)
    began = time.monotonic()
    start(folder / "whole")
    seconds = time.monotonic() - began
    report = []
    for index, (kind, share) in enumerate(plan):
        out = folder / f"{kind}-{index}"
        killed = not (
            start(out, after_seconds=share * seconds)
            if kind == "time"
            else start(out, at_sync=int(share * len(syncs)))
        )
        report.append([out.name, killed, sorted(p.name for p in out.rglob("checkpoint/*"))])
        start(out)
    sys.stdout.write(json.dumps(report))

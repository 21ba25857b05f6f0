"""One of two processes that train together: ``torchrun … pair.py OUT STEP``; rank 1 dies after STEP
steps, if not 0.

Checkpoints are written after every second step, so that states within an epoch are gone on from.
"""

import os
import signal
import sys

from macc import training
from macc.cli import displays
from macc.training import engine, fitting, record

STEP = record.Recorder.step


def train(out, last):
    taken = []

    def counted(self, learner, steps):
        STEP(self, learner, steps)
        taken.append(learner.step)
        if len(taken) == last and learner.accelerator.process_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    fitting.RESAMPLES = 100  # the fewest there can be: intervals are not what is tested
    record.AGREE_EVERY = 2
    record.Recorder.step = counted
    recipe = training.load(
        "digits",
        loss="CrossEntropy + MACC(warmup=8)",
        overrides=["epochs=2", "subset={train: 448, val: 41}", "schedule={name: constant}"],
    )
    training.fit(recipe, out=out, checkpoint_seconds=0, display=displays.of_training())


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
    engine.end_process(0)

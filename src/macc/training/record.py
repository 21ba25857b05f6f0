"""What training leaves: a line an epoch, checkpoints, weights that may be selected."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from macc import losses
from macc.data import Splits
from macc.io.tensors import write_tensors
from macc.training import checkpoints, engine
from macc.training._interrupts import Interrupted, StopRequest
from macc.training.display import Display
from macc.training.engine import Learner
from macc.training.recipe import Selection
from macc.training.restoring import unfinished_epoch
from macc.training.runs import (
    Run,
    append_row,
)
from macc.training.selection import at_chance, candidate_epochs

CHECKPOINT_SECONDS = 600.0


AGREE_EVERY = 50
"""Steps after which several processes ask each other whether to write a checkpoint."""


def chance(data: Splits) -> float:
    """The accuracy of always naming the largest class of the validation split."""
    return float(data.val.counts(data.num_classes).max()) / len(data.val)


@dataclass(kw_only=True)
class Recorder:
    """Writes what training leaves: rows, weights to choose from, checkpoints, predictions."""

    run: Run
    key: str
    display: Display
    stop: StopRequest
    chance: float
    checkpoint_seconds: float
    rules: Sequence[Selection]
    """The selections whose epochs are kept."""
    on_epoch: Callable[[Mapping[str, Any]], None] | None = None
    written: float = field(default_factory=time.monotonic)
    warned: bool = False

    def step(self, learner: Learner, steps: int) -> None:
        """Show it; within an epoch, stop if asked to and write a checkpoint when one is due."""
        self.display.step(learner.epoch * steps + learner.step)
        if learner.step == steps:
            return
        number, due = self.stop.number, time.monotonic() - self.written >= self.checkpoint_seconds
        if learner.accelerator.num_processes > 1:
            if learner.step % AGREE_EVERY:
                return
            number, due = engine.agreed(learner.accelerator, (number, due))
        if due or number is not None:
            self._checkpoint(learner)
        if number is not None:
            self._say_goodbye(learner, number)

    def epoch(self, learner: Learner) -> None:
        """Write everything an epoch leaves; the checkpoint first, so that a row stands for one."""
        history = learner.history
        row, epoch = history[-1], learner.epoch
        for split in learner.recipe.epoch_predictions:
            logits = engine.predicted_logits(learner, split)
            if learner.accelerator.is_main_process:
                labels = learner.data.parts()[split].labels
                self.run.write_predictions(f"epochs/{split}-{epoch}", logits=logits, labels=labels)
        if learner.recipe.trackers:
            learner.accelerator.log({k: v for k, v in row.items() if k != "epoch"}, step=epoch)
        candidates: set[int] = set().union(*(candidate_epochs(history, rule) for rule in self.rules))
        if learner.accelerator.is_main_process and epoch in candidates:
            write_tensors(weights_path(self.run, epoch), learner.model.state_dict())
        self._checkpoint(learner)
        if learner.accelerator.is_main_process:
            append_row(self.run.path / "history.jsonl", row)
            # Only now: a run that resumes from the checkpoint before needs the weights chosen then.
            for path in (self.run.path / "candidates").iterdir():
                if path.stem not in map(str, candidates):
                    path.unlink()
        self.display.epoch(row)
        self._say_if_at_chance(learner)
        if self.on_epoch is not None:
            self.on_epoch(row)
        number = engine.agreed(learner.accelerator, self.stop.number)
        if number is not None and epoch < learner.recipe.epochs:
            self._say_goodbye(learner, number)

    def _checkpoint(self, learner: Learner) -> None:
        engine.read_losses(learner)
        unfinished = unfinished_epoch(learner) if learner.step else []
        if learner.accelerator.is_main_process:
            scaler = learner.accelerator.scaler
            checkpoints.save(
                checkpoints.Checkpoint(
                    run=self.key,
                    epoch=learner.epoch,
                    step=learner.step,
                    processes=learner.accelerator.num_processes,
                    history=learner.history,
                    model=learner.model.state_dict(),
                    criterion=learner.criterion.state_dict(),
                    optimiser=learner.optimiser.state_dict()["state"],
                    scaler=scaler.state_dict() if scaler is not None else {},
                    unfinished=unfinished,
                ),
                self.run.path / "checkpoint",
            )
        self.written = time.monotonic()

    def _say_goodbye(self, learner: Learner, number: int) -> None:
        within = f" and {learner.step} steps of the next" if learner.step else ""
        if not learner.accelerator.is_main_process:
            raise Interrupted("", number)
        raise Interrupted(
            f"stopped after {learner.epoch} of {learner.recipe.epochs} epochs{within}; "
            f"the same command resumes from there ({self.run.path})",
            number,
        )

    def _say_if_at_chance(self, learner: Learner) -> None:
        if self.warned:
            return
        steps = len(learner.batches_of_epoch)
        warmups = [m.warmup for m in learner.criterion.modules() if isinstance(m, losses.Penalty)]
        after = math.ceil(max(warmups, default=0) / steps)
        if at_chance(learner.history, self.chance, len(learner.data.val), after=after):
            self.warned = True
            accuracy = 100 * learner.history[-1]["val/accuracy"]
            self.display.say(
                f"validation accuracy is at chance ({accuracy:.1f} %; always naming the largest class gives "
                f"{100 * self.chance:.1f} %): the network has collapsed or learns nothing; {_cure(learner)}"
            )


def _cure(learner: Learner) -> str:
    if learner.criterion.needs_moments:
        return "give MACC a longer warm-up or a smaller weight, or lower head.p or optimiser.lr"
    return "lower optimiser.lr, or look at the labels"


def weights_path(run: Run, epoch: int) -> Path:
    """The weights of an epoch that may still be chosen."""
    return run.path / "candidates" / f"{epoch}.safetensors"

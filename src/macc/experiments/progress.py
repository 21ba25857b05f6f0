"""How far an experiment is: a bar on a terminal, a line for each training elsewhere; on standard error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from macc.experiments.ledger import Ledger
from macc.training.progress import duration


class Progress:
    """Hears what workers tell and shows it.

    Args:
        show: Whether to show anything.
    """

    def __init__(self, *, show: bool) -> None:
        self.show = show
        self.console = Console(stderr=True)
        self.bar: Bar | None = None
        self.task: Any = None
        self.total = self.done = 0
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """One line that stays."""
        if self.show:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def of(self, ledger: Ledger) -> Iterator[None]:
        """Show how far the trainings of a ledger are."""
        if not self.show:
            yield
            return
        experiment, datasets = ledger.experiment, ledger.catalog.datasets
        self.total = experiment.trainings([dataset.spec for dataset in datasets])
        self.done = sum(map(ledger.finished, datasets))
        self.say(
            f"{experiment.name}, scale {experiment.scale}: at most {self.total} trainings, {self.done} of them done"
        )
        if self.console.is_terminal:
            self.bar = Bar(
                TextColumn("trainings"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.description}", markup=False),
                console=self.console,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total, completed=self.done)
        try:
            yield
        finally:
            if self.bar is not None:
                self.bar.stop()

    def tell(self, event: tuple[str, Any]) -> None:
        """Show an event of a worker."""
        if not self.show:
            return
        kind, content = event
        if kind == "say":
            self.say(content)
        elif kind == "failed":
            self.say(f"failed: {content[0].text}: {content[1]}")
        elif kind == "done":
            self.done += 1
            if self.bar is None:
                self.say(f"{self.done}/{self.total}  {content}  ({duration(time.monotonic() - self.began)})")
        if self.bar is not None and kind in ("begin", "epoch", "done"):
            text = content if isinstance(content, str) else f"{content[0]}, epoch {content[1]}/{content[2]}"
            self.bar.update(self.task, completed=self.done, description=text)

"""How far an experiment is: a bar on a terminal, a line for each training elsewhere; on standard error."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from macc.experiments._runs import Plan
from macc.training.progress import duration as duration


class Progress:
    """Hears what workers tell and shows it.

    Args:
        plan: The experiment.
        show: Whether to show anything.
    """

    def __init__(self, plan: Plan, *, show: bool) -> None:
        self.plan, self.show = plan, show
        self.console = Console(stderr=True)
        self.bar: Bar | None = None
        self.task: Any = None
        self.total = self.done = 0
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """One line that stays."""
        if self.show:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> "Progress":
        if not self.show:
            return self
        rows = [case.row for case in self.plan.cases]
        self.total = self.plan.experiment.trainings(rows)
        self.done = sum(self.plan.finished(case) for case in self.plan.cases)
        experiment = self.plan.experiment
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

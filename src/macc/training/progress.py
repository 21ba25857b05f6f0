"""What a person sees while a run trains: a bar in a terminal, a line an epoch elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from macc.metrics import headline

REFRESH_SECONDS = 0.1


class Display(Protocol):
    """Where training tells how far it is."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def begin(self, *, epochs: int, steps: int, done: int) -> None:
        """Training begins with ``done`` steps behind it."""

    def step(self, done: int) -> None:
        """So many steps of the whole run are done."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """An epoch is done."""

    def end(self) -> None:
        """Training is over, however it ended."""


class Silent:
    """Tells nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def begin(self, *, epochs: int, steps: int, done: int) -> None:
        """Nothing."""

    def step(self, done: int) -> None:
        """Nothing."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Lines:
    """One line an epoch, for files and pipes."""

    def __init__(self) -> None:
        self.epochs = 0
        self.started = 0.0
        self.first = 0

    def say(self, text: str) -> None:
        """Print it."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def begin(self, *, epochs: int, steps: int, done: int) -> None:
        """Note the time."""
        self.epochs, self.started = epochs, time.monotonic()
        self.first = done // steps

    def step(self, done: int) -> None:
        """Nothing: a line a step would be too many."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Print its numbers and the time left."""
        done = row["epoch"] - self.first
        left = (time.monotonic() - self.started) / max(1, done) * (self.epochs - row["epoch"])
        epoch = f"epoch {row['epoch']:>{len(str(self.epochs))}}/{self.epochs}"
        self.say(f"{epoch}  {row_text(row)} | {duration(left)} left")

    def end(self) -> None:
        """Nothing."""


class Bar:
    """A progress bar over the numbers of the last epoch, for a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.live: Live | None = None
        self.task = TaskID(0)
        self.epochs = 0
        self.steps = 1
        self.last = 0.0

    def say(self, text: str) -> None:
        """Print it above the bar."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, *, epochs: int, steps: int, done: int) -> None:
        """Show the bar."""
        self.epochs, self.steps = epochs, steps
        self.task = self.bar.add_task(self._epoch(done), total=epochs * steps, completed=done)
        self.live = Live(self.bar, console=self.console, refresh_per_second=8)
        self.live.start()

    def step(self, done: int) -> None:
        """Move the bar, ten times a second at most."""
        now = time.monotonic()
        if now - self.last > REFRESH_SECONDS:
            self.last = now
            self.bar.update(self.task, completed=done, description=self._epoch(done))

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Show its numbers."""
        done = row["epoch"] * self.steps
        self.bar.update(self.task, completed=done, description=self._epoch(done))
        if self.live is not None:
            self.live.update(Group(self.bar, Text(f"after epoch {row['epoch']}: {row_text(row)}")))

    def end(self) -> None:
        """Leave the bar as it is."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _epoch(self, done: int) -> str:
        return f"epoch {min(self.epochs, done // self.steps + 1)}/{self.epochs}"


def display_for(show: bool) -> Display:
    """A bar in a terminal, lines elsewhere, nothing if nothing is to be shown."""
    if not show:
        return Silent()
    console = Console()
    return Bar(console) if console.is_terminal else Lines()


def row_text(row: Mapping[str, Any]) -> str:
    """The numbers of an epoch: each term, then validation."""
    terms = [
        f"{key.removeprefix('train/')} {value:.3f}"
        for key, value in row.items()
        if key.startswith("train/") and key != "train/loss"
    ]
    found = [
        f"{metric.noun} {metric.unit.write(row[f'val/{name}'])}{metric.unit.suffix}"
        for name, metric in headline().items()
    ]
    return "  ".join([*terms, f"| val {'  '.join(found)}"])


def duration(seconds: float) -> str:
    """Hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

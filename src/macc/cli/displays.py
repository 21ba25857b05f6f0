"""What a person sees while a command works: bars in a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from macc.data import regenerated
from macc.data.corruptions import names as corruption_names
from macc.experiments.ledger import Ledger
from macc.experiments.listening import Listener
from macc.metrics import headline
from macc.tables import duration
from macc.training.display import Display

REFRESH_SECONDS = 0.1


class Lines(Display):
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

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Print its numbers and the time left."""
        done = row["epoch"] - self.first
        left = (time.monotonic() - self.started) / max(1, done) * (self.epochs - row["epoch"])
        epoch = f"epoch {row['epoch']:>{len(str(self.epochs))}}/{self.epochs}"
        self.say(f"{epoch}  {row_text(row)} | {duration(left)} left")


class Bar(Display):
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


def of_training() -> Display:
    """A bar in a terminal, lines elsewhere, on standard output."""
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


class Trainings(Listener):
    """An experiment's trainings: a bar in a terminal, elsewhere a line each, on standard error."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.task: Any = None
        self.total = self.done = 0
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        """One line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def of(self, ledger: Ledger) -> Iterator[None]:
        """Show how far the trainings of a ledger are."""
        experiment, datasets = ledger.experiment, ledger.catalog.datasets
        self.total = experiment.trainings([dataset.spec for dataset in datasets])
        self.done = sum(map(ledger.finished, datasets))
        self.say(
            f"{experiment.name}, scale {experiment.scale}: at most {self.total} trainings, {self.done} of them done"
        )
        if self.console.is_terminal:
            self.bar = Progress(
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


def write_corrupted(
    name: str, *, root: Path | None, out: Path | None, verify: bool, corruptions: Sequence[str] | None
) -> Path:
    """Write, with a bar on a terminal, elsewhere a line for each corruption, on standard error."""
    console = Console(stderr=True)
    total = len(corruption_names() if corruptions is None else corruptions)
    seen = 0
    columns = (TextColumn("{task.description}"), BarColumn(), "{task.completed}/{task.total} images")
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def start(corruption: str, images: int) -> None:
            nonlocal seen
            seen += 1
            words = f"{corruption} ({seen} of {total})"
            bar.reset(task, description=words, total=images)
            if not console.is_terminal:
                console.print(
                    f"{words}: {f'{images} images' if images else 'there already'}", highlight=False
                )

        return regenerated.write_corrupted(
            name,
            root=root,
            out=out,
            verify=verify,
            corruptions=corruptions,
            on_start=start,
            on_images=lambda count: bar.advance(task, count),
        )

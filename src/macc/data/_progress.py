"""Progress on standard error, where someone is watching."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def track(items: Iterable[T], *, total: int, doing: str) -> Iterator[T]:
    """``items``, with a bar on a terminal while they are worked through."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), "{task.completed}/{task.total}")
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield from progress.track(items, total=total, description=doing)


class _DownloadBar:
    """A bar of the shape that pooch drives: ``total``, ``update``, ``reset``, ``close``."""

    def __init__(self, progress: Progress, doing: str) -> None:
        self._progress = progress
        self._task = progress.add_task(doing, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, size: float) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.refresh()


@contextmanager
def download_bar(doing: str) -> Iterator[_DownloadBar]:
    """A bar for pooch's ``progressbar=``."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield _DownloadBar(progress, doing)

"""Many files measured as one: each by itself, and their sums put together as a tree.

What is computed depends on the files and their order alone. The tree has the same shape whoever
computes its parts and in whatever order they are ready, and no part is changed once it is there.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from macc.metrics import Calibration
from macc.predictions.opening import open_source
from macc.predictions.streaming import stream
from macc.words import documented, shown

FAN = 8
"""How many parts are put together at once."""

Node = TypeVar("Node")


class Summed(NamedTuple):
    """The sums of some samples, and where the first of them are from."""

    name: str
    sums: Calibration


class Engine(Protocol):
    """Who computes a tree: a leaf of each item, and one node of up to eight others."""

    def __call__(
        self,
        leaf: Callable[[Any, int], Any],
        join: Callable[[Iterable[Any]], Any],
        items: Sequence[Any],
    ) -> Any:
        """The top of the tree."""


def tree(
    leaf: Callable[[int], Node], join: Callable[[Iterable[Node]], Node], count: int, first: int = 0
) -> Node:
    """The top of a tree over so many leaves; neighbours are joined, from left to right."""
    if count == 1:
        return leaf(first)
    step = 1
    while step * FAN < count:
        step *= FAN
    end = first + count
    return join(tree(leaf, join, min(step, end - at), at) for at in range(first, end, step))


def here(leaf: Callable[[Any, int], Any], join: Callable[[Iterable[Any]], Any], items: Sequence[Any]) -> Any:
    """The engine of this process: one part after another, a few of them in memory."""
    return tree(lambda at: leaf(items[at], at), join, len(items))


def put_together(parts: Iterable[Summed | None]) -> Summed | None:
    """The sums of several parts, which stay as they are; those without samples may be missing."""
    total: Summed | None = None
    for part in parts:
        if part is None:
            continue
        if total is None:
            total = Summed(part.name, copy.deepcopy(part.sums))
            continue
        try:
            total.sums.merge(part.sums)
        except ValueError as error:
            raise ValueError(f"{part.name} and {total.name}: {error}") from None
    return total


def files_of(path: Path) -> list[Path]:
    """The files of a pattern such as ``folder/*.parquet``, by name; a path is itself."""
    if path.exists() or not any(sign in str(path) for sign in "*?["):
        return [path]
    start = Path(path.anchor) if path.anchor else Path()
    found = sorted(start.glob(str(path.relative_to(path.anchor) if path.anchor else path)))
    if not found:
        raise ValueError(f"{shown(path)} does not exist, and is a pattern of no file on this machine")
    return found


@documented
def stream_files(
    paths: Sequence[Path],
    reading: Mapping[str, Any],
    *,
    positive: str | None = None,
    bins: int = 15,
    normalise: bool = False,
    engine: Engine = here,
    on_progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Measure files of rows as one data set, in constant memory.

    Args:
        paths: The files; the same files in the same order give the same result to the last digit.
        reading: The options of :func:`open_source`.
        positive: The positive class of two; class 1 by default.
        engine: Who computes.
        on_progress: Called with the share of the files read; of no use to an engine elsewhere.
    """
    how = _How(dict(reading), positive, bins, normalise)
    if reading.get("weight_column") is not None:
        how = _How(dict(reading), positive, bins, normalise, engine(how.is_relative, any, paths))
    leaf: Callable[[Path, int], Summed] = how.measured
    if on_progress is not None:
        leaf = partial(_told, how.measured, on_progress, len(paths))
    return cast("Summed", engine(leaf, put_together, paths)).sums


def _told(
    measured: Callable[[Path, int], Summed],
    on_progress: Callable[[float], None],
    count: int,
    path: Path,
    number: int,
) -> Summed:
    part = measured(path, number)
    on_progress((number + 1) / count)
    return part


@dataclass(frozen=True)
class _How:
    """How a file is measured, on whatever machine."""

    reading: dict[str, Any]
    positive: str | None
    bins: int
    normalise: bool
    relative_weights: bool | None = None

    def is_relative(self, path: Path, _: int) -> bool:
        """Whether a file has weights that are not whole; then those of all files are relative."""
        weighing = open_source(path, **self.reading).weighing()
        return weighing is not None and weighing.relative

    def measured(self, path: Path, number: int) -> Summed:
        """The sums of one file. Its groups are those of its number, so that files have others."""
        sums = stream(
            open_source(path, **self.reading),
            positive=self.positive,
            bins=self.bins,
            normalise=self.normalise,
            seed=number,
            relative_weights=self.relative_weights,
        )
        sums.sums()
        return Summed(shown(path), sums)

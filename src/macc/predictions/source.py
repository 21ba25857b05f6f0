"""A file of predictions, opened and not read yet: read whole or, where that would not fit, a batch at a time."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from macc.metrics.inputs import predictions
from macc.metrics.refusals import InputError
from macc.predictions.refusals import FileWords
from macc.tables import thousands
from macc.words import listed, quoted, shown

# 16 MB of float64 at most; Python's own numbers, which a .csv becomes first, take four times that.
_BATCH_ELEMENTS = 2**21
_MOST_ROWS = 2**16
# From how many samples on a column of whole numbers is no accident, and from how many a class on a class
# without samples is none.
_FEW_SAMPLES = 20
_SAMPLES_A_CLASS = 50


@dataclass(frozen=True)
class Loaded:
    """Scores ``(N, K)`` or ``(N,)``, labels ``(N,)``, whether the scores are logits, and class names if known.

    ``rows`` says where in its file each sample stands, counted from 0; without it samples are all of the file.
    ``answers`` says that scores are the confidence of answers, and labels whether they were right.
    """

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    from_logits: bool
    classes: list[str] | None
    rows: npt.NDArray[np.int64] | None = None
    answers: bool = False

    def probs(self) -> npt.NDArray[Any]:
        """The scores as probabilities."""
        if not self.from_logits:
            return self.scores
        return predictions(self.scores, self.labels, from_logits=True).matrix().numpy()


class Batch(NamedTuple):
    """Some samples: scores ``(N, K)`` or ``(N,)``, class indices, and their rows in the file, from 0."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


class Raw(NamedTuple):
    """Neighbouring rows of a file, with labels as the file has them, or all columns that are not classes."""

    scores: npt.NDArray[Any]
    labels: "npt.NDArray[Any] | list[str]"
    others: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A file of predictions, opened and not read yet.

    ``place`` says in words where a row stands. ``suspect`` says that every column of the file counts as a
    class because nobody said otherwise, so that one may be none. ``columns`` are those of a table, in their order;
    ``raw`` reads the rows as they are. ``answers`` is as in :class:`Loaded`.
    """

    path: Path
    num_rows: int
    num_classes: int
    classes: list[str] | None
    words: FileWords
    from_logits: bool
    suspect: bool
    columns: list[str] | None
    read: Callable[[], Iterator[Batch]]
    raw: Callable[[], Iterator[Raw]]
    answers: bool = False

    def load(self, *, normalise: bool = False) -> Loaded:
        """Everything at once, the values checked.

        Args:
            normalise: Rows of probabilities are going to be divided by their sum.
        """
        batches = list(self._watched())
        # Arrays come in one piece, which is not copied.
        scores, labels, rows = (
            parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in zip(*batches, strict=True)
        )
        try:
            predictions(scores, labels, from_logits=self.from_logits, normalise=normalise).check()
        except ValueError as error:
            raise self.refusal(error, rows) from None
        return Loaded(scores, labels, self.from_logits, self.classes, rows, self.answers)

    def batches(self) -> Iterator[Batch]:
        """As many samples at a time as fit, whatever pieces the file has."""
        size = rows_at_once(self.num_classes)
        parts: list[Batch] = []
        waiting = 0
        for batch in self._watched():
            parts.append(batch)
            waiting += len(batch.labels)
            while waiting >= size:
                whole = [np.concatenate(part) for part in zip(*parts, strict=True)]
                yield Batch(*(part[:size] for part in whole))
                parts = [Batch(*(part[size:] for part in whole))]
                waiting -= size
        if waiting:
            yield Batch(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def rows(self, *, normalise: bool = False) -> Iterator[Raw]:
        """The rows as they are, without a look at labels; the scores are checked.

        Args:
            normalise: Rows of probabilities are going to be divided by their sum.
        """
        first = 0
        for part in self.raw():
            size = len(part.scores)
            anything = np.zeros(size, dtype=np.int64)
            try:
                predictions(part.scores, anything, from_logits=self.from_logits, normalise=normalise).check()
            except ValueError as error:
                raise self.refusal(error, np.arange(first, first + size)) from None
            first += size
            yield part

    def place(self, row: int) -> str:
        """Where a row stands: ``p.csv, line 7``."""
        return f"{shown(self.path)}, {self.words.place(row)}"

    def refusal(self, error: ValueError, rows: npt.NDArray[np.int64]) -> ValueError:
        """What is wrong with samples that stand in these rows, in the words of the file."""
        if not isinstance(error, InputError):
            return ValueError(f"{shown(self.path)}: {error}")
        words = FileWords(
            declare_logits=self.words.declare_logits,
            more_columns=self.words.more_columns,
            classes=self.classes,
            place=lambda at: self.words.place(int(rows[at])),
        )
        return error.said_of(self.path, words)

    def _watched(self) -> Iterator[Batch]:
        """The file, with a look at what may be no class: a column of whole numbers, or one that never occurs."""
        counts = np.zeros(self.num_classes, dtype=np.int64)
        whole = np.full(self.num_classes, self.suspect)
        outside = np.zeros(self.num_classes, dtype=bool)
        for batch in self.read():
            counts += np.bincount(batch.labels, minlength=self.num_classes)
            if whole.any():
                some = batch.scores[:, whole]
                outside[whole] |= ((some < 0) | (some > 1)).any(0)
                whole[whole] = (some == np.rint(some)).all(0)
                self._refuse_whole(whole & outside, whole, int(counts.sum()), done=False)
            yield batch
        samples = int(counts.sum())
        if samples == 0:
            raise ValueError(f"{shown(self.path)} has no samples with a label")
        self._refuse_whole(whole & outside, whole, samples, done=True)
        if self.suspect and samples >= _SAMPLES_A_CLASS * self.num_classes and not counts.all():
            never = [name for name, count in zip(self.classes or (), counts, strict=True) if not count]
            warnings.warn(
                f"{shown(self.path)}: no label among {thousands(samples)} is {listed(never)}; what is not a class "
                "is left out with --ignore, and --class-columns names those that are",
                stacklevel=2,
            )

    def _refuse_whole(
        self, strange: npt.NDArray[np.bool_], whole: npt.NDArray[np.bool_], samples: int, *, done: bool
    ) -> None:
        """Refuse numbers or folds among the classes; logits may still turn out to be other than whole."""
        if not strange.any() or whole.all() or samples < _FEW_SAMPLES or (self.from_logits and not done):
            return
        name = (self.classes or [])[int(np.flatnonzero(strange)[0])]
        raise ValueError(
            f"{shown(self.path)}: the column {quoted(name)} holds whole numbers only, and would count as a class; "
            "leave it out with --ignore, or name the columns of classes with --class-columns"
        )


def rows_at_once(width: int) -> int:
    """How many rows of so many numbers are read together."""
    return max(1, min(_MOST_ROWS, _BATCH_ELEMENTS // width))


def paired_batches(one: Source, two: Source) -> Iterator[tuple[Batch, Batch]]:
    """Batches of both files, refused where the files are not of the same samples."""
    check_same_files(one, two)
    for a, b in zip(one.batches(), two.batches(), strict=False):
        check_same_samples(one, a, two, b)
        yield a, b


def check_same_files(one: Source, two: Source) -> None:
    """Refuse to compare files of other numbers of samples or of other classes."""
    if one.num_rows != two.num_rows:
        raise ValueError(
            f"{shown(one.path)} has {one.num_rows} samples and {shown(two.path)} has {two.num_rows}; "
            "compare the same samples"
        )
    if one.classes is not None and two.classes is not None and one.classes != two.classes:
        raise ValueError(
            f"{shown(one.path)} and {shown(two.path)} have other class columns, or in another order; "
            "make them agree"
        )


def check_same_samples(one: Source, a: "Batch | Loaded", two: Source, b: "Batch | Loaded") -> None:
    """Refuse to compare samples of other rows, which missing labels lead to, or of other labels."""
    for mine, theirs, what in ((a.rows, b.rows, "missing labels"), (a.labels, b.labels, "labels")):
        if mine is None or theirs is None or np.array_equal(mine, theirs):
            continue
        shorter = min(len(mine), len(theirs))
        wrong = np.flatnonzero(mine[:shorter] != theirs[:shorter])
        at = int(wrong[0]) if len(wrong) else shorter - 1
        row = at if a.rows is None or b.rows is None else int(min(a.rows[at], b.rows[at]))
        raise ValueError(
            f"{one.place(row)}, and {two.place(row)}, disagree on {what}; "
            "compare the same samples in the same order"
        )

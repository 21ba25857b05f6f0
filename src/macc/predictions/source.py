"""A file of predictions, opened and not read yet, to be read whole or in batches."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from macc.metrics.inputs import predictions
from macc.metrics.refusals import InputError
from macc.predictions.refusals import FileWords
from macc.predictions.weights import weights_of
from macc.tables import thousands
from macc.words import listed, quoted, shown

if TYPE_CHECKING:
    from macc.predictions.maps import Maps

# 16 MB of float64 at most; Python's own numbers, which a .csv becomes first, take four times that.
_BATCH_ELEMENTS = 2**21
_MOST_ROWS = 2**16
# From how many samples on a column of whole numbers is no accident, and from how many a class on a
# class without samples is none.
_FEW_SAMPLES = 20
_SAMPLES_A_CLASS = 50


@dataclass(frozen=True)
class Loaded:
    """Scores ``(N, K)`` or ``(N,)``, labels ``(N,)``, whether they are logits, names if known.

    ``rows`` says where in its file each sample stands, counted from 0; without it samples are all
    of the file. ``answers`` says that scores are the confidence of answers, and labels whether they
    were right. ``weights`` are those of a column that was named.
    """

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    from_logits: bool
    classes: list[str] | None
    rows: npt.NDArray[np.int64] | None = None
    answers: bool = False
    weights: npt.NDArray[np.float64] | None = None

    def probs(self) -> npt.NDArray[Any]:
        """The scores as probabilities."""
        if not self.from_logits:
            return self.scores
        return predictions(self.scores, self.labels, from_logits=True).matrix().numpy()


class Batch(NamedTuple):
    """Some samples: scores ``(N, K)`` or ``(N,)``, classes, rows from 0, weights if known."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64] | None = None


def _joined(batches: list[Batch]) -> Batch:
    """Batches in one; one alone is not copied."""
    if len(batches) == 1:
        return batches[0]
    scores, labels, rows = (np.concatenate([batch[i] for batch in batches]) for i in range(3))
    weights = [batch.weights for batch in batches if batch.weights is not None]
    return Batch(scores, labels, rows, np.concatenate(weights) if weights else None)


def _cut(batch: Batch, some: slice) -> Batch:
    scores, labels, rows, weights = batch
    return Batch(scores[some], labels[some], rows[some], None if weights is None else weights[some])


class Weighing(NamedTuple):
    """The sum of the weights of a file, and whether they are relative and not whole."""

    total: float
    relative: bool


class Raw(NamedTuple):
    """Neighbouring rows of a file with its labels, or all columns that are not classes."""

    scores: npt.NDArray[Any]
    labels: "npt.NDArray[Any] | list[str]"
    others: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A file of predictions, opened and not read yet.

    ``place`` says in words where a row stands. ``suspect`` says that every column of the file
    counts as a class because nobody said otherwise, so that one may be none. ``columns`` are those
    of a table, in their order; ``raw`` reads the rows as they are. ``answers`` is as in
    :class:`Loaded`. ``weight_column`` is among what ``raw`` gives beside the scores.
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
    dense: bool = False
    weight_column: str | None = None

    def load(self, *, normalise: bool = False) -> Loaded:
        """Everything at once, the values checked.

        Args:
            normalise: Rows of probabilities are going to be divided by their sum.
        """
        # Arrays come in one piece, which is not copied.
        scores, labels, rows, weights = _joined(list(self._watched()))
        try:
            predictions(scores, labels, from_logits=self.from_logits, normalise=normalise).check()
        except ValueError as error:
            raise self.refusal(error, rows) from None
        if weights is not None and not weights.any():
            raise ValueError(self._no_weight())
        return Loaded(scores, labels, self.from_logits, self.classes, rows, self.answers, weights)

    def batches(self) -> Iterator[Batch]:
        """As many samples at a time as fit, whatever pieces the file has."""
        size = rows_at_once(self.num_classes)
        parts: list[Batch] = []
        waiting = 0
        for batch in self._watched():
            parts.append(batch)
            waiting += len(batch.labels)
            while waiting >= size:
                whole = _joined(parts)
                yield _cut(whole, slice(None, size))
                parts = [_cut(whole, slice(size, None))]
                waiting -= size
        if waiting:
            yield _joined(parts)

    def weighing(self) -> Weighing | None:
        """What the weights of all rows are, by their column; None where there is none."""
        if self.weight_column is None:
            return None
        total, relative, first = 0.0, False, 0
        for part in self.raw():
            weights = weights_of(self.path, self.words, part.others[self.weight_column], first)
            first += len(weights)
            total += float(weights.sum())
            relative = relative or bool((weights != np.rint(weights)).any())
        if total == 0:
            raise ValueError(self._no_weight())
        return Weighing(total, relative)

    def rows_in_memory(self) -> float:
        """How many rows there are once those of whole weights are repeated."""
        weighing = self.weighing()
        return self.num_rows if weighing is None or weighing.relative else weighing.total

    def _no_weight(self) -> str:
        name = quoted(self.weight_column or "")
        return f"{shown(self.path)}: all weights in {name} are 0; at least one sample has to count"

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
        """The file, with a look at what may be no class: whole numbers, or never a label."""
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
        """Refuse numbers or folds among the classes; logits may be whole at first."""
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


def check_same_files(one: "Source | Maps", two: "Source | Maps") -> None:
    """Refuse to compare files of other numbers of samples or of other classes."""
    if one.dense != two.dense:
        maps, rows = (one, two) if one.dense else (two, one)
        raise ValueError(
            f"{shown(maps.path)} has maps of whole images and {shown(rows.path)} has rows; they cannot be compared"
        )
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


def check_same_samples(
    one: "Source | Maps", a: "Batch | Loaded", two: "Source | Maps", b: "Batch | Loaded"
) -> None:
    """Refuse to compare samples of other rows, which missing labels lead to, or of other labels."""
    both = (
        (a.rows, b.rows, "missing labels"),
        (a.labels, b.labels, "labels"),
        (a.weights, b.weights, "weights"),
    )
    for mine, theirs, what in both:
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

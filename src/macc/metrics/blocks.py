"""A few rows of predictions at a time, so few that the processor's cache holds them.

Numpy computes it, on one thread. Torch shares every step of more than 32 768 numbers among threads
and waits for the last of them: on a busy machine the waits take many times as long as the steps.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Doubles: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

# 1 MB of float32 and 2 of float64, which stay in a core's cache or in the one that cores share;
# fewer cost more in calls than they save.
_ELEMENTS = 2**18
# Rows so short that starting on each costs more than a copy by class.
_FEW_CLASSES = 32
# Each thread keeps its last memory: new memory costs a page fault every 4 kB.
_kept = threading.local()


class Entries(NamedTuple):
    """Some entries of a block: row, class and value of each."""

    rows: Integers
    classes: Integers
    values: Floats


class Rows:
    """Scores of some samples, float32 or float64; what is asked of them is computed then.

    Args:
        values: ``(M, K)``, or ``(K, M)`` if ``turned``.
        turned: Every step then goes along the samples, and not along a short row.
    """

    def __init__(self, values: Floats, *, turned: bool):
        self.values, self.turned = values, turned
        self._size = values.shape[1]

    @classmethod
    def of_scores(cls, scores: Tensor) -> "Rows":
        """Of ``(M, K)``; few classes are turned."""
        narrow = scores.dtype in (torch.float16, torch.bfloat16)
        values = (scores.float() if narrow else scores).numpy()
        turned = values.shape[1] <= _FEW_CLASSES
        return cls(np.ascontiguousarray(values.T if turned else values), turned=turned)

    def __len__(self) -> int:
        return int(self.values.shape[self.turned])

    @cached_property
    def scores(self) -> Floats:
        """``(M, K)``."""
        return np.ascontiguousarray(self.values.T) if self.turned else self.values

    @cached_property
    def predicted(self) -> Integers:
        """The class of the largest score of each row, the first of equal ones."""
        found: Integers = self.scores.argmax(axis=1)
        return found

    @cached_property
    def highest(self) -> Floats:
        """The largest score of each row, NaN where one is."""
        found: Floats = self.values.max(axis=0) if self.turned else self.of(self.predicted)
        return found

    @property
    def lowest(self) -> float:
        """The smallest score of all."""
        return float(self.values.min())

    @property
    def most(self) -> float:
        """The largest score of all."""
        return float((self.values if self.turned else self.highest).max())

    @property
    def sums(self) -> Floats:
        """The sum of each row."""
        # Along rows einsum is twice as fast as sum.
        found: Floats = self.values.sum(axis=0) if self.turned else np.einsum("ij->i", self.values)
        return found

    @property
    def squares(self) -> Floats:
        """The sum of the squares of each row."""
        found: Floats = np.einsum("ij,ij->j" if self.turned else "ij,ij->i", self.values, self.values)
        return found

    def totals(self, weights: Doubles | None = None) -> Floats:
        """The sum over the rows, or over their multiples, of each class, ``(K,)``."""
        found: Floats = (
            self.values.sum(axis=int(self.turned))
            if weights is None
            else np.einsum("ij,j->i" if self.turned else "ij,i->j", self.values, weights)
        )
        return found

    def of(self, classes: Integers) -> Floats:
        """The score of one class of each row, ``(M,)``."""
        places = classes + self._starts if not self.turned else classes * self._size
        if self.turned:
            places += self._starts
        return self.values.reshape(-1).take(places)

    @cached_property
    def _starts(self) -> Integers:
        """Where each sample has its score of the first class."""
        return np.arange(len(self)) * (1 if self.turned else self._size)

    def right(self, labels: Integers, own: Floats) -> npt.NDArray[np.bool_]:
        """Whether the label of each row, whose score is ``own``, is the predicted class."""
        alone = self.turned and np.count_nonzero(self.values == self.highest) == len(self)
        # Of several largest scores the first is predicted.
        found: npt.NDArray[np.bool_] = own == self.highest if alone else self.predicted == labels
        return found

    def above(self, threshold: float) -> Entries:
        """The entries above a threshold, which is compared as the float64 it is."""
        values, size = self.values, self._size
        limit = values.dtype.type(threshold)
        if float(limit) > threshold:  # rounded up: the next smaller one has the same entries above it
            limit = np.nextafter(limit, values.dtype.type(0))
        higher = values > limit
        places = np.flatnonzero(higher)
        found = values.reshape(-1).take(places)
        if not self.turned:
            rows = places // size
            return Entries(rows, places - rows * size, found)
        ends = np.searchsorted(places, np.arange(len(values) + 1) * size)
        classes = np.arange(len(values)).repeat(np.diff(ends))
        return Entries(places - classes * size, classes, found)


class Block:
    """Some checked rows of predictions, good until the next block.

    Args:
        rows: Probabilities or logits.
        labels: Class indices.
        weights: Of each row, if they have any.
        memory: Float64, as many as the rows have values, to be written to.
        from_logits: The scores are logits.
        normalise: Rows are to be divided by their sums.
    """

    def __init__(
        self,
        rows: Rows,
        labels: Integers,
        weights: Doubles | None,
        memory: Doubles,
        *,
        from_logits: bool,
        normalise: bool,
    ):
        self.labels, self.weights = labels, weights
        self._memory = memory.reshape(rows.values.shape)
        self.rows = rows
        """Probabilities, in float32 or float64 as they came."""
        if from_logits or normalise:
            self.rows = Rows(self._memory, turned=rows.turned)
            # Each row's number beside the scores of the row.
            beside = (slice(None),) if rows.turned else (slice(None), None)
            if from_logits:
                np.subtract(rows.values, rows.highest[beside], out=self._memory)
                own = self.rows.of(labels)
                np.exp(self._memory, out=self._memory)
                sums = self.rows.sums
                # Without underflow, which the logarithm of a probability would have.
                self.log_likelihood = (own - np.log(sums)).astype(np.float64, copy=False)
            else:
                self._memory[:] = rows.values
                sums = self.rows.sums
            self._memory /= sums[beside]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def wide(self) -> Rows:
        """Probabilities in float64; overwritten by the next block."""
        if self.rows.values.dtype == np.float64:
            return self.rows
        self._memory[:] = self.rows.values
        return Rows(self._memory, turned=self.rows.turned)

    @property
    def probs(self) -> Doubles:
        """The same, ``(M, K)``."""
        return self.wide.scores.astype(np.float64, copy=False)

    @property
    def confidence(self) -> Doubles:
        """The largest probability of each row."""
        return self.rows.highest.astype(np.float64)

    @cached_property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether the predicted class of each row is its label."""
        return self.rows.right(self.labels, self.own)

    @cached_property
    def own(self) -> Floats:
        """The probability of each label, in the type it came in."""
        return self.rows.of(self.labels)

    @cached_property
    def label_probs(self) -> Doubles:
        """The same in float64."""
        return self.own.astype(np.float64)

    @cached_property
    def log_likelihood(self) -> Doubles:
        """Its logarithm."""
        with np.errstate(divide="ignore"):
            return np.log(self.label_probs)

    def of_class(self, index: int) -> Doubles:
        """The probability of one class of each row."""
        rows = self.rows
        return (rows.values[index] if rows.turned else rows.values[:, index]).astype(np.float64)


def rows_at_once(num_samples: int, num_classes: int) -> int:
    """How many rows a block has."""
    return min(num_samples, max(1, _ELEMENTS // num_classes))


@contextmanager
def memory(size: int) -> Iterator[Doubles]:
    """Memory that nobody else uses until it is given back."""
    kept: Doubles | None = vars(_kept).pop("memory", None)
    if kept is None or len(kept) < size:
        kept = np.empty(size)
    try:
        yield kept[:size]
    finally:
        _kept.memory = kept

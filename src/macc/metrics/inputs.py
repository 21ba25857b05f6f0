"""What every metric accepts, checked once: probabilities or declared logits, and class indices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.metrics.blocks import Block, Rows, memory, rows_at_once
from macc.metrics.refusals import InputError

Array: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[Any]

_MOST_BINS = 10_000
_MOST_RESAMPLES = 10_000
MOST_REPEATED = 100_000_000
"""To how many samples whole weights may add up where all of them are held in memory."""


@dataclass(frozen=True)
class Predictions:
    """Scores ``(N, K)`` and labels ``(N,)`` on the CPU, of good shapes, types and labels.

    The values of the scores are checked by :meth:`blocks` while it converts them, because reading a
    large matrix a second time would cost as much as most metrics do, or before by :meth:`check`.
    """

    scores: Tensor
    labels: Tensor
    from_logits: bool
    normalise: bool
    checked: bool = False
    weights: Tensor | None = None
    """The weight of each sample, float64 ``(N,)``, above 0 (:func:`counted`); else 1."""

    @property
    def num_samples(self) -> int:
        """N."""
        return self.scores.shape[0]

    @property
    def total(self) -> float:
        """The sum of the weights, which is N without any."""
        return self.num_samples if self.weights is None else float(self.weights.sum())

    def mean(self, values: Tensor) -> float:
        """The mean of a number of each sample, ``(N,)``."""
        if self.weights is None:
            return float(values.mean())
        return float(values @ self.weights) / self.total

    @property
    def num_classes(self) -> int:
        """K."""
        return self.scores.shape[1]

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in order, a block at a time."""
        rows = rows_at_once(self.num_samples, self.num_classes)
        labels, weights = self.labels.numpy(), None if self.weights is None else self.weights.numpy()
        with memory(rows * self.num_classes) as flat:
            for start in range(0, self.num_samples, rows):
                some = slice(start, start + rows)
                found = self.rows(some)
                yield Block(
                    found,
                    labels[some],
                    None if weights is None else weights[some],
                    flat[: found.values.size],
                    from_logits=self.from_logits,
                    normalise=self.normalise,
                )

    def rows(self, some: slice) -> Rows:
        """The checked scores of some samples."""
        given = Rows.of_scores(self.scores[some])
        return given if self.checked else self._check(given, some.start or 0)

    def chosen(self, counts: "Counted | None") -> "Predictions":
        """The samples that count, as often as they do; checked first: errors name rows as given."""
        if counts is None:
            return self
        given, rows = self.check(), counts.rows
        return replace(given, scores=given.scores[rows], labels=given.labels[rows], weights=counts.weights)

    def part(self, kept: Tensor) -> "Predictions":
        """Some samples, ``(N,)`` booleans; relative weights are scaled to their new number."""
        weights = None if self.weights is None else _effective(self.weights[kept])
        return replace(self, scores=self.scores[kept], labels=self.labels[kept], weights=weights)

    def repeated(self) -> "Predictions":
        """Samples of whole weights, repeated; others as they are."""
        return self if self.weights is None else replace(self, weights=None).chosen(counted(self.weights))

    def matrix(self) -> Tensor:
        """All checked probabilities at once, for what has to sort columns.

        The values keep the type they were given in, because float32 sorts twice as fast as float64.
        """
        if not (self.from_logits or self.normalise):
            return self.check().scores
        probs = self.scores.new_empty(self.scores.shape, dtype=torch.float64)
        start = 0
        for block in self.blocks():
            probs[start : start + len(block)] = torch.from_numpy(block.probs)
            start += len(block)
        return probs

    def check(self) -> "Predictions":
        """These predictions, the values of all scores known to be good."""
        scores = self.scores
        if not self.checked:
            rows = rows_at_once(self.num_samples, self.num_classes)
            for start in range(0, self.num_samples, rows):
                given = Rows.of_scores(self.scores[start : start + rows])
                found = self._check(given, start)
                if found is not given:
                    scores = scores.clone() if scores is self.scores else scores
                    scores[start : start + rows] = torch.from_numpy(found.scores)
        return Predictions(scores, self.labels, self.from_logits, self.normalise, True, self.weights)

    def _check(self, given: Rows, start: int) -> Rows:
        """Refuse rows that are no distributions; comparisons are written so that a NaN fails too.

        A row may sum to a little more than 1, and a single entry then be more than 1: it comes back
        as 1, so that no metric leaves its range.
        """
        if self.from_logits:
            highest = given.highest
            if not np.isfinite(highest).all():
                self._refuse_not_finite(start + int((~np.isfinite(highest)).argmax()))
            return given
        if given.lowest < 0:
            scores = given.scores
            row, column = divmod(int((scores < 0).argmax()), self.num_classes)
            raise InputError(
                lambda words: (
                    f"{words.entry('probs', start + row, column)} is {scores[row, column]:.6g}, and a "
                    f"probability is never negative; {words.declare_logits} if these are logits"
                )
            )
        if self.normalise:
            sums = given.scores.sum(axis=1, dtype=np.float64)
            good = (sums > 0) & np.isfinite(sums)
            if not good.all():
                row = int((~good).argmax())
                raise InputError(
                    lambda words: (
                        f"{words.total('probs', start + row)} to {sums[row]:.6g} and cannot be normalised; "
                        "remove the sample or repair what wrote it"
                    )
                )
            return given
        sums = given.sums
        tolerance = self._tolerance()
        if sums.min() >= 1 - tolerance and sums.max() <= 1 + tolerance:
            if given.most <= 1:
                return given
            return Rows(given.values.clip(max=1), turned=given.turned)
        row = int((~(np.abs(sums - 1) <= tolerance)).argmax())
        if not np.isfinite(given.scores[row]).all():
            self._refuse_not_finite(start + row)
        raise InputError(
            lambda words: (
                f"{words.total('probs', start + row)} to {sums[row]:.6g}, not 1; {words.declare_logits} "
                f"if these are logits, or {words.rescale} to rescale rows{words.more_columns} (scores of several "
                "labels per sample are not a distribution over classes)"
            )
        )

    def _tolerance(self) -> float:
        """How far rounding may take the sum of a row from 1: relative errors add up to eps."""
        kind = torch.finfo(self.scores.dtype)
        if self.scores.dtype in (torch.float16, torch.bfloat16):
            return 2 * kind.eps + self.num_classes * kind.smallest_normal * kind.eps
        return max(1e-4, self.num_classes * kind.eps)

    def _refuse_not_finite(self, row: int) -> NoReturn:
        column = int((~self.scores[row].isfinite()).nonzero()[0, 0])
        name = "logits" if self.from_logits else "probs"
        value = self.scores[row, column].item()
        raise InputError(
            lambda words: (
                f"{words.entry(name, row, column)} is {value}; remove the sample or repair what wrote it"
            )
        )


class ReadAs(TypedDict, total=False):
    """How scores and labels are read, as :func:`predictions` takes it, for every metric."""

    from_logits: bool
    normalise: bool
    weights: Array | None


def predictions(
    probs: Array,
    labels: Array,
    *,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> Predictions:
    """Check shapes, types and labels, and give every accepted form the same one.

    Args:
        probs: ``(N, K)`` probabilities, or logits when ``from_logits``; a vector ``(N,)`` holds the
            probability (or logit) of class 1 of two.
        labels: ``(N,)`` class indices in ``[0, K)``.
        from_logits: Whether ``probs`` holds logits; never guessed from the values.
        normalise: Whether to divide each row of probabilities by its sum.
        weights: ``(N,)`` how often each sample counts; those that count 0 times are left out.

    Returns:
        The predictions; the values of ``probs`` are checked when they are read.
    """
    name = "logits" if from_logits else "probs"
    if from_logits and normalise:
        raise InputError(
            lambda words: (
                f"{words.normalise} applies to probabilities, and {words.from_logits} already gives rows "
                "that sum to 1"
            )
        )
    scores = score_rows(probs, from_logits=from_logits).cpu()
    targets = as_tensor(labels, "labels").cpu()
    if targets.is_floating_point() or targets.is_complex():
        raise ValueError(
            f"labels must be integer class indices, got {_dtype_name(targets)}; "
            "convert them with .astype(int)"
        )
    if targets.ndim != 1:
        raise ValueError(
            f"labels must be one class index per sample, shape (N,), got {tuple(targets.shape)}; "
            "several labels per sample are for metrics.evaluate_labels, and one-hot rows become indices with .argmax(1)"
        )
    if len(scores) != len(targets):
        raise ValueError(f"{name} has {len(scores)} samples and labels has {len(targets)}; they must pair up")
    targets = targets.to(torch.int64)
    num_classes = scores.shape[1]
    if targets.numpy().view(np.uint64).max() >= num_classes:  # which a negative number is too
        at = int(((targets < 0) | (targets >= num_classes)).nonzero()[0, 0])
        raise ValueError(
            f"labels must lie in [0, {num_classes - 1}] for {num_classes} classes, "
            f"got {int(targets[at])} at index {at}"
        )
    found = Predictions(scores, targets, from_logits, normalise)
    return found if weights is None else _weighted(found, weights)


def _weighted(given: Predictions, weights: Array) -> Predictions:
    """The samples that count, with their weights."""
    values = sample_weights(weights, given.num_samples).cpu()
    there = values > 0
    if not bool(there.all()):
        # Checked before rows are left out, so that errors name the rows as they were given.
        given = given.check()
        given = replace(given, scores=given.scores[there], labels=given.labels[there])
    return replace(given, weights=_scaled(values[there]))


class Counted(NamedTuple):
    """Which samples count, ``(M,)``, repeated as often as they do; and their weights, if any."""

    rows: Tensor
    weights: Tensor | None

    def of(self, values: Any) -> Any:
        """What these samples have of an array or tensor ``(N, ...)``."""
        return values[self.rows.to(values.device) if isinstance(values, Tensor) else self.rows.numpy()]


def counted(weights: Array | None, num_samples: int | None = None) -> Counted | None:
    """What weights mean, in one place: the samples that count, or None where each counts once.

    Whole weights are counts: a sample of weight 3 stands for three samples, and is repeated. If any
    weight is not whole, all of them are relative. They are then scaled to sum to the effective
    number of samples, ``(sum w)**2 / sum(w**2)``: the number of samples of equal weights whose mean
    varies as much as the weighted one.

    Args:
        weights: Of each sample, ``(N,)``.
        num_samples: How many there have to be.

    Example:
        >>> counted([2, 0, 1])
        Counted(rows=tensor([0, 0, 2]), weights=None)
        >>> counted([0.5, 0, 1.5])
        Counted(rows=tensor([0, 2]), weights=tensor([0.4000, 1.2000], dtype=torch.float64))
    """
    if weights is None:
        return None
    values = sample_weights(weights, len(weights) if num_samples is None else num_samples).cpu()
    rows = torch.arange(len(values))
    if not is_whole(values):
        return Counted(rows[values > 0], _scaled(values[values > 0]))
    if bool((values == 1).all()):
        return None
    total = float(values.sum())
    if total > MOST_REPEATED:
        raise ValueError(
            f"whole weights are repeated samples, and these sum to {total:.6g}, more than {MOST_REPEATED} that are held in "
            "memory; divide them by their mean to make them relative"
        )
    return Counted(rows.repeat_interleave(values.long()), None)


def is_whole(weights: Tensor) -> bool:
    """Whether weights are counts."""
    return bool((weights == weights.round()).all())


def _scaled(weights: Tensor) -> Tensor:
    """Weights above 0: whole ones as they are, others scaled to their effective number."""
    return weights if is_whole(weights) else _effective(weights)


def _effective(weights: Tensor) -> Tensor:
    """Weights scaled to sum to the number of samples of equal weights whose mean varies as much."""
    return weights * (weights.sum() / weights.square().sum())


def sample_weights(weights: Array, num_samples: int, *, some: bool = True) -> Tensor:
    """Weights as float64 ``(N,)``, refused where they are no numbers of at least 0.

    Args:
        weights: Of each sample.
        num_samples: How many there have to be.
        some: One of them has to be above 0.
    """
    values = as_tensor(weights, "weights").detach().double()
    if tuple(values.shape) != (num_samples,):
        raise ValueError(
            f"weights must have one number for each of {num_samples} samples, got shape {tuple(values.shape)}"
        )
    wrong = ~((values >= 0) & values.isfinite())
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0, 0])
        raise ValueError(
            f"weights[{at}] is {values[at].item():g}, and a weight is a finite number of at least 0; repair or remove it"
        )
    if some and not bool((values > 0).any()):
        raise ValueError("all weights are 0; at least one sample has to count")
    return values


def score_rows(values: Array, *, from_logits: bool) -> Tensor:
    """Probabilities or logits of any accepted form as a floating-point ``(N, K)`` tensor."""
    name = "logits" if from_logits else "probs"
    scores = as_tensor(values, name)
    if not scores.is_floating_point():
        raise ValueError(
            f"{name} must be floating-point, got {_dtype_name(scores)}; convert them with .astype(float)"
        )
    check_shape(name, tuple(scores.shape))
    return _two_columns(scores, from_logits=from_logits) if scores.ndim == 1 else scores


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Refuse scores that are not those of at least two classes and one sample."""
    if len(shape) not in (1, 2):
        raise ValueError(
            f"{name} must have shape (N, K), or (N,) for two classes, got {shape}; "
            + (
                "maps are for macc.evaluate and metrics.Calibration(K, intervals=True), which resample whole images"
                if len(shape) >= 4
                else "flatten further dimensions into N first"
            )
        )
    if shape[0] == 0:
        raise ValueError(f"{name} holds no samples; at least one is needed")
    if len(shape) == 2 and shape[1] < 2:
        raise ValueError(
            f"{name} has shape {shape}, one class; for two classes pass both columns, "
            "or a vector (N,) with the probability of class 1"
        )


def check_num_classes(num_classes: int) -> None:
    """Refuse a number of classes that is not an integer of at least two."""
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
        raise ValueError(f"num_classes must be an integer of at least 2, got {num_classes!r}")


def check_bins(bins: int) -> None:
    """Refuse a number of bins that is no positive integer, or that only costs memory."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be a positive integer, got {bins!r}")
    if bins > _MOST_BINS:
        raise ValueError(f"bins must be at most {_MOST_BINS}, got {bins}; 15 is usual")


def check_confidence(confidence: float) -> None:
    """Refuse a level that is no probability."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence!r}; write 0.95 for 95 %")


def check_resamples(resamples: int) -> None:
    """Refuse numbers of resamples that are too few for quantiles, or that only cost memory."""
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 100:
        raise ValueError(f"resamples must be an integer of at least 100, got {resamples!r}")
    if resamples > _MOST_RESAMPLES:
        raise ValueError(f"resamples must be at most {_MOST_RESAMPLES}, got {resamples}; 1000 is usual")


def like(values: Tensor, given: Array) -> Any:
    """Give ``values`` as the kind of array that ``given`` is."""
    return values if isinstance(given, Tensor) else values.cpu().numpy()


def as_tensor(values: Array, name: str) -> Tensor:
    """An array of numbers as a tensor that shares its memory where it can."""
    if isinstance(values, Tensor):
        values = values.detach()
        # MPS has no float64, in which everything is accumulated.
        return values.cpu() if values.device.type == "mps" else values
    try:
        array = np.asarray(values)
    except ValueError as error:  # ragged lists
        raise ValueError(f"{name} must be a rectangular array of numbers: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be an array of numbers, got values of type {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    # Torch shares memory only with native, writeable, contiguous arrays, and warns about others.
    array = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    # An axis of length 1 is contiguous to numpy in either direction, and torch knows only one.
    return torch.from_numpy(array.copy() if min(array.strides, default=0) < 0 else array)


def _two_columns(scores: Tensor, *, from_logits: bool) -> Tensor:
    if from_logits:
        return torch.stack([torch.zeros_like(scores), scores], dim=1)
    scores = scores.double()
    inside = (scores >= 0) & (scores <= 1)
    if not bool(inside.all()):
        at = int((~inside).nonzero()[0, 0])
        value = scores[at].item()
        raise InputError(
            lambda words: (
                f"{words.entry('probs', at, None)} is {value:.6g}, and a vector holds probabilities of class 1, "
                f"in [0, 1]; {words.declare_logits} if these are logits"
            )
        )
    return torch.stack([1 - scores, scores], dim=1)


def _first(mask: Tensor) -> tuple[int, int]:
    row, column = mask.nonzero()[0].tolist()
    return row, column


def _dtype_name(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")

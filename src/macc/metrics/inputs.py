"""What every metric accepts, checked once: probabilities or declared logits, and class indices."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.metrics.refusals import InputError
from macc.words import listed, quoted

Array: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[Any]

# A float64 copy of 16 MB: large enough that threads, which wait for one another after every operation,
# do not wait often. Elsewhere launches are what costs.
_CPU_BLOCK_ELEMENTS = 2**21
_DEVICE_BLOCK_ELEMENTS = 2**24
_MOST_BINS = 10_000
_MOST_RESAMPLES = 10_000
# Each thread keeps its last CPU buffer: new memory costs a page fault every 4 kB, which small batches feel.
_kept = threading.local()


class Block(NamedTuple):
    """Some rows, as checked float64 probabilities; ``probs`` is overwritten by the next block.

    ``given`` holds the same values in the type they came in, which may be faster to read.
    """

    probs: Tensor
    given: Tensor
    labels: Tensor
    label_probs: Tensor
    log_likelihood: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Predictions:
    """Scores ``(N, K)`` and labels ``(N,)`` whose shapes, types and labels are known to be good.

    The values of the scores are checked by :meth:`blocks` while it converts them, because reading a
    large matrix a second time would cost as much as most metrics do, or by :meth:`check` beforehand.
    """

    scores: Tensor
    labels: Tensor
    from_logits: bool
    normalise: bool
    checked: bool = False
    weights: Tensor | None = None
    """Of each sample, above 0, float64 ``(N,)``; without them every sample counts once."""

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
        rows = self._block_rows()
        with _buffer(rows * self.num_classes, self.scores.device) as flat:
            buffer = flat.view(rows, self.num_classes)
            for start in range(0, self.num_samples, rows):
                scores = self.scores[start : start + rows]
                labels = self.labels[start : start + rows]
                if not self.checked:
                    scores = self._check(scores, start)
                probs = buffer[: scores.shape[0]].copy_(scores)
                if self.from_logits:
                    torch.log_softmax(probs, dim=1, out=probs)
                    log_likelihood = probs.gather(1, labels[:, None])[:, 0]
                    probs.exp_()
                    label_probs = log_likelihood.exp()
                else:
                    if self.normalise:
                        probs /= probs.sum(1, keepdim=True)
                    label_probs = probs.gather(1, labels[:, None])[:, 0]
                    log_likelihood = label_probs.log()
                same = not (self.from_logits or self.normalise) and scores.is_contiguous()
                weights = None if self.weights is None else self.weights[start : start + rows]
                yield Block(probs, scores if same else probs, labels, label_probs, log_likelihood, weights)

    def matrix(self) -> Tensor:
        """All checked probabilities at once, for what has to sort columns.

        The values keep the type they were given in, because float32 sorts twice as fast as float64.
        """
        if not (self.from_logits or self.normalise):
            return self.check().scores
        probs = self.scores.new_empty(self.scores.shape, dtype=torch.float64)
        start = 0
        for block in self.blocks():
            probs[start : start + len(block.labels)] = block.probs
            start += len(block.labels)
        return probs

    def check(self) -> "Predictions":
        """These predictions, the values of all scores known to be good."""
        scores = self.scores
        if not self.checked:
            rows = self._block_rows()
            for start in range(0, self.num_samples, rows):
                given = self.scores[start : start + rows]
                block = self._check(given, start)
                if block is not given:
                    scores = scores.clone() if scores is self.scores else scores
                    scores[start : start + rows] = block
        return replace(self, scores=scores, checked=True)

    def _block_rows(self) -> int:
        elements = _CPU_BLOCK_ELEMENTS if self.scores.device.type == "cpu" else _DEVICE_BLOCK_ELEMENTS
        return min(self.num_samples, max(1, elements // self.num_classes))

    def _check(self, given: Tensor, start: int) -> Tensor:
        """Refuse rows that are no distributions; comparisons are written so that a NaN fails too.

        A row may sum to a little more than 1, and a single entry then be more than 1: it comes back as 1,
        so that no metric leaves its range.
        """
        scores = given.float() if given.dtype in (torch.float16, torch.bfloat16) else given
        if self.from_logits:
            highest = scores.amax(1)
            if not bool(highest.isfinite().all()):
                self._refuse_not_finite(start + int((~highest.isfinite()).nonzero()[0, 0]))
            return given
        lowest, highest = torch.aminmax(scores)
        if bool(lowest < 0):
            row, column = _first(scores < 0)
            raise InputError(
                lambda words: (
                    f"{words.entry('probs', start + row, column)} is {scores[row, column].item():.6g}, and a "
                    f"probability is never negative; {words.declare_logits} if these are logits"
                )
            )
        if self.normalise:
            sums = scores.sum(1, dtype=torch.float64)
            if not bool(((sums > 0) & sums.isfinite()).all()):
                row = int((~((sums > 0) & sums.isfinite())).nonzero()[0, 0])
                raise InputError(
                    lambda words: (
                        f"{words.total('probs', start + row)} to {sums[row].item():.6g} and cannot be normalised; "
                        "remove the sample or repair what wrote it"
                    )
                )
            return given
        sums = scores.sum(1)
        tolerance = self._tolerance()
        smallest, largest = torch.aminmax(sums)
        if bool((smallest >= 1 - tolerance) & (largest <= 1 + tolerance)):
            return given.clamp(max=1) if bool(highest > 1) else given
        row = int((~((sums - 1).abs() <= tolerance)).nonzero()[0, 0])
        if not bool(scores[row].isfinite().all()):
            self._refuse_not_finite(start + row)
        raise InputError(
            lambda words: (
                f"{words.total('probs', start + row)} to {sums[row].item():.6g}, not 1; {words.declare_logits} "
                f"if these are logits, or {words.rescale} to rescale rows{words.more_columns} (scores of several "
                "labels per sample are not a distribution over classes)"
            )
        )

    def _tolerance(self) -> float:
        """How far from 1 rounding may leave the sum of a row: errors are relative to entries, so they add up to eps."""
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


@contextmanager
def _buffer(size: int, device: torch.device) -> Iterator[Tensor]:
    """Float64 memory that nobody else uses until it is given back."""
    kept: Tensor | None = vars(_kept).pop("buffer", None) if device.type == "cpu" else None
    if kept is None or kept.numel() < size:
        with torch.inference_mode(False):  # what inference mode makes cannot be written to outside it
            kept = torch.empty(size, dtype=torch.float64, device=device)
    try:
        yield kept[:size]
    finally:
        if device.type == "cpu":
            _kept.buffer = kept


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
    scores = score_rows(probs, from_logits=from_logits)
    targets = _tensor(labels, "labels")
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
    targets = targets.to(device=scores.device, dtype=torch.int64)
    num_classes = scores.shape[1]
    if int(targets.amin()) < 0 or int(targets.amax()) >= num_classes:
        at = int(((targets < 0) | (targets >= num_classes)).nonzero()[0, 0])
        raise ValueError(
            f"labels must lie in [0, {num_classes - 1}] for {num_classes} classes, "
            f"got {int(targets[at])} at index {at}"
        )
    found = Predictions(scores, targets, from_logits, normalise)
    return found if weights is None else _weighted(found, weights)


def _weighted(given: Predictions, weights: Array) -> Predictions:
    """The samples that count, with their weights."""
    values = sample_weights(weights, given.num_samples).to(given.scores.device)
    there = values > 0
    if not bool(there.all()):
        # Checked before rows are left out, so that errors name the rows as they were given.
        given = given.check()
        given = replace(given, scores=given.scores[there], labels=given.labels[there])
    return replace(given, weights=values[there])


def sample_weights(weights: Array, num_samples: int) -> Tensor:
    """Weights as float64 ``(N,)``, refused where they are no numbers of at least 0 of which one is above it."""
    values = _tensor(weights, "weights").detach().double()
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
    if not bool((values > 0).any()):
        raise ValueError("all weights are 0; at least one sample has to count")
    return values


def score_rows(values: Array, *, from_logits: bool) -> Tensor:
    """Probabilities or logits of any accepted form as a floating-point ``(N, K)`` tensor."""
    name = "logits" if from_logits else "probs"
    scores = _tensor(values, name)
    if not scores.is_floating_point():
        raise ValueError(
            f"{name} must be floating-point, got {_dtype_name(scores)}; convert them with .astype(float)"
        )
    check_shape(name, tuple(scores.shape))
    return _two_columns(scores, from_logits=from_logits) if scores.ndim == 1 else scores


def check_shape(name: str, shape: tuple[int, ...]) -> None:
    """Refuse scores of a shape that says nothing about at least two classes of at least one sample."""
    if len(shape) not in (1, 2):
        raise ValueError(
            f"{name} must have shape (N, K), or (N,) for two classes, got {shape}; "
            + (
                "for maps use metrics.Calibration(K, intervals=True), which resamples whole images"
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
    """Refuse a number of bins that is not a positive integer, or that would take memory for nothing."""
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be a positive integer, got {bins!r}")
    if bins > _MOST_BINS:
        raise ValueError(f"bins must be at most {_MOST_BINS}, got {bins}; 15 is usual")


def check_confidence(confidence: float) -> None:
    """Refuse a level that is no probability."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence!r}; write 0.95 for 95 %")


def check_resamples(resamples: int) -> None:
    """Refuse numbers of resamples whose outer quantiles mean nothing, or that would take memory for nothing."""
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 100:
        raise ValueError(f"resamples must be an integer of at least 100, got {resamples!r}")
    if resamples > _MOST_RESAMPLES:
        raise ValueError(f"resamples must be at most {_MOST_RESAMPLES}, got {resamples}; 1000 is usual")


def named_labels(labels: Any, classes: Sequence[str] | None) -> Any:
    """Labels as they are or, where they are text, the indices of the classes that they name.

    Example:
        >>> named_labels(["dog", "cat"], ["cat", "dog"]).tolist()
        [1, 0]
    """
    if not isinstance(labels, np.ndarray | list | tuple) or len(labels) == 0:
        return labels
    text = labels.dtype.kind in "US" if isinstance(labels, np.ndarray) else isinstance(labels[0], str)
    if not text:
        return labels
    if classes is None:
        raise ValueError("labels are text; name the classes in their order with classes=[…], or pass indices")
    places = {str(name): i for i, name in enumerate(classes)}
    if len(places) < len(classes):
        raise ValueError("classes has a name twice, so that labels could mean either; name each class once")
    given = [str(label).strip() for label in np.asarray(labels, dtype=str)]
    for at, label in enumerate(given):
        if label not in places:
            raise ValueError(
                f"labels[{at}]: the label {quoted(label)} is not the name of a class; "
                f"the classes are {listed(list(places))}"
            )
    return np.array([places[label] for label in given])


def class_names(classes: Sequence[str] | None, num_classes: int) -> list[str]:
    """Names of the classes, their indices if there are none."""
    if classes is None:
        return [str(j) for j in range(num_classes)]
    if len(classes) != num_classes:
        raise ValueError(f"classes names {len(classes)} classes, and probs has {num_classes}")
    return [str(name) for name in classes]


def positive_index(positive: int | str | None, classes: Sequence[str]) -> int | None:
    """Which class verdicts are about: class 1 of two unless another is named, and none of more than two."""
    if len(classes) != 2:
        if positive is not None:
            raise ValueError(
                f"positive={positive!r} picks one of two classes, and there are {len(classes)}; leave it out"
            )
        return None
    if positive is None:
        return 1
    if isinstance(positive, str):
        if positive not in classes:
            raise ValueError(
                f"no class is called {quoted(positive)}; the classes are {quoted(classes[0])} and {quoted(classes[1])}"
            )
        return list(classes).index(positive)
    check_positive(positive)
    return positive


def check_positive(positive: int) -> None:
    """Refuse what is not the index of one of two classes."""
    if isinstance(positive, bool) or positive not in (0, 1):
        raise ValueError(f"positive must be 0 or 1, the index of the positive class, got {positive!r}")


def like(values: Tensor, given: Array) -> Any:
    """Give ``values`` as the kind of array that ``given`` is."""
    return values if isinstance(given, Tensor) else values.cpu().numpy()


def _tensor(values: Array, name: str) -> Tensor:
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

"""Calibration of predictions that arrive in batches, or on several processes."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from macc.metrics._calibration_errors import class_errors, max_gap, mean_gap
from macc.metrics._scores import squared_distance
from macc.metrics.binning import ClassGaps, TopBins, TopLabels, bin_index, top_bins, top_of_block
from macc.metrics.inputs import Array, Predictions, check_bins, check_num_classes, predictions


class Sums(NamedTuple):
    """All that is kept of any number of samples, float64; sums of these are those of all samples.

    ``gaps`` is ``(bins, K)``, ``top`` ``(3, bins)`` and ``scores`` ``(3,)``: see :meth:`Calibration.update`.
    """

    gaps: Tensor
    top: Tensor
    scores: Tensor

    @classmethod
    def zeros(cls, num_classes: int, bins: int) -> "Sums":
        """No samples."""
        shapes = (bins, num_classes), (3, bins), (3,)
        with torch.inference_mode(False):  # what inference mode makes cannot be written to outside it
            return cls(*(torch.zeros(shape, dtype=torch.float64, device="cpu") for shape in shapes))

    def fitting(self, probs: Array, labels: Array, *, from_logits: bool, normalise: bool) -> Predictions:
        """Samples to add, refused where they have another number of classes."""
        given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
        num_classes = self.gaps.shape[1]
        if given.num_classes != num_classes:
            raise ValueError(
                f"probs has {given.num_classes} classes, and this Calibration was made for {num_classes}"
            )
        return given

    def add(self, given: Predictions) -> None:
        """Add samples in one pass over them; refused ones leave everything as it was."""
        bins, num_classes = self.gaps.shape
        gaps = ClassGaps(num_classes, bins)
        tops, scores = [], []
        for block in given.blocks():
            gaps.add(block)
            tops.append(top_of_block(block))
            scores.append(torch.stack([-block.log_likelihood.sum(), squared_distance(block)]))
        top = TopLabels(*(torch.cat(part) for part in zip(*tops, strict=True)))
        gaps.add_to(self.gaps)
        self.top.add_(torch.stack(top_bins(top, bin_index(top.confidence, bins), bins)).cpu())
        self.scores[:2] += torch.stack(scores).sum(0).cpu()
        self.scores[2] += given.num_samples


# Beyond the work itself a pass costs as much for few samples as for many, so small batches wait in up to 8 MB.
_WAITING_ELEMENTS = 2**21


class Waiting:
    """Copies of small batches, checked and not yet added to sums; memory that is used again and again."""

    def __init__(self, num_classes: int):
        self.capacity = _WAITING_ELEMENTS // num_classes
        self._scores = torch.empty(0, num_classes)
        self._labels = torch.empty(0, dtype=torch.int64)
        self._all: Predictions | None = None
        self._count = 0

    def put(self, given: Predictions) -> bool:
        """Take in a batch, unless there is no room for it or others like it do not wait."""
        if self._count + given.num_samples > self.capacity:
            return False
        scores = given.scores
        if (self._scores.dtype, self._scores.device, len(self._scores)) != (
            scores.dtype,
            scores.device,
            self.capacity,
        ):
            if self._count:
                return False
            with torch.inference_mode(False):
                self._scores = scores.new_empty(self.capacity, scores.shape[1])
                self._labels = given.labels.new_empty(self.capacity)
        end = self._count + given.num_samples
        self._scores[self._count : end] = scores
        self._labels[self._count : end] = given.labels
        self._count = end
        self._all = replace(given, scores=self._scores, labels=self._labels)
        return True

    def take(self) -> Predictions | None:
        """All that waits, which then no longer does."""
        count, self._count = self._count, 0
        if self._all is None or count == 0:
            return None
        return replace(self._all, scores=self._scores[:count], labels=self._labels[:count])


def summary(sums: Sums) -> dict[str, Any]:
    """The metrics of the samples summed up."""
    count = float(sums.scores[2])
    if count == 0:
        raise ValueError("no samples were given yet; call update(probs, labels) before compute()")
    binned = TopBins(*sums.top)
    errors = class_errors(sums.gaps, count)
    return {
        "ece": mean_gap(binned.gaps, count),
        "mce": max_gap(binned),
        "sce": float(errors.mean()),
        "classwise_ece": errors,
        "accuracy": float(binned.correct.sum()) / count,
        "nll": float(sums.scores[0]) / count,
        "brier": float(sums.scores[1]) / count,
        "count": round(count),
    }


class Calibration:
    r"""Calibration metrics of a stream of batches, in memory fixed by bins and classes.

    The gap of a bin is a sum over its samples, :math:`\sum (1[y_i = j] - p_{ij})`, so sums are all
    that is kept: the values are those of :func:`ece`, :func:`mce`, :func:`sce`, :func:`classwise_ece`,
    :func:`accuracy`, :func:`nll` and :func:`brier` on all samples at once, up to the rounding of float64.

    Under ``torch.distributed``, :meth:`compute` sums over all processes, whatever number of samples
    each has seen; every process has to call it, and the sums kept stay those of the process.

    Args:
        num_classes: Number of classes K.
        bins: Number of bins of equal width.
        from_logits: Updates hold logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        sync: Sum over processes in :meth:`compute`.

    Example:
        >>> from macc import metrics
        >>> calibration = metrics.Calibration(2)
        >>> for probs, labels in [([[0.9, 0.1], [0.2, 0.8]], [0, 1]), ([[0.7, 0.3]], [1])]:
        ...     calibration.update(probs, labels)
        >>> result = calibration.compute()
        >>> result["count"], round(result["ece"], 6)
        (3, 0.333333)
    """

    def __init__(
        self,
        num_classes: int,
        bins: int = 15,
        *,
        from_logits: bool = False,
        normalise: bool = False,
        sync: bool = True,
    ):
        check_num_classes(num_classes)
        check_bins(bins)
        self.num_classes = num_classes
        self.bins = bins
        self.from_logits = from_logits
        self.normalise = normalise
        self.sync = sync
        self.reset()

    def update(self, probs: Array, labels: Array) -> None:
        """Take in probabilities ``(N, K)`` and labels ``(N,)``; a refused batch changes nothing."""
        given = self._sums.fitting(probs, labels, from_logits=self.from_logits, normalise=self.normalise)
        if given.num_samples > self._waiting.capacity:
            self._sums.add(given)
            return
        given = given.check()
        if not self._waiting.put(given):
            self._add_waiting()
            self._waiting.put(given)

    def merge(self, other: "Calibration") -> None:
        """Add the samples that another object has seen to this one's."""
        if (self.num_classes, self.bins) != (other.num_classes, other.bins):
            raise ValueError(
                f"cannot merge {other.bins} bins of {other.num_classes} classes "
                f"into {self.bins} bins of {self.num_classes} classes"
            )
        other._add_waiting()
        for mine, more in zip(self._sums, other._sums, strict=True):
            mine += more

    def compute(self) -> dict[str, Any]:
        """Metrics of all samples so far.

        Returns:
            ``ece``, ``mce``, ``sce``, ``accuracy``, ``nll``, ``brier`` as floats, ``classwise_ece`` as a
            float64 tensor ``(K,)`` and ``count``, the number of samples.
        """
        self._add_waiting()
        return summary(self._all_processes() if self.sync else self._sums)

    def reset(self) -> None:
        """Forget all samples."""
        self._sums = Sums.zeros(self.num_classes, self.bins)
        self._waiting = Waiting(self.num_classes)

    def __getstate__(self) -> dict[str, Any]:
        """The sums of everything, and no batch: what is sent to other processes is small."""
        self._add_waiting()
        return {**vars(self), "_waiting": Waiting(self.num_classes)}

    def _add_waiting(self) -> None:
        waiting = self._waiting.take()
        if waiting is not None:
            self._sums.add(waiting)

    def _all_processes(self) -> Sums:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return self._sums
        flat = torch.cat([part.flatten() for part in self._sums])
        # NCCL moves only what lies on a GPU.
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        flat = flat.to(device)
        distributed.all_reduce(flat)
        shapes = [part.shape for part in self._sums]
        pieces = flat.cpu().split_with_sizes([math.prod(shape) for shape in shapes])
        return Sums(*(piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)))

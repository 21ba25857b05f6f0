"""Calibration of predictions that arrive in batches, or on several processes."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from macc.metrics._binning import ClassGaps, TopBins, TopLabels, bin_index, top_bins, top_of_block
from macc.metrics._calibration_errors import class_errors, max_gap, mean_gap
from macc.metrics._inputs import Array, check_bins, predictions
from macc.metrics._scores import squared_distance


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
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))


# Scattering into bins costs the same for a few samples as for thousands, so it waits for this many.
_PENDING_SAMPLES = 8192


class Batches:
    """What has been read of some batches and not been added to sums yet."""

    def __init__(self, num_classes: int, bins: int):
        self.num_classes = num_classes
        self.bins = bins
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.num_samples = 0
        self._gaps = ClassGaps(self.num_classes, self.bins)
        self._tops: list[TopLabels] = []
        self._log_likelihoods: list[Tensor] = []
        self._squared_distances: list[Tensor] = []

    def add(self, probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False) -> None:
        """Read one batch in one pass; a refused one leaves everything as it was."""
        given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
        if given.num_classes != self.num_classes:
            raise ValueError(
                f"probs has {given.num_classes} classes, and this Calibration was made for {self.num_classes}"
            )
        gaps = ClassGaps(self.num_classes, self.bins)
        tops, log_likelihoods, squared_distances = [], [], []
        for block in given.blocks():
            gaps.add(block)
            tops.append(top_of_block(block))
            log_likelihoods.append(block.log_likelihood)
            squared_distances.append(squared_distance(block))
        self._gaps.extend(gaps)
        self._tops += tops
        self._log_likelihoods += log_likelihoods
        self._squared_distances += squared_distances
        self.num_samples += given.num_samples

    def move_to(self, sums: Sums) -> None:
        """Add everything to sums on the CPU and forget it."""
        if self.num_samples == 0:
            return
        top = TopLabels(*(torch.cat(part) for part in zip(*self._tops, strict=True)))
        self._gaps.add_to(sums.gaps)
        sums.top.add_(torch.stack(top_bins(top, bin_index(top.confidence, self.bins), self.bins)).cpu())
        sums.scores[0] -= torch.cat(self._log_likelihoods).sum().cpu()
        sums.scores[1] += torch.stack(self._squared_distances).sum().cpu()
        sums.scores[2] += self.num_samples
        self.clear()


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
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise ValueError(f"num_classes must be an integer of at least 2, got {num_classes!r}")
        check_bins(bins)
        self.num_classes = num_classes
        self.bins = bins
        self.from_logits = from_logits
        self.normalise = normalise
        self.sync = sync
        self.reset()

    def update(self, probs: Array, labels: Array) -> None:
        """Take in probabilities ``(N, K)`` and labels ``(N,)``; a refused batch changes nothing."""
        self._pending.add(probs, labels, from_logits=self.from_logits, normalise=self.normalise)
        if self._pending.num_samples >= _PENDING_SAMPLES:
            self._pending.move_to(self._sums)

    def merge(self, other: "Calibration") -> None:
        """Add the samples that another object has seen to this one's."""
        if (self.num_classes, self.bins) != (other.num_classes, other.bins):
            raise ValueError(
                f"cannot merge {other.bins} bins of {other.num_classes} classes "
                f"into {self.bins} bins of {self.num_classes} classes"
            )
        other._pending.move_to(other._sums)
        for mine, more in zip(self._sums, other._sums, strict=True):
            mine += more

    def compute(self) -> dict[str, Any]:
        """Metrics of all samples so far.

        Returns:
            ``ece``, ``mce``, ``sce``, ``accuracy``, ``nll``, ``brier`` as floats, ``classwise_ece`` as a
            float64 tensor ``(K,)`` and ``count``, the number of samples.
        """
        self._pending.move_to(self._sums)
        return summary(self._all_processes() if self.sync else self._sums)

    def reset(self) -> None:
        """Forget all samples."""
        self._sums = Sums.zeros(self.num_classes, self.bins)
        self._pending = Batches(self.num_classes, self.bins)

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

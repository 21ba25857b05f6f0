"""Calibration of predictions that arrive in batches, or on several processes."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from macc.metrics._metric import Metric, metrics_of
from macc.metrics._report import (
    ClassRow,
    Positive,
    Report,
    check_names,
    reliability_bins,
)
from macc.metrics._resampling.groups import GroupDraws
from macc.metrics._scores import auroc
from macc.metrics.dense import as_pixels
from macc.metrics.inputs import (
    Array,
    Predictions,
    check_bins,
    check_confidence,
    check_num_classes,
    check_resamples,
    class_names,
    positive_index,
    predictions,
)
from macc.metrics.sums import GROUPS, Sums
from macc.tables import number, thousands

# Beyond the work itself a pass costs as much for few samples as for many, so small batches wait in up to 16 MB.
_WAITING_ELEMENTS = 2**21
# With intervals, more bins of all classes would take gigabytes.
_MOST_CLASS_BINS = 2**18
# Their intervals rest on every sample being independent, which pixels are not.
_OF_SINGLE_SAMPLES = ("mce", "positive_mce", "auroc")


class Waiting:
    """Copies of small batches, checked and not yet added to sums; memory that is used again and again."""

    def __init__(self, num_classes: int):
        self.capacity = _WAITING_ELEMENTS // num_classes
        self.count = 0
        self._scores = torch.empty(0, num_classes)
        self._labels = torch.empty(0, dtype=torch.int64)
        self._all: Predictions | None = None

    def put(self, given: Predictions) -> bool:
        """Take in a batch, unless there is no room for it or others like it do not wait."""
        if self.count + given.num_samples > self.capacity:
            return False
        scores = given.scores
        if (self._scores.dtype, self._scores.device, len(self._scores)) != (
            scores.dtype,
            scores.device,
            self.capacity,
        ):
            if self.count:
                return False
            with torch.inference_mode(False):
                self._scores = scores.new_empty(self.capacity, scores.shape[1])
                self._labels = given.labels.new_empty(self.capacity)
        end = self.count + given.num_samples
        self._scores[self.count : end] = scores
        self._labels[self.count : end] = given.labels
        self.count = end
        self._all = replace(given, scores=self._scores, labels=self._labels)
        return True

    def take(self) -> Predictions | None:
        """All that waits, which then no longer does."""
        count, self.count = self.count, 0
        if self._all is None or count == 0:
            return None
        return replace(self._all, scores=self._scores[:count], labels=self._labels[:count])


class Calibration:
    r"""Calibration metrics of a stream of batches, in memory fixed by bins and classes.

    The gap of a bin is a sum over its samples, :math:`\sum (1[y_i = j] - p_{ij})`, so sums are all
    that is kept: the values are those of the metrics on all samples at once, up to the rounding of float64.
    With ``intervals``, sums of 1024 random groups of samples are kept, and :meth:`report` has intervals.

    Under ``torch.distributed``, :meth:`compute` and :meth:`report` sum over all processes, whatever number of
    samples each has seen; every process has to call them, and the sums kept stay those of the process.

    Args:
        num_classes: Number of classes K.
        bins: Number of bins of equal width.
        intervals: Keep what :meth:`report` needs: up to about 200 MB where classes are many.
        classes: Names of the classes.
        positive: The positive class of two, by its index or name; class 1 by default.
        seed: Of the groups. Two streams of the same samples with the same seed share groups.
        from_logits: Updates hold logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        sync: Sum over processes.

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
        intervals: bool = False,
        classes: Sequence[str] | None = None,
        positive: int | str | None = None,
        seed: int = 0,
        from_logits: bool = False,
        normalise: bool = False,
        sync: bool = True,
    ):
        check_num_classes(num_classes)
        check_bins(bins)
        if intervals and num_classes * bins > _MOST_CLASS_BINS:
            raise ValueError(
                f"{thousands(num_classes)} classes in {thousands(bins)} bins are too many to measure in batches: at most "
                f"{thousands(_MOST_CLASS_BINS // bins)} can be; raise --max-rows-in-memory and leave --state out"
            )
        self.num_classes, self.bins, self.intervals = num_classes, bins, intervals
        self.classes = class_names(classes, num_classes)
        self.positive = positive_index(positive, self.classes)
        self.seed, self.from_logits, self.normalise, self.sync = seed, from_logits, normalise, sync
        self._waiting = Waiting(num_classes)
        self.reset()

    @property
    def num_samples(self) -> int:
        """How many samples this process has seen."""
        return self._sums.count + self._waiting.count

    def update(self, probs: Array, labels: Array, *, ignore_index: int | None = None) -> None:
        """Take in probabilities ``(N, K)`` and labels ``(N,)``; a refused batch changes nothing.

        Of dense prediction they are ``(N, K, H, W)`` and ``(N, H, W)``. Then whole images are resampled for
        intervals, because pixels of one image are not independent.

        Args:
            probs: Probabilities, or logits if the object was made for them.
            labels: Class indices.
            ignore_index: The label of samples or pixels to leave out.
        """
        probs, labels, images = as_pixels(probs, labels, ignore_index)
        if len(labels) == 0 and images is not None:
            return
        if self.num_samples == 0:
            self._of_images = images is not None
        if self._of_images != (images is not None):
            raise ValueError("one Calibration takes maps (N, K, H, W) or rows (N, K), not both; make another")
        given = predictions(probs, labels, from_logits=self.from_logits, normalise=self.normalise)
        if given.num_classes != self.num_classes:
            raise ValueError(
                f"probs has {given.num_classes} classes, and this Calibration was made for {self.num_classes}"
            )
        if images is not None or given.num_samples > self._waiting.capacity:
            self.sums().add(given, self._random, images)
            return
        given = given.check()
        if not self._waiting.put(given):
            self.sums()
            self._waiting.put(given)

    def merge(self, other: "Calibration") -> None:
        """Add the samples that another object has seen to this one's."""
        if self.num_samples == 0:
            self._of_images = other._of_images
        for what in self._kind:
            one, two = self._kind[what], other._kind[what]
            if one != two:
                raise ValueError(f"cannot merge states of other {what}: {_shown(one)} and {_shown(two)}")
        self.sums().merge(other.sums(), self._random)

    def compute(self) -> dict[str, Any]:
        """Metrics of all samples so far.

        Returns:
            Every metric that streams as a float (``ece``, ``mce``, ``sce``, ``accuracy``, ``nll``, ``brier``, …),
            ``classwise_ece`` as a float64 tensor ``(K,)`` and ``count``, the number of samples.
        """
        return self._all_processes().values()

    def report(
        self, *, confidence: float = 0.95, metrics: Sequence[str] | None = None, resamples: int = 1000
    ) -> Report:
        """Everything that streams, with intervals; the notes name the rest.

        Args:
            confidence: Level of the intervals.
            metrics: Names to measure; all that stream by default.
            resamples: Number of resamples.

        Example:
            >>> import torch
            >>> from macc import metrics
            >>> calibration = metrics.Calibration(2, intervals=True)
            >>> calibration.update(torch.full((500,), 0.8), torch.arange(500) % 2)
            >>> report = calibration.report(metrics=["accuracy", "ece"])
            >>> round(report["ece"].value, 6), report["ece"].low > 0.2
            (0.3, True)
        """
        check_confidence(confidence)
        wanted = check_streamed(metrics, self.num_classes)
        if self._of_images:
            unknown = [name for name in wanted if name in _OF_SINGLE_SAMPLES]
            if metrics is not None and unknown:
                raise ValueError(
                    f"{unknown[0]} of images has no interval; leave it out, compute() has its value"
                )
            wanted = {name: metric for name, metric in wanted.items() if name not in unknown}
        sums = self._all_processes()
        draws = self.draws(resamples=resamples, confidence=confidence, sums=sums)
        with torch.device("cpu"):  # whatever the default device is
            estimates = {name: metric.sample(draws).estimate(confidence) for name, metric in wanted.items()}
            each = draws.classes.each if "sce" in wanted else []
        count = sums.count
        samples, totals = sums.parts["hits"].sum(1).tolist(), sums.parts["totals"].tolist()
        rows = tuple(
            ClassRow(name, round(n), n / count, total / count, estimate)
            for name, n, total, estimate in zip(self.classes, samples, totals, each, strict=False)
        )
        positive = None
        if self.positive is not None:
            bins = reliability_bins(sums.positive, self.bins, confidence)
            positive = Positive(self.classes[self.positive], bins)
        notes = []
        if auroc.name in wanted:
            error = draws.auroc.error
            most = number(error, auroc.unit, error, suffix=True)
            cells = thousands(sums.parts["all"].shape[1])
            notes.append(f"AUROC from {cells} cells a class is within {most} of the exact value.")
        if self._of_images:
            notes.append("Whole images were resampled: their pixels are not independent.")
        if metrics is None:
            notes.append(left_out(wanted, self.num_classes))
        top = reliability_bins(sums.top, self.bins, confidence)
        return Report(estimates, rows, top, count, self.num_classes, confidence, tuple(notes), positive)

    def draws(
        self, *, resamples: int = 1000, confidence: float | None = None, sums: Sums | None = None
    ) -> GroupDraws:
        """What resampling groups shows; of single classes where a level for their intervals is given."""
        check_resamples(resamples)
        if not self.intervals:
            raise ValueError("sums of one group have no intervals; make the Calibration with intervals=True")
        sums = self.sums() if sums is None else sums
        if sums.count == 0:
            raise ValueError("no samples were seen; there is nothing to report")
        return GroupDraws(sums, resamples=resamples, confidence=confidence, images=self._of_images)

    def reset(self) -> None:
        """Forget all samples."""
        groups = GROUPS if self.intervals else 1
        self._sums = Sums(self.num_classes, self.bins, groups=groups, positive=self.positive)
        self._waiting.count = 0
        self._of_images = False
        self._random = np.random.default_rng(self.seed + _rank())

    def sums(self) -> Sums:
        """The sums of all samples that this process has seen."""
        waiting = self._waiting.take()
        if waiting is not None:
            self._sums.add(waiting, self._random)
        return self._sums

    @property
    def _kind(self) -> dict[str, Any]:
        return {
            "classes": self.num_classes,
            "bins": self.bins,
            "names of classes": self.classes,
            "positive classes": self.positive,
            "intervals": self.intervals,
            "kinds, of images and of rows": self._of_images,
        }

    def __getstate__(self) -> dict[str, Any]:
        """The sums of everything, and no batch: what is sent to other processes is small."""
        self.sums()
        return {**vars(self), "_waiting": Waiting(self.num_classes)}

    def _all_processes(self) -> Sums:
        sums, distributed = self.sums(), torch.distributed
        if not (self.sync and distributed.is_available() and distributed.is_initialized()):
            return sums
        flat = torch.cat([part.flatten() for part in sums.parts.values()])
        # NCCL moves only what lies on a GPU.
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        flat = flat.to(device)
        distributed.all_reduce(flat)
        shapes = {name: part.shape for name, part in sums.parts.items()}
        pieces = flat.cpu().split_with_sizes([math.prod(shape) for shape in shapes.values()])
        return sums.having(
            {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}
        )


def check_streamed(metrics: Sequence[str] | None, num_classes: int) -> dict[str, Metric[Any]]:
    """The metrics asked for, all that stream by default; those that need more than sums are refused."""
    if metrics is None:
        return {name: metric for name, metric in metrics_of(num_classes).items() if metric.streams}
    wanted = check_names(metrics, num_classes)
    for name, metric in wanted.items():
        if not metric.streams:
            raise ValueError(
                f"{name} needs all samples in memory; raise --max-rows-in-memory, or leave it out"
            )
    return wanted


def left_out(measured: Collection[str], num_classes: int) -> str:
    """A note that names the metrics which were not measured."""
    names = ", ".join(name for name in metrics_of(num_classes) if name not in measured)
    return f"Left out, because they need all samples in memory: {names}."


def _rank() -> int:
    """Processes draw groups of their own, so that those of few samples are many."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""Calibration of predictions that arrive in batches, or on several processes."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macc.metrics._metric import Metric, metrics_of
from macc.metrics._report import (
    Bin,
    ClassRow,
    Positive,
    Report,
    check_names,
    reliability_bins,
)
from macc.metrics._report import weights_note as weights_note
from macc.metrics._resampling.groups import GroupDraws
from macc.metrics._scores import auroc
from macc.metrics.binning import TopBins
from macc.metrics.blocks import Floats, Integers, Rows
from macc.metrics.dense import as_pixels, kept_weights
from macc.metrics.inputs import (
    Array,
    Counted,
    Predictions,
    check_bins,
    check_confidence,
    check_num_classes,
    check_resamples,
    is_whole,
    predictions,
)
from macc.metrics.naming import class_names, positive_index
from macc.metrics.refusals import InputError
from macc.metrics.sums import GROUPS, Sums
from macc.tables import number, thousands
from macc.words import documented

# Beyond the work itself a pass costs as much for few samples as for many, so small batches wait in
# 1 MB, and in 16 MB where a pass fills the sums of many groups.
_WAITING_ELEMENTS, _WAITING_FOR_GROUPS = 2**18, 2**21
# With intervals, more bins of all classes would take gigabytes.
_MOST_CLASS_BINS = 2**18


class Waiting:
    """Copies of small checked batches, not yet in the sums, in memory that is used again."""

    def __init__(self, num_classes: int, *, grouped: bool):
        self.capacity = (_WAITING_FOR_GROUPS if grouped else _WAITING_ELEMENTS) // num_classes
        self.count = 0
        self._values: Floats = np.empty((0, 0))
        self._labels: Integers = np.empty(0, dtype=np.int64)
        self._turned = False
        self._last: Predictions | None = None

    def put(self, given: Predictions, rows: Rows) -> bool:
        """Take in a batch and its checked rows, unless there is no room for it or others like it do
        not wait.
        """
        start, values = self.count, rows.values
        end = start + len(rows)
        if end > self.capacity:
            return False
        shape = (len(values), self.capacity) if rows.turned else (self.capacity, values.shape[1])
        if self._values.dtype != values.dtype or self._values.shape != shape:
            if start:
                return False
            self._values, self._labels = np.empty(shape, values.dtype), np.empty(self.capacity, np.int64)
        place = (slice(None), slice(start, end)) if rows.turned else slice(start, end)
        self._values[place] = values
        self._labels[start:end] = given.labels.numpy()
        self.count, self._last, self._turned = end, given, rows.turned
        return True

    def take(self) -> Predictions | None:
        """All that waits, which then no longer does."""
        count, self.count = self.count, 0
        if self._last is None or count == 0:
            return None
        scores = self._values.T if self._turned else self._values
        return replace(
            self._last,
            scores=torch.from_numpy(scores[:count]),
            labels=torch.from_numpy(self._labels[:count]),
            checked=True,
        )


@documented
class Calibration:
    r"""Calibration metrics of a stream of batches, in memory fixed by bins and classes.

    The gap of a bin is a sum over its samples, :math:`\sum (1[y_i = j] - p_{ij})`, so sums are all
    that is kept: the values are those of the metrics on all samples at once, up to the rounding of
    float64. With ``intervals``, sums of 1024 random groups of samples are kept, and :meth:`report`
    has intervals.

    Under ``torch.distributed``, :meth:`compute` and :meth:`report` sum over all processes, whatever
    number of samples each has seen; every process has to call them, and the sums kept stay those of
    the process.

    Args:
        num_classes: Number of classes K.
        intervals: Keep what :meth:`report` needs: up to about 200 MB where classes are many.
        classes: Names of the classes.
        positive: The positive class of two, by its index or name; class 1 by default.
        seed: Of the groups. Two streams of the same samples with the same seed share groups.
        from_logits: Updates hold logits.
        sync: Sum over processes.
        relative_weights: Weights of updates are relative, even where those of a batch are whole. By
            default a batch of whole weights is one of repeated samples, unless weights that are not
            whole came before it.

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
        relative_weights: bool = False,
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
        self.relative_weights = relative_weights
        self._waiting = Waiting(num_classes, grouped=intervals)
        self.reset()

    @property
    def num_samples(self) -> int:
        """How many samples this process has seen."""
        return self._sums.count + self._waiting.count

    def __repr__(self) -> str:
        return f"<Calibration: {self.num_samples} samples, {self.num_classes} classes, {self.bins} bins>"

    def update(
        self,
        probs: Array,
        labels: Array,
        *,
        ignore_index: int | None = None,
        weights: Array | None = None,
    ) -> None:
        """Take in probabilities ``(N, K)`` and labels ``(N,)``; a refused batch changes nothing.

        Of dense prediction they are ``(N, K, H, W)`` and ``(N, H, W)``. Then whole images are
        resampled for intervals, because pixels of one image are not independent.

        Args:
            probs: Probabilities, or logits if the object was made for them.
            labels: Class indices.
            ignore_index: The label of samples or pixels to leave out.
            weights: How often each row counts, ``(N,)``, at least 0; whole weights are repeated
                samples. If weights of any batch are not whole, they are relative, and so have to be
                those of all batches.
        """
        pixels = as_pixels(probs, labels, ignore_index)
        images = pixels.images
        if len(pixels.labels) == 0 and images is not None:
            return
        only_rows = images is None and self._waiting.count  # maps do not wait
        if not only_rows and self.num_samples and self._of_images != (images is not None):
            raise ValueError("one Calibration takes maps (N, K, H, W) or rows (N, K), not both; make another")
        given = predictions(
            pixels.scores, pixels.labels, from_logits=self.from_logits, normalise=self.normalise
        )
        if given.num_classes != self.num_classes:
            raise ValueError(
                f"probs has {given.num_classes} classes, and this Calibration was made for {self.num_classes}"
            )
        if weights is not None:
            if images is not None:
                raise ValueError("weights= are for rows (N, K), and these are maps; leave them out")
            self._add_weighted(given.check(), kept_weights(weights, labels, ignore_index, some=False))
            return
        if images is not None:
            try:
                self.sums().add(given, self._random, images)
            except InputError as error:
                raise error.of_pixels(pixels.place) from None
            return
        if 2 * given.num_samples > self._waiting.capacity:
            self.sums().add(given, self._random)
        else:
            self._wait(given)

    def _wait(self, given: Predictions) -> None:
        rows = given.rows(slice(None))
        if not self._waiting.put(given, rows):
            self.sums()
            self._waiting.put(given, rows)

    def _add_weighted(self, given: Predictions, weights: Tensor) -> None:
        """Add checked samples; those of whole weights are repeated, a few at a time."""
        there = (weights > 0).nonzero()[:, 0]
        if len(there) == 0:
            return
        if not is_whole(weights) or self.relative_weights or self._sums.relative:
            if self._sums.kind_of_weights == "whole":
                at = int((weights != weights.round()).nonzero()[0, 0])
                raise ValueError(
                    f"weights[{at}] is {weights[at].item():g}, and the weights before were whole numbers, which are repeated "
                    "samples; make the Calibration with relative_weights=True"
                )
            chosen = given.chosen(Counted(there, weights[there]))
            self.sums().add(chosen, self._random)
            return
        ends = weights.cumsum(0)
        for start in range(0, int(ends[-1]), self._waiting.capacity):
            copies = torch.arange(start, min(int(ends[-1]), start + self._waiting.capacity))
            # A sample of weight 0 ends where the one before it does, and is passed over.
            self._wait(given.chosen(Counted(torch.searchsorted(ends, copies.double(), right=True), None)))
        self._sums.repeated(int((weights[there] - 1).sum()))

    def merge(self, other: "Calibration") -> None:
        """Add the samples that another object has seen to this one's."""
        for what in self._kind:
            one, two = self._kind[what], other._kind[what]
            if one != two and None not in (one, two):
                raise ValueError(f"cannot merge states of other {what}: {_shown(one)} and {_shown(two)}")
        self.sums().merge(other.sums(), self._random)

    def compute(self) -> dict[str, Any]:
        """Metrics of all samples so far.

        Returns:
            Every metric that streams as a float (``ece``, ``mce``, ``sce``, ``accuracy``, ``nll``,
            ``brier``, …), ``classwise_ece`` as a float64 tensor ``(K,)`` and ``count``, the number
            of samples.
        """
        return self._all_processes().values()

    @documented
    def report(
        self, *, confidence: float = 0.95, metrics: Sequence[str] | None = None, resamples: int = 1000
    ) -> Report:
        """Everything that streams, with intervals; the notes name the rest.

        Args:
            metrics: Names to measure; all that stream by default.

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
        sums = self._all_processes()
        wanted = check_streamed(metrics, self.num_classes, images=sums.images > 0)
        draws = self.draws(resamples=resamples, confidence=confidence, sums=sums)
        with torch.device("cpu"):  # whatever the default device is
            estimates = {name: metric.sample(draws).estimate(confidence) for name, metric in wanted.items()}
            each = draws.classes.each if "sce" in wanted else []
        count = sums.count
        samples = sums.parts["class_weights"][0].tolist()
        shares, means = (
            (part / sums.total).tolist() for part in (sums.parts["hits"].sum(1), sums.parts["totals"])
        )
        rows = tuple(
            ClassRow(name, round(n), share, mean, estimate)
            for name, n, share, mean, estimate in zip(
                self.classes, samples, shares, means, each, strict=False
            )
        )

        def diagram(name: str, binned: TopBins) -> tuple[Bin, ...]:
            sizes = sums.bin_sizes(name) if sums.relative else None
            return reliability_bins(binned, self.bins, confidence, sizes)

        positive = None
        if self.positive is not None:
            positive = Positive(self.classes[self.positive], diagram("positive", sums.positive))
        notes = [*weights_note(count, sums.size if sums.relative else None)]
        if auroc.name in wanted:
            error = draws.auroc.error
            most = number(error, auroc.unit, error, suffix=True)
            cells = thousands(sums.parts["all"].shape[1])
            notes.append(f"AUROC from {cells} cells a class is within {most} of the exact value.")
        if sums.images:
            notes.append(by_images(sums.images))
        if metrics is None:
            notes.append(left_out(wanted, self.num_classes, images=sums.images > 0))
        top = diagram("top", sums.top)
        return Report(estimates, rows, top, count, self.num_classes, confidence, tuple(notes), positive)

    def draws(
        self, *, resamples: int = 1000, confidence: float | None = None, sums: Sums | None = None
    ) -> GroupDraws:
        """What resampling groups shows; of single classes too where a level is given."""
        check_resamples(resamples)
        if not self.intervals:
            raise ValueError("sums of one group have no intervals; make the Calibration with intervals=True")
        sums = self.sums() if sums is None else sums
        if sums.count == 0:
            raise ValueError("no samples were seen; there is nothing to report")
        return GroupDraws(sums, resamples=resamples, confidence=confidence, images=sums.images > 0)

    def reset(self) -> None:
        """Forget all samples."""
        groups = GROUPS if self.intervals else 1
        self._sums = Sums(self.num_classes, self.bins, groups=groups, positive=self.positive)
        self._waiting.count = 0
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
            "kinds of weights": self._sums.kind_of_weights,
            # A stream that has seen nothing is of either kind.
            "kinds, of images and of rows": ["rows", "images"][self._of_images] if self.num_samples else None,
        }

    @property
    def _of_images(self) -> bool:
        return self._sums.images > 0

    def __getstate__(self) -> dict[str, Any]:
        """The sums of everything, and no batch: what is sent to other processes is small."""
        self.sums()
        return {**vars(self), "_waiting": Waiting(self.num_classes, grouped=self.intervals)}

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
        found = sums.having(
            {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}
        )
        _ = found.kind_of_weights  # refuses a mixture
        return found


def check_streamed(
    metrics: Sequence[str] | None, num_classes: int, *, images: bool = False
) -> dict[str, Metric[Any]]:
    """The metrics asked for, by default all that stream; others are refused.

    Args:
        metrics: Their names.
        num_classes: Number of classes K.
        images: Samples are pixels, and only what has an interval by images is measured.
    """

    def measured(metric: Metric[Any]) -> bool:
        return metric.streams and not (images and metric.independent)

    if metrics is None:
        return {name: metric for name, metric in metrics_of(num_classes).items() if measured(metric)}
    wanted = check_names(metrics, num_classes)
    for name, metric in wanted.items():
        if measured(metric):
            continue
        if images:
            raise ValueError(f"{name} has no interval by images; leave it out")
        raise ValueError(f"{name} needs all samples in memory; raise --max-rows-in-memory, or leave it out")
    return wanted


def left_out(measured: Collection[str], num_classes: int, *, images: bool = False) -> str:
    """A note that names the metrics which were not measured."""
    names = ", ".join(name for name in metrics_of(num_classes) if name not in measured)
    why = "have no interval by images" if images else "need all samples in memory"
    return f"Left out, because they {why}: {names}."


def by_images(count: int) -> str:
    """A note that says what was resampled."""
    return (
        f"Intervals are from resampling {thousands(count)} whole images: pixels of one are not independent."
    )


def _rank() -> int:
    """Processes draw groups of their own, so that those of few samples are many."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""The gaps of every class, in bins of equal width and of equal mass."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from macc.metrics._one_pass import PerSample
from macc.metrics._resampling.means import scores_by_outcome
from macc.metrics._resampling.samples import CHUNK_ELEMENTS, Resampling
from macc.metrics.binning import ClassCells, adaptive_cells, adaptive_gaps, width_cells
from macc.metrics.intervals import (
    Deviation,
    Estimate,
    Gaps,
    Ordinary,
    Sampled,
    l1,
    norm_of_gaps,
    plausible,
    quantile,
    unseen_share,
)

WORST_BRIER = 2.0


@dataclass(frozen=True)
class ClassDraws:
    """What gaps of classes are resampled from; ``null_labels`` ``(N, S)`` are drawn by chance."""

    labels: Tensor
    bins: int
    resampling: Resampling
    null_labels: Tensor

    @property
    def most_classes(self) -> int:
        """How many classes to look at together, of which each takes all resamples of its bins."""
        return max(1, CHUNK_ELEMENTS // (self.resampling.resamples * (self.bins + 1)))

    def noise(self, cells: ClassCells, gaps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gaps ``(M, bins)`` of some classes, their noise and null gaps, and shares of samples;
        bins all of them leave empty are left out.
        """
        num_classes = len(cells.bin)
        filled = torch.bincount(cells.bin.flatten() + 1, minlength=self.bins + 1)[1:] > 0
        filled[0] = True  # nothing may count at all
        bins = int(filled.sum())
        # Entries that do not count fall in one more bin, which is dropped at the end.
        place = torch.nn.functional.pad(torch.where(filled, filled.cumsum(0) - 1, bins), (1, 0), value=bins)
        cell = place[cells.bin + 1]
        cell += torch.arange(num_classes)[:, None] * (bins + 1)
        size = num_classes * (bins + 1)
        classes = torch.arange(cells.classes.start, cells.classes.stop)[:, None]
        weighted = self.resampling.weighted
        residuals = self._by_group(weighted((self.labels == classes).double() - cells.values), cell, size)
        if self.null_labels.shape[1] > 1:
            null = self._drawn(cells, cell, size)
        else:
            hits = (self.null_labels[:, 0] == classes).double()
            drawn = self._by_group(weighted(hits - cells.values), cell, size)
            null = self.resampling.multipliers @ drawn
            # One label for each sample shows how cells vary together; how much each does is known.
            variance = weighted(weighted(cells.values * (1 - cells.values)))
            spread = torch.bincount(cell.flatten(), variance.flatten(), minlength=size)
            null *= (
                spread.clamp(min=0) / drawn.square().sum(0).clamp(min=torch.finfo(null.dtype).tiny)
            ).sqrt()
        counted = self.resampling.weights
        each = None if counted is None else counted.expand(num_classes, -1).flatten()
        samples = torch.bincount(cell.flatten(), each, minlength=size).double()
        resampled = self.resampling.groups[1] @ residuals
        if counted is not None:
            resampled *= (self.resampling.size / self.resampling.drawn)[:, None]
        sums = resampled - residuals.sum(0), null, samples
        noise, null, shares = (
            part.view(*part.shape[:-1], num_classes, bins + 1)[..., :bins] / self.resampling.size
            for part in sums
        )
        return gaps[:, filled] / self.resampling.size, noise, null, shares

    def _by_group(self, values: Tensor, cell: Tensor, size: int) -> Tensor:
        """Sums ``(G, size)`` of values ``(M, N)`` whose cells are given."""
        groups, counts = self.resampling.groups
        num_groups = counts.shape[1]
        at = cell + groups * size
        return torch.bincount(at.flatten(), values.flatten(), minlength=num_groups * size).view(
            num_groups, size
        )

    def _drawn(self, cells: ClassCells, cell: Tensor, size: int) -> Tensor:
        """Gaps ``(S, size)`` of each set of drawn labels."""
        first, draws = cells.classes.start, self.null_labels.shape[1]
        each = self.resampling.weights
        null = torch.zeros(draws * size, dtype=torch.int64 if each is None else torch.float64)
        start = 0
        # A few samples at a time: places in all draws of all samples would take ten times their
        # memory.
        for labels in torch.split(self.null_labels, max(1, CHUNK_ELEMENTS // draws)):
            inside = (labels >= first) & (labels < cells.classes.stop)
            sample, draw = inside.nonzero(as_tuple=True)
            drawn = draw * size + cell[labels[sample, draw].long() - first, sample + start]
            null += torch.bincount(
                drawn, None if each is None else each[sample + start], minlength=draws * size
            )
            start += len(labels)
        claimed = self.resampling.weighted(cells.values).flatten()
        return null.view(draws, size) - torch.bincount(cell.flatten(), claimed, minlength=size)


class MeanOfClasses:
    """The mean of the errors of classes that come a few at a time, and the estimate of each."""

    def __init__(self, confidence: float | None):
        self._confidence = confidence
        self._sums: list[Gaps] = []
        self._count = 0
        self.estimates: list[Estimate] = []

    def add(self, errors: Gaps) -> None:
        """Take in the errors of some classes, the last axis."""
        self._sums.append(Gaps(*(part.sum(-1) for part in errors)))
        self._count += errors.seen.shape[-1]
        if self._confidence is not None:
            self.estimates += [error.estimate(self._confidence) for error in errors.per_class()]

    def mean(self) -> Gaps:
        """Average over all classes: what holds for each class's error holds so for their mean.

        One more sample adds to the errors of two classes, its own and the one it was taken for.
        """
        mean = Gaps(*(torch.stack(parts).sum(0) / self._count for parts in zip(*self._sums, strict=True)))
        return mean._replace(unseen=mean.unseen * 2 / self._count)


def equal_width(
    probs: Tensor, seen: Tensor, sample: PerSample, draws: ClassDraws, confidence: float | None
) -> "ClassErrors":
    """From probabilities, and from the gaps ``(bins, K)`` that were seen."""
    resampling = draws.resampling
    errors = MeanOfClasses(confidence)
    squares: list[SquaredGaps] = []
    for cells in width_cells(probs, draws.bins, draws.most_classes):
        some = slice(cells.classes.start, cells.classes.stop)
        gaps, noise, null, shares = draws.noise(cells, seen[:, some].T)
        size = torch.full(gaps.shape[:1], resampling.size)
        errors.add(norm_of_gaps(l1, gaps, noise, null, size=size))
        squares.append(SquaredGaps.of(gaps, noise, null, shares, resampling.size))
    calibration = SquaredGaps(*(torch.stack(parts).sum(0) for parts in zip(*squares, strict=True)))
    # One more sample adds to two classes, its own and the one it was taken for.
    calibration = calibration._replace(unseen=calibration.unseen * 2 / probs.shape[1])
    by_group = torch.bincount(resampling.groups[0], resampling.weighted(sample.squared_distance))
    resampled = resampling.groups[1] @ by_group / resampling.drawn
    ends = resampling.mean(scores_by_outcome(sample.top.confidence, probs.shape[1])[:, 1]).tolist()
    brier = Ordinary(float(resampling.mean(sample.squared_distance)), resampled, resampling.size, *ends)
    least, most, _ = calibration.deviation()
    of_brier = brier.deviation()
    refinement = Refinement(
        max(0.0, brier.value - calibration.value), Deviation(of_brier.least - most, of_brier.most - least)
    )
    return ClassErrors(errors.estimates, errors.mean(), calibration, refinement)


class ClassErrors(NamedTuple):
    """The errors of all classes in bins of equal width, and of each of them."""

    each: list[Estimate]
    sce: Sampled
    brier_calibration: Sampled
    brier_refinement: Sampled


@dataclass(frozen=True)
class Refinement:
    """The Brier score less its calibration part; noise makes it too small."""

    value: float
    deviations: Deviation

    def estimate(self, confidence: float) -> Estimate:
        """The value less what resampling says it may be off by."""
        tail = (1 - confidence) / 2
        low = self.value - quantile(self.deviations.most, 1 - tail)
        high = self.value - quantile(self.deviations.least, tail)
        return Estimate(self.value, max(0.0, min(low, self.value)), min(WORST_BRIER, max(high, self.value)))

    def deviation(self) -> Deviation:
        """As resampled."""
        return self.deviations


class SquaredGaps(NamedTuple):
    """Sums of squared gaps over shares of samples: the square of a norm, by which it is bounded."""

    seen: Tensor
    null: Tensor
    shrunk: Tensor
    shrunk_noisy: Tensor
    shrunk_null: Tensor
    grown: Tensor
    grown_noisy: Tensor
    unseen: Tensor

    @classmethod
    def of(cls, gaps: Tensor, noise: Tensor, null: Tensor, shares: Tensor, size: float) -> "SquaredGaps":
        """Sum over the bins of all given classes."""
        # Empty bins have no gap, whatever it is divided by.
        shares = torch.where(shares > 0, shares, 1.0)

        def by_class(values: Tensor) -> Tensor:
            return (values.square() / shares).sum(-1)

        def total(values: Tensor) -> Tensor:
            return by_class(values).sum(-1)

        noise = -noise
        shrunk, grown = plausible(lambda values: by_class(values).sqrt(), gaps, noise)
        return cls(
            total(gaps),
            total(null),
            total(shrunk),
            total(shrunk + noise),
            total(shrunk + null),
            total(grown),
            total(grown + noise),
            len(gaps) * unseen_share(len(noise), size).square(),
        )

    @property
    def value(self) -> float:
        """The sum of the sample."""
        return float(self.seen)

    def estimate(self, confidence: float) -> Estimate:
        """The squared ends of the norm's interval."""
        root = Gaps(
            self.seen.sqrt(),
            self.null.sqrt(),
            self.shrunk_noisy.sqrt() - self.shrunk.sqrt(),
            self.shrunk_null.sqrt() - self.shrunk.sqrt(),
            self.grown_noisy.sqrt() - self.grown.sqrt(),
            self.unseen.sqrt(),
        ).estimate(confidence, largest=math.sqrt(WORST_BRIER))
        low, high = root.low**2, min(WORST_BRIER, root.high**2)
        return Estimate(self.value, min(low, self.value), max(high, self.value), float(self.null.mean()))

    def deviation(self) -> Deviation:
        """Between what shrunk and grown gaps show: squares grow with noise and gaps."""
        shrunk, grown = self.shrunk_noisy - self.shrunk, self.grown_noisy - self.grown
        linear = 2 * (self.seen * self.unseen).sqrt()
        return Deviation(
            torch.minimum(shrunk, grown) - linear - self.unseen, torch.maximum(shrunk, grown) + linear
        )


def adaptive(probs: Tensor, threshold: float | None, draws: ClassDraws) -> Gaps:
    resampling = draws.resampling
    errors = MeanOfClasses(None)
    for cells in adaptive_cells(probs, draws.bins, threshold, draws.most_classes, resampling.weights):
        seen = adaptive_gaps(cells, draws.labels, draws.bins, resampling.weights)
        gaps, noise, null, _ = draws.noise(cells, seen)
        # Gaps are means over all samples, and this error is one over those that count.
        weight = (resampling.size / torch.where(cells.kept > 0, cells.kept, 1.0).double())[:, None]
        # Nothing is known of a class of which no sample counts, and it has no error.
        size = torch.where(cells.kept > 0, cells.kept, math.inf)
        errors.add(norm_of_gaps(l1, gaps * weight, noise * weight, null * weight, size=size))
    return errors.mean()

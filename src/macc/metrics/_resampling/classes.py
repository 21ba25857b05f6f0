"""The gaps of every class, in bins of equal width and of equal mass."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from macc.metrics._one_pass import PerSample
from macc.metrics._resampling.means import scores_by_outcome
from macc.metrics._resampling.samples import CHUNK_ELEMENTS, Resampling
from macc.metrics.binning import ClassCells, adaptive_cells, width_cells
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
    """Labels, and what is needed to resample the gaps of classes; ``null_labels`` ``(N, S)`` are drawn from the probabilities."""

    labels: Tensor
    bins: int
    resampling: Resampling
    null_labels: Tensor

    @property
    def most_classes(self) -> int:
        """How many classes to look at together, because each takes all resamples of all its bins."""
        return max(1, CHUNK_ELEMENTS // (self.resampling.resamples * (self.bins + 1)))

    def noise(self, cells: ClassCells) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gaps ``(M, B)`` of some classes, their noise and null gaps, and shares of samples; bins all of them leave empty are left out."""
        num_classes, num_samples = cells.bin.shape
        filled = torch.bincount(cells.bin.flatten() + 1, minlength=self.bins + 1)[1:] > 0
        filled[0] = True  # nothing may count at all
        bins = int(filled.sum())
        # Entries that do not count fall in one more bin, which is dropped at the end.
        place = torch.nn.functional.pad(torch.where(filled, filled.cumsum(0) - 1, bins), (1, 0), value=bins)
        cell = place[cells.bin + 1]
        cell += torch.arange(num_classes)[:, None] * (bins + 1)
        size = num_classes * (bins + 1)
        classes = torch.arange(cells.classes.start, cells.classes.stop)[:, None]
        residuals = self._by_group((self.labels == classes).double() - cells.values, cell, size)
        if self.null_labels.shape[1] > 1:
            null = self._drawn(cells, cell, size)
        else:
            drawn = self._by_group((self.null_labels[:, 0] == classes).double() - cells.values, cell, size)
            null = self.resampling.multipliers @ drawn
            # One label for each sample shows how cells vary together; how much each does is known.
            spread = torch.bincount(
                cell.flatten(), (cells.values * (1 - cells.values)).flatten(), minlength=size
            )
            null *= (
                spread.clamp(min=0) / drawn.square().sum(0).clamp(min=torch.finfo(null.dtype).tiny)
            ).sqrt()
        gaps = residuals.sum(0)
        samples = torch.bincount(cell.flatten(), minlength=size).double()
        sums = gaps, self.resampling.groups[1] @ residuals - gaps, null, samples
        gaps, noise, null, shares = (
            part.view(*part.shape[:-1], num_classes, bins + 1)[..., :bins] / num_samples for part in sums
        )
        return gaps, noise, null, shares

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
        null = torch.zeros(draws * size, dtype=torch.int64)
        start = 0
        # A few samples at a time: places in all draws of all samples would take ten times their memory.
        for labels in torch.split(self.null_labels, max(1, CHUNK_ELEMENTS // draws)):
            inside = (labels >= first) & (labels < cells.classes.stop)
            sample, draw = inside.nonzero(as_tuple=True)
            drawn = draw * size + cell[labels[sample, draw].long() - first, sample + start]
            null += torch.bincount(drawn, minlength=draws * size)
            start += len(labels)
        return null.view(draws, size) - torch.bincount(cell.flatten(), cells.values.flatten(), minlength=size)


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
    probs: Tensor, sample: PerSample, draws: ClassDraws, confidence: float | None
) -> "ClassErrors":
    num_samples = len(draws.labels)
    errors = MeanOfClasses(confidence)
    squares: list[SquaredGaps] = []
    for cells in width_cells(probs, draws.bins, draws.most_classes):
        gaps, noise, null, shares = draws.noise(cells)
        errors.add(norm_of_gaps(l1, gaps, noise, null, size=cells.kept))
        squares.append(SquaredGaps.of(gaps, noise, null, shares, num_samples))
    calibration = SquaredGaps(*(torch.stack(parts).sum(0) for parts in zip(*squares, strict=True)))
    # One more sample adds to two classes, its own and the one it was taken for.
    calibration = calibration._replace(unseen=calibration.unseen * 2 / probs.shape[1])
    by_group = torch.bincount(draws.resampling.groups[0], sample.squared_distance)
    resampled = draws.resampling.groups[1] @ by_group / draws.resampling.drawn
    ends = scores_by_outcome(sample.top.confidence, probs.shape[1])[:, 1].mean(-1).tolist()
    brier = Ordinary(float(sample.squared_distance.mean()), resampled, num_samples, *ends)
    least, most = calibration.deviation()
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
    """What is left of the Brier score: too small by as much as noise makes the calibration part too large."""

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
    def of(cls, gaps: Tensor, noise: Tensor, null: Tensor, shares: Tensor, num_samples: int) -> "SquaredGaps":
        """Sum over the bins of all given classes."""
        shares = shares.clamp(min=1 / num_samples)

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
            len(gaps) * unseen_share(len(noise), num_samples).square(),
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
        """Between what shrunk and grown gaps show; noise enters squares more, the larger the gaps."""
        shrunk, grown = self.shrunk_noisy - self.shrunk, self.grown_noisy - self.grown
        linear = 2 * (self.seen * self.unseen).sqrt()
        return Deviation(
            torch.minimum(shrunk, grown) - linear - self.unseen, torch.maximum(shrunk, grown) + linear
        )


def adaptive(probs: Tensor, threshold: float | None, draws: ClassDraws) -> Gaps:
    num_samples = len(draws.labels)
    errors = MeanOfClasses(None)
    for cells in adaptive_cells(probs, draws.bins, threshold, draws.most_classes):
        gaps, noise, null, _ = draws.noise(cells)
        # Gaps are means over all samples, and this error is one over those that count.
        weight = (num_samples / cells.kept.clamp(min=1).double())[:, None]
        # Nothing is known of a class of which no sample counts, and it has no error.
        size = torch.where(cells.kept > 0, cells.kept, math.inf)
        errors.add(norm_of_gaps(l1, gaps * weight, noise * weight, null * weight, size=size))
    return errors.mean()

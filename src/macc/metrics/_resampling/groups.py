"""Sums by group, resampled in place of samples: the draws of a stream."""

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics._resampling.classes import MeanOfClasses
from macc.metrics._resampling.gaps import BinErrors, errors_of_bins
from macc.metrics._resampling.means import MeanScores, mean_scores
from macc.metrics.binning import TopBins
from macc.metrics.fine_cells import BinnedArea
from macc.metrics.intervals import Estimate, Ordinary, Sampled, l1, norm_of_gaps
from macc.metrics.sums import Sums


class PositiveErrors(NamedTuple):
    """The errors of the probability of the positive class of two."""

    brier: Sampled
    bins: BinErrors


class StreamedClassErrors(NamedTuple):
    """The errors of each class, and their mean."""

    each: list[Estimate]
    sce: Sampled


class GroupDraws:
    """What the metrics that stream read, under the names that
    :class:`macc.metrics._resampling.Draws` has for it.

    Args:
        sums: Sums of many groups.
        resamples: Number of resamples.
        confidence: Level of the intervals of single classes, which are left out without it.
        images: Samples are pixels, and groups hold whole images. Then nothing rests on samples
            being independent: there are as many as groups that hold any, noise floors are what
            groups show, and accuracy has the interval of a mean.
    """

    def __init__(
        self, sums: Sums, *, resamples: int = 1000, confidence: float | None = None, images: bool = False
    ):
        self._sums, self._resamples, self._confidence = sums, resamples, confidence
        self._images = images

    @cached_property
    def _size(self) -> float:
        """How many samples are independent."""
        return int((self._sums.parts["scores"][:, 0] > 0).sum()) if self._images else self._sums.size

    @cached_property
    def _drawn(self) -> tuple[Tensor, Tensor]:
        return _draws(self._sums.parts["scores"][:, 0], self._resamples)

    @cached_property
    def _by_outcome(self) -> Tensor:
        return self._sums.parts["by_outcome"] / self._sums.total

    @cached_property
    def scores(self) -> MeanScores:
        """Accuracy, NLL and Brier score."""
        draws, samples = self._drawn
        means = self._sums.means
        resampled = (draws @ self._sums.parts["scores"][:, 1:4]).T / samples
        if math.isinf(means.nll):
            resampled[1] = math.inf
        whole = not (self._images or self._sums.relative)
        return mean_scores(means, resampled, self._by_outcome, self._size, whole=whole)

    @cached_property
    def auroc(self) -> BinnedArea:
        """The area under the ROC curve, averaged over classes."""
        area = self._sums.area
        assert area is not None  # noqa: S101 - sums of many groups keep fine cells
        return area

    @cached_property
    def top(self) -> BinErrors:
        """The errors of the bins of confidence."""
        return self._binned("top", self._sums.top, 1)

    @cached_property
    def positive(self) -> PositiveErrors:
        """The probability of the positive class of two."""
        draws, samples = self._drawn
        # Half the Brier score of both classes.
        ends = (self._by_outcome[:, 1] / 2).tolist()
        resampled = draws @ self._sums.parts["positive_brier"] / samples
        # Seeds from 2 on belong to the classes.
        return PositiveErrors(
            brier=Ordinary(self._sums.positive_brier, resampled, self._size, *ends),
            bins=self._binned("positive", self._sums.positive, 0),
        )

    @cached_property
    def classes(self) -> StreamedClassErrors:
        """The errors of all classes in bins of equal width."""
        sums, total = self._sums, self._sums.total
        draws, samples = _draws(sums.parts["class_samples"], self._resamples)
        errors = MeanOfClasses(self._confidence)
        # A few classes at a time: draws times bins times classes would be large.
        step = max(1, 2**22 // (self._resamples * sums.bins))
        for start in range(0, sums.num_classes, step):
            some = slice(start, start + step)
            by_group = sums.parts["class_gaps"][:, :, some].transpose(1, 2)
            gaps = by_group.sum(0) / total
            flat = draws @ by_group.reshape(len(by_group), -1)
            noise = (flat / samples[:, None]).view(-1, *gaps.shape) - gaps
            null = (
                noise.flip(0)
                if self._images
                else self._normal(sums.parts["class_null"][:, some].T, 2 + start)
            )
            errors.add(norm_of_gaps(l1, gaps, noise, null, size=torch.full(gaps.shape[:1], self._size)))
        return StreamedClassErrors(errors.estimates, errors.mean())

    def _binned(self, name: str, binned: TopBins, seed: int) -> BinErrors:
        draws, samples = self._drawn
        by_group = self._sums.parts[f"{name}_gaps"]
        noise = draws @ by_group / samples[:, None] - by_group.sum(0) / self._sums.total
        null = noise.flip(0) if self._images else self._normal(self._sums.parts[name][3], seed)
        return errors_of_bins(binned, noise, null, sizes=self._sums.bin_sizes(name), size=self._size)

    def _normal(self, variance: Tensor, seed: int) -> Tensor:
        """Normal sums of many labels drawn from their probabilities, as shares of all."""
        drawn = np.random.default_rng([7, seed]).normal(size=(self._resamples, *variance.shape))
        return torch.from_numpy(drawn * np.sqrt(variance.numpy())) / self._sums.total


def _draws(samples: Tensor, resamples: int) -> tuple[Tensor, Tensor]:
    """Counts of groups in each resample, float64 ``(R, G)``, and of samples, ``(R,)``.

    Where groups are empty, as they are for few samples, so may be resamples of them: those say
    nothing.
    """
    groups = len(samples)
    random = np.random.default_rng(groups)
    drawn = random.integers(groups, size=(resamples, groups)) + np.arange(resamples)[:, None] * groups
    counts = np.bincount(drawn.ravel(), minlength=resamples * groups).reshape(resamples, groups)
    draws = torch.from_numpy(counts.astype(np.float64))
    drawn_samples = draws @ samples
    return draws[drawn_samples > 0], drawn_samples[drawn_samples > 0]

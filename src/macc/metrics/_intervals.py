"""Intervals whose coverage is tested, and the noise floor of errors that chance alone makes positive.

Scores that are means (accuracy, NLL, Brier) or ranks (AUROC, AURC) get the ordinary percentile
bootstrap. A calibration error is a norm of gaps, ``e = F(d)`` with ``d = δ + ξ``: the true gaps and
their noise. Noise cannot cancel in a norm, so ``e`` is too large by an amount that depends on how
large ``δ`` is against the noise, and percentiles of resampled errors, which carry that bias twice,
may never contain the truth. Here the noise itself is resampled, ``ξ* = d* - d``, and added to gaps
that are deliberately too small or too large:

- The bias ``F(δ + ξ) - F(δ)`` is largest for ``δ = 0`` and falls as gaps grow, so the lower end is
  ``e`` minus the upper quantile of ``F(δ₁ + ξ*) - F(δ₁)``, where ``δ₁`` is ``d`` moved towards 0 by
  1.5 standard errors. Where cells hold hardly a sample, resampling shows too little noise; the same
  quantile with the noise of labels drawn from the probabilities themselves is taken if it is larger.
  The lower end is 0 when ``e`` is what such labels give by chance.
- The upper end is ``e`` minus the lower quantile of ``F(δ₂ + ξ*) - F(δ₂)``, where ``δ₂`` is ``d``
  moved away from 0 by half a standard error, and never less than ``e``.

What is covered is the error of the whole population with the same bins.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.metrics._binning import TopBins

Floats: TypeAlias = npt.NDArray[np.float64]

_SHRINK = 1.5
_GROW = 0.5


@dataclass(frozen=True)
class Estimate:
    """A metric, its interval, and for a calibration error the value that chance alone would give."""

    value: float
    low: float
    high: float
    noise_floor: float | None = None


class Deviation(NamedTuple):
    """Draws ``(R,)`` between which a sample's deviation from the population lies, noise and bias.

    They differ where the bias is not known: an error is too large by more, the smaller the true gaps are.
    """

    least: Tensor
    most: Tensor


class Deviating(Protocol):
    """A number with draws of its deviation: enough for a difference."""

    @property
    def value(self) -> float:
        """The metric of the sample."""

    def deviation(self) -> Deviation:
        """Draws of the metric of a sample minus that of the population."""


class Sampled(Deviating, Protocol):
    """A metric together with what resampling showed of it."""

    def estimate(self, confidence: float) -> Estimate:
        """The metric with its interval."""


@dataclass(frozen=True)
class Ordinary:
    """A score without bias to speak of: the percentile bootstrap."""

    value: float
    resampled: Tensor

    def estimate(self, confidence: float) -> Estimate:
        """Percentiles; resamples in which the score is undefined (one class left) are left out."""
        tail = (1 - confidence) / 2
        defined = self.resampled[~self.resampled.isnan()]
        if math.isnan(self.value) or len(defined) == 0:
            return Estimate(self.value, math.nan, math.nan)
        low, high = quantile(defined, tail), quantile(defined, 1 - tail)
        return Estimate(self.value, min(self.value, low), max(self.value, high))

    def deviation(self) -> Deviation:
        """Resampled minus seen."""
        return Deviation(self.resampled - self.value, self.resampled - self.value)


@dataclass(frozen=True)
class MeanOfSets:
    """The unweighted mean of a metric over several sets, whose draws were made together."""

    parts: tuple[Deviating, ...]

    @property
    def value(self) -> float:
        """The mean."""
        return math.fsum(part.value for part in self.parts) / len(self.parts)

    def deviation(self) -> Deviation:
        """Draw by draw, the mean over the sets."""
        found = [part.deviation() for part in self.parts]
        least, most = (torch.stack(draws).mean(0) for draws in zip(*found, strict=True))
        return Deviation(least, most)


class Gaps(NamedTuple):
    """How far a norm of noisy gaps exceeds that of the gaps, for one error or one error per class.

    All but ``seen`` have draws on the first axis: of labels from the probabilities (``null``), and of
    noise added to smaller (``shrunk``) and larger (``grown``) gaps than those seen.
    """

    seen: Tensor
    null: Tensor
    shrunk: Tensor
    shrunk_null: Tensor
    grown: Tensor

    @property
    def value(self) -> float:
        """The error of the sample."""
        return float(self.seen)

    def estimate(self, confidence: float, *, largest: float = 1.0) -> Estimate:
        """The interval described at the top of this file, between 0 and the largest error there is."""
        tail = (1 - confidence) / 2
        value, low = self.value, 0.0
        if value > quantile(self.null, 1 - tail):
            bias = max(quantile(self.shrunk, 1 - tail), quantile(self.shrunk_null, 1 - tail), 0.0)
            low = max(0.0, value - bias)
        high = min(largest, value - min(0.0, quantile(self.grown, tail)))
        return Estimate(value, min(low, value), max(high, value), float(self.null.mean()))

    def deviation(self) -> Deviation:
        """From what grown gaps show to what shrunk ones show, moved up where drawn labels show more."""
        more = (self.shrunk_null.mean() - self.shrunk.mean()).clamp(min=0)
        return Deviation(
            torch.minimum(self.shrunk, self.grown), torch.maximum(self.shrunk + more, self.grown)
        )

    def per_class(self) -> "list[Gaps]":
        """Split the last axis."""
        return [Gaps(*(part[..., j] for part in self)) for j in range(self.seen.shape[-1])]

    def mean(self) -> "Gaps":
        """Average over the last axis: what holds for each class's error holds so for their mean."""
        return Gaps(*(part.mean(-1) for part in self))


Norm = Callable[[Tensor], Tensor]


def l1(gaps: Tensor) -> Tensor:
    """Sum of absolute gaps."""
    return gaps.abs().sum(-1)


def plausible(gaps: Tensor, noise: Tensor, *, sign: int = 0) -> tuple[Tensor, Tensor]:
    """Gaps moved towards 0, and away from it (or to the side ``sign``)."""
    spread = noise.std(0, correction=0)
    side = gaps.sign() if sign == 0 else torch.full_like(gaps, sign)
    shrunk = gaps.sign() * (gaps.abs() - _SHRINK * spread).clamp(min=0)
    return shrunk, gaps + _GROW * spread * side


def norm_of_gaps(norm: Norm, gaps: Tensor, noise: Tensor, null: Tensor, *, sign: int = 0) -> Gaps:
    """Evaluate a norm of the gaps under resampled and under null noise.

    Args:
        norm: Maps ``(..., C)`` gaps to ``(...)`` errors.
        gaps: ``(..., C)`` gaps seen.
        noise: ``(R, ..., C)`` resampled gaps minus those seen.
        null: ``(S, ..., C)`` gaps of labels drawn from the probabilities.
        sign: The side on which a one-sided norm counts gaps, 0 for both.
    """
    shrunk, grown = plausible(gaps, noise, sign=sign)
    return Gaps(
        norm(gaps),
        norm(null),
        norm(shrunk + noise) - norm(shrunk),
        norm(shrunk + null) - norm(shrunk),
        norm(grown + noise) - norm(grown),
    )


@dataclass(frozen=True)
class Unbinned:
    """An error without bins that is subadditive, ``F(d) <= F(δ) + F(ξ)``.

    ``noise`` and ``null`` hold ``F`` of resampled noise and of labels drawn from the probabilities,
    ``slope`` the first-order change of the error under resampled noise.
    """

    value: float
    noise: Tensor
    null: Tensor
    slope: Tensor

    def estimate(self, confidence: float) -> Estimate:
        """Subadditivity bounds the population's error from below, the slope from above."""
        tail = (1 - confidence) / 2
        chance = quantile(self.null, 1 - tail)
        low = (
            max(0.0, self.value - max(quantile(self.noise, 1 - tail), chance)) if self.value > chance else 0.0
        )
        high = min(1.0, max(self.value, self.value - quantile(self.slope, tail)))
        return Estimate(self.value, min(low, self.value), high, float(self.null.mean()))

    def deviation(self) -> Deviation:
        """From the slope to all of the noise."""
        return Deviation(self.slope, torch.maximum(self.noise, self.slope))


@dataclass(frozen=True)
class LargestGap:
    """The largest gap of any filled bin, bounded by exact binomial limits of all of them together.

    The largest of few noisy numbers follows no resampling scheme; limits that hold for every bin at
    once hold for the worst. Bins that hold no sample are not part of what is covered.
    """

    value: float
    binned: TopBins
    null: Tensor

    def estimate(self, confidence: float) -> Estimate:
        """Clopper-Pearson limits, the error shared among the bins."""
        filled = self.binned.samples > 0
        size, claimed, right = (part[filled].cpu().numpy() for part in self.binned)
        lowest, highest = clopper_pearson(right, size, (1 - confidence) / 2 / len(size))
        claimed = claimed / size
        low = np.maximum(claimed - highest, lowest - claimed).max()
        high = np.maximum(claimed - lowest, highest - claimed).max()
        shares = self.binned.samples[filled] / self.binned.samples.sum()
        chance = (self.null[:, filled].abs() / shares).amax(1).mean()
        return Estimate(
            self.value, min(self.value, max(0.0, float(low))), max(self.value, float(high)), float(chance)
        )

    def deviation(self) -> Deviation:
        """None: limits that hold for all bins at once admit no useful difference."""
        return Deviation(torch.empty(0), torch.empty(0))


@dataclass(frozen=True)
class LargestCoverage:
    """The largest share of samples, the most confident first, among which a risk is kept.

    Of many thresholds the luckiest is taken, so the share is too large as a rule, and by how much
    resampling does not show. The share of the population ends where its risk crosses the limit, which
    lies between where the exact limits of the risk cross it; the limits of the share itself add to that.

    Args:
        value: The share of the sample.
        resampled: What resampling showed, for differences.
        answered: ``(G,)`` samples down to each confidence.
        wrong: ``(G,)`` errors among them.
        risk: The limit.
    """

    value: float
    resampled: Deviation
    answered: Tensor
    wrong: Tensor
    risk: float

    def estimate(self, confidence: float) -> Estimate:
        """Where Clopper-Pearson limits of the risk cross what is allowed."""
        tail = (1 - confidence) / 2
        answered, wrong = self.answered.numpy(), self.wrong.numpy()
        fewest, most = (
            float(np.where(within, answered, 0).max())
            for within in reversed(limits_within(wrong, answered, tail, self.risk))
        )
        shares = clopper_pearson(np.array([fewest, most]), answered[-1], tail)
        return Estimate(
            self.value, min(float(shares[0][0]), self.value), max(float(shares[1][1]), self.value)
        )

    def deviation(self) -> Deviation:
        """As resampled."""
        return self.resampled


def clopper_pearson(hits: npt.ArrayLike, size: npt.ArrayLike, tail: float) -> tuple[Floats, Floats]:
    """Exact limits of the probabilities behind so many hits among so many samples, each missed by ``tail``."""
    # Scikit-learn brings scipy along, and importing the metrics should not wait for it.
    from scipy.special import betaincinv

    hits, size = np.asarray(hits, dtype=np.float64), np.asarray(size, dtype=np.float64)
    # The limits are 0 and 1 where nothing or everything hit; there the function is undefined.
    some, all_but_some = np.maximum(hits, 0.5), np.maximum(size - hits, 0.5)
    return (
        np.where(hits > 0, betaincinv(some, size - hits + 1, tail), 0.0),
        np.where(hits < size, betaincinv(hits + 1, all_but_some, 1 - tail), 1.0),
    )


def limits_within(
    hits: Floats, size: Floats, tail: float, most: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether the lower and the upper limits of :func:`clopper_pearson` are at most ``most``, a hundred times as fast."""
    from scipy.special import betainc

    some, all_but_some = np.maximum(hits, 0.5), np.maximum(size - hits, 0.5)
    lower = (hits == 0) | (betainc(some, size - hits + 1, most) >= tail)
    upper = (hits < size) & (betainc(hits + 1, all_but_some, most) >= 1 - tail)
    return lower, upper


def quantile(values: Tensor, level: float) -> float:
    """The quantile, rounded outwards to a value that occurs; infinite values need no arithmetic so."""
    ordered = values.sort().values
    place = level * (len(ordered) - 1)
    return float(ordered[math.ceil(place - 1e-9) if level > 0.5 else math.floor(place + 1e-9)])

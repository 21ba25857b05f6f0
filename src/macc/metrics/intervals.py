"""Intervals whose coverage is tested, and the noise floor of errors that chance alone makes
positive.

Accuracy gets the exact limits of Clopper and Pearson. Scores that are means (NLL, Brier) or ranks
(AUROC, AURC) get the ordinary percentile bootstrap. A calibration error is a norm of gaps,
``e = F(d)`` with ``d = δ + ξ``: the true gaps and their noise. Noise cannot cancel in a norm, so
``e`` is too large by an amount that depends on how large ``δ`` is against the noise, and
percentiles of resampled errors, which carry that bias twice, may never contain the truth. Here the
noise itself is resampled and added to gaps that are deliberately too small or too large. A resample
is to the sample what the population may be to it, as percentiles have it, so that ``ξ* = d - d*``:

- The bias ``F(δ + ξ) - F(δ)`` is largest for ``δ = 0`` and falls as gaps grow, so the lower end is
  ``e`` minus the upper quantile of ``F(δ₁ + ξ*) - F(δ₁)``, where ``δ₁`` is ``d`` moved towards 0 by
  1.5 standard errors. Where cells hold hardly a sample, resampling shows too little noise; the same
  quantile with the noise of labels drawn from the probabilities themselves is taken if it is
  larger. The lower end is 0 when ``e`` is what such labels give by chance.
- The upper end is ``e`` minus the lower quantile of ``F(δ₂ + ξ*) - F(δ₂)``, and never less than
  ``e``. ``δ₂`` is the gaps that are most likely if ``e`` is two standard errors too small. For
  large gaps ``F`` is linear in the noise, ``L = ∇F · ξ``, and given ``L`` the noise of gap ``b`` is
  expected to be ``cov(ξ_b, L) / sd(L)`` for each standard error of ``L``. So a gap that carries all
  the noise moves by two standard errors of its own, and each of 15 alike moves by half a standard
  error.

A sample shows no outcome that it does not hold: where nothing was wrong, resamples vary by nothing.
So the population is taken to hold one more sample, with the outcome that matters most. Weights of
``n + 1`` samples that are drawn evenly from all that sum to 1 are exponential numbers over their
sum, and the mean of ``k`` ones, ``n - k`` zeros and one more one is then a Beta(k + 1, n - k)
number, whose quantile is the limit of Clopper and Pearson. For other means of bounded numbers this
is the bound of Gaffke (2005). It adds about ``1 / n`` to a limit where errors are many, and 3.7 / n
where none were seen.

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

from macc.metrics.binning import TopBins

Floats: TypeAlias = npt.NDArray[np.float64]

_SHRINK = 1.5
_GROW = 2.0


@dataclass(frozen=True)
class Estimate:
    """A metric, its interval, and for a calibration error what chance alone would give."""

    value: float
    low: float
    high: float
    noise_floor: float | None = None


class Deviation(NamedTuple):
    """Draws ``(R,)`` between which a sample's deviation from the population lies, noise and bias.

    They differ where the bias is not known: an error is too large by more, the smaller the true
    gaps are. ``middle`` are draws, again least and most, with a bias halfway; where there are none,
    the ends serve.
    """

    least: Tensor
    most: Tensor
    middle: tuple[Tensor, Tensor] | None = None

    def minus(self, other: "Deviation") -> tuple[Tensor, Tensor]:
        """Least and most of the deviation of a difference, whatever the biases of the two."""
        return self.least - other.most, self.most - other.least

    def near(self, other: "Deviation") -> list[tuple[Tensor, Tensor]]:
        """The same if the biases are alike: one may be far off, the other halfway."""
        own, others = self.middle or self[:2], other.middle or other[:2]
        return [(self.least - others[1], self.most - others[0]), (own[0] - other.most, own[1] - other.least)]


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
    """A score without bias to speak of: the percentile bootstrap, with a sample that was not seen.

    Args:
        value: The score.
        resampled: ``(R,)`` the same of resamples.
        size: Of how many samples the score is a mean; infinite where one more would not matter.
        least: The least that one more sample could count.
        most: The most that it could count.
    """

    value: float
    resampled: Tensor
    size: float = math.inf
    least: float = 0.0
    most: float = 1.0

    def estimate(self, confidence: float) -> Estimate:
        """Percentiles; resamples in which the score is undefined (one class left) are left out."""
        tail = (1 - confidence) / 2
        lower, upper = (draws[~draws.isnan()] for draws in self._population())
        if math.isnan(self.value) or len(lower) == 0:
            return Estimate(self.value, math.nan, math.nan)
        low, high = quantile(lower, tail), quantile(upper, 1 - tail)
        return Estimate(self.value, min(self.value, low), max(self.value, high))

    def deviation(self) -> Deviation:
        """The score less what the population's may be."""
        lower, upper = self._population()
        return Deviation(self.value - upper, self.value - lower)

    def _population(self) -> tuple[Tensor, Tensor]:
        unseen = unseen_share(len(self.resampled), self.size)
        seen = self.resampled * (1 - unseen)
        return seen + unseen * self.least, seen + unseen * self.most


@dataclass(frozen=True)
class Share:
    """A share of ``size`` samples: exact limits."""

    resampled: Ordinary
    size: int

    @property
    def value(self) -> float:
        """The share."""
        return self.resampled.value

    def estimate(self, confidence: float) -> Estimate:
        """Clopper-Pearson limits, as if of whole samples."""
        hits = round(self.value * self.size)
        low, high = clopper_pearson(hits, self.size, (1 - confidence) / 2)
        return Estimate(self.value, float(low), float(high))

    def deviation(self) -> Deviation:
        """As resampled."""
        return self.resampled.deviation()


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
        least, most = _mean([each[:2] for each in found])
        return Deviation(least, most, _mean([each.middle or each[:2] for each in found]))


def _mean(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    least, most = zip(*pairs, strict=True)
    return torch.stack(least).mean(0), torch.stack(most).mean(0)


class Gaps(NamedTuple):
    """How far a norm of noisy gaps exceeds that of the gaps, for one error or one error per class.

    All but ``seen`` have draws on the first axis: of labels from the probabilities (``null``), of
    noise added to smaller (``shrunk``) and larger (``grown``) gaps than those seen, and of what
    outcomes that were not seen may add (``unseen``).
    """

    seen: Tensor
    null: Tensor
    shrunk: Tensor
    shrunk_null: Tensor
    grown: Tensor
    unseen: Tensor

    @property
    def value(self) -> float:
        """The error of the sample."""
        return float(self.seen)

    def estimate(self, confidence: float, *, largest: float = 1.0) -> Estimate:
        """The interval described at the top, between 0 and the largest error there is."""
        tail = (1 - confidence) / 2
        value, low = self.value, 0.0
        if value > quantile(self.null, 1 - tail):
            noise = quantile(self.shrunk + self.unseen, 1 - tail)
            low = max(0.0, value - max(noise, quantile(self.shrunk_null, 1 - tail), 0.0))
        high = min(largest, value - min(0.0, quantile(self.grown - self.unseen, tail)))
        return Estimate(value, min(low, value), max(high, value), float(self.null.mean()))

    def deviation(self) -> Deviation:
        """From what grown gaps show to what shrunk ones, or drawn labels if more, show."""
        more = (self.shrunk_null.mean() - self.shrunk.mean()).clamp(min=0)
        middle = (self.shrunk + more + self.grown) / 2
        return Deviation(
            torch.minimum(self.shrunk, self.grown) - self.unseen,
            torch.maximum(self.shrunk + more, self.grown) + self.unseen,
            (middle - self.unseen, middle + self.unseen),
        )

    def per_class(self) -> "list[Gaps]":
        """Split the last axis."""
        return [Gaps(*(part[..., j] for part in self)) for j in range(self.seen.shape[-1])]


Norm = Callable[[Tensor], Tensor]


def l1(gaps: Tensor) -> Tensor:
    """Sum of absolute gaps."""
    return gaps.abs().sum(-1)


def above(gaps: Tensor) -> Tensor:
    """Sum of gaps where confidence is above accuracy."""
    return (-gaps).clamp(min=0).sum(-1)


def below(gaps: Tensor) -> Tensor:
    """Sum of gaps where confidence is below accuracy."""
    return gaps.clamp(min=0).sum(-1)


def root_mean_square(binned: TopBins) -> Norm:
    """The norm that weights squared gaps of these bins by their samples."""
    count = float(binned.samples.sum())
    # Empty bins have no gap, whatever it is divided by.
    shares = torch.where(binned.samples > 0, binned.samples / count, 1.0)
    return lambda gaps: (gaps.square() / shares).sum(-1).sqrt()


def plausible(norm: Norm, gaps: Tensor, noise: Tensor, *, sign: int = 0) -> tuple[Tensor, Tensor]:
    """Gaps moved towards 0 and away, or to the side ``sign``, as far as the norm may err."""
    spread = noise.std(0, correction=0)
    side = torch.where(gaps < 0, -1.0, 1.0) if sign == 0 else torch.full_like(gaps, sign)
    shrunk = gaps.sign() * (gaps.abs() - _SHRINK * spread).clamp(min=0)
    far = gaps + _GROW * spread * side
    # This far from 0 the norm is linear.
    change = norm(far + noise)
    change = change - change.mean(0)
    covariance = torch.einsum("r...c,r...->...c", noise, change) / len(noise)
    error = change.std(0, correction=0)[..., None]
    moved = torch.where(error > 0, _GROW * covariance / error, 0.0)
    return shrunk, gaps + (moved * side).clamp(min=0) * side


def norm_of_gaps(
    norm: Norm,
    gaps: Tensor,
    noise: Tensor,
    null: Tensor,
    *,
    size: Tensor,
    adds: Tensor | None = None,
    sign: int = 0,
) -> Gaps:
    """Evaluate a norm of the gaps under resampled and under null noise.

    Args:
        norm: Maps ``(..., C)`` gaps to ``(...)`` errors.
        gaps: ``(..., C)`` gaps seen.
        noise: ``(R, ..., C)`` resampled gaps minus those seen.
        null: ``(S, ..., C)`` gaps of labels drawn from the probabilities.
        size: ``(...)`` of how many samples each error is a mean.
        adds: ``(C,)`` how large the gap of one more sample could be, 1 if it is not given.
        sign: The side on which a one-sided norm counts gaps, 0 for both.
    """
    noise = -noise
    shrunk, grown = plausible(norm, gaps, noise, sign=sign)
    unseen = unseen_share(len(noise), size)
    if adds is not None:
        unseen = unseen[..., None] * adds
        if sign != 0:  # What only makes a gap of the other side smaller does not count.
            unseen = (sign * grown + unseen).clamp(min=0) - (sign * grown).clamp(min=0)
        unseen = unseen.amax(-1)
    return Gaps(
        norm(gaps),
        norm(null),
        norm(shrunk + noise) - norm(shrunk),
        norm(shrunk + null) - norm(shrunk),
        norm(grown + noise) - norm(grown),
        unseen,
    )


@dataclass(frozen=True)
class Unbinned:
    """An error without bins that is subadditive, ``F(d) <= F(δ) + F(ξ)``.

    ``noise`` and ``null`` hold ``F`` of resampled noise and of labels drawn from the probabilities,
    ``slope`` the first-order change of the error under resampled noise, and ``size`` is the number
    of samples.
    """

    value: float
    noise: Tensor
    null: Tensor
    slope: Tensor
    size: float

    def estimate(self, confidence: float) -> Estimate:
        """Subadditivity bounds the population's error from below, the slope from above."""
        tail = (1 - confidence) / 2
        least, most, _ = self.deviation()
        chance = quantile(self.null, 1 - tail)
        low = max(0.0, self.value - max(quantile(most, 1 - tail), chance)) if self.value > chance else 0.0
        high = min(1.0, max(self.value, self.value - quantile(least, tail)))
        return Estimate(self.value, min(low, self.value), high, float(self.null.mean()))

    def deviation(self) -> Deviation:
        """From the slope to all of the noise, and what was not seen."""
        unseen = unseen_share(len(self.slope), self.size)
        most = torch.maximum(self.noise, self.slope)
        middle = (self.slope + most) / 2
        return Deviation(self.slope - unseen, most + unseen, (middle - unseen, middle + unseen))


@dataclass(frozen=True)
class LargestGap:
    """The largest gap of any filled bin, bounded by exact binomial limits of all of them together.

    The largest of few noisy numbers follows no resampling scheme; limits that hold for every bin at
    once hold for the worst. Bins that hold no sample are not part of what is covered. A bin of
    weighted samples is one of as many samples as ``sizes`` says.
    """

    value: float
    binned: TopBins
    sizes: Tensor
    null: Tensor

    def estimate(self, confidence: float) -> Estimate:
        """Clopper-Pearson limits, the error shared among the bins."""
        filled = self.binned.samples > 0
        total, claimed, right = (part[filled].cpu().numpy() for part in self.binned)
        size = self.sizes[filled].cpu().numpy()
        lowest, highest = clopper_pearson(right * (size / total), size, (1 - confidence) / 2 / len(size))
        claimed = claimed / total
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
    resampling does not show. The share of the population ends where its risk crosses the limit,
    which lies between where the exact limits of the risk cross it; the limits of the share itself
    add to that.

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


def unseen_share(draws: int, size: Tensor | float) -> Tensor:
    """Draws ``(R, ...)`` of the weight of one sample more than so many; see the top.

    They are even quantiles in a random order that is always the same.
    """
    size = torch.as_tensor(size, dtype=torch.float64)
    order = torch.randperm(draws, generator=torch.Generator().manual_seed(0)).double()
    weight = -torch.log1p(-(order + 0.5) / draws).view(-1, *[1] * size.ndim)
    return weight / (size + weight)


def clopper_pearson(hits: npt.ArrayLike, size: npt.ArrayLike, tail: float) -> tuple[Floats, Floats]:
    """Exact limits of the probabilities behind so many hits, each missed by ``tail``."""
    # Scikit-learn brings scipy along, and importing the metrics should not wait for it.
    from scipy.special import betaincinv

    hits, size = np.asarray(hits, dtype=np.float64), np.asarray(size, dtype=np.float64)
    # The limits are 0 and 1 where nothing or everything hit; there the function is undefined.
    some, all_but_some = np.where(hits > 0, hits, 0.5), np.where(hits < size, size - hits, 0.5)
    return (
        np.where(hits > 0, betaincinv(some, size - hits + 1, tail), 0.0),
        np.where(hits < size, betaincinv(hits + 1, all_but_some, 1 - tail), 1.0),
    )


def limits_within(
    hits: Floats, size: Floats, tail: float, most: float
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether limits of :func:`clopper_pearson` are at most ``most``, a hundred times as fast."""
    from scipy.special import betainc

    some, all_but_some = np.where(hits > 0, hits, 0.5), np.where(hits < size, size - hits, 0.5)
    lower = (hits == 0) | (betainc(some, size - hits + 1, most) >= tail)
    upper = (hits < size) & (betainc(hits + 1, all_but_some, most) >= 1 - tail)
    return lower, upper


def quantile(values: Tensor, level: float) -> float:
    """The quantile, rounded outwards to a value that occurs, so that infinity is no trouble."""
    ordered = values.sort().values
    place = level * (len(ordered) - 1)
    return float(ordered[math.ceil(place - 1e-9) if level > 0.5 else math.floor(place + 1e-9)])

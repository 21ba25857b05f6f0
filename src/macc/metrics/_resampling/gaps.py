"""Gaps between confidence and accuracy: in bins, smoothed, and cumulative."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from macc.metrics._formulas import (
    debiased_gap,
    largest_running_gap,
    max_gap,
    residuals_on_grid,
    smooth_gap,
)
from macc.metrics._resampling.cells import GRID, TopCells
from macc.metrics._resampling.means import scores_by_outcome
from macc.metrics._resampling.samples import Resampling
from macc.metrics.binning import TopBins, TopLabels
from macc.metrics.intervals import (
    Deviation,
    Estimate,
    Gaps,
    LargestGap,
    Ordinary,
    Sampled,
    Unbinned,
    above,
    below,
    l1,
    norm_of_gaps,
    root_mean_square,
)

# Bandwidths of resampled smooth errors come from a table of 129, each 7 % wider than the last.
_HALVINGS = 7


class BinErrors(NamedTuple):
    """The errors of bins of equal width."""

    ece: Sampled
    mce: Sampled
    rmsce: Sampled
    rmsce_debiased: Sampled
    over_confidence: Sampled
    under_confidence: Sampled


def errors_of_bins(
    binned: TopBins, noise: Tensor, null: Tensor, *, sizes: Tensor, size: float | None = None
) -> BinErrors:
    """The errors of confidence bins, from the noise of their gaps and from labels of chance.

    Args:
        binned: Sums over the samples of each bin.
        noise: ``(R, bins)`` resampled gaps minus those seen, as shares of all samples.
        null: ``(S, bins)`` gaps of labels drawn from the probabilities, as shares of all samples.
        sizes: ``(bins,)`` how many samples of equal weights say as much as those of each bin.
        size: How many samples are independent, all of them by default.
    """
    gaps = binned.shares_of_gaps
    # The gap of one more sample, were it wrong, were it right, and the larger of both; none in
    # empty bins.
    claimed = binned.confidence / binned.samples
    adds = {-1: claimed, 1: 1 - claimed, 0: torch.maximum(claimed, 1 - claimed)}

    def sampled(norm: Callable[[Tensor], Tensor], sign: int = 0) -> Gaps:
        return norm_of_gaps(
            norm,
            gaps,
            noise,
            null,
            size=binned.samples.sum() if size is None else torch.tensor(size),
            adds=adds[sign].nan_to_num(),
            sign=sign,
        )

    rmsce = sampled(root_mean_square(binned))
    return BinErrors(
        ece=sampled(l1),
        mce=LargestGap(max_gap(binned), binned, sizes, null),
        rmsce=rmsce,
        rmsce_debiased=Debiased(debiased_gap(binned), rmsce),
        over_confidence=sampled(above, sign=-1),
        under_confidence=sampled(below, sign=1),
    )


def binned_errors(cells: TopCells) -> "BinErrors":
    filled, ends = cells.bin_ends

    def by_bin(residuals: Tensor) -> Tensor:
        sums = residuals.new_zeros(len(residuals), len(cells.binned.samples))
        sums[:, filled] = residuals.cumsum(1)[:, ends].diff(dim=1, prepend=sums[:, :1])
        return sums

    noise, null = by_bin(cells.noise), by_bin(cells.null)
    return errors_of_bins(cells.binned, noise, null, sizes=cells.bin_sizes)


@dataclass(frozen=True)
class Debiased:
    """The debiased root mean square error, with the interval of the plain one."""

    value: float
    plain: Gaps

    def estimate(self, confidence: float) -> Estimate:
        """The plain interval, widened where needed to contain the debiased value."""
        of = self.plain.estimate(confidence)
        return Estimate(self.value, min(of.low, self.value), max(of.high, self.value), of.noise_floor)

    def deviation(self) -> Deviation:
        """That of the plain form, less what debiasing took away."""
        plain, less = self.plain.deviation(), self.plain.value - self.value
        middle = None if plain.middle is None else (plain.middle[0] - less, plain.middle[1] - less)
        return Deviation(plain.least - less, plain.most - less, middle)


class PositiveDraws:
    """The errors of the probability of one class of two."""

    def __init__(self, one: TopLabels, bins: int, resampling: Resampling):
        self._one, self._resampling = one, resampling
        self.cells = TopCells(one, bins, resampling)

    @cached_property
    def brier(self) -> Sampled:
        """The mean squared error of the probability."""
        one, resampling = self._one, self._resampling
        squared = (one.confidence - one.correct).square()
        resampled = resampling.means(squared[:, None])[:, 0]
        # Half the Brier score of both classes.
        ends = resampling.mean(scores_by_outcome(one.confidence.maximum(1 - one.confidence), 2)[:, 1]) / 2
        return Ordinary(float(resampling.mean(squared)), resampled, resampling.size, *ends.tolist())

    @cached_property
    def bins(self) -> "BinErrors":
        """The errors of the bins of the probability."""
        return binned_errors(self.cells)

    @cached_property
    def smooth_ece(self) -> Sampled:
        """The smooth error of the probability."""
        return resampled_smooth_ece(self._one, self.cells, self._resampling)


def resampled_smooth_ece(top: TopLabels, cells: TopCells, resampling: Resampling) -> Unbinned:
    def on_grid(residuals: Tensor) -> Tensor:
        return residuals_on_grid(cells.confidence, residuals, GRID)

    value = smooth_gap(top, resampling.weights)
    noise, null = on_grid(cells.noise), on_grid(cells.null)
    seen = on_grid(cells.residuals[None])[0]
    slope = _smooth_slope(seen, value, -noise)
    return Unbinned(value, _smooth_errors(noise), _smooth_errors(null), slope, resampling.size)


def _smooth_errors(residuals: Tensor) -> Tensor:
    """:func:`smooth_error` of rows ``(R, cells)``: bisection in a table, then interpolation."""
    cells = residuals.shape[1]
    spectrum = torch.fft.rfft(torch.cat([residuals, residuals.flip(-1)], dim=-1))
    bandwidths = torch.logspace(-4, 0, 2**_HALVINGS + 1, dtype=torch.float64)
    frequency = math.pi * torch.arange(cells + 1, dtype=torch.float64)
    # Below e^-40 nothing is left, and numbers too small for normal arithmetic are slow.
    table = torch.exp((-((frequency * bandwidths[:, None]) ** 2) / 2).clamp(min=-40))
    low = torch.zeros(len(residuals), dtype=torch.int64)
    high = torch.full_like(low, 2**_HALVINGS)
    above = torch.zeros(len(residuals), dtype=torch.float64)
    below = -torch.ones_like(above)
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        smoothed = torch.fft.irfft(spectrum * table[middle], n=2 * cells)[:, :cells]
        excess = smoothed.abs().sum(1) - bandwidths[middle]
        too_narrow = excess > 0
        low, high = torch.where(too_narrow, middle, low), torch.where(too_narrow, high, middle)
        above, below = torch.where(too_narrow, excess, above), torch.where(too_narrow, below, excess)
    share = above / (above - below)
    return bandwidths[low] + share * (bandwidths[high] - bandwidths[low])


def _smooth_slope(residuals: Tensor, bandwidth: float, noise: Tensor) -> Tensor:
    """First-order change of the smooth error at a fixed bandwidth, which bounds that at its own."""
    cells = len(residuals)
    frequency = math.pi * torch.arange(cells + 1, dtype=torch.float64)
    damping = torch.exp(-((frequency * bandwidth) ** 2) / 2)

    def smoothed(rows: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfft(torch.cat([rows, rows.flip(-1)], dim=-1))
        rebuilt: Tensor = torch.fft.irfft(spectrum * damping, n=2 * cells)
        return rebuilt[..., :cells]

    return smoothed(noise) @ smoothed(residuals).sign()


def resampled_ks_error(top: TopLabels, cells: TopCells, resampling: Resampling) -> Unbinned:
    last = cells.last_of_ties
    seen = cells.residuals.cumsum(0)[last]
    at = seen.abs().argmax()

    def largest(residuals: Tensor) -> Tensor:
        running = residuals.cumsum(1)[:, last]
        return torch.stack([running.abs().amax(1), running[:, at] * (1 if seen[at] >= 0 else -1)], dim=1)

    noise, null = largest(cells.noise), largest(cells.null)
    value = largest_running_gap(top, resampling.weights)
    return Unbinned(value, noise[:, 0], null[:, 0], -noise[:, 1], resampling.size)

"""The formulas of calibration errors: of the sums of bins, and of samples without bins."""

import math

import torch
from torch import Tensor

from macc.metrics.binning import TopBins, TopLabels
from macc.metrics.intervals import above, below, l1, root_mean_square

# Cells of width 1/2048 are well below any bandwidth that fewer than a million samples can choose.
_GRID = 2048


def mean_gap(binned: TopBins) -> float:
    """Sum of absolute gaps, as a share of the samples."""
    return float(l1(binned.shares_of_gaps))


def mean_excess(binned: TopBins) -> float:
    """That of gaps where confidence is too high."""
    return float(above(binned.shares_of_gaps))


def mean_lack(binned: TopBins) -> float:
    """That of gaps where confidence is too low."""
    return float(below(binned.shares_of_gaps))


def max_gap(binned: TopBins) -> float:
    """Largest gap of a bin that holds a sample."""
    filled = binned.samples > 0
    return float((binned.gaps[filled].abs() / binned.samples[filled]).max())


def root_mean_square_gap(binned: TopBins) -> float:
    """Root of the mean squared gap of the samples' bins."""
    return float(root_mean_square(binned)(binned.shares_of_gaps))


def debiased_gap(binned: TopBins) -> float:
    """The same, less what chance alone contributes."""
    filled = binned.samples > 0
    samples, gaps, correct = binned.samples[filled], binned.gaps[filled], binned.correct[filled]
    # samples * accuracy * (1 - accuracy) / (samples - 1); a bin of one has accuracy 0 or 1.
    squares = gaps.square() / samples - correct * (1 - correct / samples) / (samples - 1).clamp(min=1)
    return float((squares.sum() / samples.sum()).clamp(min=0).sqrt())


def class_errors(gaps: Tensor, num_samples: float) -> Tensor:
    """Calibration error ``(K,)`` of each class from the gaps ``(bins, K)``."""
    return gaps.abs().sum(0) / num_samples


def smooth_gap(top: TopLabels, weights: Tensor | None = None) -> float:
    """The smooth error of the samples, which may have weights."""
    each = top.correct - top.confidence
    if weights is not None:
        each = each * (weights * (len(each) / weights.sum()))
    return float(smooth_error(residuals_on_grid(top.confidence, each[None]) / len(each)))


def largest_running_gap(top: TopLabels, weights: Tensor | None = None) -> float:
    """Largest gap of all samples up to some confidence, as a share of all."""
    confidence, order = top.confidence.sort()
    last_of_ties = confidence.diff(append=confidence.new_tensor([2.0])) > 0
    each = top.correct - top.confidence
    running = (each if weights is None else each * weights)[order].cumsum(0)
    total = len(confidence) if weights is None else float(weights.sum())
    return float(running[last_of_ties].abs().max() / total)


def residuals_on_grid(confidence: Tensor, residuals: Tensor, cells: int = _GRID) -> Tensor:
    """Sums ``(R, cells)`` of residuals ``(R, N)``, each shared between the two nearest cells.

    Sharing keeps the centre of mass of every sample where it is.
    """
    place = (confidence * cells - 0.5).clamp(0, cells - 1)
    left = place.floor().clamp(max=cells - 2)
    share = place - left
    sums = residuals.new_zeros(len(residuals), cells)
    sums.index_add_(1, left.long(), residuals * (1 - share))
    sums.index_add_(1, left.long() + 1, residuals * share)
    return sums


def smooth_error(residuals: Tensor) -> Tensor:
    """Solve for the smooth error of each row of mean residuals ``(R, cells)``, by bisection.

    A Gaussian reflected at both ends is one on the circle that the row and its mirror image close.
    """
    mirrored = torch.cat([residuals, residuals.flip(-1)], dim=-1)
    spectrum = torch.fft.rfft(mirrored)
    frequency = math.pi * torch.arange(spectrum.shape[-1], dtype=residuals.dtype, device=residuals.device)
    low = residuals.new_zeros(len(residuals))
    high = torch.ones_like(low)
    for _ in range(24):
        middle = (low + high) / 2
        damped = spectrum * torch.exp(-((frequency * middle[:, None]) ** 2) / 2)
        smoothed = torch.fft.irfft(damped, n=mirrored.shape[-1])[:, : residuals.shape[-1]]
        too_narrow = smoothed.abs().sum(-1) > middle
        low = torch.where(too_narrow, middle, low)
        high = torch.where(too_narrow, high, middle)
    return (low + high) / 2

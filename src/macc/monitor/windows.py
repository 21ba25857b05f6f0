"""What happened in a window of time, from sums that add up."""

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from macc.metrics import Estimate
from macc.metrics.binning import bin_index
from macc.metrics.intervals import clopper_pearson, l1, norm_of_gaps

Floats: TypeAlias = npt.NDArray[np.float64]

BINS = 15
_DRAWS = 400
# Sums over rows, and over those with labels.
_SUMS = ("rows", "confidence", "spread", "labelled", "labelled_confidence", "labelled_spread", "correct")


@dataclass
class Window:
    """Sums of a window; ``spread`` is the variance of its right answers, if confidence is right."""

    rows: float = 0.0
    confidence: float = 0.0
    spread: float = 0.0
    labelled: float = 0.0
    labelled_confidence: float = 0.0
    labelled_spread: float = 0.0
    correct: float = 0.0
    bins: Floats = field(default_factory=lambda: np.zeros((5, BINS)))
    """The number, confidence, right ones, squared gaps and spread of labelled rows, by bins of
    confidence.
    """

    def see(self, confidence: Floats) -> None:
        """Count rows, with labels or without."""
        self.rows += len(confidence)
        self.confidence += float(confidence.sum())
        self.spread += float((confidence * (1 - confidence)).sum())

    def learn(self, confidence: Floats, correct: Floats) -> None:
        """Count labels."""
        spread = confidence * (1 - confidence)
        index = bin_index(torch.from_numpy(confidence), BINS).numpy()
        self.labelled += len(confidence)
        self.labelled_confidence += float(confidence.sum())
        self.labelled_spread += float(spread.sum())
        self.correct += float(correct.sum())
        for row, weights in enumerate((None, confidence, correct, (correct - confidence) ** 2, spread)):
            self.bins[row] += np.bincount(index, weights, BINS)

    def add(self, other: "Window") -> None:
        """Count what another one has counted."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bins += other.bins

    @property
    def mean_confidence(self) -> float:
        """Of all rows."""
        return self.confidence / self.rows if self.rows else math.nan

    def accuracy(self, level: float = 0.95) -> Estimate:
        """Of the rows with labels, with exact limits."""
        if not self.labelled:
            return Estimate(math.nan, math.nan, math.nan)
        low, high = clopper_pearson(round(self.correct), round(self.labelled), (1 - level) / 2)
        return Estimate(self.correct / self.labelled, float(low), float(high))

    def estimated_accuracy(self, low: float, high: float, level: float = 0.95) -> Estimate:
        """Of the rows without labels, from their confidences.

        This supposes that confidences are as right there as the null has it: accuracy minus
        confidence is between ``low`` and ``high``. The limits hold what that leaves open, and
        chance.
        """
        from scipy.special import ndtri

        left = self.rows - self.labelled
        if left < 1:
            return Estimate(math.nan, math.nan, math.nan)
        mean = (self.confidence - self.labelled_confidence) / left
        error = math.sqrt(max(0.0, self.spread - self.labelled_spread)) / left
        around = float(ndtri(0.5 + level / 2)) * error
        value = mean + (low + high) / 2
        ends = (mean + low - around, value, mean + high + around)
        first, value, last = (min(1.0, max(0.0, end)) for end in ends)
        return Estimate(value, first, last)

    def ece(self, level: float = 0.95) -> Estimate:
        """The calibration error of the rows with labels, with its interval and noise floor.

        The noise of each bin is drawn as a normal number: its squared gaps say how large it is, and
        with labels drawn from the confidences their spread.
        """
        if not self.labelled:
            return Estimate(math.nan, math.nan, math.nan)
        _, confidence, correct, squares, spread = torch.from_numpy(self.bins) / self.labelled
        drawn = torch.randn(2, _DRAWS, BINS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        gaps = correct - confidence
        share = torch.from_numpy(self.bins[0]) / self.labelled
        variance = (squares - torch.where(share > 0, gaps**2 / share.clamp(min=1e-300), 0)).clamp(min=0)
        noise, null = drawn[0] * (variance / self.labelled).sqrt(), drawn[1] * (spread / self.labelled).sqrt()
        size = torch.tensor(self.labelled, dtype=torch.float64)
        return norm_of_gaps(l1, gaps, noise, null, size=size).estimate(level)

    def to_dict(self) -> dict[str, Any]:
        """The sums as what JSON can hold."""
        return {**{name: getattr(self, name) for name in _SUMS}, "bins": self.bins.tolist()}

    @classmethod
    def from_dict(cls, content: Any) -> "Window":
        """The sums that :meth:`to_dict` described; refused where no rows can have them."""
        if not isinstance(content, dict):
            raise ValueError("a window must have sums")
        try:
            sums = [float(content[name]) for name in _SUMS]
            bins = np.array(content["bins"], dtype=np.float64)
        except (KeyError, TypeError, ValueError):
            raise ValueError("the sums of a window must be numbers") from None
        found = cls(**dict(zip(_SUMS, sums, strict=True)), bins=bins)
        if bins.shape != (5, BINS) or not np.isfinite([*sums, *bins.ravel()]).all():
            raise ValueError("the sums of a window must be finite numbers")
        if min(sums) < 0 or found.labelled > found.rows or found.correct > found.labelled:
            raise ValueError("no rows can have the sums of its windows")
        return found

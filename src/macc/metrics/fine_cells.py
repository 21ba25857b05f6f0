"""Fine cells of probabilities, whose counts give areas under the ROC curve."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch

from macc.metrics.blocks import Block
from macc.metrics.intervals import Deviation, Estimate

# 64 an octave of p, or of 1 - p above one half, down to 2^-24; fewer where classes are many, so
# that the cells of all take 32 MB or little more.
_CELLS_PER_OCTAVE = 64
_OCTAVES = 24
_MOST_CELLS = 2**22


def cells_per_octave(num_classes: int) -> int:
    """How finely the probabilities of each of so many classes are distinguished: a power of 2."""
    found = _CELLS_PER_OCTAVE
    while found > 1 and num_classes * num_cells(found) > _MOST_CELLS:
        found //= 2
    return found


def num_cells(per_octave: int) -> int:
    """How many cells there are."""
    return 2 * ((_OCTAVES - 1) * per_octave + 1)


def fine_cells(probs: npt.NDArray[np.float64], per_octave: int = _CELLS_PER_OCTAVE) -> npt.NDArray[np.int64]:
    """A fine cell of each probability, rising with it, from the first bits of its float64."""
    last = num_cells(per_octave) - 1
    upper = probs > 0.5
    bits = np.where(upper, 1 - probs, probs).view(np.int64)
    bits >>= 52 - (per_octave.bit_length() - 1)
    bits -= (1023 - _OCTAVES) * per_octave
    np.clip(bits, 0, last // 2, out=bits)
    return np.where(upper, last - bits, bits)


class CellCounts:
    """How many samples of each class, and of all, each cell holds, ``(K, cells)``, or weights.

    Args:
        num_classes: Number of classes K.
        weighted: Samples have weights; otherwise counts are int64.
    """

    def __init__(self, num_classes: int, *, weighted: bool = False):
        self._per_octave = cells_per_octave(num_classes)
        kind = np.float64 if weighted else np.int64
        self.hits, self.all = np.zeros((2, num_classes, num_cells(self._per_octave)), dtype=kind)

    def add(self, block: Block) -> None:
        """Take in the rows of one block."""
        cells = fine_cells(block.probs, self._per_octave)
        cells += np.arange(cells.shape[1]) * self.all.shape[1]
        own = np.take_along_axis(cells, block.labels[:, None], axis=1)
        for counts, found in ((self.all, cells), (self.hits, own)):
            each = np.ones(found.size, counts.dtype)
            if block.weights is not None:
                each = block.weights.repeat(found.shape[1])
            # Not bincount, whose result is as large as all counts.
            places = torch.from_numpy(found.reshape(-1))
            torch.from_numpy(counts).view(-1).scatter_add_(0, places, torch.from_numpy(each))


@dataclass(frozen=True)
class BinnedArea:
    """Mean area under the ROC curve of classes against the rest, from fine cells.

    Samples of one cell count as ties, which changes the area by ``error`` at most. ``spread`` is
    its standard deviation if the areas of all classes moved together, which is the most there can
    be.
    """

    value: float
    error: float
    spread: float

    @classmethod
    def of(
        cls,
        hits: npt.NDArray[np.float64],
        all_: npt.NDArray[np.float64],
        squares: npt.NDArray[np.float64] | None = None,
    ) -> "BinnedArea":
        """From how many samples of each class, and of all, each cell holds; or their weights.

        Args:
            hits: Of each class and cell, samples of the class.
            all_: All samples.
            squares: ``(K,)`` sums of the squared weights of the samples of each class, where
                samples have weights.
        """
        areas, errors, spreads = [], [], []
        for j, (up, both) in enumerate(zip(hits, all_, strict=True)):
            down = both - up
            if up.sum() <= 0 or down.sum() <= 0:
                continue
            ups, downs = up.sum(), down.sum()
            if squares is not None:
                ups, downs = ups**2 / squares[j], downs**2 / np.delete(squares, j).sum()
            pos, neg = up / up.sum(), down / down.sum()
            beaten = neg.cumsum() - neg / 2
            missed = 1 - (pos.cumsum() - pos / 2)
            area = float(pos @ beaten)
            variance = (pos @ (beaten - area) ** 2) / ups + (neg @ (missed - area) ** 2) / downs
            areas.append(area)
            errors.append(float(pos @ neg) / 2)
            spreads.append(math.sqrt(variance))
        if not areas:
            return cls(math.nan, math.nan, math.nan)
        return cls(*(float(np.mean(part)) for part in (areas, errors, spreads)))

    def estimate(self, confidence: float) -> Estimate:
        """Normal limits, widened by what the cells may hide."""
        if math.isnan(self.value):
            return Estimate(math.nan, math.nan, math.nan)
        half = NormalDist().inv_cdf((1 + confidence) / 2) * self.spread + self.error
        return Estimate(self.value, max(0.0, self.value - half), min(1.0, self.value + half))

    def deviation(self) -> Deviation:
        """None: how the areas of two models vary together is not kept."""
        return Deviation(torch.empty(0), torch.empty(0))

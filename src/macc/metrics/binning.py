"""The one binning core: which bin a probability falls in, and the sums of each bin.

Equal-width bins are ``(i / bins, (i + 1) / bins]`` with the edges rounded to float64 and the
probability taken exactly as given; 0 belongs to the first bin. So float32's 0.2, which is a little
more than one fifth, lies in the fourth of 15 bins, and float64's 0.2 in the third.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.metrics.blocks import Block, Doubles, Floats, Integers
from macc.metrics.inputs import Predictions

# 16 MB of float64, of which a sort and a scatter hold a few copies.
_COLUMN_ELEMENTS = 2**21


class TopLabels(NamedTuple):
    """Confidence and correctness of the predicted class of each sample, float64 ``(N,)``.

    Or, from :func:`class_labels`, the probability of one given class and whether the sample is of
    it.
    """

    confidence: Tensor
    correct: Tensor


class TopBins(NamedTuple):
    """Sums over the samples of each confidence bin, float64 ``(bins,)``."""

    samples: Tensor
    confidence: Tensor
    correct: Tensor

    @property
    def gaps(self) -> Tensor:
        """Signed gap of each bin, correct predictions minus the confidence claimed."""
        return self.correct - self.confidence

    @property
    def shares_of_gaps(self) -> Tensor:
        """The gaps as shares of all samples."""
        return self.gaps / self.samples.sum()


def effective_sizes(totals: Tensor, squares: Tensor) -> Tensor:
    """How many samples of equal weights vary as much, from sums of weights and of their squares."""
    return torch.where(squares > 0, totals.square() / squares, 0.0)


@lru_cache
def inner_edges(bins: int) -> Tensor:
    """Upper edges of equal-width bins but the last, float64 ``(bins - 1,)``; not written to."""
    return torch.arange(1, bins, dtype=torch.float64) / bins


def width_index(values: Floats, bins: int) -> Integers:
    """Equal-width bin of each value; float64 decides exactly at the edges."""
    scaled = np.multiply(values, bins, dtype=np.float64)
    if values.dtype == np.float32:
        # The product is exact, and no float32 lies between an edge and what float64 makes of it.
        np.ceil(scaled, out=scaled)
    else:
        # Rounding of the product leaves only one edge in doubt, the nearest.
        np.rint(scaled, out=scaled)
        scaled += values > scaled / bins
    scaled -= 1
    np.clip(scaled, 0, bins - 1, out=scaled)
    return scaled.astype(np.int64)


def bin_index(values: Tensor, bins: int) -> Tensor:
    """The same of a tensor."""
    exact = values if values.dtype == torch.float32 else values.double()
    return torch.from_numpy(width_index(exact.cpu().numpy(), bins))


def equal_weight_index(values: Tensor, bins: int, masses: Tensor) -> Tensor:
    """:func:`equal_mass_index` of values with masses, ``(M, N)``; mass 0 does not count."""
    ordered, order = values.double().sort(dim=1)
    running = masses.gather(1, order).cumsum(1)
    parts = torch.arange(1, bins, dtype=torch.float64, device=values.device) / bins
    # A sum that rounding left a little below a cut reaches it.
    wanted = parts * running[:, -1:] * (1 - 1e-12)
    cuts = torch.searchsorted(running, wanted).clamp(max=values.shape[1] - 1)
    return torch.searchsorted(ordered.gather(1, cuts), values.double())


def equal_mass_index(values: Tensor, bins: int, kept: Tensor) -> Tensor:
    """Bin of each value when every row of ``(M, N)`` is cut into bins of equal mass.

    Edges are values of the row, so that equal values share a bin and the order of the samples does
    not matter; with many ties some bins stay empty.

    Args:
        values: The rows to cut.
        bins: Number of bins.
        kept: ``(M,)`` how many of the largest values of each row count; the bins of others mean
            nothing.
    """
    size = values.shape[1]
    ordered = torch.from_numpy(np.sort(values.cpu().numpy(), axis=1)).to(values.device)
    # Bin i of m kept values ends at the ceil(i m / bins)-th of them.
    parts = torch.arange(1, bins, device=values.device)
    cuts = (parts * kept[:, None] + bins - 1) // bins + size - kept[:, None] - 1
    return torch.searchsorted(ordered.gather(1, cuts.clamp(0, size - 1)), values)


def top_labels(blocks: Iterable[Block]) -> TopLabels:
    """Confidence and correctness of each sample; the first class wins a tie."""
    return _joined((block.confidence, block.right) for block in blocks)


def class_labels(blocks: Iterable[Block], index: int) -> TopLabels:
    """Probability of one class, and whether it is the label, of each sample."""
    return _joined((block.of_class(index), block.labels == index) for block in blocks)


def _joined(parts: Iterable[tuple[Doubles, npt.NDArray[np.bool_]]]) -> TopLabels:
    confidence, right = map(np.concatenate, zip(*parts, strict=True))
    return TopLabels(torch.from_numpy(confidence), torch.from_numpy(right.astype(np.float64)))


def top_bins(top: TopLabels, index: Tensor, bins: int, weights: Tensor | None = None) -> TopBins:
    """Sum the samples of each bin, or their weights."""
    each = None if weights is None else weights.numpy()
    found = bin_sums(index.numpy(), top.confidence.numpy(), top.correct.numpy() > 0, bins, each)
    return TopBins(*torch.from_numpy(found))


def bin_sums(
    index: Integers,
    confidence: Floats,
    right: npt.NDArray[np.bool_],
    bins: int,
    weights: Doubles | None = None,
) -> Doubles:
    """The fields of :class:`TopBins`, ``(3, bins)``, of samples of these bins."""
    if weights is not None:
        each = (weights, confidence * weights, right * weights)
        return np.stack([np.bincount(index, values, minlength=bins) for values in each])
    wrong, hits = np.bincount(index + right * bins, minlength=2 * bins).reshape(2, bins)
    return np.stack([wrong + hits, np.bincount(index, confidence, minlength=bins), hits])


class ClassGaps:
    """Signed gaps of every bin and class, ``sum over the bin of (1[y = j] - p_j)``, in one pass.

    Weighting |accuracy - confidence| of a bin by its share of the samples leaves only this sum.
    Rows sum to one, so all but a few entries of a row lie in the first bin: only entries above
    ``1 / bins`` are scattered, and the first bin is the column's total less those. Samples may
    belong to groups, which are then summed apart.
    """

    def __init__(self, num_classes: int, bins: int, groups: int = 1, *, counts: bool = False):
        self._num_classes, self._bins, self._groups = num_classes, bins, groups
        shape = bins, num_classes
        # Of every group: probabilities above the first bin, and labels.
        self._claimed, self._hits = np.zeros((2, groups, *shape))
        self._totals = np.zeros((groups, num_classes))
        # Above the first bin: how many samples there are, and the variance of labels drawn from the
        # probabilities. Of all bins, so that the first has the rest: that variance.
        self._counts = np.zeros(shape) if counts else None
        self._spread = np.zeros(shape) if groups > 1 else None
        self._squares = np.zeros(num_classes)
        self._weight = 0.0

    def add(self, block: Block, group: Integers | None = None) -> None:
        """Take in the rows of one block, and the group of each if there are several."""
        size, weights = self._num_classes, block.weights
        above = block.rows.above(1 / self._bins)
        cells = self._cells(above.values, above.classes)
        hits = self._cells(block.own, block.labels)
        amounts = above.values.astype(np.float64)
        each = np.ones(len(block)) if weights is None else weights
        of_entry = None if weights is None else weights[above.rows]
        if self._counts is not None:
            _scatter(self._counts, cells, np.ones_like(amounts) if of_entry is None else of_entry)
            self._weight += float(each.sum())
        if group is None:
            self._totals[0] += block.wide.totals(weights)
        else:
            assert self._spread is not None  # noqa: S101 - there are groups
            variance = amounts * (1 - amounts)
            _scatter(self._spread, cells, variance if of_entry is None else variance * of_entry**2)
            probs = block.probs
            weighed = probs if weights is None else probs * weights[:, None]
            torch.from_numpy(self._totals).index_add_(0, torch.from_numpy(group), torch.from_numpy(weighed))
            self._squares += block.wide.totals(each**2) - np.einsum("ij,ij->j", weighed, weighed)
            cells += group[above.rows] * (self._bins * size)
            hits += group * (self._bins * size)
        _scatter(self._claimed, cells, amounts if of_entry is None else amounts * of_entry)
        _scatter(self._hits, hits, each)

    def _cells(self, values: Floats, classes: Integers) -> Integers:
        """Bin and class as one number."""
        index = width_index(values, self._bins)
        index *= self._num_classes
        index += classes
        return index

    def sums(self) -> Tensor:
        """The gaps of all groups together, float64 ``(bins, K)``."""
        return self.by_group().sum(0)

    def by_group(self) -> Tensor:
        """The gaps, float64 ``(groups, bins, K)``."""
        gaps = self._hits - self._claimed
        gaps[:, 0] -= self._totals - self._claimed.sum(1)
        return torch.from_numpy(gaps)

    def samples(self) -> Tensor:
        """Samples, or their weights, in each bin of each class, ``(bins, K)``, where counted."""
        assert self._counts is not None  # noqa: S101 - asked for when it was made
        counts = self._counts.copy()
        counts[0] += self._weight - counts.sum(0)
        return torch.from_numpy(counts)

    def totals(self) -> Tensor:
        """Sum of the probabilities of each class, ``(K,)``."""
        return torch.from_numpy(self._totals.sum(0))

    def spread(self) -> Tensor:
        """Variance, ``(bins, K)``, of gaps of drawn labels, where samples have groups."""
        assert self._spread is not None  # noqa: S101 - groups were given
        spread = self._spread.copy()
        spread[0] += self._squares - spread.sum(0)
        return torch.from_numpy(spread.clip(min=0))


def _scatter(sums: Doubles, places: Integers, amounts: Doubles) -> None:
    """Add amounts to sums at their places, counted as if the sums were in one row."""
    torch.from_numpy(sums).view(-1).scatter_add_(0, torch.from_numpy(places), torch.from_numpy(amounts))


def class_gaps(given: Predictions, bins: int) -> ClassGaps:
    """The gaps of all samples; see :class:`ClassGaps`."""
    gaps = ClassGaps(given.num_classes, bins)
    for block in given.blocks():
        gaps.add(block)
    return gaps


class SomeClasses(NamedTuple):
    """Probabilities of some neighbouring classes, ``(M, N)``, in the type they had."""

    classes: range
    values: Tensor


def columns(probs: Tensor, most: int | None = None) -> Iterator[SomeClasses]:
    """Yield classes of ``(N, K)`` probabilities in groups, ``most`` at most, to bound memory."""
    num_samples, num_classes = probs.shape
    step = min(max(1, _COLUMN_ELEMENTS // num_samples), most or num_classes)
    for start in range(0, num_classes, step):
        classes = range(start, min(start + step, num_classes))
        values = probs[:, start : classes.stop].T.contiguous()
        # Numpy, which sorts, has no bfloat16; float32 holds its values exactly.
        yield SomeClasses(classes, values.float() if values.dtype == torch.bfloat16 else values)


class ClassCells(NamedTuple):
    """Probabilities ``(M, N)`` of some classes and their bins, -1 where an entry does not count.

    ``kept`` ``(M,)`` says how many entries of each class do, or the sum of their weights.
    """

    classes: range
    values: Tensor
    bin: Tensor
    kept: Tensor


def width_cells(probs: Tensor, bins: int, most: int | None = None) -> Iterator[ClassCells]:
    """Cut each class's probabilities into bins of equal width, ``most`` classes at a time."""
    for classes, values in columns(probs, most):
        wide = values.double()
        kept = torch.full((len(wide),), wide.shape[1], device=wide.device)
        yield ClassCells(classes, wide, bin_index(wide, bins), kept)


def adaptive_cells(
    probs: Tensor,
    bins: int,
    threshold: float | None,
    most: int | None = None,
    weights: Tensor | None = None,
) -> Iterator[ClassCells]:
    """Cut each class's probabilities, all or above ``threshold``, into bins of equal mass."""
    for classes, values in columns(probs, most):
        wide = values.double()
        above = torch.ones_like(wide, dtype=torch.bool) if threshold is None else wide > threshold
        if weights is None:
            kept = above.sum(1)
            index = equal_mass_index(values, bins, kept)
        else:
            kept = above.double() @ weights
            index = equal_weight_index(values, bins, above * weights)
        yield ClassCells(classes, wide, index.masked_fill(~above, -1), kept)


def adaptive_gaps(cells: ClassCells, labels: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
    """Signed gaps, float64 ``(M, bins)``, of the cells of some classes."""
    rows = torch.arange(len(cells.bin), device=cells.bin.device)[:, None]
    hits = labels == torch.tensor(cells.classes, device=labels.device)[:, None]
    # The last column collects what does not count.
    at = torch.where(cells.bin < 0, bins, cells.bin) + rows * (bins + 1)
    each = hits.double() - cells.values
    if weights is not None:
        each *= weights
    gaps = torch.bincount(at.flatten(), each.flatten(), minlength=len(rows) * (bins + 1))
    return gaps.view(len(rows), bins + 1)[:, :bins]

"""The one binning core: which bin a probability falls in, and the sums of each bin.

Equal-width bins are ``(i / bins, (i + 1) / bins]`` with the edges rounded to float64 and the
probability taken exactly as given; 0 belongs to the first bin. So float32's 0.2, which is a little
more than one fifth, lies in the fourth of 15 bins, and float64's 0.2 in the third.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Block, Predictions

# 16 MB of float64, of which a sort and a scatter hold a few copies.
_COLUMN_ELEMENTS = 2**21


class TopLabels(NamedTuple):
    """Confidence and correctness of the predicted class of each sample, float64 ``(N,)``.

    Or, from :func:`class_labels`, the probability of one given class and whether the sample is of it.
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
        """Signed gap of each bin, which is correct predictions minus the confidence claimed for them."""
        return self.correct - self.confidence

    @property
    def shares_of_gaps(self) -> Tensor:
        """The gaps as shares of all samples."""
        return self.gaps / self.samples.sum()


@lru_cache
def inner_edges(bins: int, device: torch.device) -> Tensor:
    """Upper edges of all equal-width bins but the last, float64 ``(bins - 1,)``; not to be written to."""
    return torch.arange(1, bins, dtype=torch.float64, device=device) / bins


def bin_index(values: Tensor, bins: int) -> Tensor:
    """Equal-width bin of each value; float64 decides exactly at the edges."""
    return torch.bucketize(values.double(), inner_edges(bins, values.device))


def equal_weight_index(values: Tensor, bins: int, masses: Tensor) -> Tensor:
    """:func:`equal_mass_index` of values ``(M, N)`` that have masses ``(M, N)``; those of mass 0 do not count."""
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
        kept: ``(M,)`` how many of the largest values of each row count; the bins of others mean nothing.
    """
    size = values.shape[1]
    ordered = torch.from_numpy(np.sort(values.cpu().numpy(), axis=1)).to(values.device)
    # Bin i of m kept values ends at the ceil(i m / bins)-th of them.
    parts = torch.arange(1, bins, device=values.device)
    cuts = (parts * kept[:, None] + bins - 1) // bins + size - kept[:, None] - 1
    return torch.searchsorted(ordered.gather(1, cuts.clamp(0, size - 1)), values)


def top_labels(blocks: Iterable[Block]) -> TopLabels:
    """Confidence and correctness of each sample; of equal probabilities the first class is predicted."""
    return TopLabels(*(torch.cat(part) for part in zip(*map(top_of_block, blocks), strict=True)))


def class_labels(blocks: Iterable[Block], index: int) -> TopLabels:
    """Probability of one class, and whether it is the label, of each sample."""
    rows = [(block.probs[:, index].clone(), (block.labels == index).double()) for block in blocks]
    return TopLabels(*(torch.cat(part) for part in zip(*rows, strict=True)))


def top_bins(top: TopLabels, index: Tensor, bins: int, weights: Tensor | None = None) -> TopBins:
    """Sum the samples of each bin, or their weights."""
    if weights is not None:
        each = (weights, top.confidence * weights, top.correct * weights)
        return TopBins(*(torch.bincount(index, weights=values, minlength=bins) for values in each))
    return TopBins(
        torch.bincount(index, minlength=bins).double(),
        torch.bincount(index, weights=top.confidence, minlength=bins),
        torch.bincount(index, weights=top.correct, minlength=bins),
    )


def predicted_classes(block: Block) -> Tensor:
    """The class of the largest probability of each row, the first of equal ones."""
    if block.given.device.type == "cpu" and block.given.dtype != torch.bfloat16:
        # Several times faster than torch's, on one thread; both give the first of equal values.
        return torch.from_numpy(block.given.numpy().argmax(axis=1))
    return block.given.argmax(dim=1)


def top_of_block(block: Block) -> TopLabels:
    """:func:`top_labels` of one block."""
    predicted = predicted_classes(block)
    confidence = block.probs.gather(1, predicted[:, None])[:, 0]
    return TopLabels(confidence, (predicted == block.labels).double())


class ClassGaps:
    """Signed gaps of every bin and class, ``sum over the bin of (1[y = j] - p_j)``, in one pass.

    Weighting |accuracy - confidence| of a bin by its share of the samples leaves only this sum.
    Rows sum to one, so all but a few entries of a row lie in the first bin: only entries above
    ``1 / bins`` are scattered, and the first bin is the column's total less those. Samples may belong
    to groups, which are then summed apart.
    """

    def __init__(self, num_classes: int, bins: int, groups: int = 1):
        self._num_classes, self._bins, self._groups = num_classes, bins, groups
        # By group and class; and squares by class, which only the spread needs.
        self._totals: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0
        # Of each scattered entry: its probability, its class and the group of its sample.
        self._values: list[Tensor] = []
        self._classes: list[Tensor] = []
        self._entry_groups: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._label_probs: list[Tensor] = []
        self._label_groups: list[Tensor] = []
        # Of each scattered entry and of each sample, where samples have weights.
        self._entry_weights: list[Tensor] = []
        self._weights: list[Tensor] = []

    def add(self, block: Block, group: Tensor | None = None) -> None:
        """Take in the rows of one block, and the group of each if there are several."""
        probs, size = block.probs, self._num_classes
        places = _above(block.given, 1 / self._bins)
        if group is None:
            each = _ones(probs.shape[0], probs.device) if block.weights is None else block.weights
            self._totals = self._totals + torch.mv(probs.T, each)[None]
        else:
            group = group.to(probs.device)
            totals = torch.zeros(self._groups, size, dtype=torch.float64, device=probs.device)
            self._totals = self._totals + totals.index_add_(0, group, probs)
            self._squares = self._squares + torch.linalg.vecdot(probs, probs, dim=0)
            self._entry_groups.append(group[places // size])
            self._label_groups.append(group)
        if block.weights is not None:
            self._entry_weights.append(block.weights[places // size])
            self._weights.append(block.weights)
        self._values.append(probs.view(-1)[places])
        self._classes.append(places % size)
        self._labels.append(block.labels)
        self._label_probs.append(block.label_probs)

    def sums(self) -> Tensor:
        """The gaps of all groups together, float64 ``(bins, K)``."""
        shape = self._groups, self._bins, self._num_classes
        gaps = torch.zeros(shape, dtype=torch.float64, device="cpu")
        self.add_to(gaps)
        return gaps.sum(0)

    def add_to(self, gaps: Tensor) -> None:
        """Add the gaps to float64 ``(groups, bins, K)`` on the CPU, in time that does not grow with their number."""
        values, classes = _joined(self._values), _joined(self._classes)
        first = classes + self._offsets(self._entry_groups)
        label_probs = _joined(self._label_probs)
        own = self._cells(label_probs, _joined(self._labels) + self._offsets(self._label_groups))
        flat = gaps.view(-1)
        gaps[:, 0] -= self._totals.cpu() if isinstance(self._totals, Tensor) else 0.0
        amounts = values * _joined(self._entry_weights) if self._weights else values
        flat.index_add_(0, first, amounts)
        flat.index_add_(0, self._cells(values, first), -amounts)
        flat.index_add_(0, own, _joined(self._weights) if self._weights else torch.ones_like(label_probs))

    def samples(self) -> Tensor:
        """How many samples each bin of each class holds, or their weights, float64 ``(bins, K)``."""
        values = _joined(self._values)
        cells = self._cells(values, _joined(self._classes))
        each = _joined(self._entry_weights) if self._weights else torch.ones_like(values)
        counts = torch.bincount(cells, each, minlength=self._bins * self._num_classes)
        counts = counts.view(self._bins, self._num_classes)
        total = _joined(self._weights).sum() if self._weights else sum(len(labels) for labels in self._labels)
        counts[0] += total - counts.sum(0)
        return counts

    def totals(self) -> Tensor:
        """Sum of the probabilities of each class, ``(K,)``."""
        assert isinstance(self._totals, Tensor)  # noqa: S101 - a block was added
        return self._totals.sum(0).cpu()

    def spread(self) -> Tensor:
        """Variance, ``(bins, K)``, of gaps of labels drawn from the probabilities, where samples have groups."""
        assert isinstance(self._squares, Tensor)  # noqa: S101 - groups were given
        values = _joined(self._values)
        spread = torch.zeros(self._bins * self._num_classes, dtype=torch.float64, device="cpu")
        spread.index_add_(0, self._cells(values, _joined(self._classes)), values * (1 - values))
        spread = spread.view(self._bins, self._num_classes)
        spread[0] += self.totals() - self._squares.cpu() - spread.sum(0)
        return spread.clamp(min=0)

    def _offsets(self, groups: list[Tensor]) -> Tensor | int:
        return _joined(groups) * (self._bins * self._num_classes) if groups else 0

    def _cells(self, values: Tensor, first: Tensor) -> Tensor:
        """Cells of probabilities whose cells would be ``first``, were they in the first bin."""
        return bin_index(values, self._bins) * self._num_classes + first


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts).cpu()


@lru_cache(maxsize=8)
def _ones(size: int, device: torch.device) -> Tensor:
    """Not to be written to."""
    return torch.ones(size, dtype=torch.float64, device=device)


def class_gaps(given: Predictions, bins: int) -> ClassGaps:
    """The gaps of all samples; see :class:`ClassGaps`."""
    gaps = ClassGaps(given.num_classes, bins)
    for block in given.blocks():
        gaps.add(block)
    return gaps


class SomeClasses(NamedTuple):
    """The probabilities of some neighbouring classes, ``(M, N)``, in the type they were given in."""

    classes: range
    values: Tensor


def columns(probs: Tensor, most: int | None = None) -> Iterator[SomeClasses]:
    """Yield the classes of ``(N, K)`` probabilities in groups, of ``most`` classes at most, that bound the memory of what follows."""
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
    """Cut each class's probabilities, or those above ``threshold``, into bins of equal mass, ``most`` classes at a time."""
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


def _above(probs: Tensor, threshold: float) -> Tensor:
    """Flat positions of the entries above ``threshold``, which is compared as the float64 it is."""
    if probs.device.type != "cpu" or probs.dtype not in (torch.float32, torch.float64):
        return (probs.reshape(-1).double() > threshold).nonzero()[:, 0]
    values = probs.numpy()
    limit = values.dtype.type(threshold)
    if float(limit) > threshold:  # rounded up: the next smaller one has the same entries above it
        limit = np.nextafter(limit, values.dtype.type(0))
    # Torch's nonzero takes twice as long.
    return torch.from_numpy(np.flatnonzero(values > limit))

"""Confidences, in rising order and as cells whose sums can be resampled."""

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from macc.metrics._resampling.samples import CHUNK_ELEMENTS, Resampling
from macc.metrics.binning import TopBins, TopLabels, bin_index, inner_edges, top_bins

GRID = 512
"""Cells of resampled smooth errors, which need less precision than the one they are about."""

_CELLS = 1024


class TopCells:
    """The predicted classes in rising order of their confidence, as cells whose sums can be resampled.

    Up to 10 000 samples every sample is a cell. Beyond, a cell holds neighbours: cells are cut at the edges of the
    bins, at those of the grid of the smooth error, and so that none has more than a thousandth of the
    samples unless their confidences are equal. Values are always those of the samples; what resampling
    adds to them needs no finer look.
    """

    def __init__(self, top: TopLabels, bins: int, resampling: Resampling):
        self._top, self._bins, self._resampling = top, bins, resampling

    @cached_property
    def _bin(self) -> Tensor:
        """Bin of each sample."""
        return bin_index(self._top.confidence, self._bins)

    @cached_property
    def binned(self) -> TopBins:
        """The sums of each bin."""
        return top_bins(self._top, self._bin, self._bins)

    @cached_property
    def _order(self) -> Tensor:
        """Order of samples that are cells themselves."""
        return self._top.confidence.argsort(stable=True)

    @cached_property
    def _cell(self) -> Tensor:
        """Cell of each sample, ``(N,)``, where cells hold several."""
        confidence = self._top.confidence
        ordered = confidence.sort().values
        cuts = torch.arange(1, _CELLS) * len(ordered) // _CELLS
        grid = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
        edges = torch.cat([inner_edges(self._bins, ordered.device), grid, ordered[cuts]]).sort().values
        cell = torch.bucketize(confidence, edges)
        filled = torch.bincount(cell, minlength=len(edges) + 1) > 0
        return (filled.cumsum(0) - 1)[cell]

    @cached_property
    def samples(self) -> Tensor:
        """How many samples each cell has."""
        return self._sums(torch.ones_like(self._top.confidence))

    @cached_property
    def wrong(self) -> Tensor:
        """How many of them are wrong."""
        return self._sums(1 - self._top.correct)

    @cached_property
    def confidence(self) -> Tensor:
        """The mean confidence of each cell."""
        return self._sums(self._top.confidence) / self.samples

    @cached_property
    def residuals(self) -> Tensor:
        """What is right less what was claimed, of each cell, as a share of all samples."""
        return self._sums(self._top.correct - self._top.confidence) / self._resampling.num_samples

    @cached_property
    def last_of_ties(self) -> Tensor:
        """The last of cells of equal confidence."""
        return (self.confidence.diff(append=self.confidence.new_tensor([2.0])) > 0).nonzero()[:, 0]

    @cached_property
    def bin_ends(self) -> tuple[Tensor, Tensor]:
        """Which bins have samples, and the last cell of each."""
        index = self._bin
        of_cell = index[self._order]
        if self._resampling.grouped:
            of_cell = index.new_zeros(len(self.samples)).index_copy_(0, self._cell, index)
        ends = (of_cell.diff(append=of_cell.new_tensor([self._bins])) > 0).nonzero()[:, 0]
        return of_cell[ends], ends

    def counts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield how many samples, and how many wrong ones, each cell has in some resamples, ``(R, C)``."""
        if self._resampling.grouped:
            both = self._by_group(torch.ones_like(self._top.correct)), self._by_group(1 - self._top.correct)
            for counts in self._group_counts():
                yield counts @ both[0], counts @ both[1]
        else:
            for counts in self._resampling.counts():
                samples = counts[:, self._order]
                yield samples, samples * self.wrong

    def noise(self) -> Iterator[Tensor]:
        """Yield residuals of the cells in some resamples less those seen, as shares of all samples, ``(R, C)``."""
        if self._resampling.grouped:
            by_group = self._by_group(self._top.correct - self._top.confidence)
            parts = zip(self._group_counts(), torch.split(self._resampling.drawn, self._step), strict=True)
            for counts, drawn in parts:
                yield counts @ by_group / drawn[:, None] - self.residuals
        else:
            for counts in self._resampling.counts():
                yield (counts[:, self._order] - 1) * self.residuals

    def null(self) -> Iterator[Tensor]:
        """Yield the same of outcomes that are right as often as their confidence says."""
        size = self._resampling.num_samples
        if self._resampling.grouped:
            for right in self._resampling.null_sums(self.samples, self.confidence):
                yield (right - self.samples * self.confidence) / size
        else:
            for hits in self._resampling.null_hits(self._top.confidence):
                yield (hits - self._top.confidence)[:, self._order] / size

    @property
    def _step(self) -> int:
        return max(1, CHUNK_ELEMENTS // len(self.samples))

    def _group_counts(self) -> Iterator[Tensor]:
        return iter(torch.split(self._resampling.groups[1], self._step))

    def _sums(self, values: Tensor) -> Tensor:
        return torch.bincount(self._cell, values) if self._resampling.grouped else values[self._order]

    def _by_group(self, values: Tensor) -> Tensor:
        """Sums of each group and cell, ``(G, C)``."""
        groups, counts = self._resampling.groups
        shape = counts.shape[1], len(self.samples)
        return torch.bincount(groups * shape[1] + self._cell, values, minlength=shape[0] * shape[1]).view(
            shape
        )

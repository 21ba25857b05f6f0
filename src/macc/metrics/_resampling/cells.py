"""Confidences, in rising order and as cells whose sums can be resampled."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from macc.metrics._resampling.samples import Resampling
from macc.metrics.binning import TopBins, TopLabels, bin_index, effective_sizes, inner_edges, top_bins

GRID = 512
"""Cells of resampled smooth errors, which need less precision than the one they are about."""

_CELLS = 1024
_MOST_SINGLE = 2048


class TopCells:
    """The predicted classes by rising confidence, as cells whose sums can be resampled.

    Up to 2048 samples every sample is a cell. Beyond, a cell holds neighbours: cells are cut at the
    edges of the bins, at those of the grid of the smooth error, and so that none has more than a
    thousandth of the samples unless their confidences are equal. Values are always those of the
    samples; what resampling adds to them needs no finer look.
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
        return top_bins(self._top, self._bin, self._bins, self._resampling.weights)

    @cached_property
    def bin_sizes(self) -> Tensor:
        """How many samples of equal weights say as much as those of each bin, ``(bins,)``."""
        weights = self._resampling.weights
        if weights is None:
            return self.binned.samples
        return effective_sizes(
            self.binned.samples, torch.bincount(self._bin, weights.square(), minlength=self._bins)
        )

    @cached_property
    def _order(self) -> Tensor:
        """Order of samples that are cells themselves."""
        return self._top.confidence.argsort(stable=True)

    @cached_property
    def _cell(self) -> Tensor:
        """Cell of each sample, ``(N,)``, where cells hold several."""
        confidence = self._top.confidence
        ordered = torch.from_numpy(np.sort(confidence.numpy()))  # ten times as fast as torch's
        cuts = torch.arange(1, _CELLS) * len(ordered) // _CELLS
        grid = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
        edges = torch.cat([inner_edges(self._bins), grid, ordered[cuts]]).sort().values
        cell = torch.bucketize(confidence, edges)
        filled = torch.bincount(cell, minlength=len(edges) + 1) > 0
        return (filled.cumsum(0) - 1)[cell]

    @cached_property
    def samples(self) -> Tensor:
        """How many samples each cell has, or their weights."""
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
        return self._sums(self._top.correct - self._top.confidence) / self._resampling.size

    @cached_property
    def last_of_ties(self) -> Tensor:
        """The last of cells of equal confidence."""
        return (self.confidence.diff(append=self.confidence.new_tensor([2.0])) > 0).nonzero()[:, 0]

    @cached_property
    def bin_ends(self) -> tuple[Tensor, Tensor]:
        """Which bins have samples, and the last cell of each."""
        index = self._bin
        if self._joined:
            of_cell = index.new_zeros(len(self.samples)).index_copy_(0, self._cell, index)
        else:
            of_cell = index[self._order]
        ends = (of_cell.diff(append=of_cell.new_tensor([self._bins])) > 0).nonzero()[:, 0]
        return of_cell[ends], ends

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor]:
        """How many samples, and how many wrong ones, each cell has in each resample, ``(R, C)``."""
        samples, wrong = self._resampled(torch.ones_like(self._top.correct), 1 - self._top.correct)
        return samples, wrong

    @cached_property
    def noise(self) -> Tensor:
        """Resampled residuals of the cells less those seen, as shares of all, ``(R, C)``."""
        resampling = self._resampling
        drawn = resampling.drawn[:, None] if resampling.grouped else resampling.size
        (found,) = self._resampled(self._top.correct - self._top.confidence)
        return found / drawn - self.residuals

    @cached_property
    def null(self) -> Tensor:
        """The same of outcomes that are right as often as their confidence says."""
        resampling, confidence = self._resampling, self._top.confidence
        if not self._joined:
            found = [
                resampling.weighted(hits - confidence)[:, self._order]
                for hits in resampling.null_hits(confidence)
            ]
        elif resampling.weights is not None:
            variance = resampling.weighted(resampling.weighted(confidence * (1 - confidence)))
            found = list(resampling.null_noise(torch.bincount(self._cell, variance.clamp(min=0))))
        else:
            claimed = self.samples * self.confidence
            found = [right - claimed for right in resampling.null_sums(self.samples, self.confidence)]
        return torch.cat(found) / resampling.size

    @property
    def _joined(self) -> bool:
        """Whether cells hold several samples."""
        return self._resampling.num_samples > _MOST_SINGLE

    def _resampled(self, *values: Tensor) -> list[Tensor]:
        """Sums ``(R, C)`` of some values of the samples of each resample in each cell."""
        if self._resampling.grouped:
            # Float32 holds counts exactly, and seven digits of noise are enough.
            counts = self._resampling.groups[1].float()
            return [(counts @ self._by_group(each).float()).double() for each in values]
        order = self._cell.argsort(stable=True) if self._joined else self._order
        ordered = [each[order] for each in values]
        found: list[list[Tensor]] = [[] for _ in values]
        starts = None
        if self._joined:
            starts = self._cell[order].diff(prepend=self._cell.new_tensor([-1])).nonzero()[:, 0].numpy()
        for counts in self._resampling.counts():
            drawn = counts.index_select(1, order)
            for parts, each in zip(found, ordered, strict=True):
                part = drawn * each
                parts.append(
                    part
                    if starts is None
                    else torch.from_numpy(np.add.reduceat(part.numpy(), starts, axis=1))
                )
        return [torch.cat(parts) for parts in found]

    def _sums(self, values: Tensor) -> Tensor:
        values = self._resampling.weighted(values)
        return torch.bincount(self._cell, values) if self._joined else values[self._order]

    def _by_group(self, values: Tensor) -> Tensor:
        """Sums of each group and cell, ``(G, C)``."""
        groups, counts = self._resampling.groups
        values = self._resampling.weighted(values)
        shape = counts.shape[1], len(self.samples)
        return torch.bincount(groups * shape[1] + self._cell, values, minlength=shape[0] * shape[1]).view(
            shape
        )

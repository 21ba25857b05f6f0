"""Which samples each resample holds."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Predictions

CHUNK_ELEMENTS = 2**20
"""8 MB of float64, of which a few copies live at once."""

GROUPS = 4096
# Beyond this many samples, random groups of samples are resampled, and confidences are looked at in fine cells.
_UNGROUPED_SAMPLES = 10_000
# Labels drawn from the probabilities: as many sets as resamples while they are cheap.
_NULL_LABELS = 10_000_000
_FEWEST_NULL_DRAWS = 200


@dataclass(frozen=True)
class Resampling:
    """Repeatable resamples of ``num_samples`` samples: the same object always gives the same ones."""

    num_samples: int
    resamples: int
    seed: int

    @property
    def grouped(self) -> bool:
        """Whether groups of samples are resampled in place of samples."""
        return self.num_samples > _UNGROUPED_SAMPLES

    def counts(self) -> Iterator[Tensor]:
        """Yield ``(R, N)`` counts, how often each resample holds each sample, a few resamples at a time."""
        if self.grouped:
            groups, counts = self.groups
            yield from (
                part[:, groups] for part in torch.split(counts, max(1, CHUNK_ELEMENTS // self.num_samples))
            )
        else:
            yield from self._counts(self.num_samples, self._generator(0))

    def means(self, values: Tensor) -> Tensor:
        """Means ``(R, C)`` over resampled samples of values ``(N, C)``."""
        if not self.grouped:
            return torch.cat([counts @ values for counts in self.counts()]) / self.num_samples
        groups, counts = self.groups
        sums = torch.zeros(counts.shape[1], values.shape[1], dtype=torch.float64).index_add_(
            0, groups, values
        )
        return counts @ sums / self.drawn[:, None]

    @cached_property
    def drawn(self) -> Tensor:
        """How many samples each resample holds, ``(R,)``, because groups differ in size by one sample."""
        groups, counts = self.groups
        return counts @ torch.bincount(groups, minlength=counts.shape[1]).double()

    def null_hits(self, confidence: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, N)`` outcomes that are right as often as their confidence says."""
        generator = self._generator(1)
        for rows in self.chunks(self.num_samples):
            shape = rows, self.num_samples
            draws = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
            yield (draws < confidence).double()

    def null_sums(self, samples: Tensor, confidence: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, C)``, how many of so many samples are right that are so as often as their confidence says."""
        random = np.random.default_rng([self.seed, 1])
        size, chance = samples.long().numpy(), confidence.clamp(max=1).numpy()
        for rows in self.chunks(len(size)):
            yield torch.from_numpy(random.binomial(size, chance, size=(rows, len(size)))).double()

    def null_labels(self, given: Predictions) -> Tensor:
        """Labels ``(N, S)`` drawn from the probabilities of each sample: one set of them where many take too long."""
        generator = self._generator(2)
        draws = min(self.resamples, max(_FEWEST_NULL_DRAWS, _NULL_LABELS // self.num_samples))
        if _FEWEST_NULL_DRAWS * self.num_samples > _NULL_LABELS:
            draws = 1
        kind = _smallest_type(given.num_classes)
        drawn = []
        for block in given.blocks():
            # Rounding must not draw a class beyond the last: rows sum to 1 only nearly.
            for cumulative in torch.split(block.probs.cumsum(1), max(1, CHUNK_ELEMENTS // draws)):
                shape = len(cumulative), draws
                uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
                labels = torch.searchsorted(cumulative, uniform.mul_(cumulative[:, -1:]))
                drawn.append(labels.clamp_(max=given.num_classes - 1).to(kind))
        return torch.cat(drawn)

    @cached_property
    def groups(self) -> tuple[Tensor, Tensor]:
        """Group of each sample, ``(N,)``, and counts ``(R, G)``, how often each resample holds each group.

        Up to 10 000 samples every sample is its own group. Beyond, means of random groups are as
        good as samples to resample from, and their number no longer grows.
        """
        generator = self._generator(3)
        if self.grouped:
            groups, size = torch.randperm(self.num_samples, generator=generator) % GROUPS, GROUPS
        else:
            groups, size = torch.arange(self.num_samples), self.num_samples
        return groups, torch.cat(list(self._counts(size, generator)))

    @cached_property
    def multipliers(self) -> Tensor:
        """Normal numbers ``(R, G)`` that make noise of one set of labels drawn from the probabilities."""
        shape = self.resamples, self.groups[1].shape[1]
        return torch.randn(shape, generator=self._generator(1), dtype=torch.float64, device="cpu")

    def chunks(self, size: int) -> Iterator[int]:
        """How many resamples of ``size`` numbers to take at a time."""
        step = max(1, CHUNK_ELEMENTS // size)
        for start in range(0, self.resamples, step):
            yield min(step, self.resamples - start)

    def _counts(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        for rows in self.chunks(size):
            draws = torch.randint(size, (rows, size), generator=generator)
            draws += torch.arange(rows)[:, None] * size
            yield torch.bincount(draws.flatten(), minlength=rows * size).view(rows, size).double()

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 4 + stream)


def _smallest_type(num_classes: int) -> torch.dtype:
    """The type of labels drawn two hundred times for every sample."""
    for kind in (torch.int8, torch.int16):
        if num_classes - 1 <= torch.iinfo(kind).max:
            return kind
    return torch.int32

"""Which samples each resample holds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Predictions

CHUNK_ELEMENTS = 2**20
"""8 MB of float64, of which a few copies live at once."""

GROUPS = 4096
# Beyond this many samples, random groups of samples are resampled, and confidences are looked at in
# fine cells.
_UNGROUPED_SAMPLES = 10_000
# Labels drawn from the probabilities: as many sets as resamples while they are cheap.
_NULL_LABELS = 2_000_000
_FEWEST_NULL_DRAWS = 200


@dataclass(frozen=True)
class Resampling:
    """Repeatable resamples of ``num_samples`` samples: the same object always gives the same ones.

    Samples that have relative ``weights`` are drawn evenly too, and bring their weights along: the
    weight of a sample is as much a matter of chance as the sample.
    """

    num_samples: int
    resamples: int
    seed: int
    weights: Tensor | None = field(default=None, compare=False)

    @classmethod
    def of(cls, given: Predictions, resamples: int, seed: int) -> "Resampling":
        """Resamples of these predictions, whose weights are not whole."""
        return cls(given.num_samples, resamples, seed, given.weights)

    @cached_property
    def size(self) -> float:
        """How many samples there are, or the effective number of weighted ones."""
        return self.num_samples if self.weights is None else float(self.weights.sum())

    def weighted(self, values: Tensor) -> Tensor:
        """Values ``(..., N)`` times the weights of the samples."""
        return values if self.weights is None else values * self.weights

    def mean(self, values: Tensor) -> Tensor:
        """The mean over samples of values ``(..., N)``."""
        return values.mean(-1) if self.weights is None else values @ self.weights / self.size

    @property
    def grouped(self) -> bool:
        """Whether groups of samples are resampled in place of samples."""
        return self.num_samples > _UNGROUPED_SAMPLES

    def counts(self) -> Iterator[Tensor]:
        """Yield ``(R, N)`` counts of samples in each resample, a few resamples at a time.

        Of weighted samples they are weights, which sum to ``size`` in every resample.
        """
        for counts in self._plain_counts():
            if self.weights is None:
                yield counts
            else:
                drawn = counts * self.weights
                yield drawn * (self.size / drawn.sum(1, keepdim=True))

    def _plain_counts(self) -> Iterator[Tensor]:
        groups, counts = self.groups
        parts = torch.split(counts, max(1, CHUNK_ELEMENTS // self.num_samples))
        yield from (part[:, groups] for part in parts) if self.grouped else parts

    def means(self, values: Tensor) -> Tensor:
        """Means ``(R, C)`` over resampled samples of values ``(N, C)``."""
        if not self.grouped:
            return torch.cat([counts @ values for counts in self.counts()]) / self.size
        groups, counts = self.groups
        sums = torch.zeros(counts.shape[1], values.shape[1], dtype=torch.float64).index_add_(
            0, groups, self.weighted(values.T).T
        )
        return counts @ sums / self.drawn[:, None]

    @cached_property
    def drawn(self) -> Tensor:
        """How many samples, or weights, each resample holds, ``(R,)``, as groups differ."""
        groups, counts = self.groups
        return counts @ torch.bincount(groups, self.weights, minlength=counts.shape[1]).double()

    def null_hits(self, confidence: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, N)`` outcomes that are right as often as their confidence says."""
        generator = self._generator(1)
        for rows in self.chunks(self.num_samples):
            shape = rows, self.num_samples
            draws = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
            yield (draws < confidence).double()

    def null_sums(self, samples: Tensor, confidence: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, C)``, how many samples are right if confidences are."""
        random = np.random.default_rng([self.seed, 1])
        size, chance = samples.long().numpy(), confidence.clamp(max=1).numpy()
        for rows in self.chunks(len(size)):
            yield torch.from_numpy(random.binomial(size, chance, size=(rows, len(size)))).double()

    def null_noise(self, variance: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, C)`` normal sums of many outcomes less their claims, of these variances."""
        random = np.random.default_rng([self.seed, 1])
        spread = variance.sqrt()
        for rows in self.chunks(len(spread)):
            yield torch.from_numpy(random.normal(size=(rows, len(spread)))) * spread

    def null_labels(self, given: Predictions) -> Tensor:
        """Labels ``(N, S)`` drawn from the probabilities: one set where many take too long."""
        generator = self._generator(2)
        draws = min(self.resamples, max(_FEWEST_NULL_DRAWS, _NULL_LABELS // self.num_samples))
        if _FEWEST_NULL_DRAWS * self.num_samples > _NULL_LABELS:
            draws = 1
        kind = _smallest_type(given.num_classes)
        drawn = []
        for block in given.blocks():
            # Rounding must not draw a class beyond the last: rows sum to 1 only nearly.
            for cumulative in torch.split(
                torch.from_numpy(block.probs.cumsum(1)), max(1, CHUNK_ELEMENTS // draws)
            ):
                shape = len(cumulative), draws
                uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
                labels = torch.searchsorted(cumulative, uniform.mul_(cumulative[:, -1:]))
                drawn.append(labels.clamp_(max=given.num_classes - 1).to(kind))
        return torch.cat(drawn)

    @cached_property
    def groups(self) -> tuple[Tensor, Tensor]:
        """Group of each sample, ``(N,)``, and counts of groups in each resample, ``(R, G)``.

        Up to 10 000 samples every sample is its own group. Beyond, means of random groups are as
        good as samples to resample from, and their number no longer grows.
        """
        if self.grouped:
            generator, size = self._generator(3), GROUPS
            groups = torch.randperm(self.num_samples, generator=generator) % size
        else:
            generator, size = self._generator(0), self.num_samples
            groups = torch.arange(size)
        return groups, torch.cat(list(self._counts(size, generator)))

    @cached_property
    def multipliers(self) -> Tensor:
        """Normal numbers ``(R, G)`` that make noise of one set of drawn labels."""
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

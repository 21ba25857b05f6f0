"""One pass over predictions, which every metric of a report and every interval reads."""

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics._scores import squared_distances
from macc.metrics.binning import TopLabels
from macc.metrics.inputs import Predictions


class PerSample(NamedTuple):
    """What the pass leaves of each sample, ``(N,)``, and sums of the probabilities, ``(K,)``.

    ``positive`` has the probability of the positive class of two, and whether the sample is of it.
    """

    top: TopLabels
    predicted: Tensor
    positive: TopLabels
    log_likelihood: Tensor
    squared_distance: Tensor
    totals: Tensor


class OnePass:
    """Softmax, top label and sums, each computed once.

    Args:
        given: Predictions on the CPU.
        positive: The positive class of two.
        whole: Keep the probabilities of all classes, because they are going to be asked for.
    """

    def __init__(self, given: Predictions, *, positive: int = 1, whole: bool = False):
        self.given, self._positive = given.check(), positive
        self._whole = whole and (given.from_logits or given.normalise)
        self._kept: Tensor | None = None

    @cached_property
    def sample(self) -> PerSample:
        """What is left of each sample."""
        given, one = self.given, self._positive
        if self._whole:
            self._kept = torch.empty(given.scores.shape, dtype=torch.float64, device="cpu")
        parts = []
        totals = torch.zeros(given.num_classes, dtype=torch.float64, device="cpu")
        start = 0
        for block in given.blocks():
            parts.append(
                (
                    block.rows.predicted,
                    block.confidence,
                    block.of_class(one),
                    block.log_likelihood,
                    squared_distances(block),
                )
            )
            totals += torch.from_numpy(block.wide.totals(block.weights))
            if self._kept is not None:
                self._kept[start : start + len(block)] = torch.from_numpy(block.probs)
            start += len(block)
        predicted, confidence, chance, log_likelihood, squared = (
            torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)
        )
        return PerSample(
            TopLabels(confidence, (predicted == given.labels).double()),
            predicted,
            TopLabels(chance, (given.labels == one).double()),
            log_likelihood,
            squared,
            totals,
        )

    @cached_property
    def probabilities(self) -> Predictions:
        """The same predictions as checked probabilities."""
        if self._whole:
            _ = self.sample
        matrix = self.given.matrix() if self._kept is None else self._kept
        return replace(self.given, scores=matrix, from_logits=False, normalise=False)

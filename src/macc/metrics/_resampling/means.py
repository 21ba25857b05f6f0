"""Means over samples: accuracy, NLL, Brier score and refinement."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from macc.metrics._one_pass import PerSample
from macc.metrics._refinement import Held
from macc.metrics._resampling.samples import Resampling
from macc.metrics.intervals import Ordinary, Sampled, Share


def means(sample: PerSample, resampling: Resampling) -> "MeanScores":
    columns_ = torch.stack([sample.top.correct, -sample.log_likelihood, sample.squared_distance])
    # A label of probability 0 makes NLL infinite wherever it is drawn, and 0 times infinity is 0
    # here.
    infinite = columns_.isinf()
    finite = resampling.means(torch.where(infinite, 0.0, columns_).T)
    resampled = torch.where(resampling.means(infinite.double().T) > 0, math.inf, finite).T
    values = resampling.mean(columns_).tolist()
    by_outcome = resampling.mean(scores_by_outcome(sample.top.confidence, len(sample.totals)))
    return mean_scores(values, resampled, by_outcome, resampling.size, whole=resampling.weights is None)


def mean_loss(held: Held, num_classes: int, resampling: Resampling) -> Sampled:
    """The mean of held-out losses."""
    (least, _), (most, _) = resampling.mean(scores_by_outcome(held.confidence, num_classes)).tolist()
    return mean_of(held.losses, least, most, resampling)


def mean_of(values: Tensor, least: float, most: float, resampling: Resampling) -> Sampled:
    """The mean over samples of values ``(N,)``.

    Args:
        values: One of each sample.
        least: The least that one more sample could have.
        most: The most that it could have.
        resampling: The resamples.
    """
    value, draws = float(resampling.mean(values)), resampling.means(values[:, None])[:, 0]
    return Ordinary(value, draws, resampling.size, min(least, value), max(most, value))


def scores_by_outcome(confidence: Tensor, num_classes: int) -> Tensor:
    """NLL and Brier score ``(2, 2, N)`` of predictions if they are right, and if they are wrong.

    All classes but the predicted one are taken to share evenly what its confidence leaves, which is
    all that is known of classes that were never seen in its place.
    """
    # A confidence that was rounded to 1 was not 1: an error costs much, not everything.
    rest = (1 - confidence).clamp(min=torch.finfo(torch.float64).eps)
    other = rest / (num_classes - 1)
    squares = confidence.square() + rest * other
    right = torch.stack([-confidence.log(), squares + 1 - 2 * confidence])
    return torch.stack([right, torch.stack([-other.log(), squares + 1 - 2 * other])])


class MeanScores(NamedTuple):
    """Means over samples."""

    accuracy: Sampled
    nll: Sampled
    brier: Sampled


def mean_scores(
    values: Iterable[float], resampled: Iterable[Tensor], by_outcome: Tensor, size: float, *, whole: bool
) -> MeanScores:
    """Accuracy, NLL and Brier score.

    Args:
        values: The three.
        resampled: ``(3, R)`` the same of resamples.
        by_outcome: Mean :func:`scores_by_outcome`.
        size: How many samples are independent.
        whole: Samples are alike and independent, so that accuracy has exact limits.
    """
    ends = [(0.0, 1.0), *zip(*by_outcome.tolist(), strict=True)]
    accuracy, nll, brier = (
        Ordinary(value, draws, size, min(least, value), max(most, value))
        for value, draws, (least, most) in zip(values, resampled, ends, strict=True)
    )
    return MeanScores(Share(accuracy, round(size)) if whole else accuracy, nll, brier)

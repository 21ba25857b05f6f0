"""What training has delivered: the NLL that is left once a temperature has mended the scale."""

import math
from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from macc.metrics._metric import metric
from macc.metrics.folds import dealt
from macc.metrics.inputs import Array, Predictions, ReadAs, predictions
from macc.metrics.temperature import best_temperature, blocks, float64_copy, tempered
from macc.tables import PLAIN

# The logarithm of the smallest number that float32 holds, which is where most probabilities of 0
# come from.
_ZERO = math.log(2.0**-149)
_UNSEEN = 1.0


@metric(
    "NLL after temperature scaling",
    PLAIN,
    "lower",
    lambda d: d.refinement,
    prominence=1,
    short="refinement",
    of_answers=True,
)
def refinement(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Negative log-likelihood after temperature scaling, in nats, cross-fitted.

    .. math:: \frac1N \sum_{h \in \{A, B\}} \sum_{i \in h}
        -\log \operatorname{softmax}(\log p_i / T_{\bar h})_{y_i}

    The samples are divided into two halves, and each is measured at the temperature
    :math:`T_{\bar h}` that was fitted to the other. A temperature fitted to the samples it is
    measured on would flatter the model; one from half of them is worse than the best by about
    :math:`1 / N`. What is left is what a change of scale cannot repair: models are compared by it
    as they will be after calibration.

    Every class is divided evenly, because classes differ in how over-confident they are, and a rare
    one should be in both halves. Which of its samples are in which half is a fixed random choice by
    the rank of their losses, so the order of samples does not matter. A half without errors asks
    for a temperature of 0, at which any error of the other half costs everything. So one more
    sample is taken to be in each half, with a label that may be any class.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two. 0 counts as 1.4e-45, the
            smallest number of float32.
        weights: How often each sample counts, ``(N,)``, at least 0. Whole weights are repeated
            samples, which may fall into both halves; samples of other weights are dealt whole.

    Returns:
        The score, at least 0 and finite; it is the same for logits of any scale. A single sample
        has :math:`\log K`, since nothing is left to fit a temperature to. The interval is that of a
        mean of the held-out losses. To first order the temperature does not matter, because the
        loss is flat at its best.

    Example:
        >>> from macc import metrics
        >>> logits = [[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [0.0, 4.0]] * 100
        >>> labels = [0, 1, 0, 0] * 100
        >>> round(metrics.nll(logits, labels, from_logits=True), 3)
        1.018
        >>> round(metrics.refinement(logits, labels, from_logits=True), 3)
        0.563

    Reference:
        Berta, Holzmüller, Jordan and Bach, *Rethinking Early Stopping: Refine, Then
        Calibrate*, 2025.
    """
    given = predictions(probs, labels, **read_as)
    given = given.repeated()
    return given.mean(held_out(given).losses.to(given.labels.device))


class Held(NamedTuple):
    """Each sample at the temperature of the half that it is not in, float64 ``(N,)``."""

    losses: Tensor
    confidence: Tensor


def held_out(given: Predictions) -> Held:
    """The losses of all samples, and the confidence of their predicted classes."""
    logits = _logits(given)
    labels = given.labels.to(logits.device)
    halves = _halves(logits, labels)
    temperatures = torch.full((len(labels), 1), math.inf, dtype=torch.float64)
    start = 1.0
    for half in (0, 1):
        there = (halves != half).nonzero()[:, 0]
        if len(there):
            weights = None if given.weights is None else given.weights.cpu()[there]
            start = best_temperature(
                logits[there], labels[there], unseen=_UNSEEN, start=start, weights=weights
            ).value
            temperatures[halves == half] = start
    held = torch.empty(2, len(labels), dtype=torch.float64)
    for part in blocks(logits):
        log_probs = tempered(logits[part], temperatures[part])
        held[0, part] = -log_probs.gather(1, labels[part, None])[:, 0]
        held[1, part] = log_probs.amax(1).exp()
    return Held(*held)


def _logits(given: Predictions) -> Tensor:
    """Logits less the largest of their row, float64 ``(N, K)``, also of probabilities."""
    given = given.check()
    result = torch.empty(given.scores.shape, dtype=torch.float64)
    for part in blocks(given.scores):
        rows = float64_copy(given.scores[part])
        if not given.from_logits:
            rows = rows.clamp_(min=math.exp(_ZERO)).log_()
        rows -= rows.amax(1, keepdim=True)
        result[part] = rows.nan_to_num_(neginf=_ZERO)
    return result


def _halves(logits: Tensor, labels: Tensor) -> Tensor:
    """The half of each sample, by its class, the rank of its loss and the rest of its row."""
    own = logits.gather(1, labels[:, None])[:, 0]
    rest = torch.cat([logits[part].square().sum(1) for part in blocks(logits)])
    keys = labels, own, rest  # with ranks within classes, a change of rank moves two samples at most
    order = torch.from_numpy(np.lexsort([key.numpy() for key in reversed(keys)]))
    halves = torch.empty_like(labels)
    halves[order] = dealt(labels[order], 2)
    return halves

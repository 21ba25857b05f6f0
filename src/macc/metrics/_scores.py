"""Scores that need no bins: accuracy, proper scores, ranking and selective prediction."""

import torch
from torch import Tensor

from macc.metrics._binning import top_labels
from macc.metrics._inputs import Array, Block, predictions


def accuracy(probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False) -> float:
    r"""Share of samples whose most probable class is their label; the first class wins a tie.

    .. math:: \frac1N \sum_i 1[\arg\max_j p_{ij} = y_i]

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The accuracy, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> metrics.accuracy([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1])
        0.75
    """
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    return float(top_labels(given.blocks()).correct.mean())


def nll(probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False) -> float:
    r"""Negative log-likelihood of the labels, in nats.

    .. math:: -\frac1N \sum_i \log p_{i y_i}

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits; the logarithm is then taken without underflow.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The score, at least 0; ``inf`` when a label was given probability 0, since clipping would
        make the number depend on an invisible constant.

    Example:
        >>> from macc import metrics
        >>> round(metrics.nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
        0.490415
    """
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    return -sum(float(block.log_likelihood.sum()) for block in given.blocks()) / given.num_samples


def brier(probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False) -> float:
    r"""Brier score: squared distance to the one-hot label, summed over classes.

    .. math:: \frac1N \sum_i \sum_j \bigl( p_{ij} - 1[y_i = j] \bigr)^2

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The score, in ``[0, 2]``; for two classes twice the score that sums over one of them.

    Example:
        >>> from macc import metrics
        >>> metrics.brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
        0.3125

    Reference:
        Brier, *Verification of Forecasts Expressed in Terms of Probability*, 1950.
    """
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    return sum(float(squared_distances(block).sum()) for block in given.blocks()) / given.num_samples


def squared_distances(block: Block) -> Tensor:
    """Squared distance of each row to its one-hot label."""
    squares: Tensor = torch.linalg.vecdot(block.probs, block.probs)
    return squares + 1 - 2 * block.probs.gather(1, block.labels[:, None])[:, 0]

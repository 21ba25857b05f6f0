"""Calibration errors: how far stated confidence lies from observed frequency."""

from typing import Any

from torch import Tensor

from macc.metrics._binning import TopBins, bin_index, class_gaps, top_bins, top_labels
from macc.metrics._inputs import Array, check_bins, like, predictions


def ece(
    probs: Array, labels: Array, *, bins: int = 15, from_logits: bool = False, normalise: bool = False
) -> float:
    r"""Expected calibration error: mean gap between confidence and accuracy of the predicted class.

    .. math:: \sum_{b} \frac{|B_b|}{N} \bigl| \operatorname{acc}(B_b) - \operatorname{conf}(B_b) \bigr|

    Bins of equal width cut the confidence :math:`\max_j p_j`, each without its lower and with its
    upper edge; confidence 0 belongs to the first bin. Empty bins contribute nothing.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        bins: Number of bins.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The error, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> round(metrics.ece([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 6)
        0.333333

    Reference:
        Naeini, Cooper and Hauskrecht, *Obtaining Well Calibrated Probabilities Using Bayesian
        Binning*, AAAI 2015; Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """
    binned = _binned(probs, labels, bins, from_logits, normalise)
    return mean_gap(binned.gaps, float(binned.samples.sum()))


def mce(
    probs: Array, labels: Array, *, bins: int = 15, from_logits: bool = False, normalise: bool = False
) -> float:
    r"""Maximum calibration error: the largest gap of any confidence bin that holds a sample.

    .. math:: \max_{b : |B_b| > 0} \bigl| \operatorname{acc}(B_b) - \operatorname{conf}(B_b) \bigr|

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        bins: Number of bins of equal width, as in :func:`ece`.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The error, in ``[0, 1]``; a bin of one sample can decide it.

    Example:
        >>> from macc import metrics
        >>> round(metrics.mce([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 6)
        0.7

    Reference:
        Naeini, Cooper and Hauskrecht, *Obtaining Well Calibrated Probabilities Using Bayesian
        Binning*, AAAI 2015.
    """
    return max_gap(_binned(probs, labels, bins, from_logits, normalise))


def sce(
    probs: Array, labels: Array, *, bins: int = 15, from_logits: bool = False, normalise: bool = False
) -> float:
    r"""Static calibration error: the gaps of all classes, not only the predicted one.

    .. math:: \frac1K \sum_{j} \sum_{b} \frac{|B_{bj}|}{N}
        \bigl| \operatorname{acc}(B_{bj}) - \operatorname{conf}(B_{bj}) \bigr|

    :math:`B_{bj}` holds all samples whose :math:`p_j` lies in bin :math:`b`; its accuracy is the share
    of them with label :math:`j`. The number of classes is that of ``probs``, present in the labels or not.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        bins: Number of bins of equal width, as in :func:`ece`.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The error, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> round(metrics.sce([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 6)
        0.333333

    Reference:
        Nixon et al., *Measuring Calibration in Deep Learning*, CVPR Workshops 2019.
    """
    check_bins(bins)
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    return float(class_errors(class_gaps(given, bins), given.num_samples).mean())


def classwise_ece(
    probs: Array, labels: Array, *, bins: int = 15, from_logits: bool = False, normalise: bool = False
) -> Any:
    r"""Calibration error of each class, whose mean is :func:`sce`.

    .. math:: \sum_{b} \frac{|B_{bj}|}{N}
        \bigl| \operatorname{acc}(B_{bj}) - \operatorname{conf}(B_{bj}) \bigr|, \quad j = 1, \dots, K

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        bins: Number of bins of equal width, as in :func:`ece`.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        ``(K,)`` errors in ``[0, 1]``, float64: a tensor for a tensor, otherwise a numpy array.

    Example:
        >>> from macc import metrics
        >>> metrics.classwise_ece([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]).round(4)
        array([0.3333, 0.3333])

    Reference:
        Kull et al., *Beyond Temperature Scaling*, NeurIPS 2019.
    """
    check_bins(bins)
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    return like(class_errors(class_gaps(given, bins), given.num_samples), probs)


def mean_gap(gaps: Tensor, num_samples: float) -> float:
    """Sum of absolute gaps, as a share of the samples."""
    return float(gaps.abs().sum()) / num_samples


def max_gap(binned: TopBins) -> float:
    """Largest gap of a bin that holds a sample."""
    filled = binned.samples > 0
    return float((binned.gaps[filled].abs() / binned.samples[filled]).max())


def class_errors(gaps: Tensor, num_samples: float) -> Tensor:
    """Calibration error ``(K,)`` of each class from the gaps ``(bins, K)``."""
    return gaps.abs().sum(0) / num_samples


def _binned(probs: Array, labels: Array, bins: int, from_logits: bool, normalise: bool) -> TopBins:
    check_bins(bins)
    top = top_labels(predictions(probs, labels, from_logits=from_logits, normalise=normalise).blocks())
    return top_bins(top, bin_index(top.confidence, bins), bins)

"""Calibration errors: how far stated confidence lies from observed frequency."""

from typing import Any, Unpack

import numpy as np
import torch

from macc.metrics._formulas import (
    class_errors,
    debiased_gap,
    largest_running_gap,
    max_gap,
    mean_excess,
    mean_gap,
    mean_lack,
    root_mean_square_gap,
    smooth_gap,
)
from macc.metrics._metric import metric, reads_inputs
from macc.metrics.binning import (
    TopBins,
    bin_sums,
    class_gaps,
    top_labels,
    width_index,
)
from macc.metrics.inputs import Array, ReadAs, check_bins, like, predictions
from macc.tables import PERCENT, THOUSANDTHS


@metric(
    "ECE",
    PERCENT,
    "lower",
    lambda d: d.top.ece,
    streamed=lambda s: mean_gap(s.top),
    prominence=0,
    top_label=True,
    floored=True,
)
def ece(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    r"""Expected calibration error: mean gap between confidence and accuracy of the predicted class.

    .. math:: \sum_{b} \frac{|B_b|}{N} \bigl| \operatorname{acc}(B_b) - \operatorname{conf}(B_b) \bigr|

    Bins of equal width cut the confidence :math:`\max_j p_j`, each without its lower and with its
    upper edge; confidence 0 belongs to the first bin. Empty bins contribute nothing.

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
    return mean_gap(_binned(probs, labels, bins, **read_as))


@metric(
    "MCE",
    PERCENT,
    "lower",
    lambda d: d.top.mce,
    streamed=lambda s: max_gap(s.top),
    independent=True,
    prominence=2,
    top_label=True,
    floored=True,
)
def mce(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    r"""Maximum calibration error: the largest gap of any confidence bin that holds a sample.

    .. math:: \max_{b : |B_b| > 0} \bigl| \operatorname{acc}(B_b) - \operatorname{conf}(B_b) \bigr|

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
    return max_gap(_binned(probs, labels, bins, **read_as))


@metric(
    "SCE (all classes)",
    THOUSANDTHS,
    "lower",
    lambda d: d.classes.sce,
    streamed=lambda s: float(class_errors(s.class_gaps, s.total).mean()),
    all_classes=True,
    prominence=1,
    short="SCE",
    floored=True,
)
def sce(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    r"""Static calibration error: the gaps of all classes, not only the predicted one.

    .. math:: \frac1K \sum_{j} \sum_{b} \frac{|B_{bj}|}{N}
        \bigl| \operatorname{acc}(B_{bj}) - \operatorname{conf}(B_{bj}) \bigr|

    :math:`B_{bj}` holds all samples whose :math:`p_j` lies in bin :math:`b`; its accuracy is the
    share of them with label :math:`j`. The number of classes is that of ``probs``, present in the
    labels or not.

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
    given = predictions(probs, labels, **read_as)
    return float(class_errors(class_gaps(given, bins).sums(), given.total).mean())


@reads_inputs
def classwise_ece(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> Any:
    r"""Calibration error of each class, whose mean is :func:`sce`.

    .. math:: \sum_{b} \frac{|B_{bj}|}{N}
        \bigl| \operatorname{acc}(B_{bj}) - \operatorname{conf}(B_{bj}) \bigr|, \quad j = 1, \dots, K

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
    given = predictions(probs, labels, **read_as)
    return like(class_errors(class_gaps(given, bins).sums(), given.total), probs)


@metric(
    "over-confidence",
    PERCENT,
    "lower",
    lambda d: d.top.over_confidence,
    streamed=lambda s: mean_excess(s.top),
    part_of_above=True,
    floored=True,
)
def over_confidence(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    r"""The part of :func:`ece` from bins more confident than accurate.

    .. math:: \sum_{b} \frac{|B_b|}{N} \max\bigl(0, \operatorname{conf}(B_b) - \operatorname{acc}(B_b)\bigr)

    Returns:
        The error, in ``[0, 1]``; with :func:`under_confidence` it adds up to :func:`ece`.

    Example:
        >>> from macc import metrics
        >>> round(metrics.over_confidence([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 6)
        0.233333
    """
    return mean_excess(_binned(probs, labels, bins, **read_as))


@metric(
    "under-confidence",
    PERCENT,
    "lower",
    lambda d: d.top.under_confidence,
    streamed=lambda s: mean_lack(s.top),
    part_of_above=True,
    floored=True,
)
def under_confidence(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    r"""The part of :func:`ece` from bins more accurate than confident.

    .. math:: \sum_{b} \frac{|B_b|}{N} \max\bigl(0, \operatorname{acc}(B_b) - \operatorname{conf}(B_b)\bigr)

    Returns:
        The error, in ``[0, 1]``; with :func:`over_confidence` it adds up to :func:`ece`.

    Example:
        >>> from macc import metrics
        >>> round(metrics.under_confidence([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 6)
        0.1
    """
    return mean_lack(_binned(probs, labels, bins, **read_as))


@metric(
    "RMS calibration error",
    PERCENT,
    "lower",
    lambda d: d.top.rmsce,
    streamed=lambda s: root_mean_square_gap(s.top),
    top_label=True,
    floored=True,
)
def rmsce(
    probs: Array, labels: Array, *, bins: int = 15, debiased: bool = False, **read_as: Unpack[ReadAs]
) -> float:
    r"""Root mean square calibration error: :func:`ece` with squared gaps.

    .. math:: \Bigl( \sum_{b} \frac{|B_b|}{N} \bigl( \operatorname{acc}(B_b) - \operatorname{conf}(B_b)
        \bigr)^2 \Bigr)^{1/2}

    Chance alone gives every bin a squared gap of about :math:`a_b (1 - a_b) / |B_b|`, with
    :math:`a_b` its accuracy. The debiased form subtracts the unbiased estimate
    :math:`a_b (1 - a_b) / (|B_b| - 1)` from bins of two samples and more, and is 0 where that
    leaves a negative sum.

    Args:
        debiased: Subtract what chance alone contributes.

    Returns:
        The error, in ``[0, 1]``; at least :func:`ece` when not debiased.

    Example:
        >>> from macc import metrics
        >>> round(metrics.rmsce([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 6)
        0.424264

    Reference:
        Kumar, Liang and Ma, *Verified Uncertainty Calibration*, NeurIPS 2019.
    """
    formula = debiased_gap if debiased else root_mean_square_gap
    return formula(_binned(probs, labels, bins, **read_as))


@metric(
    "debiased",
    PERCENT,
    "lower",
    lambda d: d.top.rmsce_debiased,
    streamed=lambda s: debiased_gap(s.top),
    part_of_above=True,
    floored=True,
)
def rmsce_debiased(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    """The debiased form of :func:`rmsce`.

    Returns:
        The error, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> round(metrics.rmsce_debiased([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1]], [0, 1, 1]), 6)
        0.458258
    """
    return rmsce(probs, labels, bins=bins, debiased=True, **read_as)


@metric("smooth ECE", PERCENT, "lower", lambda d: d.smooth_ece, prominence=2, top_label=True, floored=True)
def smooth_ece(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Smooth calibration error of the predicted class: no bins, and a bandwidth the data choose.

    .. math:: \sigma^\ast \text{ with } \int_0^1 \Bigl| \frac1N \sum_i
        \tilde K_{\sigma^\ast}(t, c_i) \, (1[\hat y_i = y_i] - c_i) \Bigr| \, dt = \sigma^\ast

    :math:`\tilde K_\sigma` is the Gaussian kernel reflected at 0 and 1. The integral falls as
    :math:`\sigma` grows, so the solution is unique. Confidences are placed on a grid of 2048 cells.

    Returns:
        The error, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> round(metrics.smooth_ece([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 3)
        0.15

    Reference:
        Błasiok and Nakkiran, *Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing*,
        ICLR 2024.
    """
    given = predictions(probs, labels, **read_as)
    return smooth_gap(top_labels(given.blocks()), given.weights)


@metric("KS error", PERCENT, "lower", lambda d: d.ks_error, top_label=True, floored=True)
def ks_error(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Kolmogorov-Smirnov calibration error of the predicted class: the largest cumulative gap.

    .. math:: \max_t \Bigl| \frac1N \sum_{i : c_i \le t} (1[\hat y_i = y_i] - c_i) \Bigr|

    Returns:
        The error, in ``[0, 1]``; at most :func:`ece` for one bin per distinct confidence.

    Example:
        >>> from macc import metrics
        >>> round(metrics.ks_error([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]), 6)
        0.233333

    Reference:
        Gupta et al., *Calibration of Neural Networks using Splines*, ICLR 2021.
    """
    given = predictions(probs, labels, **read_as)
    return largest_running_gap(top_labels(given.blocks()), given.weights)


def _binned(probs: Array, labels: Array, bins: int, **read_as: Unpack[ReadAs]) -> TopBins:
    check_bins(bins)
    given = predictions(probs, labels, **read_as)
    found = np.zeros((3, bins))
    for block in given.blocks():
        confidence = block.rows.highest
        found += bin_sums(width_index(confidence, bins), confidence, block.right, bins, block.weights)
    return TopBins(*torch.from_numpy(found))

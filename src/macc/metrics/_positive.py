"""Two classes: how far the probability of the positive class lies from how often it happens.

The top label of two classes hides this. Where a model says 60 % and 50 % happen, and says 40 % and
30 % happen, it is over-confident in class 1 and under-confident in class 0, and the two cancel in
every bin of confidence.
"""

from typing import Unpack

from macc.metrics._formulas import max_gap, mean_gap, smooth_gap
from macc.metrics._metric import metric
from macc.metrics.binning import TopLabels, bin_index, class_labels, top_bins
from macc.metrics.inputs import Array, Predictions, ReadAs, check_bins, predictions
from macc.metrics.naming import check_positive
from macc.tables import PERCENT, PLAIN


@metric(
    "ECE, positive class",
    PERCENT,
    "lower",
    lambda d: d.positive.bins.ece,
    streamed=lambda s: mean_gap(s.positive),
    of="two classes",
    prominence=0,
    floored=True,
    of_labels=True,
)
def positive_ece(
    probs: Array, labels: Array, *, positive: int = 1, bins: int = 15, **read_as: Unpack[ReadAs]
) -> float:
    r"""Expected calibration error of the positive class of two.

    .. math:: \sum_{b} \frac{|B_b|}{N} \bigl| \operatorname{freq}(B_b) - \operatorname{prob}(B_b) \bigr|

    Bins of equal width cut the probability of the positive class over all of :math:`[0, 1]`;
    :math:`\operatorname{prob}` is its mean in a bin, and :math:`\operatorname{freq}` the share of
    samples of that class.

    Returns:
        The error, in ``[0, 1]``. It equals the entry of :func:`classwise_ece` for this class.

    Example:
        >>> from macc import metrics
        >>> probs, labels = [0.6, 0.6, 0.4, 0.4], [1, 0, 0, 0]
        >>> round(metrics.positive_ece(probs, labels), 6), round(metrics.ece(probs, labels), 6)
        (0.25, 0.15)

    Reference:
        Naeini, Cooper and Hauskrecht, *Obtaining Well Calibrated Probabilities Using Bayesian
        Binning*, AAAI 2015.
    """
    check_bins(bins)
    given, one = _of_class(probs, labels, positive, **read_as)
    return mean_gap(top_bins(one, bin_index(one.confidence, bins), bins, given.weights))


@metric(
    "MCE, positive class",
    PERCENT,
    "lower",
    lambda d: d.positive.bins.mce,
    streamed=lambda s: max_gap(s.positive),
    independent=True,
    of="two classes",
    floored=True,
)
def positive_mce(
    probs: Array, labels: Array, *, positive: int = 1, bins: int = 15, **read_as: Unpack[ReadAs]
) -> float:
    r"""Maximum calibration error of the positive class of two: the largest gap of any bin that
    holds a sample.

    .. math:: \max_{b : |B_b| > 0} \bigl| \operatorname{freq}(B_b) - \operatorname{prob}(B_b) \bigr|

    Returns:
        The error, in ``[0, 1]``; a bin of one sample can decide it.

    Example:
        >>> from macc import metrics
        >>> round(metrics.positive_mce([0.6, 0.6, 0.4, 0.4], [1, 0, 0, 0]), 6)
        0.4
    """
    check_bins(bins)
    given, one = _of_class(probs, labels, positive, **read_as)
    return max_gap(top_bins(one, bin_index(one.confidence, bins), bins, given.weights))


@metric(
    "smooth ECE, positive class",
    PERCENT,
    "lower",
    lambda d: d.positive.smooth_ece,
    of="two classes",
    prominence=2,
    floored=True,
)
def positive_smooth_ece(
    probs: Array, labels: Array, *, positive: int = 1, **read_as: Unpack[ReadAs]
) -> float:
    r"""Smooth calibration error of the positive class of two: :func:`smooth_ece` of its
    probability.

    .. math:: \sigma^* = \int_0^1 \Bigl| \frac1N \sum_i \bigl(1[y_i = 1] - p_i\bigr) K_{\sigma^*}(t, p_i) \Bigr| dt

    Returns:
        The error, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> round(metrics.positive_smooth_ece([0.6, 0.6, 0.4, 0.4], [1, 0, 0, 0]), 3)
        0.25

    Reference:
        Błasiok and Nakkiran, *Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing*,
        ICLR 2024.
    """
    given, one = _of_class(probs, labels, positive, **read_as)
    return smooth_gap(one, given.weights)


@metric(
    "Brier score, positive class",
    PLAIN,
    "lower",
    lambda d: d.positive.brier,
    streamed=lambda s: s.positive_brier,
    of="two classes",
    prominence=2,
    of_labels=True,
)
def positive_brier(probs: Array, labels: Array, *, positive: int = 1, **read_as: Unpack[ReadAs]) -> float:
    r"""The usual Brier score of two classes: mean squared error of the probability of the positive
    class.

    .. math:: \frac1N \sum_i \bigl( p_i - 1[y_i = 1] \bigr)^2

    Returns:
        The score, in ``[0, 1]``; half of :func:`brier`, which sums over both classes.

    Example:
        >>> from macc import metrics
        >>> metrics.positive_brier([0.5, 0.75], [0, 1]), metrics.brier([0.5, 0.75], [0, 1])
        (0.15625, 0.3125)

    Reference:
        Brier, *Verification of Forecasts Expressed in Terms of Probability*, 1950.
    """
    given, one = _of_class(probs, labels, positive, **read_as)
    return given.mean((one.confidence - one.correct).square())


def _of_class(
    probs: Array, labels: Array, positive: int, **read_as: Unpack[ReadAs]
) -> tuple[Predictions, TopLabels]:
    check_positive(positive)
    given = predictions(probs, labels, **read_as)
    if given.num_classes != 2:
        raise ValueError(
            f"a positive class exists among two classes, and probs has {given.num_classes}; "
            "classwise_ece has the error of each class"
        )
    return given, class_labels(given.blocks(), positive)

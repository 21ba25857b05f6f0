r"""Tests of perfect calibration: could these outcomes come from these probabilities?

With the probability :math:`p_i` of the predicted class (of two classes: of the positive one) and
:math:`y_i` in {0, 1}, perfect calibration says that the :math:`y_i` are independent with mean
:math:`p_i`. All three tests look at :math:`y_i - p_i`:

- **Spiegelhalter** weights them by :math:`1 - 2 p_i`, which is what the Brier score has too much or
  too little: :math:`z = \sum (y_i - p_i)(1 - 2 p_i) / \sqrt{\sum (1 - 2 p_i)^2 p_i (1 - p_i)}` is a
  standard normal number. It sees confidences that are all too near 1, or all too far from it.
- **Kolmogorov-Smirnov** sums them in the order of :math:`p_i`. Over its standard deviation
  :math:`\sqrt{\sum p_i (1 - p_i)}` the sum is a Brownian motion where probabilities are right, and
  the statistic is the largest distance from 0.
- **Kuiper** takes its largest value minus its smallest one, and so sees best where part of the
  probabilities is too high and another too low.

Equal probabilities are counted together, so that the order of the file does not matter; the tests
are then a little careful. P-values are those of many samples. None of them has bins. Of samples
with relative weights :math:`w_i` the sums are of :math:`w_i (y_i - p_i)`, and the variances of
:math:`w_i^2 p_i (1 - p_i)`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from macc.metrics.binning import TopLabels, class_labels, top_labels
from macc.metrics.inputs import Array, predictions
from macc.metrics.naming import class_names, positive_index
from macc.words import documented

NAMES = {"spiegelhalter": "Spiegelhalter", "kuiper": "Kuiper", "kolmogorov_smirnov": "Kolmogorov-Smirnov"}


@documented
def calibration_tests(
    probs: Array,
    labels: Array,
    *,
    classes: Sequence[str] | None = None,
    positive: int | str | None = None,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> dict[str, float]:
    """P-values of perfect calibration, of the predicted class or with two classes of the positive
    one.

    Args:
        classes: Names of the classes.
        positive: The positive class of two, by its index or name; class 1 by default.

    Returns:
        The p-value of each test, in ``[0, 1]``; not a number where all probabilities are 0, 1 or,
        for Spiegelhalter's, one half, and nothing can be said.

    Example:
        >>> import torch
        >>> from macc import metrics
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = 2 * torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        >>> {name: round(p, 2) for name, p in metrics.calibration_tests(logits.softmax(1), labels).items()}
        {'spiegelhalter': 0.61, 'kuiper': 0.6, 'kolmogorov_smirnov': 0.88}
        >>> metrics.calibration_tests((1.5 * logits).softmax(1), labels)["spiegelhalter"] < 0.001
        True

    Reference:
        Spiegelhalter, *Probabilistic prediction in patient management and clinical trials*,
        Statistics in Medicine 1986; Arrieta-Ibarra et al., *Metrics of Calibration for
        Probabilistic Predictions*, JMLR 2022.
    """
    given = predictions(
        probs, labels, from_logits=from_logits, normalise=normalise, weights=weights
    ).repeated()
    one = positive_index(positive, class_names(classes, given.num_classes))
    samples = top_labels(given.blocks()) if one is None else class_labels(given.blocks(), one)
    return p_values(samples, given.weights)


def p_values(samples: TopLabels, weights: Tensor | None = None) -> dict[str, float]:
    """The p-value of each test of these probabilities and outcomes, with relative weights."""
    probs, right = (part.cpu().double() for part in samples)
    each = torch.ones_like(probs) if weights is None else weights.cpu()
    # An outcome times its weight has this variance.
    variance = probs * (1 - probs) * each.square()
    tilt = 1 - 2 * probs
    spread = float((tilt**2 * variance).sum())
    # A probability of 0 or 1 that is wrong is impossible, whatever the others are.
    if bool(((variance == 0) & (right != probs)).any()):
        return dict.fromkeys(NAMES, 0.0)
    off = (right - probs) * each
    z = float((off * tilt).sum()) / math.sqrt(spread) if spread > 0 else math.nan
    found = {"spiegelhalter": math.erfc(abs(z) / math.sqrt(2))}
    path = _path(probs, off)
    total = float(variance.sum())
    if total == 0:
        return {**found, "kuiper": math.nan, "kolmogorov_smirnov": math.nan}
    high, low = float(path.max().clamp(min=0)), float(path.min().clamp(max=0))
    deviation = math.sqrt(total)
    return {
        **found,
        "kuiper": range_exceeds((high - low) / deviation),
        "kolmogorov_smirnov": distance_exceeds(max(high, -low) / deviation),
    }


def _path(probs: Tensor, residuals: Tensor) -> Tensor:
    """Sums of residuals in the order of the probabilities, where one ends and the next begins."""
    order = probs.argsort()
    ends = torch.cat([probs[order].diff() > 0, probs.new_ones(1, dtype=torch.bool)])
    return residuals[order].cumsum(0)[ends]


def distance_exceeds(x: float) -> float:
    r"""The probability that a Brownian motion on [0, 1] goes further from 0 than x.

    .. math:: 1 - \frac{4}{π} \sum_{k \ge 0} \frac{(-1)^k}{2k + 1} e^{-(2k + 1)^2 π^2 / (8 x^2)}
    """
    if x < 0.2:
        return 1.0
    terms = (
        (-1) ** k / (2 * k + 1) * math.exp(-(((2 * k + 1) * math.pi) ** 2) / (8 * x**2)) for k in range(20)
    )
    if x < 5:
        return min(1.0, max(0.0, 1 - 4 / math.pi * math.fsum(terms)))
    # Where hardly anything is left, the difference has no digits and the series needs more terms;
    # reflections do not.
    return min(1.0, 2 * math.erfc(x / math.sqrt(2)))


def range_exceeds(x: float) -> float:
    r"""The probability that the highest minus the lowest value of a Brownian motion on [0, 1]
    exceeds x (Feller 1951).

    .. math:: 8 \sum_{k \ge 1} (-1)^{k - 1} k \, (1 - Φ(k x))
    """
    if x < 0.5:
        return 1.0
    terms = ((-1) ** (k - 1) * k * math.erfc(k * x / math.sqrt(2)) for k in range(1, 60))
    return min(1.0, max(0.0, 4 * math.fsum(terms)))

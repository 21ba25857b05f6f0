"""Calibration errors in bins that hold equally many samples."""

from typing import Unpack

import torch

from macc.metrics._formulas import mean_gap
from macc.metrics._metric import metric
from macc.metrics.binning import (
    adaptive_cells,
    adaptive_gaps,
    equal_mass_index,
    equal_weight_index,
    top_bins,
    top_labels,
)
from macc.metrics.inputs import Array, Predictions, ReadAs, check_bins, predictions
from macc.tables import THOUSANDTHS


@metric("adaptive SCE", THOUSANDTHS, "lower", lambda d: d.adaptive(None), all_classes=True, floored=True)
def ace(
    probs: Array, labels: Array, *, bins: int = 15, top_label: bool = False, **read_as: Unpack[ReadAs]
) -> float:
    r"""Adaptive calibration error: :func:`sce` with bins that hold equally many samples.

    .. math:: \frac1K \sum_{j} \sum_{r} \frac{|R_{rj}|}{N}
        \bigl| \operatorname{acc}(R_{rj}) - \operatorname{conf}(R_{rj}) \bigr|

    The ranges :math:`R_{rj}` cut the sorted :math:`p_j` into equal numbers of samples, as nearly as
    equal probabilities, which share a range, allow.

    Args:
        bins: Number of ranges.
        top_label: Look at the confidence of the predicted class only, as :func:`ece` does.

    Returns:
        The error, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> round(metrics.ace([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1], bins=3), 6)
        0.333333

    Reference:
        Nixon et al., *Measuring Calibration in Deep Learning*, CVPR Workshops 2019; for
        ``top_label``, Mukhoti et al., *Calibrating Deep Neural Networks using Focal Loss*,
        NeurIPS 2020.
    """
    check_bins(bins)
    given = predictions(probs, labels, **read_as)
    if top_label:
        top = top_labels(given.blocks())
        row = top.confidence[None]
        if given.weights is None:
            index = equal_mass_index(row, bins, row.new_tensor([given.num_samples]).long())
        else:
            index = equal_weight_index(row, bins, given.weights[None])
        return mean_gap(top_bins(top, index[0], bins, given.weights))
    return _adaptive(given, bins, None)


@metric(
    "above 1 % probability",
    THOUSANDTHS,
    "lower",
    lambda d: d.adaptive(0.01),
    all_classes=True,
    part_of_above=True,
    floored=True,
)
def tace(
    probs: Array, labels: Array, *, bins: int = 15, threshold: float = 0.01, **read_as: Unpack[ReadAs]
) -> float:
    r"""Thresholded adaptive calibration error: :func:`ace` over probabilities above a threshold.

    .. math:: \frac1K \sum_{j} \sum_{r} \frac{|R_{rj}|}{N_j}
        \bigl| \operatorname{acc}(R_{rj}) - \operatorname{conf}(R_{rj}) \bigr|,
        \quad N_j = \#\{ i : p_{ij} > \varepsilon \}

    Near-zero probabilities of many classes no longer drown the others. A class that no sample gives
    more than the threshold contributes 0.

    Args:
        bins: Number of ranges of equal mass.
        threshold: Probabilities up to this one do not count, in ``[0, 1)``.

    Returns:
        The error, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> round(metrics.tace([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1], bins=3, threshold=0.15), 6)
        0.391667

    Reference:
        Nixon et al., *Measuring Calibration in Deep Learning*, CVPR Workshops 2019.
    """
    check_bins(bins)
    _check_threshold(threshold)
    given = predictions(probs, labels, **read_as)
    return _adaptive(given, bins, threshold)


def _check_threshold(threshold: float) -> None:
    """Refuse a threshold that no probability, or every probability, lies above."""
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must lie in [0, 1), got {threshold!r}")


def _adaptive(given: Predictions, bins: int, threshold: float | None) -> float:
    total = 0.0
    for cells in adaptive_cells(given.matrix(), bins, threshold, weights=given.weights):
        gaps = adaptive_gaps(cells, given.labels, bins, given.weights).abs().sum(1)
        total += float(torch.where(cells.kept > 0, gaps / cells.kept, 0.0).sum())
    return total / given.num_classes

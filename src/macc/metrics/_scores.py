"""Scores that need no bins: accuracy, proper scores and the area under the ROC curve."""

from collections.abc import Iterable
from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from macc.metrics._metric import metric, reads_inputs
from macc.metrics.binning import ClassGaps, columns, top_labels
from macc.metrics.blocks import Block, Doubles
from macc.metrics.inputs import Array, ReadAs, check_bins, predictions
from macc.tables import AREA, PERCENT, PLAIN

# The squared distance between two corners of the simplex, which a row that sums to a little more
# than 1 could exceed.
_LARGEST = 2


@metric(
    "accuracy",
    PERCENT,
    "higher",
    lambda d: d.scores.accuracy,
    streamed=lambda s: s.means.accuracy,
    prominence=0,
)
def accuracy(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Share of samples whose most probable class is their label; the first class wins a tie.

    .. math:: \frac1N \sum_i 1[\arg\max_j p_{ij} = y_i]

    Returns:
        The accuracy, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> metrics.accuracy([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1])
        0.75
    """
    given = predictions(probs, labels, **read_as)
    return given.mean(top_labels(given.blocks()).correct)


@metric(
    "NLL",
    PLAIN,
    "lower",
    lambda d: d.scores.nll,
    streamed=lambda s: s.means.nll,
    prominence=0,
    of_answers=True,
    of_labels=True,
)
def nll(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Negative log-likelihood of the labels, in nats.

    .. math:: -\frac1N \sum_i \log p_{i y_i}

    Args:
        from_logits: ``probs`` holds logits; the logarithm is then taken without underflow.

    Returns:
        The score, at least 0; ``inf`` when a label was given probability 0, since clipping would
        make the number depend on an invisible constant.

    Example:
        >>> from macc import metrics
        >>> round(metrics.nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
        0.490415
    """
    given = predictions(probs, labels, **read_as)
    return given.mean(-_joined(block.log_likelihood for block in given.blocks()))


@metric(
    "Brier score", PLAIN, "lower", lambda d: d.scores.brier, streamed=lambda s: s.means.brier, prominence=2
)
def brier(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Brier score: squared distance to the one-hot label, summed over classes.

    .. math:: \frac1N \sum_i \sum_j \bigl( p_{ij} - 1[y_i = j] \bigr)^2

    Returns:
        The score, in ``[0, 2]``; for two classes twice the score that sums over one of them.

    Example:
        >>> from macc import metrics
        >>> metrics.brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
        0.3125

    Reference:
        Brier, *Verification of Forecasts Expressed in Terms of Probability*, 1950.
    """
    given = predictions(probs, labels, **read_as)
    return given.mean(_joined(map(squared_distances, given.blocks())))


class BrierDecomposition(NamedTuple):
    """The two parts of the Brier score; they add up to it."""

    calibration: float
    refinement: float


@reads_inputs
def brier_decomposition(
    probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]
) -> BrierDecomposition:
    r"""Split the Brier score into what recalibration could remove and what it could not.

    .. math:: \text{calibration} = \sum_j \sum_b \frac{|B_{bj}|}{N}
        \bigl( \operatorname{acc}(B_{bj}) - \operatorname{conf}(B_{bj}) \bigr)^2,
        \qquad \text{refinement} = \text{Brier} - \text{calibration}

    Refinement is exactly the Brier score after each bin of each class is moved by its own mean gap.
    Like every binned error, calibration is positive by chance even for a calibrated model.

    Returns:
        ``calibration`` and ``refinement``, both at least 0.

    Example:
        >>> from macc import metrics
        >>> calibration, refinement = metrics.brier_decomposition([[0.5, 0.5], [0.25, 0.75]], [0, 1])
        >>> round(calibration + refinement, 6)
        0.3125

    Reference:
        Murphy, *A New Vector Partition of the Probability Score*, 1973; DeGroot and Fienberg,
        *The Comparison and Evaluation of Forecasters*, 1983.
    """
    check_bins(bins)
    given = predictions(probs, labels, **read_as)
    gaps = ClassGaps(given.num_classes, bins, counts=True)
    distances = []
    for block in given.blocks():
        gaps.add(block)
        distances.append(squared_distances(block))
    samples = gaps.samples()
    # Empty bins have no gap; rounding of sums of weights may leave them a little more than nothing.
    filled = samples > 1e-9 * given.total
    calibration = float((gaps.sums()[filled].square() / samples[filled]).sum()) / given.total
    score = given.mean(_joined(distances))
    return BrierDecomposition(calibration, max(0.0, score - calibration))  # rounding


@metric(
    "calibration",
    PLAIN,
    "lower",
    lambda d: d.classes.brier_calibration,
    all_classes=True,
    part_of_above=True,
    floored=True,
)
def brier_calibration(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    """The part of the Brier score that recalibration could remove.

    Returns:
        The part, at least 0; see :func:`brier_decomposition`.

    Example:
        >>> from macc import metrics
        >>> round(metrics.brier_calibration([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
        0.3125
    """
    return brier_decomposition(probs, labels, bins=bins, **read_as).calibration


@metric(
    "refinement",
    PLAIN,
    "lower",
    lambda d: d.classes.brier_refinement,
    all_classes=True,
    part_of_above=True,
)
def brier_refinement(probs: Array, labels: Array, *, bins: int = 15, **read_as: Unpack[ReadAs]) -> float:
    """The part of the Brier score that recalibration could not remove.

    Returns:
        The part, at least 0; see :func:`brier_decomposition`.

    Example:
        >>> from macc import metrics
        >>> round(metrics.brier_refinement([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
        0.0
    """
    return brier_decomposition(probs, labels, bins=bins, **read_as).refinement


@metric(
    "AUROC",
    AREA,
    "higher",
    lambda d: d.auroc,
    streamed=lambda s: None if s.area is None else s.area.value,
    independent=True,
    of_answers=True,
    all_classes=True,
    prominence=2,
)
def auroc(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Area under the ROC curve, class against rest, averaged over classes.

    .. math:: \frac1{|J|} \sum_{j \in J} P\bigl( p_j(x) > p_j(x') \mid y = j, y' \ne j \bigr)
        + \tfrac12 P\bigl( p_j(x) = p_j(x') \mid y = j, y' \ne j \bigr)

    :math:`J` holds the classes that some labels have and others have not.

    Returns:
        The area, in ``[0, 1]``; ``nan`` when all labels are equal.

    Example:
        >>> from macc import metrics
        >>> round(metrics.auroc([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]), 6)
        1.0

    Reference:
        Provost and Domingos, *Well-Trained PETs*, 2000; the AUROC of the MACC paper's table 3.
    """
    given = predictions(probs, labels, **read_as)
    areas = class_aurocs(given.matrix(), given.labels, given.weights)
    return float(areas.nanmean())


def class_aurocs(probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """One-against-rest areas, float64 ``(K,)``, by midranks; ``nan`` where undefined."""
    if weights is not None:
        return _weighted_aurocs(probs, labels, weights)
    num_samples, num_classes = probs.shape
    targets = labels.cpu().numpy()
    members = np.split(
        targets.argsort(kind="stable"), np.bincount(targets, minlength=num_classes).cumsum()[:-1]
    )
    areas = np.full(num_classes, np.nan)
    for classes, values in columns(probs):
        scores = values.cpu().numpy()
        ordered = np.sort(scores, axis=1)
        for j, row, line in zip(classes, scores, ordered, strict=True):
            count = len(members[j])
            if 0 < count < num_samples:
                own = row[members[j]]
                ranks = line.searchsorted(own, "left") + line.searchsorted(own, "right") + 1
                won = ranks.sum(dtype=np.float64) / 2 - count * (count + 1) / 2
                areas[j] = won / (count * (num_samples - count))
    return torch.from_numpy(areas)


def _weighted_aurocs(probs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """:func:`class_aurocs` where a pair counts as often as the product of its weights."""
    targets, each = labels.cpu().numpy(), weights.cpu().numpy()
    total = each.sum()
    areas = np.full(probs.shape[1], np.nan)
    for classes, values in columns(probs):
        for j, row in zip(classes, values.cpu().numpy(), strict=True):
            own = targets == j
            mass = each[own].sum()
            if own.any() and not own.all():
                order = row.argsort(kind="stable")
                line, below = row[order], np.concatenate([[0.0], each[order].cumsum()])
                ranks = (
                    below[line.searchsorted(row[own], "left")] + below[line.searchsorted(row[own], "right")]
                )
                # Among themselves the samples of the class win half of all pairs.
                areas[j] = ((each[own] * ranks).sum() - mass**2) / 2 / (mass * (total - mass))
    return torch.from_numpy(areas)


def squared_distances(block: Block) -> Doubles:
    """Squared distance of each row to its one-hot label."""
    return (block.wide.squares + 1 - 2 * block.label_probs).clip(0, _LARGEST)


def _joined(parts: Iterable[Doubles]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(parts)))

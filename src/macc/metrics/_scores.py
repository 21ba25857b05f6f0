"""Scores that need no bins: accuracy, proper scores, ranking and selective prediction."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics._metric import metric
from macc.metrics.binning import ClassGaps, TopLabels, columns, top_labels
from macc.metrics.inputs import Array, Block, check_bins, predictions
from macc.tables import AREA, PERCENT, PLAIN

# The squared distance between two corners of the simplex, which a row that sums to a little more than 1 could exceed.
_LARGEST = 2


@metric("accuracy", PERCENT, "higher", lambda d: d.scores.accuracy, streams=True, prominence=1)
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
    return float(_top(probs, labels, from_logits, normalise).correct.mean())


@metric("NLL", PLAIN, "lower", lambda d: d.scores.nll, streams=True, prominence=1)
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


@metric("Brier score", PLAIN, "lower", lambda d: d.scores.brier, streams=True, prominence=2)
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
    return sum(float(squared_distance(block)) for block in given.blocks()) / given.num_samples


class BrierDecomposition(NamedTuple):
    """The two parts of the Brier score; they add up to it."""

    calibration: float
    refinement: float


def brier_decomposition(
    probs: Array, labels: Array, *, bins: int = 15, from_logits: bool = False, normalise: bool = False
) -> BrierDecomposition:
    r"""Split the Brier score into what recalibration could remove and what it could not.

    .. math:: \text{calibration} = \sum_j \sum_b \frac{|B_{bj}|}{N}
        \bigl( \operatorname{acc}(B_{bj}) - \operatorname{conf}(B_{bj}) \bigr)^2,
        \qquad \text{refinement} = \text{Brier} - \text{calibration}

    Refinement is exactly the Brier score after each bin of each class is moved by its own mean gap.
    Like every binned error, calibration is positive by chance even for a calibrated model.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        bins: Number of bins of equal width for each class.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

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
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    gaps = ClassGaps(given.num_classes, bins)
    score = 0.0
    for block in given.blocks():
        gaps.add(block)
        score += float(squared_distance(block))
    calibration = float((gaps.sums().square() / gaps.samples().clamp(min=1)).sum())
    refinement = max(0.0, score - calibration)  # rounding
    return BrierDecomposition(calibration / given.num_samples, refinement / given.num_samples)


@metric(
    "of it calibration",
    PLAIN,
    "lower",
    lambda d: d.classes.brier_calibration,
    part_of_above=True,
    floored=True,
)
def brier_calibration(
    probs: Array, labels: Array, *, bins: int = 15, from_logits: bool = False, normalise: bool = False
) -> float:
    """The part of the Brier score that recalibration could remove.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        bins: Number of bins of equal width for each class.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The part, at least 0; see :func:`brier_decomposition`.

    Example:
        >>> from macc import metrics
        >>> round(metrics.brier_calibration([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
        0.3125
    """
    return brier_decomposition(
        probs, labels, bins=bins, from_logits=from_logits, normalise=normalise
    ).calibration


@metric("of it refinement", PLAIN, "lower", lambda d: d.classes.brier_refinement, part_of_above=True)
def brier_refinement(
    probs: Array, labels: Array, *, bins: int = 15, from_logits: bool = False, normalise: bool = False
) -> float:
    """The part of the Brier score that recalibration could not remove.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        bins: Number of bins of equal width for each class.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The part, at least 0; see :func:`brier_decomposition`.

    Example:
        >>> from macc import metrics
        >>> round(metrics.brier_refinement([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
        0.0
    """
    return brier_decomposition(
        probs, labels, bins=bins, from_logits=from_logits, normalise=normalise
    ).refinement


@metric("AUROC", AREA, "higher", lambda d: d.auroc, streams=True, prominence=2)
def auroc(probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False) -> float:
    r"""Area under the ROC curve, class against rest, averaged over classes.

    .. math:: \frac1{|J|} \sum_{j \in J} P\bigl( p_j(x) > p_j(x') \mid y = j, y' \ne j \bigr)
        + \tfrac12 P\bigl( p_j(x) = p_j(x') \mid y = j, y' \ne j \bigr)

    :math:`J` holds the classes that some labels have and others have not.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The area, in ``[0, 1]``; ``nan`` when all labels are equal.

    Example:
        >>> from macc import metrics
        >>> round(metrics.auroc([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]), 6)
        1.0

    Reference:
        Provost and Domingos, *Well-Trained PETs*, 2000; the AUROC of the MACC paper's table 3.
    """
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    areas = class_aurocs(given.matrix(), given.labels)
    return float(areas.nanmean())


@metric("failure AUROC", AREA, "higher", lambda d: d.curve.failure_auroc, prominence=2)
def failure_auroc(
    probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False
) -> float:
    r"""Area under the ROC curve of confidence as a sign that the prediction is right.

    .. math:: P(c > c' \mid \text{right, wrong}) + \tfrac12 P(c = c' \mid \text{right, wrong}),
        \quad c = \max_j p_j

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The area, in ``[0, 1]``; ``nan`` when all predictions are right or all are wrong.

    Example:
        >>> from macc import metrics
        >>> round(metrics.failure_auroc([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]), 6)
        0.666667

    Reference:
        Hendrycks and Gimpel, *A Baseline for Detecting Misclassified and Out-of-Distribution
        Examples*, ICLR 2017.
    """
    top = _top(probs, labels, from_logits, normalise)
    return _area_of_right(top.confidence, top.correct)


@metric("by certainty", AREA, "higher", lambda d: d.by_certainty, of="certainty", part_of_above=True)
def failure_auroc_by_certainty(
    probs: Array,
    labels: Array,
    *,
    certainty: Array,
    from_logits: bool = False,
    normalise: bool = False,
) -> float:
    """The same with the certainty of the predicted class in place of its confidence.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        certainty: Certainty ``(N,)`` of the predicted class.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The area, in ``[0, 1]``; below one half where certainty ranks errors backwards.

    Example:
        >>> from macc import metrics
        >>> probs, labels = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]
        >>> metrics.failure_auroc_by_certainty(probs, labels, certainty=[0.2, 0.1, 0.9])
        0.0
    """
    top = _top(probs, labels, from_logits, normalise)
    return _area_of_right(torch.as_tensor(certainty, dtype=torch.float64), top.correct)


@metric("AURC", PLAIN, "lower", lambda d: d.curve.aurc)
def aurc(probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False) -> float:
    r"""Area under the risk-coverage curve: mean error rate when answering only the most confident.

    .. math:: \frac1N \sum_{k=1}^N r_k, \quad r_k = \text{error rate of the } k \text{ most confident samples}

    Samples of equal confidence share their errors evenly, so their order does not matter.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The area, in ``[0, 1]``; lower is better.

    Example:
        >>> from macc import metrics
        >>> round(metrics.aurc([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]), 6)
        0.145833

    Reference:
        Geifman and El-Yaniv, *Selective Classification for Deep Neural Networks*, NeurIPS 2017.
    """
    return float(_selective(probs, labels, from_logits, normalise).risk.mean())


@metric("excess", PLAIN, "lower", lambda d: d.curve.eaurc, part_of_above=True)
def eaurc(probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False) -> float:
    r"""Excess AURC: :func:`aurc` above that of the best order of the same predictions.

    .. math:: \text{AURC} - \frac1N \sum_{k=1}^N \frac{\max(0, k - N_\text{right})}{k}

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The excess, at least 0; 0 when every right prediction is more confident than every wrong one.

    Example:
        >>> from macc import metrics
        >>> round(metrics.eaurc([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]), 6)
        0.083333

    Reference:
        Geifman, Uziel and El-Yaniv, *Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers*, ICLR 2019.
    """
    curve = _selective(probs, labels, from_logits, normalise)
    answered = torch.arange(1, len(curve.risk) + 1, dtype=torch.float64, device=curve.risk.device)
    wrong = curve.risk[-1] * len(answered)
    best = (answered - (len(answered) - wrong).round()).clamp(min=0) / answered
    return max(0.0, float(curve.risk.mean() - best.mean()))


@metric("error at 90 % coverage", PERCENT, "lower", lambda d: d.curve.risk_at_coverage, prominence=2)
def risk_at_coverage(
    probs: Array, labels: Array, *, coverage: float = 0.9, from_logits: bool = False, normalise: bool = False
) -> float:
    r"""Error rate when the most confident share of samples is answered and the rest handed over.

    .. math:: r_k, \quad k = \lceil \text{coverage} \cdot N \rceil

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        coverage: Share of samples to answer, in ``(0, 1]``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The error rate, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> probs, labels = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]
        >>> round(metrics.risk_at_coverage(probs, labels, coverage=0.75), 6)
        0.333333
    """
    check_coverage(coverage)
    risk = _selective(probs, labels, from_logits, normalise).risk
    return float(risk[answered_samples(coverage, len(risk)) - 1])


@metric("coverage at 5 % error", PERCENT, "higher", lambda d: d.curve.coverage_at_risk)
def coverage_at_risk(
    probs: Array, labels: Array, *, risk: float = 0.05, from_logits: bool = False, normalise: bool = False
) -> float:
    r"""Largest share of samples that a confidence threshold can answer within an error rate.

    .. math:: \max \Bigl\{ \tfrac kN : r_k \le \text{risk}, \; c_{(k)} > c_{(k+1)} \Bigr\}

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        risk: Error rate to stay within, in ``[0, 1]``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.

    Returns:
        The coverage, in ``[0, 1]``; 0 when no threshold stays within.

    Example:
        >>> from macc import metrics
        >>> metrics.coverage_at_risk([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1], risk=0.1)
        0.5
    """
    check_risk(risk)
    curve = _selective(probs, labels, from_logits, normalise)
    # Rounding in the running sum must not turn a rate that equals the limit away.
    within = (curve.risk <= risk + 1e-12) & curve.last_of_ties
    return float(within.nonzero().max() + 1) / len(within) if bool(within.any()) else 0.0


class RiskCoverage(NamedTuple):
    """The risk-coverage curve, most confident first, and where a threshold can cut it."""

    risk: Tensor
    last_of_ties: Tensor


def risk_coverage(top: TopLabels) -> RiskCoverage:
    """Error rate of the k most confident samples, for every k."""
    confidence, order = top.confidence.sort(descending=True)
    last_of_ties = torch.ones_like(confidence, dtype=torch.bool)
    last_of_ties[:-1] = confidence[1:] < confidence[:-1]
    group = last_of_ties.cumsum(0) - last_of_ties.long()
    wrong = torch.bincount(group, weights=1 - top.correct[order]) / torch.bincount(group)
    risk = wrong[group].cumsum(0) / torch.arange(1, len(order) + 1, device=order.device)
    return RiskCoverage(risk, last_of_ties)


def class_aurocs(probs: Tensor, labels: Tensor) -> Tensor:
    """One-against-rest area of each class, float64 ``(K,)``, by midranks; ``nan`` where undefined."""
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


def answered_samples(coverage: float, num_samples: int) -> int:
    """How many samples a coverage means; decimals like 0.07 times 100 must not round up."""
    return max(1, math.ceil(coverage * num_samples - 1e-9))


def check_coverage(coverage: float) -> None:
    """Refuse a coverage that is not a share of the samples."""
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage must lie in (0, 1], got {coverage!r}")


def check_risk(risk: float) -> None:
    """Refuse a risk that is not an error rate."""
    if not 0 <= risk <= 1:
        raise ValueError(f"risk must lie in [0, 1], got {risk!r}")


def squared_distance(block: Block) -> Tensor:
    """Sum of :func:`squared_distances`, without a result for each row, which takes several times as long."""
    flat = block.probs.reshape(-1)
    total = torch.dot(flat, flat) + len(block.labels) - 2 * block.label_probs.sum()
    return total.clamp(0, _LARGEST * len(block.labels))


def squared_distances(block: Block) -> Tensor:
    """Squared distance of each row to its one-hot label."""
    squares: Tensor = torch.linalg.vecdot(block.probs, block.probs)
    return (squares + 1 - 2 * block.label_probs).clamp(0, _LARGEST)


def _top(probs: Array, labels: Array, from_logits: bool, normalise: bool) -> TopLabels:
    return top_labels(predictions(probs, labels, from_logits=from_logits, normalise=normalise).blocks())


def _area_of_right(scores: Tensor, correct: Tensor) -> float:
    """Area under the ROC curve of scores ``(N,)`` as a sign of being right."""
    return float(class_aurocs(torch.stack([-scores, scores], dim=1), correct.long())[1])


def _selective(probs: Array, labels: Array, from_logits: bool, normalise: bool) -> RiskCoverage:
    return risk_coverage(_top(probs, labels, from_logits, normalise))

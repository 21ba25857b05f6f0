"""Selective prediction: what confidence says about which predictions are right."""

# ruff: noqa: D417 - what all metrics are given is described once, in _metric.py

import math
from typing import NamedTuple

import torch
from torch import Tensor

from macc.metrics._metric import metric
from macc.metrics._scores import class_aurocs
from macc.metrics.binning import TopLabels, top_labels
from macc.metrics.inputs import Array, predictions, sample_weights
from macc.tables import AREA, PERCENT, PLAIN


@metric("failure AUROC", AREA, "higher", lambda d: d.curve.failure_auroc, prominence=2)
def failure_auroc(
    probs: Array,
    labels: Array,
    *,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> float:
    r"""Area under the ROC curve of confidence as a sign that the prediction is right.

    .. math:: P(c > c' \mid \text{right, wrong}) + \tfrac12 P(c = c' \mid \text{right, wrong}),
        \quad c = \max_j p_j

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
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise, weights=weights)
    top = top_labels(given.blocks())
    return _area_of_right(top.confidence, top.correct, given.weights)


@metric("by certainty", AREA, "higher", lambda d: d.by_certainty, of="certainty", part_of_above=True)
def failure_auroc_by_certainty(
    probs: Array,
    labels: Array,
    *,
    certainty: Array,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> float:
    """The same with the certainty of the predicted class in place of its confidence.

    Args:
        certainty: Certainty ``(N,)`` of the predicted class.

    Returns:
        The area, in ``[0, 1]``; below one half where certainty ranks errors backwards.

    Example:
        >>> from macc import metrics
        >>> probs, labels = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 1]
        >>> metrics.failure_auroc_by_certainty(probs, labels, certainty=[0.2, 0.1, 0.9])
        0.0
    """
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise, weights=weights)
    scores = torch.as_tensor(certainty, dtype=torch.float64)
    if weights is not None:
        scores = scores[sample_weights(weights, len(scores)) > 0]
    return _area_of_right(scores, top_labels(given.blocks()).correct, given.weights)


@metric("AURC", PLAIN, "lower", lambda d: d.curve.aurc)
def aurc(
    probs: Array,
    labels: Array,
    *,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> float:
    r"""Area under the risk-coverage curve: mean error rate when answering only the most confident.

    .. math:: \frac1N \sum_{k=1}^N r_k, \quad r_k = \text{error rate of the } k \text{ most confident samples}

    Samples of equal confidence share their errors evenly, so their order does not matter.

    Returns:
        The area, in ``[0, 1]``; lower is better.

    Example:
        >>> from macc import metrics
        >>> round(metrics.aurc([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]), 6)
        0.145833

    Reference:
        Geifman and El-Yaniv, *Selective Classification for Deep Neural Networks*, NeurIPS 2017.
    """
    return _answered(probs, labels, from_logits, normalise, weights).area


@metric("excess", PLAIN, "lower", lambda d: d.curve.eaurc, part_of_above=True)
def eaurc(
    probs: Array,
    labels: Array,
    *,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> float:
    r"""Excess AURC: :func:`aurc` above that of the best order of the same predictions.

    .. math:: \text{AURC} - \frac1N \sum_{k=1}^N \frac{\max(0, k - N_\text{right})}{k}

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
    curve = _answered(probs, labels, from_logits, normalise, weights)
    return max(0.0, curve.area - curve.best_area)


@metric("error at 90 % coverage", PERCENT, "lower", lambda d: d.curve.risk_at_coverage, prominence=2)
def risk_at_coverage(
    probs: Array,
    labels: Array,
    *,
    coverage: float = 0.9,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> float:
    r"""Error rate when the most confident share of samples is answered and the rest handed over.

    .. math:: r_k, \quad k = \lceil \text{coverage} \cdot N \rceil

    Args:
        coverage: Share of samples to answer, in ``(0, 1]``.

    Returns:
        The error rate, in ``[0, 1]``.

    Example:
        >>> from macc import metrics
        >>> probs, labels = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]
        >>> round(metrics.risk_at_coverage(probs, labels, coverage=0.75), 6)
        0.333333
    """
    check_coverage(coverage)
    return _answered(probs, labels, from_logits, normalise, weights).risk_at(coverage)


@metric("coverage at 5 % error", PERCENT, "higher", lambda d: d.curve.coverage_at_risk)
def coverage_at_risk(
    probs: Array,
    labels: Array,
    *,
    risk: float = 0.05,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
) -> float:
    r"""Largest share of samples that a confidence threshold can answer within an error rate.

    .. math:: \max \Bigl\{ \tfrac kN : r_k \le \text{risk}, \; c_{(k)} > c_{(k+1)} \Bigr\}

    Args:
        risk: Error rate to stay within, in ``[0, 1]``.

    Returns:
        The coverage, in ``[0, 1]``; 0 when no threshold stays within.

    Example:
        >>> from macc import metrics
        >>> metrics.coverage_at_risk([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1], risk=0.1)
        0.5
    """
    check_risk(risk)
    curve = _answered(probs, labels, from_logits, normalise, weights)
    # Rounding in the running sum must not turn a rate that equals the limit away.
    within = curve.wrong <= (risk + 1e-12) * curve.samples
    return float(curve.samples[within][-1] / curve.samples[-1]) if bool(within.any()) else 0.0


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


def answered_samples(coverage: float, num_samples: float) -> int:
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


def _area_of_right(scores: Tensor, correct: Tensor, weights: Tensor | None) -> float:
    """Area under the ROC curve of scores ``(N,)`` as a sign of being right."""
    return float(class_aurocs(torch.stack([-scores, scores], dim=1), correct.long(), weights)[1])


class Answered(NamedTuple):
    """Samples down to each confidence that occurs, the highest first, and how many are wrong; or their weights."""

    samples: Tensor
    wrong: Tensor

    @property
    def area(self) -> float:
        r"""The area under the risk-coverage curve.

        Of ``m`` samples of one confidence, behind ``M`` samples with ``E`` errors, each counts as ``s`` errors. So they add
        :math:`\sum_{k=1}^m \frac{E + sk}{M + k} = sm + (E - sM) (\psi(M + m + 1) - \psi(M + 1))`, which needs no whole m.
        """
        end, wrong = self.samples, self.wrong
        start, before = (torch.cat([part.new_zeros(1), part[:-1]]) for part in (end, wrong))
        share = (wrong - before) / (end - start)
        added = (
            wrong - before + (before - share * start) * (torch.digamma(end + 1) - torch.digamma(start + 1))
        )
        return float(added.sum() / end[-1])

    @property
    def best_area(self) -> float:
        """That of the best order of the same predictions, all right ones first."""
        total, wrong = self.samples[-1], self.wrong[-1]
        right = total - wrong
        return float((wrong - right * (torch.digamma(total + 1) - torch.digamma(right + 1))) / total)

    def risk_at(self, coverage: float) -> float:
        """The error rate of the most confident share of samples."""
        total = float(self.samples[-1])
        wanted = min(float(answered_samples(coverage, total)), total)
        at = min(int((self.samples < wanted - 1e-9).sum()), len(self.samples) - 1)
        start, before = (float(part[at - 1]) if at else 0.0 for part in (self.samples, self.wrong))
        share = (float(self.wrong[at]) - before) / (float(self.samples[at]) - start)
        return (before + share * (wanted - start)) / wanted


def _answered(
    probs: Array, labels: Array, from_logits: bool, normalise: bool, weights: Array | None
) -> Answered:
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise, weights=weights)
    top = top_labels(given.blocks())
    _, group = torch.unique(-top.confidence, return_inverse=True)
    each = torch.ones_like(top.correct) if given.weights is None else given.weights
    sums = (torch.bincount(group, weights=values) for values in (each, each * (1 - top.correct)))
    return Answered(*(part.cumsum(0) for part in sums))

"""Selective prediction: what confidence says about which predictions are right."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor

from macc.metrics._metric import metric
from macc.metrics.binning import TopLabels, top_labels
from macc.metrics.inputs import Array, ReadAs, predictions, sample_weights
from macc.tables import AREA, PERCENT, PLAIN


@metric("failure AUROC", AREA, "higher", lambda d: d.curve.failure_auroc, prominence=2)
def failure_auroc(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
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
    return float(_answered(probs, labels, **read_as).right_above_wrong())


@metric("by certainty", AREA, "higher", lambda d: d.by_certainty, of="certainty", part_of_above=True)
def failure_auroc_by_certainty(
    probs: Array, labels: Array, *, certainty: Array, **read_as: Unpack[ReadAs]
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
    given = predictions(probs, labels, **read_as)
    scores = torch.as_tensor(certainty, dtype=torch.float64)
    if (weights := read_as.get("weights")) is not None:
        scores = scores[sample_weights(weights, len(scores)) > 0]
    ranked = TopLabels(scores, top_labels(given.blocks()).correct)
    return float(answered(ranked, given.weights).right_above_wrong())


@metric("AURC", PLAIN, "lower", lambda d: d.curve.aurc)
def aurc(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
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
    return float(_answered(probs, labels, **read_as).area)


@metric("excess", PLAIN, "lower", lambda d: d.curve.eaurc, part_of_above=True)
def eaurc(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> float:
    r"""Excess AURC: :func:`aurc` above that of the best order of the same predictions.

    .. math:: \text{AURC} - \frac1N \sum_{k=1}^N \frac{\max(0, k - N_\text{right})}{k}

    Returns:
        The excess, at least 0; 0 when every right prediction is more confident than every wrong
        one.

    Example:
        >>> from macc import metrics
        >>> round(metrics.eaurc([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]], [0, 1, 1, 1]), 6)
        0.083333

    Reference:
        Geifman, Uziel and El-Yaniv, *Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers*, ICLR 2019.
    """
    return float(_answered(probs, labels, **read_as).excess())


@metric("error at 90 % coverage", PERCENT, "lower", lambda d: d.curve.risk_at_coverage, prominence=2)
def risk_at_coverage(
    probs: Array, labels: Array, *, coverage: float = 0.9, **read_as: Unpack[ReadAs]
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
    return float(_answered(probs, labels, **read_as).risk_at(coverage))


@metric("coverage at 5 % error", PERCENT, "higher", lambda d: d.curve.coverage_at_risk)
def coverage_at_risk(probs: Array, labels: Array, *, risk: float = 0.05, **read_as: Unpack[ReadAs]) -> float:
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
    return float(_answered(probs, labels, **read_as).coverage_at(risk))


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


@dataclass(frozen=True, eq=False)
class Answered:
    """The risk-coverage curve of samples that count any number of times, for many such counts.

    Between two confidences errors are spread evenly, so the risk of the ``k`` most confident
    samples is ``(E + (k - M) s) / k``, where ``E`` of ``M`` samples above are wrong and ``s`` of
    those of this confidence.

    ``samples`` and ``wrong`` ``(R, G)`` count the samples down to each confidence, the highest
    first, and the wrong ones of them. ``harmonic`` gives harmonic numbers, up to a constant that
    all have in common.
    """

    samples: Tensor
    wrong: Tensor
    harmonic: Callable[[Tensor], Tensor]

    @cached_property
    def area(self) -> Tensor:
        r"""The mean risk, ``(R,)``.

        The samples of one confidence add
        :math:`\sum_{k=1}^m \frac{E + sk}{M + k} = sm + (E - sM) (H_{M + m} - H_M)`, which needs no
        whole m.
        """
        start, before, _, wrong, share = self._steps
        harmonic = self.harmonic(self.samples) - self.harmonic(start)
        return (wrong + (before - start * share) * harmonic).sum(1) / self.samples[:, -1]

    def excess(self) -> Tensor:
        """The mean risk above that of the best order of the same predictions, ``(R,)``."""
        total, wrong = self.samples[:, -1], self.wrong[:, -1]
        right = total - wrong
        best = (wrong - right * (self.harmonic(total) - self.harmonic(right))) / total
        return (self.area - best).clamp(min=0)

    def right_above_wrong(self) -> Tensor:
        """How often right predictions are more confident than wrong ones, ``(R,)``, or ``nan``."""
        _, _, size, wrong, _ = self._steps
        all_wrong = self.wrong[:, -1]
        beaten = ((size - wrong) * (all_wrong[:, None] - self.wrong + wrong / 2)).sum(1)
        return beaten / (all_wrong * (self.samples[:, -1] - all_wrong))

    def risk_at(self, coverage: float) -> Tensor:
        """The error rate of the most confident share of samples, ``(R,)``."""
        totals = self.samples[:, -1].tolist()
        first = [[min(float(answered_samples(coverage, total)), total)] for total in totals]
        return self.risks(self.samples.new_tensor(first))[:, 0]

    def risks(self, first: Tensor) -> Tensor:
        """The error rates of so many of the most confident samples, ``(R, M)``."""
        start, before, _, _, share = self._steps
        # A sum that rounding left a little below the number wanted reaches it.
        at = torch.searchsorted(self.samples, first * (1 - 1e-12)).clamp(max=self.samples.shape[1] - 1)
        start, before, share = (part.gather(1, at) for part in (start, before, share))
        return (before + (first - start) * share) / first

    def coverage_at(self, risk: float) -> Tensor:
        """The largest share of samples that a threshold answers within an error rate, ``(R,)``."""
        # Rounding in the running sum must not turn a rate that equals the limit away.
        within = (self.wrong <= (risk + 1e-12) * self.samples) & (self.samples > 0)
        return torch.where(within, self.samples, 0.0).amax(1) / self.samples[:, -1]

    @cached_property
    def _steps(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Samples and errors above each confidence and of it, and their share of errors."""
        start, before = (torch.nn.functional.pad(part, (1, 0))[:, :-1] for part in (self.samples, self.wrong))
        size, wrong = self.samples - start, self.wrong - before
        return start, before, size, wrong, torch.where(size > 0, wrong / size, 0.0)


def whole_harmonic(most: int, device: torch.device | None = None) -> Callable[[Tensor], Tensor]:
    """Harmonic numbers of whole numbers up to ``most``, from a table."""
    table = torch.zeros(most + 1, dtype=torch.float64, device=device)
    table[1:] = torch.arange(1, most + 1, dtype=torch.float64, device=device).reciprocal_().cumsum_(0)
    return lambda counts: table[counts.long()]


def _harmonic(counts: Tensor) -> Tensor:
    """Harmonic numbers of any numbers, less Euler's constant."""
    return torch.digamma(counts + 1)


def answered(top: TopLabels, weights: Tensor | None = None) -> Answered:
    """The curve of samples, ``(1, G)``, which may have weights."""
    confidence, order = top.confidence.sort(descending=True)
    last_of_ties = confidence.diff(append=confidence.new_tensor([-math.inf])) < 0
    each = torch.ones_like(confidence) if weights is None else weights[order]
    samples, wrong = (
        values.cumsum(0)[last_of_ties][None] for values in (each, each * (1 - top.correct[order]))
    )
    harmonic = whole_harmonic(len(order), order.device) if weights is None else _harmonic
    return Answered(samples, wrong, harmonic)


def _answered(probs: Array, labels: Array, **read_as: Unpack[ReadAs]) -> Answered:
    given = predictions(probs, labels, **read_as)
    return answered(top_labels(given.blocks()), given.weights)

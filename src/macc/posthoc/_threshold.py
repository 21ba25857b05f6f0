"""From which confidence on may the model answer alone, and what does it cost?"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from macc.metrics.correctness import claimed
from macc.metrics.inputs import Array, predictions
from macc.metrics.intervals import clopper_pearson
from macc.tables import thousands


@dataclass(frozen=True)
class Threshold:
    """A confidence from which on predictions have at most a given risk; ``print`` says it in words.

    ``bound`` is the upper limit of the share of wrong ones. ``threshold`` is ``None`` when the samples
    cannot promise the risk for any confidence; ``fewest`` is how many accepted without an error could.
    """

    threshold: float | None
    risk: float
    confidence: float
    samples: int
    accepted: int
    wrong: int
    bound: float
    fewest: int

    @property
    def coverage(self) -> float:
        """Share of the validation samples that are accepted."""
        return self.accepted / self.samples

    def to_dict(self) -> dict[str, Any]:
        """The fields, and the coverage."""
        return {**asdict(self), "coverage": self.coverage}

    def __str__(self) -> str:
        level, risk = f"{100 * self.confidence:g} %", percent(self.risk)
        if self.threshold is None:
            return (
                f"No threshold can promise a risk of at most {risk} with {level} confidence from these "
                f"{thousands(self.samples)} samples: the most confident of them are wrong too often, or are too "
                f"few (even without an error {thousands(self.fewest)} are needed)."
            )
        return (
            f"Accept predictions of confidence {self.threshold:.12g} or more: at most {risk} of them are "
            f"wrong, with {level} confidence.\n"
            f"Coverage {percent(self.coverage)}: {thousands(self.accepted)} of {thousands(self.samples)} validation "
            f"samples are accepted, {thousands(self.wrong)} of them wrong ({percent(self.wrong / self.accepted)}, "
            f"upper limit {percent(self.bound)}); {percent(1 - self.coverage)} are handed over."
        )


@dataclass(frozen=True)
class Check:
    """What a threshold did on other samples."""

    samples: int
    accepted: int
    wrong: int
    risk: float
    low: float
    high: float
    level: float

    @property
    def held(self) -> bool:
        """Whether no larger share of the accepted predictions is wrong than was allowed."""
        return self.accepted == 0 or self.wrong / self.accepted <= self.risk

    def to_dict(self) -> dict[str, Any]:
        """The fields, the share of wrong predictions, and whether the risk was kept."""
        share = self.wrong / self.accepted if self.accepted else None
        return {**asdict(self), "share_wrong": share, "held": self.held}

    def __str__(self) -> str:
        if self.accepted == 0:
            return f"None of the {thousands(self.samples)} samples is accepted."
        seen = (
            f"{percent(self.wrong / self.accepted)} of the accepted are wrong ({thousands(self.wrong)} of "
            f"{thousands(self.accepted)}; {100 * self.level:g} % interval {percent(self.low)} to {percent(self.high)}), "
            f"coverage {percent(self.accepted / self.samples)} of {thousands(self.samples)} samples"
        )
        if self.held:
            return f"It held: {seen}."
        if self.low <= self.risk:
            return f"It did not hold, by no more than chance explains: {seen}."
        return f"It did not hold, and not by chance: {seen}. These samples are unlike those of the validation set."


def threshold(
    probs: Array,
    labels: Array,
    *,
    risk: float,
    confidence: float = 0.95,
    from_logits: bool = False,
    normalise: bool = False,
    answers: bool = False,
) -> Threshold:
    r"""Find the lowest confidence from which on predictions have at most a given risk.

    A threshold chosen on the data it is judged by looks better than it is, so this is a sequence of
    tests: the k most confident samples are looked at for k = n, n + 1, …, and as long as the exact binomial
    (Clopper-Pearson) limit says that at most ``risk`` of such predictions are wrong, one more is accepted.
    The first that cannot be accepted ends the sequence. Given the confidence of the next sample, the k above
    it are drawn independently from all predictions above it, so the limit is right for every k. Sequences
    begin at N, N/2, N/4, … samples and share the error probability.

    So, with probability ``confidence`` over validation sets, at most ``risk`` of the predictions at or above
    the threshold are wrong among new samples of the same kind. This supposes that less confident predictions
    are not more often right.

    Args:
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        risk: The largest share of accepted predictions that may be wrong, in ``(0, 1)``.
        confidence: The chance with which this has to hold.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        answers: ``probs`` is the confidence ``(N,)`` of answers, and ``labels`` says which were right.

    Returns:
        The threshold, its coverage, and what was seen above it.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = 4 * torch.randn(5000, 3, generator=generator)
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        >>> found = posthoc.threshold(logits.softmax(1), labels, risk=0.02)
        >>> found.threshold, found.accepted, found.wrong
        (0.9589, 2184, 28)

    Reference:
        Geifman and El-Yaniv, *Selective Classification for Deep Neural Networks*, NeurIPS 2017, for the
        problem; Angelopoulos et al., *Learn then Test*, 2021, for sequences of tests from several starts.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {value!r}; write 0.02 for 2 %")
    from scipy.stats import binom

    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    top = claimed(given, answers=answers)
    claims, correct = (part.numpy() for part in top)
    size = len(claims)
    order = np.argsort(-claims, kind="stable")
    claims, wrong = claims[order], (1 - correct[order]).cumsum().astype(int)
    starts = _starts(size, risk, confidence)
    level = (1 - confidence) / len(starts)
    fewest = math.ceil(math.log(level) / math.log1p(-risk))
    # How many samples a threshold can accept: it cannot tell equal confidences apart.
    counts = np.flatnonzero(np.append(claims[1:] != claims[:-1], True)) + 1
    # The upper limit is at most the risk exactly when so few errors have at most this probability.
    passed = binom.cdf(wrong[counts - 1], counts, risk) <= level
    kept = 0
    for start in starts:
        first = int(np.searchsorted(counts, start))
        failed = np.flatnonzero(~passed[first:])
        end = first + int(failed[0]) if len(failed) else len(counts)
        kept = max(kept, int(counts[end - 1]) if end > first else 0)
    if kept == 0:
        return Threshold(None, risk, confidence, size, 0, 0, 1.0, fewest)
    value = 0.0 if kept == size else shortest(float(claims[kept]), float(claims[kept - 1]))
    _, bound = clopper_pearson(wrong[kept - 1], kept, level)
    return Threshold(value, risk, confidence, size, kept, int(wrong[kept - 1]), float(bound), fewest)


def check(
    found: Threshold,
    probs: Array,
    labels: Array,
    *,
    from_logits: bool = False,
    normalise: bool = False,
    answers: bool = False,
) -> Check:
    """See what a threshold does on other samples.

    Args:
        found: A threshold that exists.
        probs: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        from_logits: ``probs`` holds logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        answers: As for :func:`threshold`.

    Returns:
        How many samples are accepted and wrong, with exact limits of the share.
    """
    if found.threshold is None:
        raise ValueError("there is no threshold to check; allow more risk or give more validation samples")
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    top = claimed(given, answers=answers)
    above = top.confidence >= found.threshold
    accepted, wrong = int(above.sum()), int((above & (top.correct == 0)).sum())
    low, high = map(float, clopper_pearson(wrong, accepted, (1 - found.confidence) / 2))
    return Check(len(above), accepted, wrong, found.risk, low, high, found.confidence)


def _starts(size: int, risk: float, confidence: float) -> list[int]:
    """Where sequences begin: halves, as long as samples without an error could pass; known before the data."""
    least = math.log(1 - confidence) / math.log1p(-risk)
    return [math.ceil(size / 2**j) for j in range(64) if j == 0 or size / 2**j >= least]


def shortest(above: float, up_to: float) -> float:
    """The number with the fewest decimals in ``(above, up_to]``, the larger where there are two."""
    for digits in range(1, 17):
        value: float = math.floor(up_to * 10**digits) / 10**digits
        if above < value <= up_to:
            return value
    return up_to


def percent(share: float) -> str:
    """A share as it is printed."""
    digits = (
        1 if share >= 0.1 else 2 if share >= 0.001 or share == 0 else 1 - math.floor(math.log10(100 * share))
    )
    return f"{100 * share:.{digits}f} %"

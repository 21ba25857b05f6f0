"""From which confidence on may the model answer alone, and what does it cost?"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.metrics.binning import TopLabels
from macc.metrics.correctness import claimed
from macc.metrics.inputs import Array, predictions
from macc.metrics.intervals import clopper_pearson
from macc.metrics.streaming import weights_note
from macc.tables import Displayed, thousands
from macc.words import documented


@dataclass(frozen=True)
class Threshold(Displayed):
    """A confidence from which on predictions have at most a given risk; ``print`` says it in words.

    ``bound`` is the upper limit of the share of wrong ones. ``threshold`` is ``None`` when the
    samples cannot promise the risk for any confidence; ``fewest`` is how many accepted without an
    error could.
    """

    threshold: float | None
    risk: float
    confidence: float
    samples: float
    accepted: float
    wrong: float
    bound: float
    fewest: int
    weighted: int | None = None
    """How many samples there are, where they have relative weights and the other numbers count
    those of equal weights.
    """

    @property
    def coverage(self) -> float:
        """Share of the validation samples that are accepted."""
        return self.accepted / self.samples

    def to_dict(self) -> dict[str, Any]:
        """The fields, and the coverage."""
        return {**asdict(self), "coverage": self.coverage}

    def _parts(self) -> list[str]:
        return [self._said()]

    def _said(self) -> str:
        level, risk = f"{100 * self.confidence:g} %", percent(self.risk)
        note = _note(self.weighted, self.samples)
        if self.threshold is None:
            return (
                f"No threshold can promise a risk of at most {risk} with {level} confidence from these "
                f"{_count(self.samples)} samples: the most confident of them are wrong too often, or are too "
                f"few (even without an error {thousands(self.fewest)} are needed).{note}"
            )
        return (
            f"Accept predictions of confidence {self.threshold:.12g} or more: at most {risk} of them are "
            f"wrong, with {level} confidence.\n"
            f"Coverage {percent(self.coverage)}: {_count(self.accepted)} of {_count(self.samples)} validation "
            f"samples are accepted, {_count(self.wrong)} of them wrong ({percent(self.wrong / self.accepted)}, "
            f"upper limit {percent(self.bound)}); {percent(1 - self.coverage)} are handed over.{note}"
        )


@dataclass(frozen=True)
class Check(Displayed):
    """What a threshold did on other samples."""

    samples: float
    accepted: float
    wrong: float
    risk: float
    low: float
    high: float
    level: float
    weighted: int | None = None
    """As of a threshold."""

    @property
    def held(self) -> bool:
        """Whether no larger share of the accepted predictions is wrong than was allowed."""
        return self.accepted == 0 or self.wrong / self.accepted <= self.risk

    def to_dict(self) -> dict[str, Any]:
        """The fields, the share of wrong predictions, and whether the risk was kept."""
        share = self.wrong / self.accepted if self.accepted else None
        return {**asdict(self), "share_wrong": share, "held": self.held}

    def _parts(self) -> list[str]:
        return [self._said()]

    def _said(self) -> str:
        if self.accepted == 0:
            return f"None of the {_count(self.samples)} samples is accepted."
        seen = (
            f"{percent(self.wrong / self.accepted)} of the accepted are wrong ({_count(self.wrong)} of "
            f"{_count(self.accepted)}; {100 * self.level:g} % interval {percent(self.low)} to {percent(self.high)}), "
            f"coverage {percent(self.accepted / self.samples)} of {_count(self.samples)} samples"
        )
        note = _note(self.weighted, self.samples)
        if self.held:
            return f"It held: {seen}.{note}"
        if self.low <= self.risk:
            return f"It did not hold, by no more than chance explains: {seen}.{note}"
        return f"It did not hold, and not by chance: {seen}. These samples are unlike those of the validation set.{note}"


@documented
def threshold(
    probs: Array,
    labels: Array,
    *,
    risk: float,
    confidence: float = 0.95,
    from_logits: bool = False,
    normalise: bool = False,
    answers: bool = False,
    weights: Array | None = None,
) -> Threshold:
    r"""Find the lowest confidence from which on predictions have at most a given risk.

    A threshold chosen on the data it is judged by looks better than it is, so this is a sequence of
    tests: the k most confident samples are looked at for k = n, n + 1, …, and as long as the exact
    binomial (Clopper-Pearson) limit says that at most ``risk`` of such predictions are wrong, one
    more is accepted. The first that cannot be accepted ends the sequence. Given the confidence of
    the next sample, the k above it are drawn independently from all predictions above it, so the
    limit is right for every k. Sequences begin at N, N/2, N/4, … samples and share the error
    probability.

    So, with probability ``confidence`` over validation sets, at most ``risk`` of the predictions at
    or above the threshold are wrong among new samples of the same kind. This supposes that less
    confident predictions are not more often right. With relative weights, the binomial limit is
    that of an effective number of samples and so no longer exact.

    Args:
        risk: The largest share of accepted predictions that may be wrong, in ``(0, 1)``.
        confidence: The chance with which this has to hold.
        answers: ``probs`` is the confidence ``(N,)`` of answers, and ``labels`` says which were
            right.

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
        Geifman and El-Yaniv, *Selective Classification for Deep Neural Networks*, NeurIPS 2017, for
        the problem; Angelopoulos et al., *Learn then Test*, 2021, for sequences of tests from
        several starts.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {value!r}; write 0.02 for 2 %")
    from scipy.special import betainc

    top, each = _claims(probs, labels, from_logits, normalise, answers, weights)
    order = np.argsort(-top.confidence.numpy(), kind="stable")
    claims, right = (part.numpy()[order] for part in top)
    samples, wrong, sizes, errors = _sequence(right, None if each is None else each[order])
    total, num_rows = float(samples[-1]), len(claims)
    starts = _starts(num_rows, float(sizes[-1]), risk, confidence)
    level = (1 - confidence) / len(starts)
    fewest = math.ceil(math.log(level) / math.log1p(-risk))
    # How many samples a threshold can accept: it cannot separate equal confidences.
    counts = np.flatnonzero(np.append(claims[1:] != claims[:-1], True)) + 1
    effective, error = sizes[counts - 1], errors[counts - 1]
    # The upper limit is at most the risk exactly when so few errors have at most this probability.
    some_right = error < effective
    passed = some_right & (
        betainc(np.where(some_right, effective - error, 1.0), error + 1, 1 - risk) <= level
    )
    kept = 0
    for start in starts:
        first = int(np.searchsorted(counts, start))
        failed = np.flatnonzero(~passed[first:])
        end = first + int(failed[0]) if len(failed) else len(counts)
        kept = max(kept, int(counts[end - 1]) if end > first else 0)
    weighted = None if each is None else num_rows
    if kept == 0:
        return Threshold(None, risk, confidence, _whole(total, each), 0, 0, 1.0, fewest, weighted)
    value = 0.0 if kept == num_rows else shortest(float(claims[kept]), float(claims[kept - 1]))
    _, bound = clopper_pearson(errors[kept - 1], sizes[kept - 1], level)
    size, accepted, mistaken = (
        _whole(float(number), each) for number in (total, samples[kept - 1], wrong[kept - 1])
    )
    return Threshold(value, risk, confidence, size, accepted, mistaken, float(bound), fewest, weighted)


def _claims(
    probs: Array,
    labels: Array,
    from_logits: bool,
    normalise: bool,
    answers: bool,
    weights: Array | None,
) -> tuple[TopLabels, npt.NDArray[np.float64] | None]:
    """Confidence and correctness of samples, repeated by whole weights, and relative weights."""
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise, weights=weights)
    given = given.repeated()
    return claimed(given, answers=answers), None if given.weights is None else given.weights.cpu().numpy()


def _sequence(
    right: npt.NDArray[np.float64], each: npt.NDArray[np.float64] | None
) -> tuple[npt.NDArray[np.float64], ...]:
    r"""Of the first k samples, for every k: samples and wrong ones, also as limits take them.

    Of weighted samples the share of wrong ones is :math:`p = \sum w_i e_i / \sum w_i`, of variance
    :math:`\sum w_i^2 (e_i - p)^2 / (\sum w_i)^2`. That is the variance of a share of :math:`n`
    samples of equal weights where :math:`n = p (1 - p) (\sum w_i)^2 / \sum w_i^2 (e_i - p)^2`.
    Where wrong samples weigh as much as others this is :math:`(\sum w_i)^2 / \sum w_i^2`, which is
    also the most it is taken to be, because few errors say little about theirs.
    """
    if each is None:
        samples, wrong = np.arange(1.0, len(right) + 1), (1 - right).cumsum()
        return samples, wrong, samples, wrong
    samples, wrong = each.cumsum(), (each * (1 - right)).cumsum()
    squares, of_wrong = (each**2).cumsum(), (each**2 * (1 - right)).cumsum()
    share = wrong / samples
    spread = of_wrong * (1 - share) ** 2 + (squares - of_wrong) * share**2
    sizes = samples**2 / squares
    own = share * (1 - share) * samples**2
    sizes = np.where(own > 0, np.minimum(sizes, own / np.where(own > 0, spread, 1.0)), sizes)
    return samples, wrong, sizes, sizes * share


def _whole(number: float, each: npt.NDArray[np.float64] | None) -> float:
    """A number of samples: whole where they have no weights."""
    return round(number) if each is None else number


def _count(number: float) -> str:
    return thousands(round(number))


def _note(weighted: int | None, size: float) -> str:
    return "" if weighted is None else "\n" + weights_note(weighted, size)[0]


@documented
def check(
    found: Threshold,
    probs: Array,
    labels: Array,
    *,
    from_logits: bool = False,
    normalise: bool = False,
    answers: bool = False,
    weights: Array | None = None,
) -> Check:
    """See what a threshold does on other samples.

    Args:
        found: A threshold that exists.
        answers: As for :func:`threshold`.

    Returns:
        How many samples are accepted and wrong, with exact limits of the share.
    """
    if found.threshold is None:
        raise ValueError("there is no threshold to check; allow more risk or give more validation samples")
    top, each = _claims(probs, labels, from_logits, normalise, answers, weights)
    above = (top.confidence >= found.threshold).numpy()
    weighted, total = (None, len(above)) if each is None else (len(above), float(each.sum()))
    if not above.any():
        return Check(total, 0, 0, found.risk, 0.0, 1.0, found.confidence, weighted)
    parts = _sequence(top.correct.numpy()[above], None if each is None else each[above])
    accepted, wrong, size, errors = (float(part[-1]) for part in parts)
    low, high = map(float, clopper_pearson(errors, size, (1 - found.confidence) / 2))
    accepted, wrong = _whole(accepted, each), _whole(wrong, each)
    return Check(total, accepted, wrong, found.risk, low, high, found.confidence, weighted)


def _starts(num_rows: int, size: float, risk: float, confidence: float) -> list[int]:
    """Where sequences begin: halves that could pass without an error; known before the labels."""
    least = math.log(1 - confidence) / math.log1p(-risk)
    return [math.ceil(num_rows / 2**j) for j in range(64) if j == 0 or size / 2**j >= least]


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

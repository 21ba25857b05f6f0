"""From which probability on is each of several independent labels given?"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from macc.metrics.inputs import Array, counted
from macc.metrics.labels import label_columns, label_names
from macc.posthoc._base import whole_only
from macc.posthoc._threshold import percent, shortest, threshold
from macc.tables import Displayed, Table, thousands
from macc.words import listed


@dataclass(frozen=True)
class LabelThreshold:
    """The threshold of one label, and what it did on the samples it was found on.

    ``threshold`` is ``None`` where there is none: no sample has the label, or the samples cannot
    promise the risk. ``bound`` is the upper limit of the share of wrong ones, where a risk was
    asked for.
    """

    name: str
    threshold: float | None
    positives: int
    given: int
    wrong: int
    bound: float | None = None

    @property
    def precision(self) -> float:
        """Share of right ones among the samples that are given the label; ``nan`` where none is."""
        return (self.given - self.wrong) / self.given if self.given else math.nan

    @property
    def recall(self) -> float:
        """Share of the samples with the label that are given it; ``nan`` where none has it."""
        return (self.given - self.wrong) / self.positives if self.positives else math.nan

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; ``nan`` where no sample has the label."""
        return 2 * (self.given - self.wrong) / (self.given + self.positives) if self.positives else math.nan


@dataclass(frozen=True)
class LabelThresholds(Displayed):
    """The result of :func:`label_thresholds`; called, it says which labels are given."""

    labels: tuple[LabelThreshold, ...]
    samples: int
    risk: float | None
    confidence: float
    fitted: bool = True
    """Whether the counts are of the samples that the thresholds were found on."""

    @property
    def broken(self) -> list[str]:
        """The labels of which a larger share of those given is wrong than was allowed."""
        risk = 1.0 if self.risk is None else self.risk
        return [row.name for row in self.labels if row.wrong > risk * row.given]

    @property
    def thresholds(self) -> npt.NDArray[np.float64]:
        """The thresholds ``(K,)``, infinite where there is none."""
        return np.array([math.inf if row.threshold is None else row.threshold for row in self.labels])

    def __call__(self, probs: Array) -> Any:
        """Which labels are given, true or false, as an array like ``probs``, ``(N, K)``."""
        shape = tuple(np.shape(probs))
        if len(shape) != 2 or shape[1] != len(self.labels):
            raise ValueError(
                f"probs must have shape (N, {len(self.labels)}), a column for each label, got {shape}"
            )
        if not isinstance(probs, torch.Tensor):
            return np.asarray(probs, dtype=np.float64) >= self.thresholds
        # In double precision: a threshold that is rounded may take a sample more. Not every device
        # has it.
        return (probs.detach().cpu().double() >= torch.from_numpy(self.thresholds)).to(probs.device)

    def on(self, probs: Array, labels: Array, *, from_logits: bool = False) -> "LabelThresholds":
        """The same thresholds with what they do on other samples.

        Args:
            probs: Probabilities ``(N, K)`` of the labels.
            labels: 0 or 1 for each of them.
            from_logits: ``probs`` holds logits.
        """
        scores, truth = _probabilities(probs, labels, from_logits)
        given = self(scores)
        rows = tuple(
            LabelThreshold(
                row.name, row.threshold, int(has.sum()), int(each.sum()), int((each & (has == 0)).sum())
            )
            for row, each, has in zip(self.labels, given.T, truth.T, strict=True)
        )
        return LabelThresholds(rows, len(scores), self.risk, self.confidence, fitted=False)

    def to_dict(self) -> dict[str, Any]:
        """The fields, with precision, recall and F1 of each label."""
        return {
            "samples": self.samples,
            "risk": self.risk,
            "confidence": self.confidence,
            "labels": [
                {**asdict(row), "precision": row.precision, "recall": row.recall, "f1": row.f1}
                for row in self.labels
            ],
        }

    def _parts(self) -> list[Table | str]:
        header = ["label", "threshold", "given", "wrong", "recall", "F1"]
        rows = [
            [
                row.name,
                "none" if row.threshold is None else f"{row.threshold:.12g}",
                thousands(row.given),
                thousands(row.wrong),
                "–" if math.isnan(row.recall) else percent(row.recall),
                "–" if math.isnan(row.f1) else f"{row.f1:.3f}",
            ]
            for row in self.labels
        ]
        note = "Each threshold has the largest F1 of these samples; on others it is lower as a rule."
        if self.risk is not None:
            note = (
                f"Of the samples that are given a label at most {percent(self.risk)} do not have it, for all labels "
                f"together with {100 * self.confidence:g} % confidence."
            )
        if not self.fitted:
            note = self._held()
        return [Table.of(header, rows), f"{thousands(self.samples)} samples. {note}".rstrip()]

    def _held(self) -> str:
        """Whether the risk was kept on other samples, where one was asked for."""
        if self.risk is None:
            return ""
        if self.broken:
            return f"More than {percent(self.risk)} of those that are given the label do not have it: {listed(self.broken)}."
        return f"At most {percent(self.risk)} of those that are given a label do not have it: the thresholds held."


def label_thresholds(
    probs: Array,
    labels: Array,
    *,
    risk: float | None = None,
    confidence: float = 0.95,
    names: Sequence[str] | None = None,
    from_logits: bool = False,
    weights: Array | None = None,
) -> LabelThresholds:
    r"""Find the probability of each independent label from which on it is given.

    Without ``risk`` it is the one with the largest F1 on these samples, the highest of equal ones.
    With ``risk`` it is the lowest from which on at most that share of the samples that are given
    the label do not have it, found as :func:`threshold` does. Each label then has an error
    probability of :math:`(1 - \text{confidence}) / K`, so that the promise holds for all K labels
    at once.

    Args:
        probs: Probabilities ``(N, K)`` of the labels, or ``(N,)`` of one.
        labels: 0 or 1 for each of them.
        risk: The largest share of wrong ones among the samples that are given a label, in
            ``(0, 1)``.
        confidence: The chance with which this has to hold for all labels.
        names: Names of the K labels; their numbers by default.
        from_logits: ``probs`` holds logits. Thresholds are those of probabilities all the same.
        weights: How often each sample counts, ``(N,)``: whole numbers, which are repeated samples.

    Returns:
        The thresholds; called with new probabilities ``(N, K)`` they say which labels are given.

    Example:
        >>> from macc import posthoc
        >>> probs = np.array([[0.9, 0.2], [0.7, 0.6], [0.4, 0.3], [0.1, 0.1]])
        >>> found = posthoc.label_thresholds(probs, [[1, 0], [1, 1], [0, 1], [0, 0]])
        >>> found.thresholds
        array([0.7, 0.3])
        >>> found(np.array([[0.8, 0.2]]))
        array([[ True, False]])
    """
    for name, value in (("risk", 0.5 if risk is None else risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must lie in (0, 1), got {value!r}; write 0.02 for 2 %")
    scores, truth = _probabilities(probs, labels, from_logits)
    counts = counted(weights, len(scores))
    if counts is not None:
        whole_only("label_thresholds", counts.weights)
        scores, truth = counts.of(scores), counts.of(truth)
    rows = []
    for column, name in enumerate(label_names(names, scores.shape[1])):
        claims, has = scores[:, column].astype(np.float64), truth[:, column]
        if risk is None:
            rows.append(_largest_f1(name, claims, has))
            continue
        level = 1 - (1 - confidence) / scores.shape[1]
        found = threshold(claims, has, risk=risk, confidence=level, answers=True)
        numbers = int(has.sum()), int(found.accepted), int(found.wrong)
        rows.append(LabelThreshold(name, found.threshold, *numbers, found.bound))
    return LabelThresholds(tuple(rows), len(scores), risk, confidence)


def _probabilities(
    probs: Array, labels: Array, from_logits: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    scores, truth = label_columns(probs, labels, from_logits=from_logits)
    if not from_logits:
        return scores, truth
    from scipy.special import expit

    return expit(scores), truth


def _largest_f1(name: str, claims: npt.NDArray[np.float64], has: npt.NDArray[np.int64]) -> LabelThreshold:
    positives = int(has.sum())
    if positives == 0:
        return LabelThreshold(name, None, 0, 0, 0)
    order = np.argsort(-claims, kind="stable")
    ordered, right = claims[order], has[order].cumsum()
    # How many samples a threshold can take: it cannot separate equal probabilities.
    counts = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) + 1
    given = int(counts[np.argmax(2 * right[counts - 1] / (counts + positives))])
    value = 0.0 if given == len(ordered) else shortest(float(ordered[given]), float(ordered[given - 1]))
    return LabelThreshold(name, value, positives, given, given - int(right[given - 1]))

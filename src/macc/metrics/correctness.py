"""Answers without a class vector: how confident each one was, and whether it was right.

They are two classes, wrong and right answers, with the confidence as the probability of a right
one. What looks at the *predicted* class means nothing there: an answer of confidence 0.3 is not a
prediction that it is wrong.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from macc.metrics._metric import registry
from macc.metrics.binning import TopLabels, class_labels, top_labels
from macc.metrics.inputs import Predictions
from macc.metrics.naming import NO_YES
from macc.words import did_you_mean

CLASSES = ["wrong", "right"]
NOTE = (
    "Each sample is an answer, with a confidence and whether it was right, and no probability of every class: "
    "the two classes are wrong and right answers."
)


def as_answers(labels: Any) -> Any:
    """Labels that say no or yes as 0 or 1, others as they are.

    Example:
        >>> as_answers(["yes", "No", "right"]), as_answers([1, 0])
        (['right', 'wrong', 'right'], [1, 0])
    """
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "US":
        labels = labels.tolist()
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        return labels
    called = {word: CLASSES[i] for pair in NO_YES for i, word in enumerate(pair)}
    return [called.get(label.strip().lower(), label) for label in labels]


def claimed(given: Predictions, *, answers: bool) -> TopLabels:
    """The confidence of each sample and whether it is right: of the predicted class, or
    of answers.

    Example:
        >>> from macc.metrics.inputs import predictions
        >>> claimed(predictions([0.3], [1]), answers=True).confidence, claimed(predictions([0.3], [1]), answers=False).confidence
        (tensor([0.3000], dtype=torch.float64), tensor([0.7000], dtype=torch.float64))
    """
    if answers and given.num_classes != 2:
        raise ValueError(f"answers have one confidence each, shape (N,), got {given.num_classes} columns")
    return class_labels(given.blocks(), 1) if answers else top_labels(given.blocks())


def metrics_of_answers(names: Iterable[str] | None = None, *, streamed: bool = False) -> list[str]:
    """The metrics that answers have, or those asked for by the names that they have with classes.

    Args:
        names: For example ``["ece"]``, which is ``positive_ece`` here; all that there are by
            default.
        streamed: Only those that are measured in constant memory.

    Example:
        >>> metrics_of_answers(["ece", "brier"])
        ['positive_ece', 'positive_brier']
    """
    there = [
        name
        for name, metric in registry().items()
        if (metric.of == "two classes" or metric.of_answers) and (metric.streams or not streamed)
    ]
    if names is None:
        return there
    found = []
    for name in [names] if isinstance(names, str) else names:
        known = next((each for each in (name, f"positive_{name}") if each in there), None)
        if known is None:
            kind = (
                "needs a probability of every class, which answers do not have" if name in registry() else ""
            )
            raise ValueError(f"{name} {kind or 'is no metric'}; {did_you_mean(name, there)}")
        found.append(known)
    return found

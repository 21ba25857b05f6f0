"""Classes by their names: labels as names, names of classes, the positive one of two."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from macc.words import listed, quoted

# Two classes without names: what says no and yes in labels.
NO_YES = (("no", "yes"), ("n", "y"), ("false", "true"), ("f", "t"), ("negative", "positive"), ("neg", "pos"))


def named_labels(labels: Any, classes: Sequence[str] | None) -> Any:
    """Labels as they are or, where they are text, the indices of the classes that they name.

    Example:
        >>> named_labels(["dog", "cat"], ["cat", "dog"]).tolist()
        [1, 0]
    """
    if not isinstance(labels, np.ndarray | list | tuple) or len(labels) == 0:
        return labels
    text = labels.dtype.kind in "US" if isinstance(labels, np.ndarray) else isinstance(labels[0], str)
    if not text:
        return labels
    if classes is None:
        raise ValueError("labels are text; name the classes in their order with classes=[…], or pass indices")
    places = {str(name): i for i, name in enumerate(classes)}
    if len(places) < len(classes):
        raise ValueError("classes has a name twice, so that labels could mean either; name each class once")
    given = [str(label).strip() for label in np.asarray(labels, dtype=str)]
    for at, label in enumerate(given):
        if label not in places:
            raise ValueError(
                f"labels[{at}]: the label {quoted(label)} is not the name of a class; "
                f"the classes are {listed(list(places))}"
            )
    return np.array([places[label] for label in given])


def class_names(classes: Sequence[str] | None, num_classes: int) -> list[str]:
    """Names of the classes, their indices if there are none."""
    if classes is None:
        return [str(j) for j in range(num_classes)]
    if len(classes) != num_classes:
        raise ValueError(f"classes names {len(classes)} classes, and probs has {num_classes}")
    return [str(name) for name in classes]


def positive_index(positive: int | str | None, classes: Sequence[str]) -> int | None:
    """Which class verdicts are about: of two class 1 unless another is named, else none."""
    if len(classes) != 2:
        if positive is not None:
            raise ValueError(
                f"positive={positive!r} picks one of two classes, and there are {len(classes)}; leave it out"
            )
        return None
    if positive is None:
        return 1
    if isinstance(positive, str):
        if positive not in classes:
            raise ValueError(
                f"no class is called {quoted(positive)}; the classes are {quoted(classes[0])} and {quoted(classes[1])}"
            )
        return list(classes).index(positive)
    check_positive(positive)
    return positive


def check_positive(positive: int) -> None:
    """Refuse what is not the index of one of two classes."""
    if isinstance(positive, bool) or positive not in (0, 1):
        raise ValueError(f"positive must be 0 or 1, the index of the positive class, got {positive!r}")

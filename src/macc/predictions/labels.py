"""What labels mean: names of classes or their indices, decided once for all samples."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.metrics.naming import NO_YES
from macc.words import listed, quoted

MISSING = -1
"""What stands for a missing label among indices."""

KINDS = ("names", "indices")

# How pandas, R, SQL and spreadsheets write what is not there.
_MISSING_WORDS = frozenset(["", "nan", "null", "none", "na", "n/a", "<na>"])
_WHOLE = re.compile(r"[+-]?\d{1,18}(?:\.0*)?", re.ASCII)


class LabelError(ValueError):
    """A label that means nothing, and where it stands, counted from 0."""

    def __init__(self, at: int, reason: str):
        super().__init__(reason)
        self.at = at


class Labels:
    """How labels of one file, or of one call, are read.

    A label that is the name of a class means that class, and a whole number means the class of that
    index. Where both could be meant, ``labels_are`` has to say which. The meaning of a label never
    depends on the labels beside it, so that parts of a file mean what the whole does.

    Args:
        num_classes: Number of classes K.
        classes: Names of the classes, where they have names.
        labels_are: ``"names"`` or ``"indices"``, to allow only one of them.
        drop_missing: Read what is not there as ``MISSING`` and do not refuse it.
        missing_cure: What to do where a label is missing and that is refused.
        word_cure: What else to do where a label of two classes without names is a word that says
            neither no nor yes.

    Example:
        >>> Labels(3, ["cat", "dog", "owl"]).indices(["owl", "cat"]).tolist()
        [2, 0]
        >>> Labels(3, ["1", "2", "3"], labels_are="names").indices(["3", "1"]).tolist()
        [2, 0]
    """

    def __init__(
        self,
        num_classes: int,
        classes: Sequence[str] | None = None,
        *,
        labels_are: str | None = None,
        drop_missing: bool = False,
        missing_cure: str = "leave the sample out",
        word_cure: str = "",
    ):
        self.num_classes = num_classes
        self.classes = classes
        self.labels_are = labels_are
        self.drop_missing = drop_missing
        self.missing_cure = missing_cure
        self.word_cure = word_cure
        self._names = {} if labels_are == "indices" else {name: i for i, name in enumerate(classes or ())}
        if classes is None and num_classes == 2 and labels_are != "indices":
            self._names = {word: i for pair in NO_YES for i, word in enumerate(pair)}
        self._known: dict[str, int] = {}
        self._kinds: set[str] = set()

    @staticmethod
    def ambiguous(classes: Sequence[str]) -> str | None:
        """The first name that is also the index of another class."""
        for i, name in enumerate(classes):
            number = _whole(name)
            if number is not None and number != i and 0 <= number < len(classes):
                return name
        return None

    def meaning(self, label: str) -> int | None:
        """The class that a word or a number means, if any."""
        number = None if self.labels_are == "names" else _whole(label)
        return self._names.get(label if self.classes is not None else label.casefold(), number)

    def indices(self, labels: "npt.NDArray[Any] | Sequence[str]") -> npt.NDArray[np.int64]:
        """Indices of classes, for labels as text or numbers; else a :class:`LabelError`."""
        if isinstance(labels, np.ndarray):
            return self._of_array(labels)
        try:
            return np.array([self._known[label] for label in labels], dtype=np.int64)
        except KeyError:
            pass
        for at, label in enumerate(labels):
            self._learn(label, at)
        return np.array([self._known[label] for label in labels], dtype=np.int64)

    def _of_array(self, labels: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if labels.dtype.kind in "biu" and self.labels_are != "names":
            wrong = (labels < 0) | (labels >= self.num_classes)
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                raise LabelError(at, self._outside(str(labels[at])))
            return labels.astype(np.int64)
        values, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        order = np.argsort(first)
        for k in order:
            self._learn(_text(values[k]), int(first[k]))
        found = np.array([self._known[_text(value)] for value in values], dtype=np.int64)
        return found[inverse.reshape(labels.shape)]

    def _learn(self, label: str, at: int) -> None:
        if label in self._known:
            return
        number = None if self.labels_are == "names" else _whole(label)
        named = self._names.get(label if self.classes is not None else label.casefold())
        if named is not None:
            # A name that is its own index is both.
            self._kinds |= set() if number == named else {"names"}
            self._known[label] = named
        elif number is not None:
            if not 0 <= number < self.num_classes:
                raise LabelError(at, self._outside(label))
            self._kinds.add("indices")
            self._known[label] = number
        elif is_missing(label):
            if not self.drop_missing:
                raise LabelError(at, f"there is no label; {self.missing_cure}")
            self._known[label] = MISSING
        else:
            raise LabelError(at, self._unknown(label))
        if len(self._kinds) > 1:
            raise LabelError(
                at, f"the label {quoted(label)} mixes class names and class indices; use one of them"
            )

    def _outside(self, label: str) -> str:
        return f"labels must lie in [0, {self.num_classes - 1}] for {self.num_classes} classes, got {quoted(label)[1:-1]}"

    def _unknown(self, label: str) -> str:
        if self.classes is not None and self.labels_are != "indices":
            index = "" if self.labels_are == "names" else " nor a class index"
            return (
                f"the label {quoted(label)} is not the name of a class{index}; "
                f"the classes are {listed(list(self.classes))}"
            )
        if self._names:
            return f"the label {quoted(label)} is not a class index; write 0 and 1, or no and yes{self.word_cure}"
        return f"the label {quoted(label)} is not a class index"


def is_missing(label: str) -> bool:
    """Whether a label is a word for what is not there.

    Example:
        >>> is_missing("NaN"), is_missing("cat")
        (True, False)
    """
    return label.casefold() in _MISSING_WORDS


def _whole(text: str) -> int | None:
    """A whole number, also written as 1.0, as pandas does beside missing ones."""
    return int(text.partition(".")[0]) if _WHOLE.fullmatch(text) else None


def _text(value: Any) -> str:
    return (
        value.decode("utf-8", "backslashreplace").strip() if isinstance(value, bytes) else str(value).strip()
    )

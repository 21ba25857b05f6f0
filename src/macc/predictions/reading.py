"""How a file is to be read, and its labels made class indices."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.predictions.labels import MISSING, LabelError, Labels
from macc.predictions.refusals import FileWords, rows_only
from macc.predictions.source import Batch, Raw
from macc.predictions.weights import weights_of
from macc.tables import thousands
from macc.words import shown

KINDS = ".npz, .npy, .csv or .parquet"


@dataclass(frozen=True)
class Reading:
    """How a file is to be read; see :func:`open_source`."""

    logits: bool = False
    label_column: str = "label"
    class_columns: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    labels_are: str | None = None
    drop_missing: bool = False
    labelled: bool = True
    positive: str | None = None
    beside: tuple[Path, ...] = ()
    carry: tuple[str, ...] = ()
    answers: bool = False
    """Whether the file may have answers; once it is open, whether it has."""
    weight_column: str | None = None

    def labels(self, num_classes: int, classes: Sequence[str] | None, labels_are: str | None) -> Labels:
        """How the labels of a file are read."""
        return Labels(
            num_classes,
            classes,
            labels_are=labels_are,
            drop_missing=self.drop_missing,
            missing_cure="--drop-missing leaves such samples out",
            word_cure=", or name the class that the probability is of with --positive",
        )


def decided(
    path: Path, words: FileWords, labels: Labels, parts: Iterator[Raw], weight_column: str | None = None
) -> Iterator[Batch]:
    """Rows with their labels as class indices, without those that have none."""
    row = dropped = 0
    for part in parts:
        weights = None if weight_column is None else weights_of(path, words, part.others[weight_column], row)
        batch = with_labels(part.scores, indices(path, words, labels, part.labels, row), row, weights)
        row += len(part.labels)
        dropped += len(part.labels) - len(batch.labels)
        yield batch
    say_dropped(path, dropped, row)


def with_labels(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[np.int64],
    first: int,
    weights: npt.NDArray[np.float64] | None = None,
) -> Batch:
    """The rows from ``first`` on that have labels."""
    kept = np.flatnonzero(labels != MISSING)
    scores = scores if len(kept) == len(labels) else scores[kept]
    return Batch(scores, labels[kept], kept + first, None if weights is None else weights[kept])


def say_dropped(path: Path, dropped: int, rows: int) -> None:
    """Warn of samples that have no label, unless none has one, which is refused."""
    if 0 < dropped < rows:
        warnings.warn(
            f"{shown(path)}: {thousands(dropped)} of {thousands(rows)} samples have no label and were left out",
            stacklevel=2,
        )


def indices(path: Path, words: FileWords, labels: Labels, given: Any, row: int = 0) -> npt.NDArray[np.int64]:
    """The class indices that labels mean; others are refused in the words of the file."""
    try:
        return labels.indices(given)
    except LabelError as error:
        raise ValueError(f"{shown(path)}, {words.place(row + error.at)}: {error}") from None


def unknown_kind(path: Path) -> ValueError:
    """What is said of a file whose ending is not known."""
    kind = path.suffix.lower()
    return ValueError(f"{shown(path)}: macc reads {KINDS}, not {shown(kind) or 'a file without an ending'}")


def check_file(path: Path) -> None:
    """Refuse what is not a file with something in it."""
    name = shown(path)
    if (path / "labels").is_dir():
        raise ValueError(rows_only(path))
    if path.is_dir():
        raise ValueError(f"{name} is a folder; name a file ({KINDS})")
    if not path.exists():
        raise ValueError(f"{name} does not exist")
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    if size == 0:
        raise ValueError(f"{name} is empty")

"""Files of rows with times, counted in constant memory."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.metrics.correctness import claimed
from macc.metrics.inputs import predictions
from macc.monitor.state import MISSING, Adding, OrderError
from macc.monitor.times import TimeError, moment, read_times
from macc.predictions import Source, open_source
from macc.predictions.labels import Labels
from macc.predictions.reading import indices
from macc.words import shown

_TABLES = (".csv", ".parquet")


def open_log(path: Path, reading: Mapping[str, Any], *, time: str, row_id: str | None) -> tuple[Source, bool]:
    """A log, opened and not read yet, and whether it has a column of labels.

    Args:
        path: A ``.csv`` or ``.parquet``.
        reading: The options of ``open_source``.
        time: The column of times.
        row_id: The column that distinguishes rows, if there is one.
    """
    if path.suffix.lower() not in _TABLES and path.exists():
        raise ValueError(f"{shown(path)}: a log is a .csv or .parquet, which has a column of times")
    carried = [time] if row_id is None else [time, row_id]
    options = {**reading, "carry": carried}
    unread = open_source(path, **{**options, "labelled": False})
    labelled = unread.answers or options["label_column"] in (unread.columns or [])
    return open_source(path, **{**options, "labelled": labelled}), labelled


def count_log(
    adding: Adding,
    source: Source,
    *,
    time: str,
    labelled: bool,
    labels_are: str | None = None,
    row_id: str | None = None,
    normalise: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> None:
    """Count all rows of a log.

    Args:
        adding: The batch.
        source: The log, from :func:`open_log`.
        time: The column of times.
        labelled: Whether the log has labels; those that are missing may come late.
        labels_are: What labels mean, where they could be names or indices.
        row_id: The column that distinguishes rows.
        normalise: Divide rows of probabilities by their sum.
        on_progress: Called with the share of the rows read.
    """
    names = None if source.answers else source.classes
    meaning = Labels(source.num_classes, names, labels_are=labels_are, drop_missing=True)
    repeats = _Repeats(source, by_id=row_id is not None)
    first = 0
    for part in source.rows(normalise=normalise):
        size = len(part.scores)
        labels = np.full(size, MISSING)
        if labelled:
            labels = indices(source.path, source.words, meaning, part.labels, first)
        try:
            times = read_times(part.others[time])
            repeats.check(times, part.scores, labels, None if row_id is None else part.others[row_id], first)
            adding.rows(
                part.scores,
                labels,
                times,
                from_logits=source.from_logits,
                normalise=normalise,
                answers=source.answers,
            )
        except (TimeError, OrderError) as error:
            raise ValueError(f"{source.place(first + error.at)}: {error}") from None
        first += size
        if on_progress is not None:
            on_progress(min(1.0, first / max(1, source.num_rows)))


class _Repeats:
    """Refuses rows that are there twice: of one time and id or, without ids, equal neighbours."""

    def __init__(self, source: Source, *, by_id: bool):
        self.source, self.by_id = source, by_id
        self.time = np.nan
        self.ids: set[str] = set()
        self.last: tuple[Any, ...] | None = None

    def check(
        self,
        times: npt.NDArray[np.float64],
        scores: npt.NDArray[Any],
        labels: npt.NDArray[np.int64],
        ids: Any,
        first: int,
    ) -> None:
        if self.by_id:
            for at, (time, name) in enumerate(zip(times.tolist(), _texts(ids), strict=True)):
                if time != self.time:
                    self.time, self.ids = time, set()
                if name in self.ids:
                    raise ValueError(
                        f"{self.source.place(first + at)}: the row {shown(name, 40)} of {moment(time)} is there twice; "
                        "remove one"
                    )
                self.ids.add(name)
            return
        matrix = scores if scores.ndim == 2 else scores[:, None]
        if self.last is not None and self._same(self.last, (times[0], matrix[0], labels[0])):
            self._refuse(first)
        same = (np.diff(times) == 0) & (np.diff(labels) == 0)
        found = np.flatnonzero(same)
        found = found[(matrix[found] == matrix[found + 1]).all(1)]
        if len(found):
            self._refuse(first + int(found[0]) + 1)
        self.last = (times[-1], matrix[-1].copy(), labels[-1])

    @staticmethod
    def _same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
        return one[0] == two[0] and one[2] == two[2] and bool(np.array_equal(one[1], two[1]))

    def _refuse(self, row: int) -> None:
        raise ValueError(
            f"{self.source.place(row)}: the row is the same as the one above it, time and all; remove it, or name the "
            "column that distinguishes rows with --row-id"
        )


def residuals(
    probs: Any, labels: Any, *, from_logits: bool, normalise: bool, answers: bool = False
) -> npt.NDArray[np.float64]:
    """Correctness minus confidence of each sample of a validation set."""
    given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
    top = claimed(given, answers=answers)
    found: npt.NDArray[np.float64] = (top.correct - top.confidence).numpy()
    return found


def checksum(path: Path) -> str:
    """What tells the content of a file from that of others."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _texts(values: Any) -> list[str]:
    plain = values if isinstance(values, list) else values.to_pylist()
    return [str(value) for value in plain]

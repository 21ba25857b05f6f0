"""What ``macc apply`` and ``macc sets`` write: results, with whatever else a file has."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.io.writing import write_whole
from macc.posthoc._base import Calibrator
from macc.posthoc._base import load_with_classes as load_with_classes
from macc.posthoc._grouped import Grouped
from macc.posthoc._grouped import is_grouped as is_grouped
from macc.posthoc._grouped import load_grouped as load_grouped
from macc.posthoc._sets import Sets
from macc.posthoc._sets import load_sets as load_sets
from macc.posthoc.repair import logarithms, warn_of_zeros
from macc.predictions import Source
from macc.words import quoted, shown

KINDS = (".npz", ".csv", ".parquet")

Columns = dict[str, Any]
Write = Callable[[npt.NDArray[Any], Columns], None]


def check_kind(path: Path) -> None:
    """Refuse a file of a kind that is not written, before anything is computed."""
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"{shown(path)}: results are written as {', '.join(KINDS[:-1])} or {KINDS[-1]}")


def write_calibrated(
    calibrator: Calibrator | Grouped,
    source: Source,
    output: Path,
    *,
    label_column: str,
    normalise: bool = False,
    groups: Sequence[str] | None = None,
    quiet: bool = False,
) -> int:
    """Write the calibrated probabilities of a file, whole or not at all.

    Columns keep their names, and what is not a class (labels, names of samples) comes along.

    Args:
        calibrator: The calibrator.
        source: The file, opened with ``labelled=False``.
        output: The ``.npz``, ``.csv`` or ``.parquet`` to write.
        label_column: The column of labels.
        normalise: Divide rows of probabilities by their sum.
        groups: The group of each row, for a calibrator of groups.
        quiet: Somebody else has said which probabilities are 0.

    Returns:
        How many samples were written.
    """
    if source.num_classes != calibrator.num_classes:
        raise ValueError(
            f"{shown(source.path)} has {source.num_classes} classes, and the {type(calibrator).__name__} was fitted to "
            f"{calibrator.num_classes}; apply it to predictions of the model it was fitted to"
            f"{source.words.more_columns}"
        )
    count = zeros = 0
    with _writer(output, source, label_column, "probs") as write:
        for part in source.rows(normalise=normalise):
            logits = part.scores
            if not source.from_logits:
                logits, some = logarithms(part.scores, normalise=normalise, answers=source.answers)
                zeros += some
            if isinstance(calibrator, Grouped):
                probs = calibrator.mapped(logits, (groups or ())[count : count + len(logits)])
            else:
                probs = calibrator(logits)
            # Two classes may stand in one column, that of class 1.
            write(probs[:, 1] if part.scores.ndim < probs.ndim else probs, part.others)
            count += len(probs)
    if not quiet:
        warn_of_zeros(zeros, "to apply to", answers=source.answers)
    if isinstance(calibrator, Grouped):
        calibrator.warn_of_unknown(groups or ())
    return count


def write_sets(
    sets: Sets, source: Source, output: Path, *, label_column: str, normalise: bool = False
) -> None:
    """Write the sets of a file, whole or not at all: 1 for each class in the set, else 0.

    Args:
        sets: The sets.
        source: The file, opened with ``labelled=False``.
        output: The ``.npz``, ``.csv`` or ``.parquet`` to write.
        label_column: The column of labels.
        normalise: Divide rows of probabilities by their sum.
    """
    first = 0
    with _writer(output, source, label_column, "sets") as write:
        for part in source.rows(normalise=normalise):
            held = sets(part.scores, from_logits=source.from_logits, normalise=normalise, first=first)
            write(held.astype(np.int8), part.others)
            first += len(held)


def _writer(output: Path, source: Source, label_column: str, key: str) -> AbstractContextManager[Write]:
    """What writes results; ``key`` is their name in an ``.npz``."""
    if output.suffix.lower() == ".npz":
        return _npz(output, source, label_column, key)
    return (_csv if output.suffix.lower() == ".csv" else _parquet)(output, source, label_column)


@contextmanager
def _npz(output: Path, source: Source, label_column: str, result: str) -> Iterator[Write]:
    probs: list[npt.NDArray[Any]] = []
    others: list[Columns] = []

    def write(some: npt.NDArray[Any], beside: Columns) -> None:
        probs.append(some)
        others.append(beside)

    yield write
    arrays: dict[str, Any] = {result: np.concatenate(probs)}
    for name in others[0]:
        key = "labels" if source.columns is not None and name == label_column else name
        if key in arrays or key == "file":
            raise ValueError(
                f"{shown(output)}: the column {quoted(name)} cannot be kept in an .npz; rename it"
            )
        arrays[key] = np.concatenate([_array(part[name]) for part in others])
        if key == "labels":
            arrays[key] = _whole(arrays[key])
    if source.classes is not None:
        arrays["classes"] = np.array(source.classes)
    with write_whole(output) as file:
        np.savez(file, **arrays)


@contextmanager
def _csv(output: Path, source: Source, label_column: str) -> Iterator[Write]:
    layout = _TableLayout(source, label_column)
    with write_whole(output) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        begun = False

        def write(probs: npt.NDArray[Any], others: Columns) -> None:
            nonlocal begun
            columns = layout.columns(probs, others)
            if not begun:
                writer.writerow(columns)
                begun = True
            writer.writerows(zip(*map(_texts, columns.values()), strict=True))

        try:
            yield write
        finally:
            # The file is closed by whom it was opened.
            text.detach()


@contextmanager
def _parquet(output: Path, source: Source, label_column: str) -> Iterator[Write]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{shown(output)}: writing .parquet needs pyarrow; install it with pip install 'macc-torch[parquet]'"
        ) from None
    layout = _TableLayout(source, label_column)
    with write_whole(output) as file:
        opened: list[Any] = []

        def write(probs: npt.NDArray[Any], others: Columns) -> None:
            table = arrow.table(layout.columns(probs, others))
            if not opened:
                opened.append(parquet.ParquetWriter(file, table.schema))
            opened[0].write_table(table)

        yield write
        for writer in opened:
            writer.close()


class _TableLayout:
    """The columns of a table to write: those that were read, or classes and what else fits."""

    def __init__(self, source: Source, label_column: str):
        self.source = source
        self.label_column = label_column

    def columns(self, probs: npt.NDArray[Any], others: Columns) -> Columns:
        classes = self._classes(probs)
        if self.source.columns is None:
            fitting = {
                self.label_column if name == "labels" else name: values
                for name, values in others.items()
                if name != "classes" and np.shape(values) == (len(probs),)
            }
            found = {**classes, **fitting}
            if len(found) < len(classes) + len(fitting):
                name = next(name for name in fitting if name in classes)
                raise ValueError(
                    f"{shown(self.source.path)}: {quoted(name)} is an array and a class; rename one"
                )
            return found
        # Where the first score stood, and in the order of the file.
        result: Columns = {}
        for name in self.source.columns:
            if name in others:
                result[name] = others[name]
            elif name.strip() in classes:
                result[name] = classes.pop(name.strip())
            else:
                result |= classes
                classes = {}
        return result

    def _classes(self, probs: npt.NDArray[Any]) -> Columns:
        if probs.ndim == 1:
            return {"confidence" if self.source.answers else "prob": probs}
        names = self.source.classes or [str(k) for k in range(probs.shape[1])]
        return {name: probs[:, k] for k, name in enumerate(names)}


def _array(values: Any) -> npt.NDArray[Any]:
    """A column as an array that needs no pickle."""
    if isinstance(values, np.ndarray):
        return values
    found = np.asarray(values if isinstance(values, list) else values.to_numpy(zero_copy_only=False))
    return np.array(_texts(values)) if found.dtype.kind == "O" else found


def _texts(values: Any) -> list[Any]:
    """A column as what a .csv can hold."""
    plain = values if isinstance(values, list) else values.tolist()
    return ["" if value is None else value for value in plain]


def _whole(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels as class indices, where all of them are such."""
    if labels.dtype.kind in "US":
        try:
            return labels.astype(np.int64)
        except ValueError:
            return labels
    return labels

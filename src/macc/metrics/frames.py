"""Predictions in columns of data frames: pandas, polars, pyarrow, Hugging Face."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from macc.words import did_you_mean, listed, quoted


class FrameColumns(NamedTuple):
    """What was taken of a frame, and a sentence that says so."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any] | list[str]
    classes: list[str] | None
    note: str
    weights: npt.NDArray[Any] | None
    guessed: bool
    """Whether nobody named the columns of the classes."""


class explained:  # noqa: N801 - used as a function is
    """Where columns were guessed, an error about what they hold says which were taken.

    Args:
        found: What was taken; None of arrays.
        kind: Errors about what the columns hold.
    """

    def __init__(self, found: FrameColumns | None, kind: type[ValueError] = ValueError) -> None:
        self.found = found
        self.kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, self.kind) and self.found is not None and self.found.guessed:
            taken = self.found.note.removesuffix(".")
            raise ValueError(f"{error} ({taken}; probs=[…] names others)") from None


def read_columns(
    frame: Any,
    labels: str,
    scores: str | Sequence[str] | None,
    classes: Sequence[str] | None,
    weights: str | None = None,
) -> FrameColumns:
    """Scores and labels from the columns of a frame.

    Args:
        frame: A frame of pandas, polars or pyarrow, or a data set of Hugging Face.
        labels: Name of the column of labels.
        scores: Names of the columns of the classes in their order; or one name, of the probability
            of class 1 or of a column that has a list in each row. By default every column of
            numbers but the labels.
        classes: Names of the classes in place of those of the columns.
        weights: Name of the column of weights, if there is one.

    Returns:
        Scores ``(N, K)`` or ``(N,)``, copied once, labels, and the names of the classes where there
        are any.

    Example:
        >>> import polars
        >>> frame = polars.DataFrame({"cat": [0.9, 0.2], "dog": [0.1, 0.8], "y": ["cat", "dog"]})
        >>> read_columns(frame, "y", None, None).note
        "Taken of the frame: labels from 'y', probabilities from 'cat', 'dog'."
    """
    table = _table(frame)
    if isinstance(scores, int):
        scores = str(scores)
    named = [scores] if isinstance(scores, str) else None if scores is None else list(map(str, scores))
    beside = [labels] if weights is None else [labels, weights]
    for name in (*beside, *(named or ())):
        if name not in table.columns:
            raise ValueError(
                f"the frame has no column {quoted(str(name))}; {did_you_mean(str(name), table.columns)}"
            )
    if named is None:
        named = [name for name in table.columns if name not in beside and table[name].dtype.is_numeric()]
        if len(named) < 2:
            raise ValueError(
                f"the frame has {len(named)} columns of numbers beside {quoted(labels)}; name those of the "
                f"classes with probs=[…]: its columns are {listed(list(table.columns))}"
            )
    if set(beside) & set(named) or len(set(named)) < len(named):
        what = "not the labels" if weights is None else "neither the labels nor the weights"
        raise ValueError(f"probs names {listed(named)}; name each column of a class once, and {what}")
    if table[labels].null_count():
        raise ValueError(f"the column {quoted(labels)} has no label in some rows; leave these rows out")
    if isinstance(scores, str):
        values, names = _one_column(table[scores]), None
    else:
        values, names = table.select(named).to_numpy(), named
    weighed = "" if weights is None else f"weights from {quoted(weights)}, "
    note = f"Taken of the frame: labels from {quoted(labels)}, {weighed}{_probabilities(named)}."
    found = _labels(table[labels])
    each = None if weights is None else _one_column(table[weights])
    if classes is None and names is not None and not isinstance(found, list):
        _refuse_ambiguous(labels, names)
    called = names if classes is None else list(classes)
    return FrameColumns(values, found, called, note, each, guessed=scores is None)


def read_scores(frame: Any, labels: Any, classes: Sequence[str] | None) -> FrameColumns | None:
    """As :func:`read_columns` where every column of a frame is a class and labels are given beside
    it; None of what is no frame of pandas or polars.

    Example:
        >>> import polars
        >>> frame = polars.DataFrame({"cat": [0.9, 0.2], "dog": [0.1, 0.8]})
        >>> found = read_scores(frame, polars.Series(["cat", "dog"]), None)
        >>> found.labels, found.classes, found.note
        (['cat', 'dog'], ['cat', 'dog'], "Taken of the frame: probabilities from 'cat', 'dog'.")
    """
    if not hasattr(frame, "to_numpy") or not hasattr(frame, "columns"):
        return None
    names = [str(name) for name in frame.columns]
    values, given = np.asarray(frame.to_numpy()), as_labels(labels)
    if classes is None and len(names) > 1 and not isinstance(given, list):
        _refuse_ambiguous("labels", names)
    called = names if classes is None and len(names) > 1 else classes
    note = f"Taken of the frame: {_probabilities(names)}."
    one = values[:, 0] if values.ndim == 2 and len(names) == 1 else values
    return FrameColumns(one, given, None if called is None else list(called), note, None, guessed=True)


def as_labels(labels: Any) -> Any:
    """Labels of a column of a frame as an array or, if they are text, as a list."""
    if isinstance(labels, np.ndarray) or not hasattr(labels, "to_numpy"):
        return labels
    values = np.asarray(labels.to_numpy())
    text = values.dtype.kind in "OUS" and all(isinstance(value, str) for value in values)
    return values.tolist() if text else values


def _probabilities(names: Sequence[str]) -> str:
    return f"probabilities from {', '.join(map(quoted, names))}"


def _table(frame: Any) -> Any:
    """The frame as narwhals sees it."""
    try:
        import narwhals.stable.v2 as nw
    except ImportError as error:
        raise ValueError(
            f"columns of a data frame need narwhals ({error}); install it with: pip install 'macc-torch[frames]'"
        ) from None
    if type(frame).__module__.partition(".")[0] == "datasets":
        if not hasattr(frame, "with_format") or not hasattr(frame, "num_rows") or isinstance(frame, dict):
            raise ValueError(
                f"{type(frame).__name__} has no rows in memory; pass one split of a data set, not streamed"
            )
        frame = frame.with_format("arrow")[:]
    if hasattr(frame, "collect_schema") and hasattr(frame, "collect"):
        raise ValueError(f"{type(frame).__name__} is not in memory yet; pass its `.collect()`")
    columns: Any = getattr(frame, "columns", None)
    if getattr(columns, "nlevels", 1) > 1:
        raise ValueError("the columns of the frame have names of several levels; give each one name")
    if hasattr(frame, "set_axis") and not all(isinstance(name, str) for name in columns):
        frame = frame.set_axis(list(map(str, columns)), axis=1)
    try:
        return nw.from_native(frame, eager_only=True)
    except nw.exceptions.DuplicateError:
        twice = next(name for name in columns if list(columns).count(name) > 1)
        raise ValueError(
            f"several columns of the frame are called {quoted(twice)}; give each a name of its own"
        ) from None
    except TypeError:
        raise ValueError(
            f"labels is the name of a column, and {type(frame).__name__} is no data frame in memory; pass a frame of "
            "pandas, polars or pyarrow, or arrays"
        ) from None


def _one_column(column: Any) -> npt.NDArray[Any]:
    """The numbers of a column, or the rows of a column of lists."""
    if column.dtype.is_numeric():
        return np.asarray(column.to_numpy())
    inner = getattr(column.dtype, "inner", None)
    if inner is not None and inner.is_numeric() and len(column):
        try:
            return _joined(column)
        except ModuleNotFoundError:
            pass  # polars without pyarrow, which is only the shorter way
    try:
        return np.array(column.to_list(), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"the column {quoted(column.name)} must have a number in each row, or lists of the same length"
        ) from None


def _joined(column: Any) -> npt.NDArray[Any]:
    """The rows of a column of lists, from their one array in Arrow, without Python objects."""
    rows = column.to_arrow()
    rows = rows.combine_chunks() if hasattr(rows, "combine_chunks") else rows
    if rows.null_count:
        row = int(np.argmax(rows.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"the column {quoted(column.name)} has no list in row {row}; leave such rows out")
    lengths = rows.value_lengths().to_numpy(zero_copy_only=False)
    if (other := lengths != lengths[0]).any():
        row = int(np.argmax(other))
        raise ValueError(
            f"the lists of the column {quoted(column.name)} must have the same length, got {lengths[0]} numbers "
            f"in row 0 and {lengths[row]} in row {row}"
        )
    numbers = rows.flatten()
    if numbers.null_count:
        row = int(np.argmax(numbers.is_null().to_numpy(zero_copy_only=False))) // int(lengths[0])
        raise ValueError(
            f"the column {quoted(column.name)} misses a number in row {row}; leave such rows out"
        )
    found = np.asarray(numbers.to_numpy(zero_copy_only=False))
    return (found if found.dtype.kind == "f" else found.astype(np.float64)).reshape(len(rows), lengths[0])


def _labels(column: Any) -> npt.NDArray[Any] | list[str]:
    if column.dtype.is_integer():
        return np.asarray(column.to_numpy())
    values = column.to_list()
    if all(isinstance(value, bool) for value in values):
        return np.array(values, dtype=np.int64)
    return (
        [str(value) for value in values] if not column.dtype.is_numeric() else np.asarray(column.to_numpy())
    )


def _refuse_ambiguous(labels: str, names: list[str]) -> None:
    """Refuse whole-number labels beside classes that are named by other whole numbers."""
    for index, name in enumerate(names):
        if name.isdecimal() and int(name) != index:
            raise ValueError(
                f"the labels in {quoted(labels)} are numbers, and so is the name of the column {quoted(name)}, which is "
                f"class {index}; make the labels text if they name columns, or pass classes=[…] if they are indices"
            )

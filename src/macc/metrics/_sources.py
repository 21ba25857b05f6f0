"""Files of predictions read whole or, where that would not fit into memory, a batch at a time."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from macc._arrays import read_npy
from macc.metrics._files import (
    KINDS,
    Loaded,
    check_file,
    numbers,
    read_predictions,
    same_samples,
)

# 16 MB of float64 at most; Python's own numbers, which a .csv becomes first, take four times that.
_BATCH_ELEMENTS = 2**21
# What pandas calls the index of a data frame in a file.
_INDEX_COLUMNS = ("", "Unnamed: 0", "__index_level_0__")
_MOST_ROWS = 2**16


class Batch(NamedTuple):
    """Some neighbouring samples: scores ``(N, K)`` or ``(N,)``, and labels as the file has them."""

    scores: npt.NDArray[Any]
    labels: "npt.NDArray[Any] | list[str]"


@dataclass(frozen=True)
class Source:
    """A file of predictions, opened and not read yet."""

    path: Path
    num_rows: int
    num_classes: int
    classes: list[str] | None
    from_logits: bool
    read: Callable[[], Iterator[Batch]]

    def load(self) -> Loaded:
        """Everything at once."""
        batches = list(self.read())
        if not batches:
            raise ValueError(f"{self.path} has no samples")
        scores = np.concatenate([batch.scores for batch in batches])
        labels: Any
        if isinstance(batches[0].labels, list):
            labels = _named_labels(
                self.path, [name for batch in batches for name in batch.labels], self.classes
            )
        else:
            labels = np.concatenate([batch.labels for batch in batches])
        return Loaded(scores, labels, self.from_logits, self.classes)

    def batches(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Scores and class indices of as many rows at a time as fit, whatever pieces the file has."""
        size = max(1, min(_MOST_ROWS, _BATCH_ELEMENTS // self.num_classes))
        kind: bool | None = None
        scores: list[npt.NDArray[Any]] = []
        labels: list[npt.NDArray[Any]] = []
        waiting = 0
        for batch in self.read():
            if isinstance(batch.labels, list):
                known = set(self.classes or ())
                # The first labels say whether all are names or indices.
                kind = all(label in known for label in batch.labels) if kind is None else kind
                found = _named_labels(self.path, batch.labels, self.classes if kind else None)
            else:
                found = batch.labels
            scores.append(batch.scores)
            labels.append(found)
            waiting += len(found)
            while waiting >= size:
                all_scores, all_labels = np.concatenate(scores), np.concatenate(labels)
                yield all_scores[:size], all_labels[:size]
                scores, labels = [all_scores[size:]], [all_labels[size:]]
                waiting -= size
        if waiting:
            yield np.concatenate(scores), np.concatenate(labels)


def open_source(
    path: Path, labels: Path | None = None, *, logits: bool = False, label_column: str = "label"
) -> Source:
    """Look at a file of predictions: ``.npz``, ``.npy`` with a second one of labels, ``.csv`` or ``.parquet``.

    Args:
        path: The file.
        labels: The labels of an ``.npy``.
        logits: The scores are logits; an ``.npz`` says so by its key.
        label_column: Name of the column of labels in a ``.csv`` or ``.parquet``.

    Returns:
        The source; the metrics check the values that it gives.
    """
    check_file(path)
    kind = path.suffix.lower()
    if kind not in (".npz", ".npy", ".csv", ".parquet"):
        raise ValueError(f"{path}: macc reads {KINDS}, not {kind or 'a file without an ending'}")
    if kind == ".npy":
        if labels is None:
            raise ValueError(f"{path}: an .npy holds the scores only; name a second .npy with the labels")
        check_file(labels)
        if labels.suffix.lower() != ".npy":
            raise ValueError(f"{labels}: the labels of an .npy must be an .npy too")
        scores, answers = (numbers(read_npy(file), str(file)) for file in (path, labels))
        return _in_memory(path, Loaded(scores, answers, logits, None))
    if labels is not None:
        raise ValueError(f"{path}: a {kind} holds its labels itself; leave {labels} out")
    if kind == ".npz":
        return _in_memory(path, read_predictions(path, logits))
    return (_open_csv if kind == ".csv" else _open_parquet)(path, logits, label_column)


def paired_batches(
    one: Source, two: Source
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]:
    """Scores of both files, and the labels, refused where the files are not of the same samples."""
    if one.num_rows != two.num_rows:
        raise ValueError(
            f"{one.path} has {one.num_rows} samples and {two.path} has {two.num_rows}; compare the same samples"
        )
    row = 0
    for (scores, labels), (others, more) in zip(one.batches(), two.batches(), strict=True):
        a, b = (
            Loaded(part, own, source.from_logits, source.classes)
            for part, own, source in ((scores, labels, one), (others, more, two))
        )
        same_samples(one.path, a, two.path, b, first=row)
        row += len(labels)
        yield scores, others, labels


def _in_memory(path: Path, loaded: Loaded) -> Source:
    """A file that was read whole already; what is wrong with its shapes is said by the metrics."""
    shape = loaded.scores.shape
    classes = shape[1] if len(shape) > 1 else 2

    def read() -> Iterator[Batch]:
        yield Batch(loaded.scores, loaded.labels)

    return Source(
        path, len(loaded.labels) if loaded.labels.ndim else 0, classes, None, loaded.from_logits, read
    )


def _open_csv(path: Path, logits: bool, label_column: str) -> Source:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save it as a plain .csv") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a readable .csv ({error})") from None
    columns, label_at = _columns(path, header, label_column)
    two = len(columns) == 1

    def read() -> Iterator[Batch]:
        size = max(1, min(_MOST_ROWS, _BATCH_ELEMENTS // len(header)))
        scores: list[list[float]] = []
        labels: list[str] = []
        empty = True
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = csv.reader(file)
                next(rows)
                for row in rows:
                    if not row:
                        continue
                    if len(row) != len(header):
                        raise ValueError(
                            f"{path}, line {rows.line_num}: {len(row)} fields where the header has {len(header)}"
                        )
                    try:
                        scores.append([float(row[i]) for i in columns])
                    except ValueError:
                        _refuse_text(path, rows.line_num, header, row, columns)
                    labels.append(row[label_at].strip())
                    if len(scores) == size:
                        yield _csv_batch(scores, labels, two)
                        scores, labels, empty = [], [], False
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text; save it as a plain .csv") from None
        except csv.Error as error:
            raise ValueError(f"{path} is not a readable .csv ({error})") from None
        if scores:
            yield _csv_batch(scores, labels, two)
        elif empty:
            raise ValueError(f"{path} has a header and no samples")

    names = None if two else [header[i] for i in columns]
    return Source(path, _count_lines(path) - 1, 2 if two else len(columns), names, logits, read)


def _csv_batch(scores: list[list[float]], labels: list[str], two: bool) -> Batch:
    values = np.array(scores)
    return Batch(values[:, 0] if two else values, labels)


def _count_lines(path: Path) -> int:
    """How many lines a file has, but for empty ones."""
    with path.open("rb") as file:
        return sum(line not in (b"\n", b"\r\n") for line in file)


def _refuse_text(path: Path, line: int, header: list[str], row: list[str], columns: list[int]) -> None:
    for i in columns:
        try:
            float(row[i])
        except ValueError:
            shown = row[i] if len(row[i]) <= 40 else row[i][:37] + "..."
            raise ValueError(
                f"{path}, line {line}: {shown!r} in column {header[i]!r} is not a number"
            ) from None


def _open_parquet(path: Path, logits: bool, label_column: str) -> Source:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path}: reading .parquet needs pyarrow; install it with pip install 'macc-torch[parquet]'"
        ) from None

    def opened() -> Any:
        try:
            # Small buffers: row groups may be of any size.
            return parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, error) from None

    file = opened()
    schema, num_rows = file.schema_arrow, file.metadata.num_rows
    file.close()
    listed = [
        name for name in ("probs", "logits") if name in schema.names and _is_list(schema.field(name).type)
    ]
    if len(listed) == 2:
        raise ValueError(f"{path} has both 'probs' and 'logits'; keep the one to be measured")
    if listed:
        _need_label(path, schema.names, label_column)
        names, width = None, _list_width(path, opened, listed[0])
        if logits and listed == ["probs"]:
            raise ValueError(
                f"{path} has 'probs', and --logits says they are logits; rename the column to 'logits'"
            )
        logits = listed == ["logits"]
        wanted = listed
    else:
        columns, _ = _columns(path, schema.names, label_column)
        wanted = [schema.names[i] for i in columns]
        for name in wanted:
            if not (
                arrow.types.is_floating(schema.field(name).type)
                or arrow.types.is_integer(schema.field(name).type)
            ):
                raise ValueError(f"{path}: the column {name!r} holds {schema.field(name).type}, not numbers")
        width = len(wanted)
        names = None if width == 1 else wanted
    if num_rows == 0:
        raise ValueError(f"{path} has no samples")
    two = width == 1

    def read() -> Iterator[Batch]:
        size = max(1, min(_MOST_ROWS, _BATCH_ELEMENTS // width))
        file = opened()
        try:
            for part in file.iter_batches(
                batch_size=size, columns=[*wanted, label_column], use_threads=False
            ):
                if listed:
                    scores = _list_values(path, part.column(listed[0]), width)
                else:
                    scores = np.column_stack([_numbers(part.column(name)) for name in wanted])
                yield Batch(scores[:, 0] if two else scores, _arrow_labels(part.column(label_column), names))
        except (arrow.ArrowException, OSError) as error:
            raise _unreadable(path, error) from None
        finally:
            file.close()

    return Source(path, num_rows, 2 if two else width, names, logits, read)


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} is not a readable .parquet ({str(error).splitlines()[0][:200]}); write it anew"
    )


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _list_width(path: Path, opened: Callable[[], Any], column: str) -> int:
    """How many numbers the first row of a column of lists has."""
    import pyarrow as arrow

    file = opened()
    try:
        first = next(file.iter_batches(batch_size=1, columns=[column]), None)
        value = None if first is None or len(first) == 0 else first.column(0)[0].as_py()
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    finally:
        file.close()
    if not value:
        raise ValueError(f"{path}: the first row of the column {column!r} is empty")
    return len(value)


def _list_values(path: Path, column: Any, width: int) -> npt.NDArray[Any]:
    values = _numbers(column.flatten())
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if not (lengths == width).all():
        raise ValueError(f"{path}: not all rows have the {width} numbers that the first one has")
    return values.reshape(len(column), width)


def _numbers(column: Any) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def _arrow_labels(column: Any, classes: list[str] | None) -> "npt.NDArray[Any] | list[str]":
    """Whole numbers as they are, anything else, and numbers that may name classes, as text, as in a ``.csv``."""
    from pyarrow import types

    names = any(name.strip().isdigit() for name in classes or ())
    if types.is_integer(column.type) and column.null_count == 0 and not names:
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    return ["" if value is None else str(value).strip() for value in column.to_pylist()]


def _need_label(path: Path, header: Sequence[str], label_column: str) -> None:
    if label_column not in header:
        raise ValueError(
            f"{path} has no column {label_column!r}; its columns are {', '.join(header[:12]) or 'none'}, "
            "and --label-column names another"
        )


def _columns(path: Path, header: list[str], label_column: str) -> tuple[list[int], int]:
    _need_label(path, header, label_column)
    if len(set(header)) < len(header):
        twice = {name for name in header if header.count(name) > 1}
        raise ValueError(f"{path}: the column {min(twice)!r} appears twice")
    columns = [i for i, name in enumerate(header) if name != label_column]
    for i in columns:
        if header[i] in _INDEX_COLUMNS:
            raise ValueError(
                f"{path}: the column {header[i]!r} looks like the index of a data frame and would count as a class; "
                "write the file with index=False"
            )
    if not columns:
        raise ValueError(f"{path} has no column of probabilities beside {label_column!r}")
    if len(columns) == 1 and header[columns[0]] not in ("prob", "logit"):
        raise ValueError(
            f"{path} has one column of scores, {header[columns[0]]!r}; for two classes call it 'prob' "
            "(the probability of class 1), otherwise give one column for each class"
        )
    return columns, header.index(label_column)


def _named_labels(path: Path, labels: list[str], classes: list[str] | None) -> npt.NDArray[Any]:
    """Class names of the header where all labels are such names, otherwise class indices."""
    if classes is not None:
        index = {name: i for i, name in enumerate(classes)}
        if all(label in index for label in labels):
            return np.array([index[label] for label in labels])
    try:
        return np.array([int(label) for label in labels])
    except ValueError:
        pass
    for i, label in enumerate(labels):
        known = classes is not None and label in classes
        if not known and not label.lstrip("-").isdigit():
            options = "" if classes is None else f", nor one of the columns {', '.join(classes[:12])}"
            raise ValueError(f"{path}: the label {label!r} of sample {i + 1} is not a class index{options}")
    raise ValueError(f"{path} mixes class names and class indices in its labels; use one of them")

"""Predictions in ``.parquet``, which pyarrow reads."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.predictions.columns import (
    check_meaning,
    columns_of,
    need_carried,
    need_label,
    of_answers,
    of_columns,
)
from macc.predictions.reading import Reading
from macc.predictions.source import Raw, Source, rows_at_once
from macc.words import listed, quoted, shown

_WHOLE_BYTES = 2**27  # of row groups that are read in one piece


def open_parquet(path: Path, reading: Reading) -> Source:
    """Open a ``.parquet`` of a column for each class, or of one with lists."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{shown(path)}: reading .parquet needs pyarrow; install it with pip install 'macc-torch[parquet]'"
        ) from None

    def opened() -> Any:
        try:
            file = parquet.ParquetFile(path, pre_buffer=False)
            groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
            if all(group.total_byte_size <= _WHOLE_BYTES for group in groups):
                return file
            # A small buffer; it grows to what the header of a page announces, even if that is not
            # in the file.
            return parquet.ParquetFile(path, metadata=file.metadata, buffer_size=2**20, pre_buffer=False)
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, error) from None

    file = opened()
    schema, num_rows = file.schema_arrow, file.metadata.num_rows
    file.close()
    reading = of_answers(path, schema.names, reading)
    label_column = reading.label_column
    listed_names = [
        name for name in ("probs", "logits") if name in schema.names and _is_list(schema.field(name).type)
    ]
    declare_logits = "add --logits"
    need_carried(path, schema.names, reading)
    if len(listed_names) == 2:
        raise ValueError(f"{shown(path)} has both 'probs' and 'logits'; keep the one to be measured")
    if listed_names:
        if reading.labelled:
            need_label(path, schema.names, label_column)
        names, width = None, _list_width(path, opened, listed_names[0])
        declare_logits = "rename the column to 'logits'"
        if reading.logits and listed_names == ["probs"]:
            raise ValueError(
                f"{shown(path)} has 'probs', and --logits says they are logits; {declare_logits}"
            )
        reading = replace(reading, logits=listed_names == ["logits"])
        wanted = listed_names
    else:
        columns, _ = columns_of(path, schema.names, reading)
        wanted = [schema.names[i] for i in columns]
        for name in wanted:
            kind = schema.field(name).type
            if not (arrow.types.is_floating(kind) or arrow.types.is_integer(kind)):
                raise ValueError(
                    f"{shown(path)}: the column {quoted(name)} holds {shown(kind, 60)}, not numbers; "
                    "if it is not a class, leave it out with --ignore"
                )
        width = len(wanted)
        names = None if width == 1 else [name.strip() for name in wanted]
        check_meaning(path, names, reading)
    if num_rows == 0:
        raise ValueError(f"{shown(path)} has no samples")
    two = width == 1
    beside = [name for name in schema.names if name not in set(wanted)]
    if reading.labelled:
        beside = list(dict.fromkeys([label_column, *reading.carry]))

    def read() -> Iterator[Raw]:
        size = rows_at_once(width)
        file = opened()
        try:
            for part in file.iter_batches(batch_size=size, columns=[*wanted, *beside], use_threads=False):
                if listed_names:
                    scores = _list_values(path, part.column(listed_names[0]), width)
                else:
                    scores = np.column_stack([_numbers(part.column(name)) for name in wanted])
                scores = scores[:, 0] if two else scores
                if reading.labelled:
                    carried = {name: part.column(name) for name in reading.carry}
                    yield Raw(scores, arrow_labels(part.column(label_column), names), carried)
                else:
                    yield Raw(scores, [], {name: part.column(name) for name in beside})
        except (arrow.ArrowException, OSError) as error:
            raise _unreadable(path, error) from None
        finally:
            file.close()

    def place(row: int) -> str:
        return f"row {row + 1}"

    return of_columns(
        path,
        num_rows,
        width,
        names,
        reading,
        place,
        read,
        columns=schema.names,
        declare_logits=declare_logits,
    )


def read_columns(path: Path, names: Sequence[str]) -> list[list[str]]:
    """The values of some columns as text; what is not there is empty."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{shown(path)}: reading .parquet needs pyarrow; install it with pip install 'macc-torch[parquet]'"
        ) from None
    try:
        file = parquet.ParquetFile(path)
        for name in names:
            if name not in file.schema_arrow.names:
                raise ValueError(
                    f"{shown(path)} has no column {quoted(name)}; it has {listed(file.schema_arrow.names)}"
                )
        table = file.read(columns=list(names))
        file.close()
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    return [
        ["" if value is None else str(value).strip() for value in table.column(name).to_pylist()]
        for name in names
    ]


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = shown(str(error).splitlines()[0])
    return ValueError(f"{shown(path)} is not a readable .parquet ({reason}); write it anew")


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
        raise ValueError(f"{shown(path)}: the first row of the column {quoted(column)} is empty")
    return len(value)


def _list_values(path: Path, column: Any, width: int) -> npt.NDArray[Any]:
    values = _numbers(column.flatten())
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if not (lengths == width).all():
        raise ValueError(f"{shown(path)}: not all rows have the {width} numbers that the first one has")
    return values.reshape(len(column), width)


def _numbers(column: Any) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values if values.dtype.kind == "f" else values.astype(np.float64)


def arrow_labels(column: Any, classes: list[str] | None) -> "npt.NDArray[Any] | list[str]":
    """Whole numbers as they are; the rest, and numbers that may name classes, as text."""
    from pyarrow import types

    names = any(name.lstrip("+-")[:1].isdigit() for name in classes or ())
    if types.is_integer(column.type) and column.null_count == 0 and not names:
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    return ["" if value is None else str(value).strip() for value in column.to_pylist()]

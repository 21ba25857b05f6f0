"""The group of each row of a file, from its columns or from a second file."""

from collections.abc import Sequence
from pathlib import Path

from macc.io.arrays import read_npz
from macc.predictions.csv_files import csv_rows, wrong_width
from macc.predictions.parquet_files import read_columns
from macc.predictions.reading import check_file
from macc.predictions.source import Loaded
from macc.words import listed, quoted, shown


def read_groups(path: Path, columns: Sequence[str]) -> list[str]:
    """The values of some columns as one name for each row: ``"A"``, or ``"A, f"`` of two columns.

    Args:
        path: A ``.csv`` or ``.parquet``, or an ``.npz`` with arrays of these names.
        columns: The columns.
    """
    check_file(path)
    kind = path.suffix.lower()
    if kind == ".csv":
        rows = csv_rows(path)
        header = [name.strip() for name in next(rows, (0, []))[1]]
        places = [_place(path, header, name) for name in columns]
        values = []
        for line, row in rows:
            if len(row) != len(header):
                raise wrong_width(path, line, row, header)
            values.append([row[at].strip() for at in places])
    elif kind == ".parquet":
        values = [list(row) for row in zip(*read_columns(path, columns), strict=True)]
    elif kind == ".npz":
        found = read_npz(path, set(columns))
        for name in columns:
            _place(path, list(found), name)
        given = [found[name] for name in columns]
        for name, each in zip(columns, given, strict=True):
            if each.shape != given[0].shape or each.ndim != 1:
                raise ValueError(
                    f"{shown(path)}: {quoted(name)} has shape {each.shape}; groups are one value for "
                    "each sample"
                )
        values = [[str(value) for value in row] for row in zip(*given, strict=True)]
    else:
        raise ValueError(
            f"{shown(path)}: groups are read from a .csv, .parquet or .npz; name one with --groups"
        )
    empty = next((at for at, row in enumerate(values) if not all(row)), None)
    if empty is not None:
        raise ValueError(f"{shown(path)}: the sample {empty + 1} has no group; give it one, or leave it out")
    return [", ".join(row) for row in values]


def groups_of_rows(file: Path, columns: Sequence[str], second: Path | None, num_rows: int) -> list[str]:
    """The group of each row of a file, from a column of it or of a second one."""
    given = read_groups(file if second is None else second, columns)
    if len(given) != num_rows:
        raise ValueError(f"{second} has {len(given)} rows and {file} has {num_rows}; they must pair up")
    return given


def groups_of(
    file: Path, loaded: Loaded, columns: Sequence[str], second: Path | None, num_rows: int
) -> list[str]:
    """The group of each sample that was loaded, from a column of its file or of a second one."""
    given = groups_of_rows(file, columns, second, num_rows)
    return given if loaded.rows is None else [given[row] for row in loaded.rows.tolist()]


def _place(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise ValueError(f"{shown(path)} has no column {quoted(name)}; it has {listed(header)}")
    return header.index(name)

"""The group of each row of a file, from its columns or from a second file."""

import csv
from collections.abc import Sequence
from pathlib import Path

from macc.io.arrays import read_npz
from macc.predictions.parquet_files import read_columns
from macc.predictions.reading import check_file
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
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = (row for row in csv.reader(file) if row)
            header = [name.strip() for name in next(rows, [])]
            places = [_place(path, header, name) for name in columns]
            values = [[row[at].strip() for at in places] for row in rows]
    elif kind == ".parquet":
        values = [list(row) for row in zip(*read_columns(path, columns), strict=True)]
    elif kind == ".npz":
        found = read_npz(path, set(columns))
        for name in columns:
            _place(path, list(found), name)
        values = [
            [str(value) for value in row] for row in zip(*(found[name] for name in columns), strict=True)
        ]
    else:
        raise ValueError(
            f"{shown(path)}: groups are read from a .csv, .parquet or .npz; name one with --groups"
        )
    empty = next((at for at, row in enumerate(values) if not all(row)), None)
    if empty is not None:
        raise ValueError(f"{shown(path)}: the sample {empty + 1} has no group; give it one, or leave it out")
    return [", ".join(row) for row in values]


def _place(path: Path, header: list[str], name: str) -> int:
    if name not in header:
        raise ValueError(f"{shown(path)} has no column {quoted(name)}; it has {listed(header)}")
    return header.index(name)

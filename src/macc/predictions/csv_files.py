"""Predictions in ``.csv``."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from macc.predictions.columns import check_meaning, columns_of, need_carried, of_answers, of_columns
from macc.predictions.reading import Reading
from macc.predictions.source import Raw, Source, rows_at_once
from macc.words import quoted, shown


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line and the fields of every row, the header first; empty lines are no rows."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except UnicodeDecodeError:
        raise ValueError(f"{shown(path)} is not UTF-8 text; save it as a plain .csv") from None
    except csv.Error as error:
        raise ValueError(f"{shown(path)} is not a readable .csv ({shown(error)})") from None


def wrong_width(path: Path, line: int, row: list[str], header: list[str]) -> ValueError:
    """A row that is longer or shorter than the header."""
    return ValueError(f"{shown(path)}, line {line}: {len(row)} fields where the header has {len(header)}")


def open_csv(path: Path, reading: Reading) -> Source:
    """Open a ``.csv``; its rows are read anew each time they are asked for."""
    header = [name.strip() for name in next(csv_rows(path), (0, []))[1]]
    reading = of_answers(path, header, reading)
    need_carried(path, header, reading)
    columns, label_at = columns_of(path, header, reading)
    two = len(columns) == 1
    names = None if two else [header[i] for i in columns]
    check_meaning(path, names, reading)
    others = [i for i in range(len(header)) if i not in set(columns)]
    beside = [header.index(name) for name in reading.carry] if reading.labelled else others

    def place(row: int) -> str:
        found = csv_rows(path)
        next(found)
        return next((f"line {line}" for at, (line, _) in enumerate(found) if at == row), f"row {row + 1}")

    def read() -> Iterator[Raw]:
        size = rows_at_once(len(header))
        scores: list[list[float]] = []
        labels: list[str] = []
        others: dict[str, list[str]] = {header[i]: [] for i in beside}
        empty = True
        found = csv_rows(path)
        next(found)
        for line, row in found:
            if len(row) != len(header):
                raise wrong_width(path, line, row, header)
            try:
                scores.append([float(row[i]) for i in columns])
            except ValueError:
                _refuse_text(path, line, header, row, columns)
            if label_at is not None:
                labels.append(row[label_at].strip())
            for i in beside:
                others[header[i]].append(row[i])
            if len(scores) == size:
                yield _csv_batch(scores, labels, two, others)
                scores, labels, empty = [], [], False
                others = {name: [] for name in others}
        if scores:
            yield _csv_batch(scores, labels, two, others)
        elif empty:
            raise ValueError(f"{shown(path)} has a header and no samples")

    return of_columns(path, _count_lines(path) - 1, len(columns), names, reading, place, read, columns=header)


def _csv_batch(scores: list[list[float]], labels: list[str], two: bool, others: dict[str, list[str]]) -> Raw:
    values = np.array(scores)
    return Raw(values[:, 0] if two else values, labels, others)


def _count_lines(path: Path) -> int:
    """How many lines a file has, without empty ones."""
    with path.open("rb") as file:
        return sum(line not in (b"\n", b"\r\n") for line in file)


def _refuse_text(path: Path, line: int, header: list[str], row: list[str], columns: list[int]) -> None:
    for i in columns:
        try:
            float(row[i])
        except ValueError:
            raise ValueError(
                f"{shown(path)}, line {line}: {quoted(row[i], 40)} in column {quoted(header[i], 60)} is not a number; "
                "if the column is not a class, leave it out with --ignore"
            ) from None

"""Files of independent labels: a probability and a 0 or 1 for each label of each sample."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.io.arrays import npy_header, open_npz, read_npy
from macc.metrics.labels import label_columns
from macc.metrics.refusals import InputError
from macc.predictions.array_files import class_names, scores_key
from macc.predictions.columns import chosen
from macc.predictions.labels import MISSING, LabelError, Labels
from macc.predictions.opening import open_source
from macc.predictions.parquet_files import arrow_labels
from macc.predictions.reading import Reading, check_file, unknown_kind
from macc.predictions.refusals import FileWords
from macc.predictions.source import Source
from macc.tables import thousands
from macc.words import listed, quoted, shown

LABEL_COLUMNS = "label_*"
"""The columns of labels that are read where none are named."""


@dataclass(frozen=True)
class ManyLabels:
    """Scores and labels ``(N, L)``, whether they are logits, the labels' names, a note."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    from_logits: bool
    names: list[str] | None
    taken: str = ""


def read_labels(
    path: Path,
    labels: Path | None = None,
    *,
    logits: bool = False,
    label_column: str = LABEL_COLUMNS,
    class_columns: Sequence[str] = (),
    ignore: Sequence[str] = (),
    drop_missing: bool = False,
    most: int | None = None,
) -> ManyLabels:
    """Read a file of independent labels whole.

    Args:
        path: An ``.npz`` with ``probs`` or ``logits`` and ``labels``, all ``(N, L)``; an ``.npy``
            with a second one of labels; or a ``.csv`` or ``.parquet`` with two columns for each
            label, or, in a ``.parquet``, with lists.
        labels: The labels of an ``.npy``.
        logits: The scores are logits; an ``.npz`` says so by its key.
        label_column: The columns of the labels: names with commas between them, or a pattern.
        class_columns: The columns of the scores, written likewise; ``prob_*``, or ``logit_*`` of
            logits, if not given.
        ignore: Columns that are no scores although the pattern names them.
        drop_missing: Leave out samples of which a label is empty, NaN or null.
        most: Refuse a table of more rows.
    """
    check_file(path)
    kind = path.suffix.lower()
    if kind in (".csv", ".parquet"):
        patterns = tuple(class_columns) or ("logit_*" if logits else "prob_*",)
        source = open_source(
            path, labels, logits=logits, class_columns=patterns, ignore=ignore, labelled=False
        )
        if most is not None and source.num_rows > most:
            raise ValueError(
                f"{shown(path)} has more than {most} rows, and --multi-label needs all in memory; raise "
                "--max-rows-in-memory"
            )
        return _of_table(source, patterns, label_column, ignore, drop_missing)
    for option, given in (("--class-columns", class_columns), ("--ignore", ignore)):
        if given:
            raise ValueError(f"{shown(path)}: {option} is for a .csv or .parquet, which has named columns")
    names = None
    if kind == ".npz":
        if labels is not None:
            raise ValueError(f"{shown(path)}: a .npz holds its labels itself; leave {shown(labels)} out")
        with open_npz(path) as members:
            key = scores_key(path, members, Reading(logits=logits))
            shape = members.header(key)[0]
            _check_shapes(path, key, shape, members.header("labels")[0])
            names = class_names(path, members, shape[1] if len(shape) > 1 else 1)
            scores, truth = members.read(key), members.read("labels")
        from_logits, cure = key == "logits", "rename the key to 'logits'"
    elif kind == ".npy":
        if labels is None:
            raise ValueError(
                f"{shown(path)}: an .npy holds the scores only; name a second .npy with the labels"
            )
        check_file(labels)
        _check_shapes(path, "probs", npy_header(path)[0], npy_header(labels)[0])
        scores, truth, from_logits, cure = read_npy(path), read_npy(labels), logits, "add --logits"
    else:
        raise unknown_kind(path)
    words = FileWords(declare_logits=cure, classes=names)
    scores, truth = (given[:, None] if given.ndim == 1 else given for given in (scores, truth))
    columns = [truth[:, column] for column in range(truth.shape[1])]
    return _checked(path, words, scores, columns, from_logits, names, drop_missing)


def _of_table(
    source: Source, patterns: Sequence[str], label_column: str, ignore: Sequence[str], drop_missing: bool
) -> ManyLabels:
    path, header = source.path, source.columns or []
    parts = list(source.raw())
    scores = np.concatenate([part.scores for part in parts])
    scores = scores[:, None] if scores.ndim == 1 else scores
    if "labels" in header and source.classes is None and scores.shape[1] > 1:
        rows = [part.others["labels"] for part in parts]
        lists = [value for part in rows for value in part.to_pylist()]
        if not all(isinstance(value, list) and len(value) == scores.shape[1] for value in lists):
            raise ValueError(f"{shown(path)}: 'labels' must have a list of {scores.shape[1]} in each row")
        columns: list[Any] = [
            ["" if v is None else str(v) for v in column] for column in zip(*lists, strict=True)
        ]
        return _checked(path, source.words, scores, columns, source.from_logits, None, drop_missing)
    left_out = set(chosen(path, header, ignore, "--ignore"))
    from_columns = [
        name for name in chosen(path, header, patterns, "--class-columns") if name not in left_out
    ]
    label_columns_ = chosen(path, header, (label_column,), "--label-column")
    both = [name for name in label_columns_ if name in from_columns]
    if both:
        raise ValueError(
            f"{shown(path)}: the column {quoted(both[0])} cannot be a score and a label; name others"
        )
    order, names = _paired(path, patterns, from_columns, label_column, label_columns_)
    columns = []
    for name in order:
        given = [part.others[name] for part in parts]
        columns.append(
            [
                label
                for part in given
                for label in (part if isinstance(part, list) else map(str, arrow_labels(part, None)))
            ]
        )
    columns = [[label.strip() for label in column] for column in columns]
    taken = f"Scores from {listed(from_columns)}; labels from {listed(order)}."
    return _checked(path, source.words, scores, columns, source.from_logits, names, drop_missing, taken)


def _paired(
    path: Path, patterns: Sequence[str], scores: list[str], pattern: str, labels: list[str]
) -> tuple[list[str], list[str]]:
    """The column of labels of each column of scores, and the names of the labels.

    Patterns with one star pair columns by what the star stands for; names are paired in their
    order.
    """
    if len(patterns) == 1 and patterns[0].count("*") == 1 and pattern.count("*") == 1:
        mine, theirs = (
            {_star(each, name): name for name in names}
            for each, names in ((patterns[0], scores), (pattern, labels))
        )
        alone = next((part for part in [*mine, *theirs] if part not in mine or part not in theirs), None)
        if alone is not None:
            there, missing = (mine[alone], pattern) if alone in mine else (theirs[alone], patterns[0])
            raise ValueError(
                f"{shown(path)} has the column {quoted(there)} and no {quoted(missing.replace('*', alone))}; "
                "each label needs both"
            )
        return [theirs[part] for part in mine], list(mine)
    if len(scores) != len(labels):
        raise ValueError(
            f"{shown(path)}: there are {len(scores)} columns of scores ({listed(scores)}) and {len(labels)} of labels "
            f"({listed(labels)}); each label needs both"
        )
    return labels, labels


def _star(pattern: str, name: str) -> str:
    before, _, after = pattern.partition("*")
    return name[len(before) : len(name) - len(after)]


def _checked(
    path: Path,
    words: FileWords,
    scores: npt.NDArray[Any],
    columns: Sequence[Any],
    from_logits: bool,
    names: list[str] | None,
    drop_missing: bool,
    taken: str = "",
) -> ManyLabels:
    """Labels as checked 0 and 1; samples without one are left out if that was asked for."""
    found = np.empty((len(scores), len(columns)), dtype=np.int64)
    for at, column in enumerate(columns):
        meaning = Labels(2, drop_missing=drop_missing, missing_cure="--drop-missing leaves such samples out")
        try:
            found[:, at] = meaning.indices(column)
        except LabelError as error:
            called = f"label {at}" if names is None else quoted(names[at])
            raise ValueError(f"{shown(path)}, {words.place(error.at)}, {called}: {error}") from None
    kept = np.flatnonzero((found != MISSING).all(1))
    if len(kept) == 0:
        raise ValueError(f"{shown(path)} has no samples with all labels")
    if len(kept) < len(found):
        warnings.warn(
            f"{shown(path)}: {thousands(len(found) - len(kept))} of {thousands(len(found))} samples lack a label and were "
            "left out",
            stacklevel=2,
        )
    scores, found = scores[kept], found[kept]
    try:
        label_columns(scores, found, from_logits=from_logits)
    except InputError as error:
        placed = FileWords(
            declare_logits=words.declare_logits,
            classes=names,
            place=lambda at: words.place(int(kept[at])),
        )
        raise error.said_of(path, placed) from None
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}") from None
    return ManyLabels(scores, found, from_logits, names, taken)


def _check_shapes(path: Path, key: str, scores: tuple[int, ...], labels: tuple[int, ...]) -> None:
    if scores != labels or len(scores) not in (1, 2) or 0 in scores:
        raise ValueError(
            f"{shown(path)}: {key} and labels must have the same shape (N, L), a column for each label, got {scores} and "
            f"{labels}; leave --multi-label out where a sample has one class"
        )

"""A file of predictions is opened by its ending."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macc.metrics.naming import positive_index
from macc.predictions.array_files import open_npy, open_npz_file
from macc.predictions.csv_files import open_csv
from macc.predictions.labels import KINDS as LABEL_KINDS
from macc.predictions.maps import Maps, holds_maps, open_maps
from macc.predictions.parquet_files import open_parquet
from macc.predictions.reading import Reading, check_file, unknown_kind
from macc.predictions.source import Source
from macc.words import quoted, shown

_TABLES = (".csv", ".parquet")


def open_source(
    path: Path,
    labels: Path | None = None,
    *,
    logits: bool = False,
    label_column: str = "label",
    class_columns: Sequence[str] = (),
    ignore: Sequence[str] = (),
    labels_are: str | None = None,
    drop_missing: bool = False,
    labelled: bool = True,
    positive: str | None = None,
    beside: Sequence[Path] = (),
    carry: Sequence[str] = (),
    answers: bool = False,
    weight_column: str | None = None,
) -> Source:
    r"""Look at a file of predictions: ``.npz``, ``.npy`` with a second one of labels, ``.csv`` or
    ``.parquet``.

    What labels mean is decided here, from the names of the columns and never from labels that
    happen to come first: a label that is the name of a class means that class, and a whole number
    the class of that index. Columns such as 1, 2, 3 leave that open, and are refused unless
    ``labels_are`` says it.

    Args:
        path: The file.
        labels: The labels of an ``.npy``.
        logits: The scores are logits; an ``.npz`` says so by its key.
        label_column: Name of the column of labels in a ``.csv`` or ``.parquet``.
        class_columns: The columns of the classes, in their order: names or patterns such as
            ``p_*``, also several with commas between them; all but the labels and those to ignore
            if not given.
        ignore: Columns that are not classes, written likewise.
        labels_are: ``"names"`` or ``"indices"``, where labels could be either.
        drop_missing: Leave out samples whose label is empty, NaN or null; a warning says how many.
        labelled: Labels have to be there. If not, the file is read by :meth:`Source.rows`, which
            also gives what stands beside the scores.
        positive: The positive class of two. Beside a single column ``prob`` it may be a word:
            ``prob`` is the probability of that class, and the other word among the labels is the
            other class.
        beside: The other files of the same command. An option that one file has no use for is
            refused only if it means nothing to any of them.
        carry: Columns of a table that are no classes and come along with the rows of
            ``Source.raw``.
        answers: A table may have the columns ``confidence`` and ``correct`` of answers in place of
            classes and labels.
        weight_column: The column of a table, or array of an ``.npz``, that says how often each
            sample counts.

    Returns:
        The source; reading it says what is wrong with its values.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "p.csv"
        ...     _ = path.write_text("id,cat,dog,label\n7,0.9,0.1,cat\n8,0.2,0.8,dog\n9,0.3,0.7,\n")
        ...     open_source(path, ignore=["id"]).load()
        Traceback (most recent call last):
        ValueError: ...p.csv, line 4: there is no label; --drop-missing leaves such samples out
    """
    check_file(path)
    if labels_are not in (None, *LABEL_KINDS):
        raise ValueError(f"--labels-are must be names or indices, got {quoted(labels_are)}")
    reading = Reading(
        logits,
        label_column,
        tuple(class_columns),
        tuple(ignore),
        labels_are,
        drop_missing,
        labelled,
        positive,
        tuple(beside),
        tuple(carry) if weight_column is None else tuple(dict.fromkeys([*carry, weight_column])),
        answers,
        weight_column,
    )
    kind = path.suffix.lower()
    if kind not in (".npz", ".npy", ".csv", ".parquet"):
        raise unknown_kind(path)
    if kind != ".npy" and labels is not None:
        raise ValueError(f"{shown(path)}: a {kind} holds its labels itself; leave {shown(labels)} out")
    source = _opened(path, labels, reading)
    if positive is not None:
        _check_positive(source, reading)
    return source


def open_any(
    path: Path, labels: Path | None = None, *, ignore_index: int | None = None, **options: Any
) -> Source | Maps:
    """Look at a file of predictions or of maps ``(N, K, H, W)``, or at a folder of maps.

    Args:
        path: The file, or the folder.
        labels: The labels of an ``.npy``.
        ignore_index: The label of pixels to leave out.
        options: Those of :func:`open_source`.
    """
    if not holds_maps(path):
        if ignore_index is not None:
            raise ValueError(f"{shown(path)} has rows, and --ignore-index is for maps; leave it out")
        return open_source(path, labels, **options)
    reading = Reading(**options)
    if reading.weight_column is not None:
        raise ValueError(f"{shown(path)} has maps, and --weight-column is for rows; leave it out")
    maps = open_maps(path, labels, reading, ignore_index)
    if reading.positive is not None:
        _check_positive(maps, reading)
    return maps


def _opened(path: Path, labels: Path | None, reading: Reading) -> Source:
    kind = path.suffix.lower()
    if kind in _TABLES:
        return (open_csv if kind == ".csv" else open_parquet)(path, reading)
    for option, given in (
        ("--class-columns", reading.class_columns),
        ("--ignore", reading.ignore),
        ("--labels-are", reading.labels_are),
    ):
        if given and not any(other.suffix.lower() in _TABLES for other in reading.beside):
            raise ValueError(f"{shown(path)}: {option} is for a .csv or .parquet, which has named columns")
    return open_npz_file(path, reading) if kind == ".npz" else open_npy(path, labels, reading)


def _check_positive(source: Source | Maps, reading: Reading) -> None:
    if source.num_classes != 2:
        raise ValueError(
            f"{shown(source.path)} has {source.num_classes} classes, and --positive picks one of two; leave it out"
        )
    # Another file of the same command may have the names that this one lacks.
    if source.classes is not None or len(reading.beside) < 2:
        positive_index(reading.positive, source.classes or ["0", "1"])

"""Files of predictions read whole or, where that would not fit into memory, a batch at a time."""

import csv
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from macc.io.arrays import Array, npy_header, open_npz, read_npy, read_npz
from macc.metrics._files import KINDS, Loaded, check_file
from macc.metrics._labels import KINDS as LABEL_KINDS
from macc.metrics._labels import MISSING, LabelError, Labels, is_missing
from macc.metrics._refusals import FileWords, InputError
from macc.tables import thousands
from macc.words import listed, quoted, shown

# 16 MB of float64 at most; Python's own numbers, which a .csv becomes first, take four times that.
_BATCH_ELEMENTS = 2**21
# What pandas calls the index of a data frame in a file.
_INDEX_COLUMNS = ("", "Unnamed: 0", "__index_level_0__")
_MOST_ROWS = 2**16
_TABLES = (".csv", ".parquet")
# From how many samples on a column of whole numbers is no accident, and from how many a class on a class
# without samples is none.
_FEW_SAMPLES = 20
_SAMPLES_A_CLASS = 50


class Batch(NamedTuple):
    """Some samples: scores ``(N, K)`` or ``(N,)``, class indices, and their rows in the file, from 0."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


class Raw(NamedTuple):
    """Neighbouring rows of a file, with labels as the file has them, or all columns that are not classes."""

    scores: npt.NDArray[Any]
    labels: "npt.NDArray[Any] | list[str]"
    others: dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """How a file is to be read; see :func:`open_source`."""

    logits: bool = False
    label_column: str = "label"
    class_columns: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    labels_are: str | None = None
    drop_missing: bool = False
    labelled: bool = True
    positive: str | None = None
    beside: tuple[Path, ...] = ()

    def labels(self, num_classes: int, classes: Sequence[str] | None, labels_are: str | None) -> Labels:
        """How the labels of a file are read."""
        return Labels(
            num_classes,
            classes,
            labels_are=labels_are,
            drop_missing=self.drop_missing,
            missing_cure="--drop-missing leaves such samples out",
            word_cure=", or name the class that the probability is of with --positive",
        )


@dataclass(frozen=True)
class Source:
    """A file of predictions, opened and not read yet.

    ``place`` says in words where a row stands. ``suspect`` says that every column of the file counts as a
    class because nobody said otherwise, so that one may be none. ``columns`` are those of a table, in their order;
    ``raw`` reads the rows as they are.
    """

    path: Path
    num_rows: int
    num_classes: int
    classes: list[str] | None
    words: FileWords
    from_logits: bool
    suspect: bool
    columns: list[str] | None
    read: Callable[[], Iterator[Batch]]
    raw: Callable[[], Iterator[Raw]]

    def load(self, *, normalise: bool = False) -> Loaded:
        """Everything at once, the values checked.

        Args:
            normalise: Rows of probabilities are going to be divided by their sum.
        """
        from macc.metrics._inputs import predictions

        batches = list(self._watched())
        scores, labels, rows = (np.concatenate(parts) for parts in zip(*batches, strict=True))
        try:
            predictions(scores, labels, from_logits=self.from_logits, normalise=normalise).check()
        except ValueError as error:
            raise self.refusal(error, rows) from None
        return Loaded(scores, labels, self.from_logits, self.classes, rows)

    def batches(self) -> Iterator[Batch]:
        """As many samples at a time as fit, whatever pieces the file has."""
        size = max(1, min(_MOST_ROWS, _BATCH_ELEMENTS // self.num_classes))
        parts: list[Batch] = []
        waiting = 0
        for batch in self._watched():
            parts.append(batch)
            waiting += len(batch.labels)
            while waiting >= size:
                whole = [np.concatenate(part) for part in zip(*parts, strict=True)]
                yield Batch(*(part[:size] for part in whole))
                parts = [Batch(*(part[size:] for part in whole))]
                waiting -= size
        if waiting:
            yield Batch(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def rows(self, *, normalise: bool = False) -> Iterator[Raw]:
        """The rows as they are, without a look at labels; the scores are checked.

        Args:
            normalise: Rows of probabilities are going to be divided by their sum.
        """
        from macc.metrics._inputs import predictions

        first = 0
        for part in self.raw():
            size = len(part.scores)
            anything = np.zeros(size, dtype=np.int64)
            try:
                predictions(part.scores, anything, from_logits=self.from_logits, normalise=normalise).check()
            except ValueError as error:
                raise self.refusal(error, np.arange(first, first + size)) from None
            first += size
            yield part

    def place(self, row: int) -> str:
        """Where a row stands: ``p.csv, line 7``."""
        return f"{shown(self.path)}, {self.words.place(row)}"

    def refusal(self, error: ValueError, rows: npt.NDArray[np.int64]) -> ValueError:
        """What is wrong with samples that stand in these rows, in the words of the file."""
        if not isinstance(error, InputError):
            return ValueError(f"{shown(self.path)}: {error}")
        words = FileWords(
            declare_logits=self.words.declare_logits,
            more_columns=self.words.more_columns,
            classes=self.classes,
            place=lambda at: self.words.place(int(rows[at])),
        )
        return error.said_of(self.path, words)

    def _watched(self) -> Iterator[Batch]:
        """The file, with a look at what may be no class: a column of whole numbers, or one that never occurs."""
        counts = np.zeros(self.num_classes, dtype=np.int64)
        whole = np.full(self.num_classes, self.suspect)
        outside = np.zeros(self.num_classes, dtype=bool)
        for batch in self.read():
            counts += np.bincount(batch.labels, minlength=self.num_classes)
            if whole.any():
                some = batch.scores[:, whole]
                outside[whole] |= ((some < 0) | (some > 1)).any(0)
                whole[whole] = (some == np.rint(some)).all(0)
                self._refuse_whole(whole & outside, whole, int(counts.sum()), done=False)
            yield batch
        samples = int(counts.sum())
        if samples == 0:
            raise ValueError(f"{shown(self.path)} has no samples with a label")
        self._refuse_whole(whole & outside, whole, samples, done=True)
        if self.suspect and samples >= _SAMPLES_A_CLASS * self.num_classes and not counts.all():
            never = [name for name, count in zip(self.classes or (), counts, strict=True) if not count]
            warnings.warn(
                f"{shown(self.path)}: no label among {thousands(samples)} is {listed(never)}; what is not a class "
                "is left out with --ignore, and --class-columns names those that are",
                stacklevel=2,
            )

    def _refuse_whole(
        self, strange: npt.NDArray[np.bool_], whole: npt.NDArray[np.bool_], samples: int, *, done: bool
    ) -> None:
        """Refuse numbers or folds among the classes; logits may still turn out to be other than whole."""
        if not strange.any() or whole.all() or samples < _FEW_SAMPLES or (self.from_logits and not done):
            return
        name = (self.classes or [])[int(np.flatnonzero(strange)[0])]
        raise ValueError(
            f"{shown(self.path)}: the column {quoted(name)} holds whole numbers only, and would count as a class; "
            "leave it out with --ignore, or name the columns of classes with --class-columns"
        )


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
) -> Source:
    r"""Look at a file of predictions: ``.npz``, ``.npy`` with a second one of labels, ``.csv`` or ``.parquet``.

    What labels mean is decided here, from the names of the columns and never from labels that happen to
    come first: a label that is the name of a class means that class, and a whole number the class of that
    index. Columns such as 1, 2, 3 leave that open, and are refused unless ``labels_are`` says it.

    Args:
        path: The file.
        labels: The labels of an ``.npy``.
        logits: The scores are logits; an ``.npz`` says so by its key.
        label_column: Name of the column of labels in a ``.csv`` or ``.parquet``.
        class_columns: The columns of the classes, in their order: names or patterns such as ``p_*``, also
            several with commas between them; all but the labels and those to ignore if not given.
        ignore: Columns that are not classes, written likewise.
        labels_are: ``"names"`` or ``"indices"``, where labels could be either.
        drop_missing: Leave out samples whose label is empty, NaN or null; a warning says how many.
        labelled: Labels have to be there. If not, the file is read by :meth:`Source.rows`, which also gives what
            stands beside the scores.
        positive: The positive class of two. Beside a single column ``prob`` it may be a word: ``prob`` is the
            probability of that class, and the other word among the labels is the other class.
        beside: The other files of the same command. An option that one file has no use for is refused only if it
            means nothing to any of them.

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
    )
    kind = path.suffix.lower()
    if kind not in (".npz", ".npy", ".csv", ".parquet"):
        raise ValueError(
            f"{shown(path)}: macc reads {KINDS}, not {shown(kind) or 'a file without an ending'}"
        )
    if kind != ".npy" and labels is not None:
        raise ValueError(f"{shown(path)}: a {kind} holds its labels itself; leave {shown(labels)} out")
    source = _opened(path, labels, reading)
    if positive is not None:
        _check_positive(source, reading)
    return source


def _opened(path: Path, labels: Path | None, reading: Reading) -> Source:
    kind = path.suffix.lower()
    if kind in _TABLES:
        return (_open_csv if kind == ".csv" else _open_parquet)(path, reading)
    for option, given in (
        ("--class-columns", reading.class_columns),
        ("--ignore", reading.ignore),
        ("--labels-are", reading.labels_are),
    ):
        if given and not any(other.suffix.lower() in _TABLES for other in reading.beside):
            raise ValueError(f"{shown(path)}: {option} is for a .csv or .parquet, which has named columns")
    return _open_npz(path, reading) if kind == ".npz" else _open_npy(path, labels, reading)


def paired_batches(one: Source, two: Source) -> Iterator[tuple[Batch, Batch]]:
    """Batches of both files, refused where the files are not of the same samples."""
    check_same_files(one, two)
    for a, b in zip(one.batches(), two.batches(), strict=False):
        check_same_samples(one, a, two, b)
        yield a, b


def check_same_files(one: Source, two: Source) -> None:
    """Refuse to compare files of other numbers of samples or of other classes."""
    if one.num_rows != two.num_rows:
        raise ValueError(
            f"{shown(one.path)} has {one.num_rows} samples and {shown(two.path)} has {two.num_rows}; "
            "compare the same samples"
        )
    if one.classes is not None and two.classes is not None and one.classes != two.classes:
        raise ValueError(
            f"{shown(one.path)} and {shown(two.path)} have other class columns, or in another order; "
            "make them agree"
        )


def check_same_samples(one: Source, a: "Batch | Loaded", two: Source, b: "Batch | Loaded") -> None:
    """Refuse to compare samples of other rows, which missing labels lead to, or of other labels."""
    for mine, theirs, what in ((a.rows, b.rows, "missing labels"), (a.labels, b.labels, "labels")):
        if mine is None or theirs is None or np.array_equal(mine, theirs):
            continue
        shorter = min(len(mine), len(theirs))
        wrong = np.flatnonzero(mine[:shorter] != theirs[:shorter])
        at = int(wrong[0]) if len(wrong) else shorter - 1
        row = at if a.rows is None or b.rows is None else int(min(a.rows[at], b.rows[at]))
        raise ValueError(
            f"{one.place(row)}, and {two.place(row)}, disagree on {what}; "
            "compare the same samples in the same order"
        )


def _decided(path: Path, words: FileWords, labels: Labels, parts: Iterator[Raw]) -> Iterator[Batch]:
    """Rows with their labels as class indices, without those that have none."""
    row = dropped = 0
    for part in parts:
        batch = _with_labels(part.scores, _indices(path, words, labels, part.labels, row), row)
        row += len(part.labels)
        dropped += len(part.labels) - len(batch.labels)
        yield batch
    _say_dropped(path, dropped, row)


def _with_labels(scores: npt.NDArray[Any], labels: npt.NDArray[np.int64], first: int) -> Batch:
    """The rows from ``first`` on that have labels."""
    kept = np.flatnonzero(labels != MISSING)
    return Batch(scores if len(kept) == len(labels) else scores[kept], labels[kept], kept + first)


def _say_dropped(path: Path, dropped: int, rows: int) -> None:
    if 0 < dropped < rows:
        warnings.warn(
            f"{shown(path)}: {thousands(dropped)} of {thousands(rows)} samples have no label and were left out",
            stacklevel=2,
        )


def _indices(path: Path, words: FileWords, labels: Labels, given: Any, row: int = 0) -> npt.NDArray[np.int64]:
    try:
        return labels.indices(given)
    except LabelError as error:
        raise ValueError(f"{shown(path)}, {words.place(row + error.at)}: {error}") from None


def _open_npz(path: Path, reading: Reading) -> Source:
    with open_npz(path) as members:
        names = members.names
        found = listed(sorted(names))
        if "labels" not in names and reading.labelled:
            raise ValueError(f"{shown(path)} has no key 'labels'; it has {found}")
        if "probs" in names and "logits" in names:
            raise ValueError(f"{shown(path)} has both 'probs' and 'logits'; keep the one to be measured")
        if "probs" not in names and "logits" not in names:
            raise ValueError(f"{shown(path)} has neither 'probs' nor 'logits'; it has {found}")
        others = {other.suffix.lower() for other in reading.beside} - {".npz"}
        if reading.logits and "probs" in names and not others:
            raise ValueError(
                f"{shown(path)} has 'probs', and --logits says they are logits; rename the key to 'logits'"
            )
        key = "logits" if "logits" in names else "probs"
        labelled = "labels" in names
        num_classes = _check_shapes(
            path, key, members.header(key), members.header("labels") if labelled else None
        )
        classes = None
        if "classes" in names:
            shape, dtype = members.header("classes")
            if shape != (num_classes,) or dtype.kind not in "USiu":
                raise ValueError(
                    f"{shown(path)}: 'classes' must hold {num_classes} names, got shape {shape} of type {dtype}"
                )
            classes = [_name(value) for value in members.read("classes").tolist()]
            _check_once(path, classes, "the class")
        words = FileWords(declare_logits="rename the key to 'logits'", classes=classes)
        from_logits = key == "logits"
        if not reading.labelled:
            beside = {name: members.read(name) for name in names if name != key}
            return _unlabelled(path, words, members.read(key), num_classes, from_logits, beside)
        labels = members.read("labels")
        given = _indices(path, words, _labels_of_array(path, reading, num_classes, classes, labels), labels)
        scores = members.read(key)
    return _in_memory(path, words, scores, given, num_classes, from_logits, {})


def _open_npy(path: Path, labels: Path | None, reading: Reading) -> Source:
    words = FileWords(declare_logits="add --logits")
    if labels is None:
        if reading.labelled:
            raise ValueError(
                f"{shown(path)}: an .npy holds the scores only; name a second .npy with the labels"
            )
        num_classes = _check_shapes(path, "probs", npy_header(path), None)
        return _unlabelled(path, words, read_npy(path), num_classes, reading.logits, {})
    check_file(labels)
    if labels.suffix.lower() != ".npy":
        raise ValueError(f"{shown(labels)}: the labels of an .npy must be an .npy too")
    num_classes = _check_shapes(path, "probs", npy_header(path), npy_header(labels))
    answers = read_npy(labels)
    given = _indices(labels, words, _labels_of_array(labels, reading, num_classes, None, answers), answers)
    others = {} if reading.labelled else {"labels": answers}
    return _in_memory(path, words, read_npy(path), given, num_classes, reading.logits, others)


def _check_shapes(path: Path, key: str, scores: tuple[Any, Any], labels: tuple[Any, Any] | None) -> int:
    """Refuse arrays that cannot be predictions, before any is read; otherwise the number of classes."""
    from macc.metrics._inputs import check_shape

    shape, dtype = scores
    if dtype.kind not in "biuf":
        raise ValueError(f"{shown(path)}: {key} holds values of type {dtype}, not numbers")
    try:
        check_shape(key, shape)
    except ValueError as error:
        raise ValueError(f"{shown(path)}: {error}") from None
    num_classes = int(shape[1]) if len(shape) > 1 else 2
    if labels is None:
        return num_classes
    count, kind = labels
    if kind.kind not in "biufUS":
        raise ValueError(f"{shown(path)}: labels holds values of type {kind}, not numbers or text")
    if len(count) != 1:
        raise ValueError(
            f"{shown(path)}: labels must be one class per sample, shape (N,), got {count}; "
            "one-hot rows become indices with .argmax(1)"
        )
    if shape[0] != count[0]:
        raise ValueError(
            f"{shown(path)}: {key} has {shape[0]} samples and labels has {count[0]}; they must pair up"
        )
    return num_classes


def _labels_of_array(
    path: Path, reading: Reading, num_classes: int, classes: list[str] | None, labels: Array
) -> Labels:
    """Text names classes and numbers are indices: the type says which."""
    text = labels.dtype.kind in "US"
    if text and classes is None and num_classes > 2:
        raise ValueError(
            f"{shown(path)}: the labels are text; add an array 'classes' with the {num_classes} names in their order "
            "(an .npz can hold one)"
        )
    kind = "indices" if not text else None if classes is None else "names"
    return reading.labels(num_classes, classes, kind)


def _unlabelled(path: Path, words: FileWords, scores: Array, *more: Any) -> Source:
    return _in_memory(path, words, scores, np.full(len(scores), MISSING), *more)


def _in_memory(
    path: Path,
    words: FileWords,
    scores: Array,
    labels: npt.NDArray[np.int64],
    num_classes: int,
    from_logits: bool,
    others: dict[str, Array],
) -> Source:
    def read() -> Iterator[Batch]:
        batch = _with_labels(scores, labels, 0)
        yield batch
        _say_dropped(path, len(labels) - len(batch.labels), len(labels))

    return Source(
        path,
        len(scores),
        num_classes,
        None if words.classes is None else list(words.classes),
        words,
        from_logits,
        False,
        None,
        read,
        lambda: iter([Raw(scores, [], others)]),
    )


def _open_csv(path: Path, reading: Reading) -> Source:
    def rows() -> Iterator[tuple[int, list[str]]]:
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

    header = [name.strip() for name in next(rows(), (0, []))[1]]
    columns, label_at = _columns(path, header, reading)
    two = len(columns) == 1
    names = None if two else [header[i] for i in columns]
    _check_meaning(path, names, reading)
    beside = [] if reading.labelled else [i for i in range(len(header)) if i not in set(columns)]

    def place(row: int) -> str:
        found = rows()
        next(found)
        return next((f"line {line}" for at, (line, _) in enumerate(found) if at == row), f"row {row + 1}")

    def read() -> Iterator[Raw]:
        size = max(1, min(_MOST_ROWS, _BATCH_ELEMENTS // len(header)))
        scores: list[list[float]] = []
        labels: list[str] = []
        others: dict[str, list[str]] = {header[i]: [] for i in beside}
        empty = True
        found = rows()
        next(found)
        for line, row in found:
            if len(row) != len(header):
                raise ValueError(
                    f"{shown(path)}, line {line}: {len(row)} fields where the header has {len(header)}"
                )
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

    return _of_columns(
        path, _count_lines(path) - 1, len(columns), names, reading, place, read, columns=header
    )


def _of_columns(
    path: Path,
    num_rows: int,
    width: int,
    names: list[str] | None,
    reading: Reading,
    place: Callable[[int], str],
    read: Callable[[], Iterator[Raw]],
    *,
    columns: list[str],
    declare_logits: str = "add --logits",
) -> Source:
    """A source whose rows are read anew each time it is asked."""
    num_classes = 2 if width == 1 else width
    suspect = names is not None and not reading.class_columns
    cure = ", or --ignore columns that are not classes" if suspect else ""
    words = FileWords(declare_logits=declare_logits, more_columns=cure, classes=names, place=place)

    labels_are = reading.labels_are
    if width == 1 and reading.labelled:
        names = _two_words(reading, read())
        words = replace(words, classes=names)
        labels_are = labels_are if names is None else "names"

    def decided() -> Iterator[Batch]:
        labels = reading.labels(num_classes, names, labels_are)
        return _decided(path, words, labels, read())

    return Source(path, num_rows, num_classes, names, words, reading.logits, suspect, columns, decided, read)


def _two_words(reading: Reading, parts: Iterator[Raw]) -> list[str] | None:
    """The names of two classes of which the positive one is named, from the first label that is another word.

    None where the labels are indices, or where 0, 1 or a word for no names the positive class: then ``prob`` stays
    the probability of class 1.
    """
    positive, plain = reading.positive, Labels(2)
    if positive is None or positive == "1" or plain.meaning(positive) == 0 or reading.labels_are == "indices":
        return None
    for part in parts:
        for label in map(str, part.labels):
            if label == positive or is_missing(label):
                continue
            indices = plain.meaning(positive) is None and plain.meaning(label) is not None
            return None if indices else [label, positive]
    return [f"not {positive}", positive]


def _check_positive(source: Source, reading: Reading) -> None:
    from macc.metrics._positive import positive_index

    if source.num_classes != 2:
        raise ValueError(
            f"{shown(source.path)} has {source.num_classes} classes, and --positive picks one of two; leave it out"
        )
    # Another file of the same command may have the names that this one lacks.
    if source.classes is not None or len(reading.beside) < 2:
        positive_index(reading.positive, source.classes or ["0", "1"])


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


def _open_parquet(path: Path, reading: Reading) -> Source:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{shown(path)}: reading .parquet needs pyarrow; install it with pip install 'macc-torch[parquet]'"
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
    label_column = reading.label_column
    listed_names = [
        name for name in ("probs", "logits") if name in schema.names and _is_list(schema.field(name).type)
    ]
    declare_logits = "add --logits"
    if len(listed_names) == 2:
        raise ValueError(f"{shown(path)} has both 'probs' and 'logits'; keep the one to be measured")
    if listed_names:
        if reading.labelled:
            _need_label(path, schema.names, label_column)
        names, width = None, _list_width(path, opened, listed_names[0])
        declare_logits = "rename the column to 'logits'"
        if reading.logits and listed_names == ["probs"]:
            raise ValueError(
                f"{shown(path)} has 'probs', and --logits says they are logits; {declare_logits}"
            )
        reading = replace(reading, logits=listed_names == ["logits"])
        wanted = listed_names
    else:
        columns, _ = _columns(path, schema.names, reading)
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
        _check_meaning(path, names, reading)
    if num_rows == 0:
        raise ValueError(f"{shown(path)} has no samples")
    two = width == 1
    beside = (
        [label_column] if reading.labelled else [name for name in schema.names if name not in set(wanted)]
    )

    def read() -> Iterator[Raw]:
        size = max(1, min(_MOST_ROWS, _BATCH_ELEMENTS // width))
        file = opened()
        try:
            for part in file.iter_batches(batch_size=size, columns=[*wanted, *beside], use_threads=False):
                if listed_names:
                    scores = _list_values(path, part.column(listed_names[0]), width)
                else:
                    scores = np.column_stack([_numbers(part.column(name)) for name in wanted])
                scores = scores[:, 0] if two else scores
                if reading.labelled:
                    yield Raw(scores, _arrow_labels(part.column(label_column), names), {})
                else:
                    yield Raw(scores, [], {name: part.column(name) for name in beside})
        except (arrow.ArrowException, OSError) as error:
            raise _unreadable(path, error) from None
        finally:
            file.close()

    def place(row: int) -> str:
        return f"row {row + 1}"

    return _of_columns(
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


def _arrow_labels(column: Any, classes: list[str] | None) -> "npt.NDArray[Any] | list[str]":
    """Whole numbers as they are, anything else, and numbers that may name classes, as text, as in a ``.csv``."""
    from pyarrow import types

    names = any(name.lstrip("+-")[:1].isdigit() for name in classes or ())
    if types.is_integer(column.type) and column.null_count == 0 and not names:
        values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values
    return ["" if value is None else str(value).strip() for value in column.to_pylist()]


def _need_label(path: Path, header: Sequence[str], label_column: str) -> None:
    if label_column not in header:
        raise ValueError(
            f"{shown(path)} has no column {quoted(label_column)}; its columns are {listed(list(header))}, "
            "and --label-column names another"
        )


def _columns(path: Path, header: list[str], reading: Reading) -> tuple[list[int], int | None]:
    """Which columns are classes, and which one has the labels, if they are to be read."""
    if reading.labelled:
        _need_label(path, header, reading.label_column)
    _check_once(path, header, "the column")
    ignored = set(_chosen(path, header, reading.ignore, "--ignore"))
    classes = _chosen(path, header, reading.class_columns, "--class-columns")
    for name in (*ignored, *classes):
        if name == reading.label_column:
            option = "--ignore" if name in ignored else "--class-columns"
            raise ValueError(f"{shown(path)}: {quoted(name)} has the labels; take it out of {option}")
    named = bool(classes)
    if not named:
        classes = [name for name in header if name != reading.label_column]
    classes = [name for name in classes if name not in ignored]
    for name in classes:
        if name in _INDEX_COLUMNS and not named:
            raise ValueError(
                f"{shown(path)}: the column {quoted(name)} looks like the index of a data frame and would count as a "
                f"class; leave it out with --ignore {quoted(name)}, or write the file with index=False"
            )
    if not classes:
        raise ValueError(
            f"{shown(path)} has no column of probabilities beside {quoted(reading.label_column)}"
        )
    if len(classes) == 1 and classes[0] not in ("prob", "logit") and not named:
        raise ValueError(
            f"{shown(path)} has one column of scores, {quoted(classes[0])}; for two classes call it 'prob' "
            "(the probability of class 1), otherwise give one column for each class"
        )
    places = {name: i for i, name in enumerate(header)}
    return [places[name] for name in classes], places[reading.label_column] if reading.labelled else None


def _chosen(path: Path, header: list[str], given: Sequence[str], option: str) -> list[str]:
    """The columns that an option names, each once, in its order."""
    known = set(header)
    found: dict[str, None] = {}
    for words in given:
        for word in [words] if words in known else words.split(","):
            word = word if word in known else word.strip()
            names = [word] if word in known else [name for name in header if fnmatchcase(name, word)]
            if not names:
                raise ValueError(
                    f"{shown(path)} has no column {quoted(word)} for {option}; its columns are {listed(header)}"
                )
            found.update(dict.fromkeys(names))
    return list(found)


def _check_once(path: Path, names: Sequence[str], what: str) -> None:
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{shown(path)}: {what} {quoted(twice)} appears twice")


def _check_meaning(path: Path, names: list[str] | None, reading: Reading) -> None:
    """Refuse names of classes that leave open what a label means."""
    decided = reading.labels_are is not None or not reading.labelled
    unclear = None if names is None or decided else Labels.ambiguous(names)
    if unclear is not None:
        raise ValueError(
            f"{shown(path)}: a label {shown(unclear)} could mean the column {quoted(unclear)} or the class of index "
            f"{shown(unclear)}; say which with --labels-are names or --labels-are indices"
        )


def _name(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def read_variance(path: Path, loaded: Loaded) -> Array | None:
    """The variance of the logits of loaded samples, which an ``.npz`` of ``macc predict --moments`` has."""
    moments = read_npz(path, {"mean", "variance"}) if path.suffix.lower() == ".npz" else {}
    if len(moments) < 2:
        return None
    found = moments["variance"]
    if found.dtype.kind != "f":
        raise ValueError(
            f"{shown(path)}: variance holds values of type {found.dtype}, not floating-point numbers"
        )
    # Fewer rows than samples are refused by the metrics, which name both shapes.
    return found if loaded.rows is None or len(found) <= loaded.rows.max() else found[loaded.rows]

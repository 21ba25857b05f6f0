"""Which columns of a table are classes or labels, and what names of classes mean."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from macc.metrics.correctness import CLASSES
from macc.predictions.labels import Labels, is_missing
from macc.predictions.reading import Reading, decided
from macc.predictions.refusals import FileWords
from macc.predictions.source import Batch, Raw, Source
from macc.words import listed, quoted, shown

# What pandas calls the index of a data frame in a file.
_INDEX_COLUMNS = ("", "Unnamed: 0", "__index_level_0__")


def of_answers(path: Path, header: Sequence[str], reading: Reading) -> Reading:
    """How to read a table of answers: ``confidence`` and ``correct``, no column of labels."""
    chosen = reading.class_columns or reading.logits or reading.label_column in header
    if not reading.answers or chosen or not {"confidence", "correct"} <= set(header):
        return replace(reading, answers=False)
    if reading.positive is not None:
        raise ValueError(
            f"{shown(path)} has 'confidence' and 'correct', the probability of a right answer; leave --positive out"
        )
    return replace(reading, label_column="correct", class_columns=("confidence",))


def columns_of(path: Path, header: list[str], reading: Reading) -> tuple[list[int], int | None]:
    """Which columns are classes, and which one has the labels, if they are to be read."""
    if reading.labelled:
        need_label(path, header, reading.label_column)
    check_once(path, header, "the column")
    ignored = {*chosen(path, header, reading.ignore, "--ignore"), *reading.carry}
    classes = chosen(path, header, reading.class_columns, "--class-columns")
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


def of_columns(
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
    if reading.answers:
        words = replace(words, classes=CLASSES)
    elif width == 1 and reading.labelled:
        names = _two_words(reading, read())
        words = replace(words, classes=names)
        labels_are = labels_are if names is None else "names"

    def labelled() -> Iterator[Batch]:
        labels = reading.labels(num_classes, names, labels_are)
        return decided(path, words, labels, read(), reading.weight_column)

    shown_names = CLASSES if reading.answers else names
    return Source(
        path,
        num_rows,
        num_classes,
        shown_names,
        words,
        reading.logits,
        suspect,
        columns,
        labelled,
        read,
        reading.answers,
        weight_column=reading.weight_column,
    )


def _two_words(reading: Reading, parts: Iterator[Raw]) -> list[str] | None:
    """The names of two classes, one of them positive, from the first label that is another.

    None where the labels are indices, or where 0, 1 or a word for no names the positive class: then
    ``prob`` stays the probability of class 1.
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


def need_carried(path: Path, header: Sequence[str], reading: Reading) -> None:
    """Refuse a table without a column that has to come along."""
    for name in reading.carry:
        if name not in header:
            raise ValueError(
                f"{shown(path)} has no column {quoted(name)}; its columns are {listed(list(header))}"
            )
        if name == reading.weight_column and name == reading.label_column:
            raise ValueError(
                f"{shown(path)}: {quoted(name)} has the labels; --weight-column names another column"
            )


def need_label(path: Path, header: Sequence[str], label_column: str) -> None:
    """Refuse a table without its column of labels."""
    if label_column not in header:
        raise ValueError(
            f"{shown(path)} has no column {quoted(label_column)}; its columns are {listed(list(header))}, "
            "and --label-column names another"
        )


def chosen(path: Path, header: list[str], given: Sequence[str], option: str) -> list[str]:
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


def check_once(path: Path, names: Sequence[str], what: str) -> None:
    """Refuse a name that appears twice."""
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{shown(path)}: {what} {quoted(twice)} appears twice")


def check_meaning(path: Path, names: list[str] | None, reading: Reading) -> None:
    """Refuse names of classes that leave open what a label means."""
    decided = reading.labels_are is not None or not reading.labelled
    unclear = None if names is None or decided else Labels.ambiguous(names)
    if unclear is not None:
        raise ValueError(
            f"{shown(path)}: a label {shown(unclear)} could mean the column {quoted(unclear)} or the class of index "
            f"{shown(unclear)}; say which with --labels-are names or --labels-are indices"
        )

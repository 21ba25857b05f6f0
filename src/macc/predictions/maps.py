"""Maps of dense prediction in files: ``.npz``, ``.npy``, and folders with an ``.npy`` for each
image.

Maps are never read whole: a few images at a time are, whatever the file holds.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from macc.io.arrays import Pieces, npy_header, npy_pieces, open_npz, read_npy
from macc.metrics.dense import maps_at_once, num_at_once
from macc.metrics.refusals import InputError
from macc.predictions.array_files import class_names, scores_key
from macc.predictions.reading import Reading, check_file
from macc.predictions.refusals import FileWords, rows_only
from macc.predictions.source import Loaded
from macc.words import quoted, shown

_LAYOUT = (
    "a folder of maps has 'logits' or 'probs' with an .npy (K, H, W) for each image, and 'labels' with an "
    ".npy (H, W) of the same name"
)


class MapBatch(NamedTuple):
    """Some images: scores ``(N, K, H, W)``, labels ``(N, H, W)``, the number of the first."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    first: int


@dataclass(frozen=True)
class Maps:
    """Maps in a file or folder, opened and not read yet.

    ``names`` are those of the images of a folder. ``ignore_index`` is the label of pixels to leave
    out.
    """

    path: Path
    num_rows: int
    """How many images there are."""
    num_classes: int
    classes: list[str] | None
    words: FileWords
    from_logits: bool
    batches: Callable[[], Iterator[MapBatch]]
    ignore_index: int | None = None
    names: tuple[str, ...] | None = None
    answers: bool = False
    dense: bool = True

    def load(self, **_options: bool) -> Loaded:
        """Refused: maps are read in batches, however few they are."""
        raise ValueError(rows_only(self.path))

    def place(self, image: int) -> str:
        """Where an image stands: ``maps.npz, image 7``."""
        return f"{shown(self.path)}, {self.words.place(image)}"

    def refusal(self, error: ValueError, first: int) -> ValueError:
        """What is wrong with images from ``first`` on, in the words of the file."""
        if not isinstance(error, InputError):
            return ValueError(f"{shown(self.path)}: {error}")
        return error.after(first).said_of(self.path, self.words)


def holds_maps(path: Path) -> bool:
    """Whether a file has maps and not rows, by its shape; a folder has nothing else."""
    if path.is_dir():
        return True
    check_file(path)
    kind = path.suffix.lower()
    if kind == ".npy":
        return len(npy_header(path)[0]) >= 4
    if kind != ".npz":
        return False
    with open_npz(path) as members:
        return any(len(members.header(name)[0]) >= 4 for name in ("probs", "logits") if name in members.names)


def open_maps(path: Path, labels: Path | None, reading: Reading, ignore_index: int | None) -> Maps:
    """Open maps; reading them says what is wrong with their values.

    Args:
        path: An ``.npz`` with ``probs`` or ``logits`` ``(N, K, H, W)`` and ``labels``
            ``(N, H, W)``, an ``.npy`` with a second one of labels, or a folder.
        labels: The labels of an ``.npy``.
        reading: How to read it.
        ignore_index: The label of pixels to leave out.
    """
    if path.suffix.lower() != ".npy" and labels is not None:
        raise ValueError(f"{shown(path)} holds its labels itself; leave {shown(labels)} out")
    for option, given in (
        ("--class-columns", reading.class_columns),
        ("--ignore", reading.ignore),
        ("--labels-are", reading.labels_are),
        ("--drop-missing", reading.drop_missing),
    ):
        if given:
            raise ValueError(f"{shown(path)} has maps, and {option} is for rows; leave it out")
    if path.is_dir():
        return _open_folder(path, reading, ignore_index)
    if path.suffix.lower() == ".npz":
        return _open_npz(path, reading, ignore_index)
    return _open_npy(path, labels, reading, ignore_index)


def _open_npz(path: Path, reading: Reading, ignore_index: int | None) -> Maps:
    with open_npz(path) as members:
        key = scores_key(path, members, reading)
        shape = _check_kinds(path, key, members.header(key), members.header("labels"))
        classes = class_names(path, members, shape[1])

    def batches() -> Iterator[MapBatch]:
        with open_npz(path) as members, members.pieces(key) as maps, members.pieces("labels") as labels:
            yield from _in_turn(maps, labels)

    words = FileWords(declare_logits="rename the key to 'logits'", classes=classes, place=_numbered)
    return Maps(path, shape[0], shape[1], classes, words, key == "logits", batches, ignore_index)


def _open_npy(path: Path, labels: Path | None, reading: Reading, ignore_index: int | None) -> Maps:
    if labels is None:
        raise ValueError(f"{shown(path)}: an .npy holds the scores only; name a second .npy with the labels")
    check_file(labels)
    if labels.suffix.lower() != ".npy":
        raise ValueError(f"{shown(labels)}: the labels of an .npy must be an .npy too")
    shape = _check_kinds(path, "probs", npy_header(path), npy_header(labels))

    def batches() -> Iterator[MapBatch]:
        with npy_pieces(path) as maps, npy_pieces(labels) as answers:
            yield from _in_turn(maps, answers)

    words = FileWords(declare_logits="add --logits", place=_numbered)
    return Maps(path, shape[0], shape[1], None, words, reading.logits, batches, ignore_index)


def _open_folder(path: Path, reading: Reading, ignore_index: int | None) -> Maps:
    kinds = [name for name in ("logits", "probs") if (path / name).is_dir()]
    if not kinds or not (path / "labels").is_dir():
        raise ValueError(f"{shown(path)} is a folder, and not one of maps: {_LAYOUT}")
    if len(kinds) == 2:
        raise ValueError(
            f"{shown(path)} has both 'logits' and 'probs'; keep the folder that is to be measured"
        )
    key = kinds[0]
    if reading.logits and key == "probs":
        raise ValueError(
            f"{shown(path)} has 'probs', and --logits says they are logits; rename the folder to 'logits'"
        )
    names = _arrays_in(path / key)
    if not names:
        raise ValueError(f"{shown(path / key)} has no .npy; {_LAYOUT}")
    apart = sorted(set(names) ^ set(_arrays_in(path / "labels")))
    if apart:
        there, missing = (key, "labels") if apart[0] in names else ("labels", key)
        raise ValueError(
            f"{shown(path / there)} has {quoted(apart[0])} and {shown(path / missing)} has not; "
            "they must pair up"
        )

    def read(name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        parts = path / key / name, path / "labels" / name
        for part in parts:
            check_file(part)
        shape = _check_kinds(parts[0], key, *(_one_more(npy_header(part)) for part in parts))
        if shape[1] != num_classes:
            raise ValueError(
                f"{shown(parts[0])} has {shape[1]} classes and {quoted(names[0])} has {num_classes}; "
                "make them agree"
            )
        return read_npy(parts[0]), read_npy(parts[1])

    first = path / key / names[0]
    check_file(first)
    shape = npy_header(first)[0]
    if len(shape) < 3:
        raise ValueError(f"{shown(first)} must have shape (K, H, W), got {shape}")
    num_classes = int(shape[0])

    def batches() -> Iterator[MapBatch]:
        waiting: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        for at, name in enumerate(names):
            found = read(name)
            # Images of one size and type are measured together; others may follow.
            if waiting and (
                found[0].shape != waiting[0][0].shape
                or [part.dtype for part in found] != [part.dtype for part in waiting[0]]
                or len(waiting) == num_at_once(found[0].shape)
            ):
                yield _together(waiting, at)
                waiting = []
            waiting.append(found)
        yield _together(waiting, len(names))

    words = FileWords(
        declare_logits="rename the folder to 'logits'", place=lambda image: f"image {quoted(names[image])}"
    )
    return Maps(
        path, len(names), num_classes, None, words, key == "logits", batches, ignore_index, tuple(names)
    )


def _together(images: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]], end: int) -> MapBatch:
    scores, labels = (np.stack(part) for part in zip(*images, strict=True))
    return MapBatch(scores, labels, end - len(images))


def _in_turn(maps: Pieces, labels: Pieces) -> Iterator[MapBatch]:
    for some in maps_at_once(maps.shape):
        count = some.stop - some.start
        yield MapBatch(maps.take(count), labels.take(count), some.start)


def _arrays_in(folder: Path) -> list[str]:
    return sorted(
        each.name
        for each in folder.iterdir()
        if each.suffix.lower() == ".npy" and not each.name.startswith(".")
    )


def _one_more(header: tuple[tuple[int, ...], Any]) -> tuple[tuple[int, ...], Any]:
    """The header of an array that is one of several."""
    return (1, *header[0]), header[1]


def _check_kinds(
    path: Path, key: str, scores: tuple[tuple[int, ...], Any], labels: tuple[tuple[int, ...], Any]
) -> tuple[int, ...]:
    """The shape of the maps; arrays that cannot be maps are refused before any is read."""
    (shape, dtype), (answers, kind) = scores, labels
    if dtype.kind != "f":
        raise ValueError(f"{shown(path)}: {key} holds values of type {dtype}, not floating-point numbers")
    if kind.kind not in "biu":
        raise ValueError(f"{shown(path)}: labels of maps must be whole numbers, got values of type {kind}")
    if len(shape) < 4 or 0 in shape:
        raise ValueError(f"{shown(path)}: maps must have shape (N, K, H, W), got {shape}")
    if shape[1] < 2:
        raise ValueError(
            f"{shown(path)}: {key} has shape {shape}, one class; for two classes give a map of each"
        )
    if answers != (shape[0], *shape[2:]):
        raise ValueError(
            f"{shown(path)}: labels of {key} {shape} must have shape {(shape[0], *shape[2:])}, got {answers}"
        )
    return shape


def check_same_maps(one: Maps, a: MapBatch, two: Maps, b: MapBatch) -> None:
    """Refuse to compare images of other names or other labels."""
    if one.names is not None and two.names is not None and one.names != two.names:
        apart = sorted(set(one.names) ^ set(two.names))[0]
        there, missing = (one, two) if apart in one.names else (two, one)
        raise ValueError(
            f"{shown(there.path)} has {quoted(apart)} and {shown(missing.path)} has not; compare the same images"
        )
    if np.array_equal(a.labels, b.labels):
        return
    each = enumerate(zip_longest(a.labels, b.labels))
    image = a.first + next(
        at for at, (mine, theirs) in each if mine is None or not np.array_equal(mine, theirs)
    )
    raise ValueError(
        f"{one.place(image)}, and {two.place(image)}, disagree on labels; "
        "compare the same images in the same order"
    )


def _numbered(image: int) -> str:
    return f"image {image + 1}"

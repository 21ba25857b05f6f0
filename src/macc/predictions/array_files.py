"""Predictions in ``.npz`` and ``.npy``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.io.arrays import Array, Members, npy_header, open_npz, read_npy, read_npz
from macc.metrics.inputs import check_shape
from macc.predictions.columns import check_once
from macc.predictions.labels import MISSING, Labels
from macc.predictions.reading import Reading, check_file, indices, say_dropped, with_labels
from macc.predictions.refusals import FileWords, rows_only
from macc.predictions.source import Batch, Loaded, Raw, Source
from macc.predictions.weights import weights_of
from macc.words import listed, quoted, shown


def open_npz_file(path: Path, reading: Reading) -> Source:
    """Open an ``.npz``."""
    with open_npz(path) as members:
        names = members.names
        key = scores_key(path, members, reading)
        labelled = "labels" in names
        num_classes = _check_shapes(
            path, key, members.header(key), members.header("labels") if labelled else None
        )
        classes = class_names(path, members, num_classes)
        words = FileWords(declare_logits="rename the key to 'logits'", classes=classes)
        from_logits = key == "logits"
        if not reading.labelled:
            beside = {name: members.read(name) for name in names if name != key}
            return _unlabelled(path, words, members.read(key), num_classes, from_logits, beside)
        labels = members.read("labels")
        given = indices(path, words, _labels_of_array(path, reading, num_classes, classes, labels), labels)
        scores = members.read(key)
        others = _weights(path, members, reading.weight_column, len(scores))
    return _in_memory(path, words, scores, given, num_classes, from_logits, others, reading.weight_column)


def _weights(path: Path, members: Members, name: str | None, num_samples: int) -> dict[str, Array]:
    """The array of weights of an ``.npz``, by its name, if one was named."""
    if name is None:
        return {}
    if name not in members.names:
        raise ValueError(f"{shown(path)} has no key {quoted(name)}; it has {listed(sorted(members.names))}")
    shape, dtype = members.header(name)
    if shape != (num_samples,) or dtype.kind not in "biuf":
        raise ValueError(
            f"{shown(path)}: {quoted(name)} must hold a weight for each of {num_samples} samples, got shape {shape} of "
            f"type {dtype}"
        )
    return {name: members.read(name)}


def scores_key(path: Path, members: Members, reading: Reading) -> str:
    """Which array of an ``.npz`` has the scores: ``probs`` or ``logits``."""
    names = members.names
    found = listed(sorted(names))
    if "labels" not in names and reading.labelled:
        cure = (
            "; answers are columns of a .csv or .parquet" if {"confidence", "correct"} <= set(names) else ""
        )
        raise ValueError(f"{shown(path)} has no key 'labels'; it has {found}{cure}")
    if "probs" in names and "logits" in names:
        raise ValueError(f"{shown(path)} has both 'probs' and 'logits'; keep the one to be measured")
    if "probs" not in names and "logits" not in names:
        raise ValueError(f"{shown(path)} has neither 'probs' nor 'logits'; it has {found}")
    others = {other.suffix.lower() for other in reading.beside} - {".npz"}
    if reading.logits and "probs" in names and not others:
        raise ValueError(
            f"{shown(path)} has 'probs', and --logits says they are logits; rename the key to 'logits'"
        )
    return "logits" if "logits" in names else "probs"


def class_names(path: Path, members: Members, num_classes: int) -> list[str] | None:
    """The names in the array ``classes`` of an ``.npz``, if it has one."""
    if "classes" not in members.names:
        return None
    shape, dtype = members.header("classes")
    if shape != (num_classes,) or dtype.kind not in "USiu":
        raise ValueError(
            f"{shown(path)}: 'classes' must hold {num_classes} names, got shape {shape} of type {dtype}"
        )
    classes = [_name(value) for value in members.read("classes").tolist()]
    check_once(path, classes, "the class")
    return classes


def open_npy(path: Path, labels: Path | None, reading: Reading) -> Source:
    """Open an ``.npy`` of scores, and a second one of labels."""
    words = FileWords(declare_logits="add --logits")
    if reading.weight_column is not None and reading.labelled:
        raise ValueError(
            f"{shown(path)}: an .npy holds the scores only; weights are in a .csv, .parquet or .npz"
        )
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
    given = indices(labels, words, _labels_of_array(labels, reading, num_classes, None, answers), answers)
    others = {} if reading.labelled else {"labels": answers}
    return _in_memory(path, words, read_npy(path), given, num_classes, reading.logits, others)


def read_variance(path: Path, loaded: Loaded) -> Array | None:
    """The variance of loaded logits, in an ``.npz`` of ``macc predict --moments``."""
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


def _check_shapes(path: Path, key: str, scores: tuple[Any, Any], labels: tuple[Any, Any] | None) -> int:
    """The number of classes; arrays that cannot be predictions are refused before any is read."""
    shape, dtype = scores
    if dtype.kind not in "biuf":
        raise ValueError(f"{shown(path)}: {key} holds values of type {dtype}, not numbers")
    if len(shape) >= 4:
        raise ValueError(rows_only(path))
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
            "one-hot rows become indices with .argmax(1), and macc evaluate --multi-label measures several labels a sample"
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
    weight_column: str | None = None,
) -> Source:
    def read() -> Iterator[Batch]:
        weights = None if weight_column is None else weights_of(path, words, others[weight_column])
        batch = with_labels(scores, labels, 0, weights)
        yield batch
        say_dropped(path, len(labels) - len(batch.labels), len(labels))

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
        weight_column=weight_column,
    )


def _name(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)

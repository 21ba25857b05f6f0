"""A user's own arrays: frozen embeddings, tables or images, from ``.npz`` or ``.parquet``.

The name of an array says what it is, so nothing is guessed from shapes or values.
"""

import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from macc.data._datasets import dataset
from macc.data._images import eight_bit
from macc.data._parts import Normalisation, Part
from macc.data._splits import Kind, Splits, named_split, stratified_split, vocabulary
from macc.io.arrays import Array, read_npz
from macc.words import listed, quoted, shown

# More vectors than this do not fit into most memories; the largest vocabularies have about a
# million ids.
LARGEST_TOKEN = 10**7
# Images of more bytes than the first are refused where their files have a five-hundredth of that:
# drawings pack to a hundredth, and photographs to a tenth.
_MUCH, _PACKED = 2**30, 500
KINDS: dict[str, Kind] = {"features": "features", "images": "image", "tokens": "tokens"}
FORM = (
    "save `features` (N, D), `images` (N, H, W[, C]) or `tokens` (N, L) with `labels` (N,), "
    "for named splits as `train_features` with `train_labels` and so on"
)


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The arrays of one split, as they stand in the file."""

    inputs: Array
    labels: Array


@dataset(
    summary="your own .npz or .parquet of features, images or tokens: arrays:PATH",
    licence="yours",
    needs_path=True,
)
def arrays(
    path: str | PathLike[str],
    *,
    train: str = "train",
    val: str = "val",
    test: str = "test",
    cut: bool = True,
) -> Splits:
    """Your own arrays: an ``.npz`` or a ``.parquet`` file.

    In an ``.npz``, ``features`` ``(N, D)``, ``images`` ``(N, H, W)`` or ``(N, H, W, C)`` or
    ``tokens`` ``(N, L)`` stand beside ``labels`` ``(N,)``: class indices from 0 on without gaps, or
    names. Named splits are ``train_features`` with ``train_labels`` and so on; every further name
    becomes a shifted test set. ``classes`` may name the classes, those without a sample too.

    In a ``.parquet``, a row is a sample: ``label``; ``features`` or ``tokens`` (a list), ``image``
    (an encoded file, or bytes in a struct) or otherwise every numeric column as one feature;
    ``split`` if there are named ones.

    Where there is no test split, a seeded 20 % of the training samples of every class become one;
    where there is no validation split, a seeded 10 % of what is left. Features and channels are
    normalised by the training split's mean and standard deviation.

    Args:
        path: The file.
        train: Name of the training split in the file.
        val: Name of the validation split in the file; ``valid`` and ``validation`` are found too.
        test: Name of the test split in the file.
        cut: Whether splits that are not there are cut from the training samples. If not, all of
            these stand for them, in the order of the file: to be predicted, not to be trained on.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "embeddings.npz"
        ...     np.savez(file, features=np.ones((50, 8), "float32"), labels=np.arange(50) % 2)
        ...     arrays(file)
        Splits(embeddings: features (8,), 2 classes, 36 train, 4 val, 10 test)
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    readers = {".npz": _read_npz, ".parquet": _read_parquet}
    if file.suffix not in readers:
        raise ValueError(f"{file} must be an .npz or a .parquet file")
    kind, groups, names = readers[file.suffix](file)
    if train not in groups:
        raise ValueError(
            f"{file} has no split {train!r}, only {', '.join(groups)}; "
            f"say which one to train on: macc.data.arrays(path, train={next(iter(groups))!r})"
        )
    classes = _classes(file, {name: group.labels for name, group in groups.items()}, names)
    parts = {
        name: Part(inputs=_inputs(file, kind, group.inputs), labels=_labels(file, group.labels, classes))
        for name, group in groups.items()
    }
    fitted = parts.pop(train)
    whole = None if cut else fitted
    tested = parts.pop(test, whole)
    validation = named_split("val", {"train": train, "val": val, "test": test}, parts, file)
    validated = whole if validation is None else parts.pop(validation)
    if tested is None:
        chosen, rest = stratified_split(fitted.labels, 0.2)
        tested, fitted = fitted.take(chosen), fitted.take(rest)
    if validated is None:
        chosen, rest = stratified_split(fitted.labels, 0.1)
        validated, fitted = fitted.take(chosen), fitted.take(rest)
    return Splits(
        name=file.stem,
        kind=kind,
        classes=classes,
        train=fitted,
        val=validated,
        test=tested,
        shifts=parts,
        normalisation=None if kind == "tokens" else Normalisation.fit(fitted.inputs),
        vocabulary=vocabulary([fitted, validated, tested, *parts.values()]) if kind == "tokens" else None,
    )


def labelled(
    file: Path, found: dict[str, Array], names: tuple[str, ...]
) -> tuple[tuple[str, ...], dict[str, Part]]:
    """Class names and the parts ``names`` of an ``.npz`` file of features: exactly those, no more.

    Args:
        file: Where the arrays come from, for errors.
        found: All arrays of the file, by name.
        names: The parts there must be.
    """
    wanted = {f"{name}_{word}" for name in names for word in ("features", "labels")} | {"classes"}
    if missing := sorted(wanted - found.keys()):
        raise ValueError(f"{file} lacks {', '.join(missing)}; it must hold {', '.join(sorted(wanted))}")
    if unknown := sorted(found.keys() - wanted):
        raise ValueError(f"{file} holds {', '.join(unknown)}, which this data set does not have")
    labels = {name: found[f"{name}_labels"] for name in names}
    classes = _classes(file, labels, found["classes"])
    return classes, {
        name: Part(
            inputs=_inputs(file, "features", found[f"{name}_features"]),
            labels=_labels(file, labels[name], classes),
        )
        for name in names
    }


def _read_npz(file: Path) -> tuple[Kind, dict[str, _Group], Array | None]:
    found = read_npz(file)
    names = found.pop("classes", None)
    groups: dict[str, _Group] = {}
    kinds: set[Kind] = set()
    for word, kind in KINDS.items():
        for key in [key for key in found if key == word or key.endswith(f"_{word}")]:
            split = key.removesuffix(word).removesuffix("_") or "train"
            labels = found.pop(key.removesuffix(word) + "labels", None)
            if labels is None:
                raise ValueError(f"{file} has `{key}` and no `{key.removesuffix(word)}labels`; {FORM}")
            if split in groups:
                raise ValueError(f"{file} has inputs of two kinds for the split {split!r}; {FORM}")
            groups[split] = _Group(inputs=found.pop(key), labels=labels)
            kinds.add(kind)
    if found:
        raise ValueError(f"{file} holds {', '.join(map(repr, found))}, which macc cannot place; {FORM}")
    if not groups:
        raise ValueError(f"{file} holds no inputs; {FORM}")
    if len(kinds) > 1:
        raise ValueError(f"{file} mixes {' and '.join(sorted(kinds))}; all splits must hold the same")
    return kinds.pop(), groups, names


def _read_parquet(file: Path) -> tuple[Kind, dict[str, _Group], Array | None]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(f"reading {file} needs pyarrow: pip install 'macc-torch[parquet]'") from None
    try:
        table = parquet.read_table(file)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{file} is damaged, cut or not a .parquet file ({shown(error)})") from error
    if "label" not in table.column_names:
        raise ValueError(f"{file} has no column `label`; its columns are {listed(table.column_names)}")
    for name in ("label", "split"):
        if name in table.column_names and (empty := table.column(name).null_count):
            rows, them = ("row of {} has", "it") if empty == 1 else ("rows of {} have", "them")
            raise ValueError(f"{empty} {rows.format(file)} no `{name}`; fill {them} in or drop {them}")
    labels = table.column("label").to_numpy()
    splits = table.column("split").to_numpy() if "split" in table.column_names else None
    rest = table.drop_columns([name for name in ("label", "split") if name in table.column_names])
    inputs, kind = _parquet_inputs(file, rest)
    if splits is None:
        return kind, {"train": _Group(inputs=inputs, labels=labels)}, None
    names = [str(name) for name in dict.fromkeys(splits.tolist())]
    return (
        kind,
        {name: _Group(inputs=inputs[splits == name], labels=labels[splits == name]) for name in names},
        None,
    )


def _parquet_inputs(file: Path, table: Any) -> tuple[Array, Kind]:
    import pyarrow as pa

    for word, kind in (("features", "features"), ("tokens", "tokens")):
        if word in table.column_names:
            column = table.column(word).combine_chunks()
            if not hasattr(column, "value_lengths"):
                raise ValueError(
                    f"column `{word}` of {file} must hold a list in each row, got {column.type}; "
                    "rename it if it is one of several columns of numbers"
                )
            lengths = set(column.value_lengths().to_pylist())
            if len(lengths) != 1 or None in lengths:
                raise ValueError(
                    f"the lists in column `{word}` of {file} differ in length; each needs the same"
                )
            return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1), cast(
                "Kind", kind
            )
    if "image" in table.column_names:
        return _parquet_images(file, table.column("image").to_pylist()), "image"
    columns = {name: table.column(name) for name in table.column_names}
    wrong = [
        name
        for name, column in columns.items()
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    ]
    if wrong or not columns:
        raise ValueError(
            f"the columns {listed(wrong)} of {file} are no numbers; "
            "give lists in `features` or `tokens`, encoded files in `image`, or numeric columns only"
        )
    return np.stack([column.to_numpy().astype(np.float32) for column in columns.values()], axis=1), "features"


def _parquet_images(file: Path, rows: list[Any]) -> Array:
    """Encoded images of one size, ``(N, H, W, 3)``."""
    if not rows:
        return np.empty((0, 0, 0, 3), np.uint8)
    contents, sizes = list[bytes](), set()
    for row in rows:
        content = row.get("bytes") if isinstance(row, Mapping) else row
        if not isinstance(content, bytes):
            raise ValueError(
                f"column `image` of {file} must hold encoded images (bytes), got {type(content)}"
            )
        with _opened(file, content) as image:
            sizes.add((image.height, image.width))
        contents.append(content)
    if len(sizes) != 1:
        raise ValueError(
            f"the images in column `image` of {file} have {len(sizes)} sizes and need the same one; "
            "`folder:` brings images of any size to one"
        )
    shape = (len(contents), *sizes.pop(), 3)
    needed, packed = math.prod(shape), sum(map(len, contents))
    if needed > _MUCH and needed > _PACKED * packed:
        raise ValueError(
            f"the images in column `image` of {file} would take {needed / 2**30:.1f} GB from {packed:,} bytes; "
            "they are damaged, or made to fill the memory"
        )
    images = np.empty(shape, np.uint8)
    for into, content in zip(images, contents, strict=True):
        with _opened(file, content) as image:
            into[:] = np.asarray(eight_bit(image).convert("RGB"))
    return images


@contextmanager
def _opened(file: Path, content: bytes) -> Iterator[Any]:
    """An encoded image of a file; what goes wrong with it is said of the file."""
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(
            f"decoding the images of {file} needs Pillow: pip install 'macc-torch[data]'"
        ) from None
    try:
        with Image.open(io.BytesIO(content)) as image:
            yield image
    # Pillow's plugins raise what they like on damaged files, and on files that would fill the
    # memory.
    except Exception as error:
        raise ValueError(
            f"an image in column `image` of {file} cannot be decoded ({shown(error)})"
        ) from error


def _classes(file: Path, labels: Mapping[str, Array], names: Array | None) -> tuple[str, ...]:
    if names is not None:
        return _named_classes(file, names)
    if all(part.dtype.kind in "iu" for part in labels.values()):
        found = sorted({label for part in labels.values() for label in np.unique(part).tolist()})
        _check_gaps(file, found)
        return tuple(str(label) for label in found)
    return tuple(sorted({_text(file, name) for part in labels.values() for name in part.ravel().tolist()}))


def _named_classes(file: Path, names: Array) -> tuple[str, ...]:
    if names.ndim != 1:
        raise ValueError(f"`classes` in {file} must be one name for each class (K,), got {_form(names)}")
    classes = tuple(_name(name) for name in names.tolist())
    if len(set(classes)) < len(classes):
        twice, _ = Counter(classes).most_common(1)[0]
        raise ValueError(
            f"`classes` in {file} has {quoted(twice)} more than once; give each class its own name"
        )
    return classes


def _check_gaps(file: Path, found: list[int]) -> None:
    """An error where an index below the largest never occurs: nobody has that class."""
    missing = next((k for k, label in enumerate(found) if k != label), None)
    # What is below 0 is refused with its place.
    if missing is None or found[0] < 0:
        return
    shifted = found[-1] - found[0] == len(found) - 1
    cure = f"subtract {found[0]}" if shifted else "number the classes without gaps"
    other = "name all classes in `classes`" if file.suffix == ".npz" else "give names as labels"
    raise ValueError(
        f"the labels of {file} run from {found[0]} to {found[-1]} and {missing} never occurs; {cure}, or {other}"
    )


def _text(file: Path, name: object) -> str:
    if not isinstance(name, str | bytes):
        raise ValueError(f"the labels of {file} must be class indices or names, got {shown(repr(name))}")
    return _name(name)


def _name(name: object) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)


def _labels(file: Path, labels: Array, classes: tuple[str, ...]) -> Tensor:
    if labels.ndim != 1:
        raise ValueError(f"the labels of {file} must be one for each sample (N,), got {_form(labels)}")
    if labels.dtype.kind in "iu":
        # In the type of the file: as int64, the largest uint64 would be below 0.
        wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if len(wrong):
            raise ValueError(
                f"the labels of {file} must be class indices from 0 to {len(classes) - 1}, "
                f"got {labels[wrong[0]]} at index {wrong[0]}"
            )
        return torch.from_numpy(labels.astype(np.int64))
    index = {name: k for k, name in enumerate(classes)}
    found = [_text(file, name) for name in labels.tolist()]
    unknown = set(found) - index.keys()
    if unknown:
        raise ValueError(f"the label {min(unknown)!r} in {file} is not one of its `classes`")
    return torch.tensor([index[name] for name in found], dtype=torch.int64)


def _inputs(file: Path, kind: Kind, inputs: Array) -> Tensor:
    if 0 in inputs.shape[1:]:
        raise ValueError(
            f"the inputs of {file} hold no values, got {_form(inputs)}; give each sample one at least"
        )
    if kind == "features":
        if inputs.ndim != 2 or inputs.dtype.kind not in "fiu":
            raise ValueError(f"`features` in {file} must be numbers (N, D), got {_form(inputs)}")
        features = torch.from_numpy(inputs.astype(np.float32))
        if not features.isfinite().all():
            raise ValueError(f"`features` in {file} hold NaN or infinity; fill or drop those samples")
        return features
    if kind == "tokens":
        if inputs.ndim != 2 or inputs.dtype.kind not in "iu":
            raise ValueError(f"`tokens` in {file} must be whole numbers (N, L), got {_form(inputs)}")
        wrong = inputs[(inputs < 0) | (inputs > LARGEST_TOKEN)]
        if len(wrong):
            raise ValueError(
                f"`tokens` in {file} must be ids from 0 (padding) to {LARGEST_TOKEN}, got {wrong[0]}; number them anew: "
                "a model has a vector for each id up to the largest"
            )
        return torch.from_numpy(inputs.astype(np.int64))
    return _images(file, inputs)


def _images(file: Path, images: Array) -> Tensor:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim != 4 or not {images.shape[1], images.shape[3]} & {1, 3}:
        raise ValueError(
            f"`images` in {file} must be (N, H, W), (N, H, W, C) or (N, C, H, W) with one or three channels, "
            f"got {_form(images)}"
        )
    elif {images.shape[1], images.shape[3]} <= {1, 3}:
        raise ValueError(
            f"`images` in {file} may have their channels on either axis, got {_form(images)}; "
            "grey images can be saved as (N, H, W)"
        )
    elif images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(images))
    if images.dtype.kind != "f" or not (images.min() >= 0 and images.max() <= 1):
        raise ValueError(f"`images` in {file} must be uint8, or floats in [0, 1], got {_form(images)}")
    return torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))


def _form(array: Array) -> str:
    return f"{array.dtype} of shape {array.shape}"

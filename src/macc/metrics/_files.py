"""Predictions from files that nobody vouches for, and results written whole or not at all."""

import csv
import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_KINDS = ".npz, .npy or .csv"


@dataclass(frozen=True)
class Loaded:
    """Scores ``(N, K)`` or ``(N,)``, labels ``(N,)``, whether the scores are logits, and class names if known."""

    scores: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    from_logits: bool
    classes: list[str] | None

    def probs(self) -> npt.NDArray[Any]:
        """The scores as probabilities."""
        if not self.from_logits:
            return self.scores
        # Only logits need torch; reading files does not.
        from macc.metrics._inputs import predictions

        return predictions(self.scores, self.labels, from_logits=True).matrix().numpy()


def same_samples(path_a: Path, a: Loaded, path_b: Path, b: Loaded) -> None:
    """Refuse to compare predictions of other samples or other classes."""
    if len(a.labels) != len(b.labels):
        raise ValueError(
            f"{path_a} has {len(a.labels)} samples and {path_b} has {len(b.labels)}; compare the same samples"
        )
    if not np.array_equal(a.labels, b.labels):
        at = int(np.flatnonzero(np.ravel(a.labels) != np.ravel(b.labels))[0])
        raise ValueError(
            f"{path_a} and {path_b} disagree on the label of sample {at + 1}; compare the same samples in the same order"
        )
    if a.classes is not None and b.classes is not None and a.classes != b.classes:
        raise ValueError(
            f"{path_a} and {path_b} have other class columns, or in another order; make them agree"
        )


def load_predictions(
    path: Path, labels: Path | None = None, *, logits: bool = False, label_column: str = "label"
) -> Loaded:
    """Read predictions from an ``.npz``, an ``.npy`` with a second one of labels, or a ``.csv``.

    Args:
        path: The file.
        labels: The labels of an ``.npy``.
        logits: The scores are logits; an ``.npz`` says so by its key.
        label_column: Name of the column of labels in a ``.csv``.

    Returns:
        The predictions, as read; the metrics check their values.
    """
    _check_file(path)
    kind = path.suffix.lower()
    if kind not in (".npz", ".npy", ".csv"):
        raise ValueError(f"{path}: macc reads {_KINDS}, not {kind or 'a file without an ending'}")
    if kind == ".npy":
        if labels is None:
            raise ValueError(f"{path}: an .npy holds the scores only; name a second .npy with the labels")
        _check_file(labels)
        if labels.suffix.lower() != ".npy":
            raise ValueError(f"{labels}: the labels of an .npy must be an .npy too")
        return Loaded(_read_npy(path), _read_npy(labels), logits, None)
    if labels is not None:
        raise ValueError(f"{path}: a {kind} holds its labels itself; leave {labels} out")
    if kind == ".npz":
        return _read_npz(path, logits)
    return _read_csv(path, logits, label_column)


@contextmanager
def write_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when everything was written and reached the disk."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file to write")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist; create it first")
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; the result gets what any new file would.
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def write_json(path: Path, content: Any) -> None:
    """Write numbers as JSON, whole or not at all; what is not finite becomes null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [clean(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    with write_whole(path) as file:
        file.write(json.dumps(clean(content), indent=2).encode() + b"\n")


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file ({_KINDS})")
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if size == 0:
        raise ValueError(f"{path} is empty")


def _read_npy(path: Path) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        return _read_array(file, path.stat().st_size, str(path))


def _read_npz(path: Path, logits: bool) -> Loaded:
    arrays: dict[str, npt.NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            wanted = [key for key in ("probs", "logits", "labels") if f"{key}.npy" in members]
            found = ", ".join(sorted(name.removesuffix(".npy") for name in members)) or "nothing"
            for key in wanted:
                info = members[f"{key}.npy"]
                # Deflate packs a thousandfold at best, so a small file cannot hold what a header may ask for.
                if info.file_size > 1100 * min(info.compress_size, path.stat().st_size):
                    raise ValueError(
                        f"{path}: {key} claims {info.file_size} bytes, more than the archive can hold; write it anew"
                    )
                with archive.open(info) as file:
                    arrays[key] = _read_array(file, info.file_size, f"{path}: {key}")
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete .npz archive ({error}); write it anew") from None
    if "labels" not in arrays:
        raise ValueError(f"{path} has no key 'labels'; it has {found}")
    if "probs" in arrays and "logits" in arrays:
        raise ValueError(f"{path} has both 'probs' and 'logits'; keep the one to be measured")
    if "probs" not in arrays and "logits" not in arrays:
        raise ValueError(f"{path} has neither 'probs' nor 'logits'; it has {found}")
    if logits and "probs" in arrays:
        raise ValueError(f"{path} has 'probs', and --logits says they are logits; rename the key to 'logits'")
    key = "logits" if "logits" in arrays else "probs"
    return Loaded(arrays[key], arrays["labels"], key == "logits", None)


def _read_array(file: IO[bytes], size: int, name: str) -> npt.NDArray[Any]:
    """Read one array after checking that its header asks for no more than the file holds."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            raise ValueError(f"format {version[0]}.{version[1]} is not known")
        shape, fortran, dtype = read[version](file)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{name} is not a numpy array ({str(error).splitlines()[0]})") from None
    if dtype.hasobject:
        raise ValueError(
            f"{name} holds pickled Python objects, which can run code; save plain numbers instead"
        )
    if dtype.kind not in "biuf":
        raise ValueError(f"{name} holds values of type {dtype}, not numbers")
    count = 1
    for length in shape:
        count *= length
    needed = count * dtype.itemsize
    if needed > size:
        raise ValueError(
            f"{name}: its header promises {needed} bytes (shape {shape}), "
            f"and the file has only {size}; write it anew"
        )
    array = np.empty(count, dtype)
    room, filled = array.view(np.uint8).data, 0
    while filled < needed:
        data = file.read(min(needed - filled, 2**20))
        if not data:
            raise ValueError(f"{name} is cut short: {needed} bytes expected, {filled} found; write it anew")
        room[filled : filled + len(data)] = data
        filled += len(data)
    # The checksum of an archive's member is compared when its end is reached.
    file.read(1)
    return array.reshape(shape, order="F" if fortran else "C")


def _read_csv(path: Path, logits: bool, label_column: str) -> Loaded:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [name.strip() for name in next(rows, [])]
            columns, label_at = _csv_columns(path, header, label_column)
            names = [header[i] for i in columns]
            scores: list[list[float]] = []
            labels: list[str] = []
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ValueError(
                        f"{path}, line {rows.line_num}: {len(row)} fields where the header has {len(header)}"
                    )
                scores.append([_csv_number(path, rows.line_num, header[i], row[i]) for i in columns])
                labels.append(row[label_at].strip())
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save it as a plain .csv") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a readable .csv ({error})") from None
    if not scores:
        raise ValueError(f"{path} has a header and no samples")
    values = np.array(scores)
    two = len(columns) == 1
    classes = None if two else names
    return Loaded(values[:, 0] if two else values, _csv_labels(path, labels, classes), logits, classes)


def _csv_columns(path: Path, header: list[str], label_column: str) -> tuple[list[int], int]:
    if label_column not in header:
        raise ValueError(
            f"{path} has no column {label_column!r}; its columns are {', '.join(header[:12]) or 'none'}, "
            "and --label-column names another"
        )
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        raise ValueError(f"{path}: the column {min(twice)!r} appears twice")
    columns = [i for i, name in enumerate(header) if name != label_column]
    if not columns:
        raise ValueError(f"{path} has no column of probabilities beside {label_column!r}")
    if len(columns) == 1 and header[columns[0]] not in ("prob", "logit"):
        raise ValueError(
            f"{path} has one column of scores, {header[columns[0]]!r}; for two classes call it 'prob' "
            "(the probability of class 1), otherwise give one column for each class"
        )
    return columns, header.index(label_column)


def _csv_number(path: Path, line: int, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise ValueError(f"{path}, line {line}: {shown!r} in column {column!r} is not a number") from None


def _csv_labels(path: Path, labels: list[str], classes: list[str] | None) -> npt.NDArray[Any]:
    """Class names of the header where all labels are such names, otherwise class indices."""
    if classes is not None:
        index = {name: i for i, name in enumerate(classes)}
        if all(label in index for label in labels):
            return np.array([index[label] for label in labels])
    try:
        return np.array([int(label) for label in labels])
    except ValueError:
        pass
    for i, label in enumerate(labels):
        known = classes is not None and label in classes
        if not known and not label.lstrip("-").isdigit():
            options = "" if classes is None else f", nor one of the columns {', '.join(classes[:12])}"
            raise ValueError(f"{path}: the label {label!r} of sample {i + 1} is not a class index{options}")
    raise ValueError(f"{path} mixes class names and class indices in its labels; use one of them")

"""Predictions from files that nobody vouches for, and results written whole or not at all."""

import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

KINDS = ".npz, .npy, .csv or .parquet"


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


def same_samples(path_a: Path, a: Loaded, path_b: Path, b: Loaded, *, first: int = 0) -> None:
    """Refuse to compare predictions of other samples or other classes; ``first`` were compared before."""
    if len(a.labels) != len(b.labels):
        raise ValueError(
            f"{path_a} has {len(a.labels)} samples and {path_b} has {len(b.labels)}; compare the same samples"
        )
    if not np.array_equal(a.labels, b.labels):
        at = int(np.flatnonzero(np.ravel(a.labels) != np.ravel(b.labels))[0])
        raise ValueError(
            f"{path_a} and {path_b} disagree on the label of sample {first + at + 1}; compare the same samples in the same order"
        )
    if a.classes is not None and b.classes is not None and a.classes != b.classes:
        raise ValueError(
            f"{path_a} and {path_b} have other class columns, or in another order; make them agree"
        )


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


def check_file(path: Path) -> None:
    """Refuse what is not a file with something in it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file ({KINDS})")
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


def read_npy(path: Path) -> npt.NDArray[Any]:
    """The array of an ``.npy``."""
    with path.open("rb") as file:
        return _read_array(file, path.stat().st_size, str(path))


def read_npz(path: Path, logits: bool) -> Loaded:
    """The predictions of an ``.npz``."""
    arrays = read_arrays(path, {"probs", "logits", "labels"})
    found = ", ".join(sorted(array_names(path))) or "nothing"
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


def array_names(path: Path) -> list[str]:
    """What an ``.npz`` holds."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_arrays(path: Path, wanted: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Those of the wanted arrays that an ``.npz`` holds, each checked before memory is taken for it."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            for key in sorted(wanted):
                if f"{key}.npy" not in members:
                    continue
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
    return arrays


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

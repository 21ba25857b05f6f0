"""Reading ``.npz`` and ``.npy`` files that nobody has to trust: no pickles, and no memory for what is not there."""

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

Array = np.ndarray[Any, np.dtype[Any]]


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an ``.npz`` file, by name.

    An array's header is compared with the size of its bytes before anything is allocated, so that a file
    of a kilobyte cannot ask for terabytes; arrays of Python objects are refused.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.npz"
        ...     np.savez(path, labels=np.arange(3))
        ...     read_npz(path)
        {'labels': array([0, 1, 2])}
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                entry.filename.removesuffix(".npy"): _read_entry(archive, entry, path)
                for entry in archive.infolist()
            }
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, cut or not an .npz file ({error})") from error


def open_npy(path: Path) -> Array:
    """The array of an ``.npy`` file, mapped into memory; the file stays as it is.

    Its header is compared with the size of the file first; arrays of Python objects are refused.
    """
    try:
        with path.open("rb") as file:
            shape, _, dtype = _header(file)
            expected, present = math.prod(shape) * dtype.itemsize, path.stat().st_size - file.tell()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is damaged or not an .npy file ({error})") from error
    if dtype.hasobject:
        raise ValueError(f"{path} holds Python objects, which are never loaded")
    if expected != present:
        raise ValueError(
            f"{path} says it has {expected} bytes of data and has {present}; it is damaged or cut"
        )
    # Copy on write: torch wants memory it may write to.
    return np.load(path, mmap_mode="c" if expected else None, allow_pickle=False)  # type: ignore[no-any-return]


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return read_header(file)


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Array:
    what = f"the array {entry.filename.removesuffix('.npy')!r} in {path}"
    if not entry.filename.endswith(".npy"):
        raise ValueError(f"{path} holds {entry.filename!r}, which is not an array; write it with numpy.savez")
    with archive.open(entry) as file:
        try:
            shape, fortran, dtype = _header(file)
        except ValueError as error:
            raise ValueError(f"the header of {what} is damaged ({error})") from error
        if dtype.hasobject:
            raise ValueError(
                f"{what} holds Python objects, which are never loaded; save numbers or text (dtype U)"
            )
        expected, present = math.prod(shape) * dtype.itemsize, entry.file_size - file.tell()
        if expected != present:
            raise ValueError(
                f"{what} says it has {expected} bytes of data and has {present}; the file is damaged or cut"
            )
        content = file.read()
        if len(content) != expected:
            raise ValueError(
                f"{what} ends after {len(content)} of {expected} bytes; the file is damaged or cut"
            )
    # Over a bytearray the array is writable, as torch wants it, without a second copy.
    return np.ndarray(shape, dtype=dtype, buffer=bytearray(content), order="F" if fortran else "C")

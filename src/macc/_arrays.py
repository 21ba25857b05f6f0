"""Reading ``.npz`` and ``.npy`` files that nobody has to trust: no pickles, and no memory for what is not there."""

import math
import sys
import zipfile
import zlib
from collections.abc import Collection
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

Array = np.ndarray[Any, np.dtype[Any]]
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
UNREADABLE = (zipfile.BadZipFile, zlib.error, LZMAError, OSError)
# Deflate packs a thousandfold at best, so a small file cannot hold what its directory may claim.
DEFLATE = 1100
DIMENSIONS = 32


def read_npz(path: Path, wanted: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an ``.npz`` file, by name.

    An array's header is compared with the size of its bytes before anything is allocated, so that a file
    of a kilobyte cannot ask for terabytes; arrays of Python objects are refused.

    Args:
        path: The file.
        wanted: Which to read, where they are there; all if not given, and then nothing else may be in the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.npz"
        ...     np.savez(path, labels=np.arange(3))
        ...     read_npz(path)
        {'labels': array([0, 1, 2])}
    """
    arrays: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if wanted is not None and (name not in wanted or name == entry.filename):
                    continue
                if name == entry.filename:
                    raise ValueError(
                        f"{path} holds {entry.filename!r}, which is not an array; write it with numpy.savez"
                    )
                what = f"the array {name!r} in {path}"
                if entry.file_size > DEFLATE * min(entry.compress_size, path.stat().st_size):
                    raise ValueError(
                        f"{what} claims {entry.file_size} bytes, more than the file can hold; write it anew"
                    )
                with archive.open(entry) as file:
                    arrays[name] = _read(file, entry.file_size, what)
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (*UNREADABLE, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, cut or not an .npz file ({error}); write it anew") from error
    return arrays


def names_in(path: Path) -> list[str]:
    """What an ``.npz`` file holds."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npy(path: Path) -> Array:
    """The array of an ``.npy`` file, in memory."""
    with path.open("rb") as file:
        return _read(file, path.stat().st_size, str(path))


def open_npy(path: Path) -> Array:
    """The array of an ``.npy`` file, mapped into memory; the file stays as it is."""
    try:
        with path.open("rb") as file:
            shape, _, dtype = _header(file, path.stat().st_size, str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    # Copy on write: torch wants memory it may write to. What is empty cannot be mapped.
    some = math.prod(shape) * dtype.itemsize > 0
    return np.load(path, mmap_mode="c" if some else None, allow_pickle=False)  # type: ignore[no-any-return]


def _header(file: IO[bytes], size: int, what: str) -> Header:
    """What an array is, after checking that as many bytes follow in the ``size`` of its file."""
    try:
        version = npy.read_magic(file)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"format {version[0]}.{version[1]} is not known")
        shape, fortran, dtype = readers[version](file)
        if (
            not all(type(length) is int and 0 <= length <= sys.maxsize for length in shape)
            or len(shape) > DIMENSIONS
        ):
            raise ValueError(f"it has the shape {shape}")
        if dtype.itemsize == 0 or dtype.subdtype is not None:
            raise ValueError(f"it holds values of type {dtype}")
    except UNREADABLE:
        raise
    # A header is a line of Python; numpy's reader of it raises what it likes on a damaged one.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ValueError(f"{what} is damaged or not a numpy array ({reason})") from error
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects, which are never loaded; save plain numbers or text")
    expected, present = math.prod(shape) * dtype.itemsize, size - file.tell()
    if expected != present:
        raise ValueError(
            f"{what} is damaged or cut: its header promises {expected} bytes of data (shape {shape}) and it has "
            f"{present}; write it anew"
        )
    return shape, fortran, dtype


def _read(file: IO[bytes], size: int, what: str) -> Array:
    shape, fortran, dtype = _header(file, size, what)
    count = math.prod(shape)
    array = np.empty(count, dtype)
    room, filled = array.view(np.uint8).data if count * dtype.itemsize else memoryview(b""), 0
    # Bit by bit: what a damaged archive unpacks to is not held twice.
    while filled < len(room):
        data = file.read(min(len(room) - filled, 2**20))
        if not data:
            raise ValueError(f"{what} ends after {filled} of {len(room)} bytes; it is damaged or cut")
        room[filled : filled + len(data)] = data
        filled += len(data)
    # The checksum of an archive's member is compared when its end is reached.
    file.read(1)
    return array.reshape(shape, order="F" if fortran else "C")

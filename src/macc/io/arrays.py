"""Reading untrusted ``.npz`` and ``.npy``: no pickles, no memory for what is not there."""

import math
import sys
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from macc.io.writing import write_bytes
from macc.words import quoted, shown

Array = np.ndarray[Any, np.dtype[Any]]
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
UNREADABLE = (zipfile.BadZipFile, zlib.error, LZMAError, OSError)
# Deflate packs a thousandfold at best, so a small file cannot hold what its directory may claim.
DEFLATE = 1100
DIMENSIONS = 32


def read_npz(path: Path, wanted: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an ``.npz`` file, by name.

    An array's header is compared with the size of its bytes before anything is allocated, so that a
    file of a kilobyte cannot ask for terabytes; arrays of Python objects are refused.

    Args:
        path: The file.
        wanted: Which to read, where they are there; all if not given, and then nothing else may be
            in the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.npz"
        ...     np.savez(path, labels=np.arange(3))
        ...     read_npz(path)
        {'labels': array([0, 1, 2])}
    """
    with open_npz(path) as members:
        if wanted is None:
            members.check_all_arrays()
            wanted = members.names
        return {name: members.read(name) for name in members.names if name in wanted}


class Members:
    """The arrays in an open ``.npz`` file; what each is can be known before any is unpacked."""

    def __init__(self, path: Path, archive: zipfile.ZipFile):
        self._path = path
        self._archive = archive
        self._entries: dict[str, zipfile.ZipInfo] = {}
        self._others: list[str] = []
        room = DEFLATE * path.stat().st_size
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in self._entries:
                raise ValueError(f"{shown(path)} holds the array {quoted(name)} twice; write it anew")
            if name == entry.filename:
                self._others.append(name)
                continue
            room -= entry.file_size
            if entry.file_size > DEFLATE * entry.compress_size or room < 0:
                raise ValueError(
                    f"{self._what(name)} claims {entry.file_size} bytes, more than the file can hold; write it anew"
                )
            self._entries[name] = entry

    @property
    def names(self) -> list[str]:
        """The names of the arrays, in the order of the file."""
        return list(self._entries)

    def check_all_arrays(self) -> None:
        """Refuse a file that holds anything else."""
        if self._others:
            raise ValueError(
                f"{shown(self._path)} holds {quoted(self._others[0])}, which is not an array; "
                "write it with numpy.savez"
            )

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of an array, for the price of its first bytes."""
        with self._archive.open(self._entries[name]) as file:
            shape, _, dtype = _header(file, self._entries[name].file_size, self._what(name))
        return shape, dtype

    def read(self, name: str) -> Array:
        """An array."""
        with self._archive.open(self._entries[name]) as file:
            return _read(file, self._entries[name].file_size, self._what(name))

    @contextmanager
    def pieces(self, name: str) -> Iterator["Pieces"]:
        """An array, to be read a few entries at a time."""
        with self._archive.open(self._entries[name]) as file:
            yield Pieces(file, self._entries[name].file_size, self._what(name))

    def _what(self, name: str) -> str:
        return f"the array {quoted(name)} in {shown(self._path)}"


class Pieces:
    """An array in an open file that is read from its first entry to its last, a few at a time.

    Args:
        file: The file, at the array's beginning.
        size: How many bytes the array has with its header.
        what: The array in words, for errors.
    """

    def __init__(self, file: IO[bytes], size: int, what: str):
        self.shape, fortran, self.dtype = _header(file, size, what)
        if fortran and math.prod(self.shape[1:]) > 1:
            raise ValueError(
                f"{what} is in Fortran order and cannot be read in pieces; write it with numpy.ascontiguousarray"
            )
        self._file, self._what, self._left = file, what, self.shape[0] if self.shape else 1

    def take(self, count: int) -> Array:
        """The next entries along the first axis, as many as that."""
        array = np.empty((count, *self.shape[1:]), self.dtype)
        _fill(array.reshape(-1), self._file, self._what)
        self._left -= count
        if self._left <= 0:
            _compare_checksum(self._file)
        return array


@contextmanager
def open_npz(path: Path) -> Iterator[Members]:
    """Open an ``.npz`` file; within the block only its arrays should be read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "a.npz"
        ...     np.savez(path, labels=np.arange(3))
        ...     with open_npz(path) as members:
        ...         members.header("labels")[0]
        (3,)
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield Members(path, archive)
    except FileNotFoundError:
        raise ValueError(f"there is no file {shown(path)}") from None
    except (*UNREADABLE, EOFError, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{shown(path)} is damaged, cut or not an .npz file ({shown(error)}); write it anew"
        ) from error


def read_npy(path: Path) -> Array:
    """The array of an ``.npy`` file, in memory."""
    with path.open("rb") as file:
        return _read(file, path.stat().st_size, shown(path))


@contextmanager
def npy_pieces(path: Path) -> Iterator[Pieces]:
    """The array of an ``.npy`` file, to be read a few entries at a time."""
    with path.open("rb") as file:
        yield Pieces(file, path.stat().st_size, shown(path))


def npy_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array of an ``.npy`` file, for the price of its first bytes."""
    with path.open("rb") as file:
        shape, _, dtype = _header(file, path.stat().st_size, shown(path))
    return shape, dtype


def open_npy(path: Path) -> Array:
    """The array of an ``.npy`` file, mapped into memory; the file stays as it is."""
    try:
        with path.open("rb") as file:
            shape, _, dtype = _header(file, path.stat().st_size, shown(path))
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
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
        reason = shown((str(error).splitlines() or [type(error).__name__])[0])
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
    array = np.empty(math.prod(shape), dtype)
    _fill(array, file, what)
    _compare_checksum(file)
    return array.reshape(shape, order="F" if fortran else "C")


def _fill(array: Array, file: IO[bytes], what: str) -> None:
    """Read the numbers of a flat array."""
    room, filled = array.view(np.uint8).data if array.nbytes else memoryview(b""), 0
    # Bit by bit: what a damaged archive unpacks to is not held twice.
    while filled < len(room):
        data = file.read(min(len(room) - filled, 2**20))
        if not data:
            raise ValueError(f"{what} ends after {filled} of {len(room)} bytes; it is damaged or cut")
        room[filled : filled + len(data)] = data
        filled += len(data)


def _compare_checksum(file: IO[bytes]) -> None:
    """The checksum of an archive's member is compared when its end is reached."""
    file.read(1)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an uncompressed ``.npz``; equal arrays give equal bytes."""
    buffer = BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())

"""Files that are there whole or not at all."""

import hashlib
import os
import platform
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EACCES, EBADF, EDQUOT, EFBIG, EINVAL, ENOSPC, ENOTSUP
from pathlib import Path
from typing import IO

from macc.words import shown

try:
    import fcntl
except ImportError:  # there is none on Windows
    fcntl = None  # type: ignore[assignment]

SPARE_BYTES = 16 * 2**20
"""What a disk should have left after a file of a run was written."""

TEMPORARY = ".writing-"
"""What the names of unfinished files and folders begin with."""

# Locks are sure to hold among processes of one machine; a file of another one has to be old as
# well.
_HERE = TEMPORARY + hashlib.sha256(platform.node().encode()).hexdigest()[:8] + "-"
_OLD = 24 * 60 * 60


@contextmanager
def write_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for a user, whose mistakes in naming it are explained; see :func:`replacing`.

    In the block only this file should be read or written: whatever the system refuses there is said
    of it.
    """
    if path.is_dir():
        raise ValueError(f"{shown(path)} is a folder; name a file to write")
    if not path.parent.is_dir():
        raise ValueError(f"{shown(path)}: the folder {shown(path.parent)} does not exist; create it first")
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when everything was written and reached the
    disk.

    What killed processes left of such files in the folder is removed: a file that is being written
    is locked.
    """
    try:
        _remove_abandoned(path.parent)
        descriptor, lock, temporary = _locked_file(path.parent)
    except OSError as error:
        error.filename = str(path)  # and not the temporary name, which says nothing to a user
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; the result gets what any new file would. To read the mask is
        # to set it.
        mask = os.umask(0o077)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)  # a full disk does not say which file it had no room for
        raise
    finally:
        if lock is not None:
            os.close(lock)
    sync_folder(path.parent)


def _locked_file(folder: Path) -> tuple[int, int | None, Path]:
    """A new file to write to, a second descriptor that keeps its lock, and its name."""
    while True:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=_HERE)
        if fcntl is None:
            return descriptor, None, Path(name)
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another process may have taken it for abandoned before it was locked.
        if os.fstat(descriptor).st_nlink:
            return descriptor, os.dup(descriptor), Path(name)
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove files that nobody is writing any more."""
    found: list[Path] = []
    with suppress(OSError):  # a folder may be closed to readers
        found = [path for path in folder.iterdir() if path.name.startswith(TEMPORARY)]
    for path in found:
        with suppress(OSError):
            _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    if fcntl is None:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        # A folder belongs to whoever holds the lock of the folder above it.
        if not stat.S_ISREG(about.st_mode):
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.name.startswith(_HERE) or time.time() - about.st_mtime > _OLD:
            path.unlink()
    finally:
        os.close(descriptor)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse to write over a file that is read, or twice to one file.

    Args:
        outputs: The file that each option names.
        inputs: The files that are read.

    Example:
        >>> check_outputs({"--json": Path("a.json"), "--plot": Path("a.json")}, [Path("p.npz")])
        Traceback (most recent call last):
        ValueError: --plot a.json would overwrite what --json writes; give it another name
    """
    taken = {_place(path): "an input" for path in inputs if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        what = taken.setdefault(_place(path), f"what {option} writes")
        if what != f"what {option} writes":
            raise ValueError(f"{option} {shown(path)} would overwrite {what}; give it another name")


def _place(path: Path) -> tuple[int, int] | Path:
    """What tells whether two names mean one file, also through links."""
    try:
        about = path.stat()
    except OSError:
        return path.resolve()
    return about.st_dev, about.st_ino


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last, where the system can."""
    if os.name == "nt":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # Some file systems cannot, and a folder may be closed to readers; the file itself is there.
        if error.errno not in (EACCES, EBADF, EINVAL, ENOTSUP):
            raise


def remove_leftovers(folder: Path, *, below: bool = False) -> None:
    """Remove what a killed process began to write into a folder, ``below`` also inside it."""
    for path in (folder.rglob if below else folder.glob)(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader always sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_space(path.parent, len(content))
    with replacing(path) as file:
        file.write(content)


def check_room(folder: Path, size: int, what: str, cure: str) -> None:
    """Refuse to begin what a user could do elsewhere, or smaller.

    Args:
        folder: Where it would be written.
        size: How many bytes.
        what: What needs them, as the subject of a sentence.
        cure: What to do instead.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ValueError(
            f"{what} {size / 1e9:.1f} GB and {shown(folder)} has {free / 1e9:.1f} GB free; {cure}"
        )


def check_space(folder: Path, size: int) -> None:
    """Refuse to start writing what the disk has no room for, a little more included."""
    free = shutil.disk_usage(folder).free
    needed = size + SPARE_BYTES
    if free < needed:
        raise OSError(
            ENOSPC, f"{needed / 1e6:.1f} MB are needed and {free / 1e6:.1f} MB are free", str(folder)
        )


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """A full disk as one sentence that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT, EFBIG):
            raise
        raise ValueError(
            f"the disk of {folder} is full ({error.strerror}); nothing that was written is lost: "
            "free some space and give the same command again"
        ) from error

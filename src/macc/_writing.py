"""Files that are there whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EBADF, EINVAL, ENOTSUP
from pathlib import Path
from typing import IO

TEMPORARY = ".writing-"
"""What the names of unfinished files and folders begin with."""


@contextmanager
def write_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for a user, whose mistakes in naming it are explained; see :func:`replacing`.

    In the block only this file should be read or written: whatever the system refuses there is said of it.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file to write")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist; create it first")
    try:
        with replacing(path) as file:
            yield file
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when everything was written and reached the disk."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}.")
    except OSError as error:
        error.filename = str(path)  # and not the temporary name, which says nothing to a user
        raise
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; the result gets what any new file would. To read the mask is to set it.
        mask = os.umask(0o077)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


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
    """Remove what a killed process had begun to write into a folder, and with ``below`` into those in it."""
    for path in (folder.rglob if below else folder.glob)(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

"""Unpacking archives that nobody has to trust.

Only regular files and folders come out, below the folder asked for, under their final names only
once they are complete.
"""

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from macc.io.writing import check_room
from macc.words import quoted, shown

DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    EOFError,
    NotImplementedError,
    UnicodeDecodeError,
)
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def is_archive(path: Path) -> bool:
    """Whether the name says that it is an archive."""
    return path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, root: Path, *, only: str) -> None:
    """Unpack the folder ``only`` of an archive to ``root / only``; files already there stay."""
    with unpacked(archive, beside=root) as folder:
        found = folder / only
        if not found.is_dir():
            raise ValueError(f"{archive} holds no folder {only}; it is not the archive it should be")
        for path in found.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        target = root / only
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            found.replace(target)
            return
        for path in sorted(found.rglob("*")):
            wanted = target / path.relative_to(found)
            if path.is_file() and not wanted.exists():
                wanted.parent.mkdir(parents=True, exist_ok=True)
                path.replace(wanted)


@contextmanager
def unpacked(archive: Path, *, beside: Path) -> Iterator[Path]:
    """A temporary folder with the archive's files, on the disk of ``beside``; gone afterwards."""
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=beside) as name:
        folder = Path(name)
        try:
            _extract(archive, folder)
        except DAMAGE as error:
            raise ValueError(
                f"{archive} is damaged or cut ({shown(error)}); delete it and get it again"
            ) from error
        yield folder


def _extract(archive: Path, folder: Path) -> None:
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            for entry in entries:
                _check_name(archive, entry.filename)
                kind = stat.S_IFMT(entry.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or entry.flag_bits & 0x1:
                    raise ValueError(
                        f"{archive} holds a link or an encrypted file ({shown(entry.filename)}); refused"
                    )
            _check_room(archive, folder, sum(entry.file_size for entry in entries))
            for entry in entries:
                if not entry.is_dir():
                    with opened.open(entry) as source:
                        _write(source, folder / entry.filename, entry.file_size, archive)
        return
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            _check_name(archive, member.name)
            if not (member.isreg() or member.isdir()):
                raise ValueError(f"{archive} holds a link or a device ({shown(member.name)}); refused")
        _check_room(archive, folder, sum(member.size for member in members))
        for member in members:
            content = tar.extractfile(member)
            if content is not None:
                with content:
                    _write(content, folder / member.name, member.size, archive)


def _check_name(archive: Path, name: str) -> None:
    if not name:
        raise ValueError(f"{archive} holds an entry without a name; refused")
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name:
        raise ValueError(f"{archive} holds {quoted(name)}, a path that leads outside its folder; refused")


def _check_room(archive: Path, folder: Path, size: int) -> None:
    check_room(folder, size, f"{archive} unpacks to", "free some space, or unpack it where there is some")


def _write(source: IO[bytes], path: Path, size: int, archive: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as target:
        shutil.copyfileobj(source, target, 2**20)
        written = target.tell()
    if written != size:
        raise ValueError(
            f"{archive} is damaged or cut: {shown(path.name)} has {written} bytes of {size}; get it again"
        )

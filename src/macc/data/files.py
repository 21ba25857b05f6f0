"""Where data files are, what they must look like, and how missing ones get there."""

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from urllib.parse import urlsplit

from macc.data._archives import is_archive, unpack
from macc.data._progress import download_bar


class MissingFilesError(ValueError):
    """The files of a published data set are not there and could not be downloaded."""


def cache_folder() -> Path:
    """Where macc keeps what it can make again: ``$MACC_CACHE``, or a folder in the user's cache."""
    if given := os.environ.get("MACC_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "macc"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "macc"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "macc"


def data_root(root: str | PathLike[str] | None) -> Path:
    """The folder of data files: ``root``, else ``$MACC_DATA``, else one in the user's cache."""
    given = os.fspath(root) if root is not None else os.environ.get("MACC_DATA")
    return Path(given).expanduser() if given else cache_folder() / "data"


@dataclass(frozen=True, kw_only=True)
class Download:
    """A file on the network.

    Args:
        name: Its path below the data folder.
        url: Its address.
        md5: Its published checksum.
        megabytes: Its size, to tell people before they wait.
    """

    name: str
    url: str
    md5: str
    megabytes: int


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The files of one data set.

    Args:
        folder: The folder they lie in, below the data folder.
        files: Their names and MD5. A ``.gz`` may also lie there unpacked.
        downloads: What to download; archives unpack to ``folder``.
    """

    folder: str
    files: dict[str, str]
    downloads: tuple[Download, ...]

    def missing(self, root: Path) -> list[str]:
        """Names of the files that are not there."""
        folder = root / self.folder
        return [
            name
            for name in self.files
            if not (folder / name).is_file() and not (folder / name.removesuffix(".gz")).is_file()
        ]

    def prepare(self, name: str, root: Path, *, verify: bool) -> Path:
        """The folder with all files in it: as it is, from archives beside it, or downloaded."""
        folder = root / self.folder
        if not self.missing(root):
            return folder
        from filelock import FileLock

        lock, existed = root / f".{name}.lock", root.exists()
        try:
            root.mkdir(parents=True, exist_ok=True)
            with FileLock(lock):
                for wanted in self.downloads:
                    # Another process may have done it while this one waited for the lock.
                    if self.missing(root):
                        self._obtain(name, wanted, root, verify=verify)
        except OSError as error:
            raise ValueError(f"{root} cannot hold the files of {name}: {error}") from error
        finally:
            if not existed:
                _remove_if_empty(root, lock)
        if missing := self.missing(root):
            raise ValueError(
                f"{name} is incomplete: {folder} lacks {', '.join(missing)}; "
                f"delete that folder and {self.instruction(root)}"
            )
        return folder

    def _obtain(self, name: str, wanted: Download, root: Path, *, verify: bool) -> None:
        path = root / wanted.name
        is_archive = not wanted.name.startswith(f"{self.folder}/")
        if not path.is_file():
            if not is_archive and path.name not in self.missing(root):
                return
            download(name, wanted, root, otherwise=self.instruction(root))
        elif verify:
            check_md5(path, wanted.md5)
        if is_archive:
            unpack(path, root, only=self.folder)

    def status(self, root: Path) -> str:
        """Whether it is there, in a few words."""
        if not self.missing(root):
            return "yes"
        if all((root / wanted.name).is_file() for wanted in self.downloads):
            return "packed"
        return f"no, {_size(sum(wanted.megabytes for wanted in self.downloads))}"

    def place(self, root: Path) -> Path:
        """Where the files are, or will be."""
        return root / self.folder

    def instruction(self, root: Path) -> str:
        """What a person is to put where."""
        paths = [root / wanted.name for wanted in self.downloads]
        names = ", ".join(path.name for path in paths)
        if paths[0].parent == root and self.folder != ".":
            names += f" (or the unpacked folder {self.folder})"
        return f"put {names} into {paths[0].parent}"


@dataclass(frozen=True, kw_only=True)
class Copies:
    """What people hold under one of several names: a folder or file, or an archive of it.

    Args:
        names: Patterns of names below the data folder, the preferred first.
        origin: Where it comes from, for people who have to get it by hand.
        download: Where there is one file on the network with a published checksum.
    """

    names: tuple[str, ...]
    origin: str
    download: Download | None = None

    @classmethod
    def on_zenodo(cls, name: str, record: int, *, md5: str, megabytes: int) -> "Copies":
        """A folder whose archive ``<name>.tar`` a record of Zenodo has."""
        place, archive = f"zenodo.org/records/{record}", f"{name}.tar"
        url = f"https://{place}/files/{archive}"
        download = Download(name=archive, url=url, md5=md5, megabytes=megabytes)
        return cls(names=(name, archive), origin=place, download=download)

    def find(self, root: Path) -> Path | None:
        """The first that is there."""
        return next((path for name in self.names for path in sorted(root.glob(name))), None)

    def require(self, name: str, root: Path, *, verify: bool) -> Path:
        """The first that is there, checked if a checksum is published; else downloaded."""
        found = self.find(root)
        if found is None and self.download is not None:
            found, existed = root / self.download.name, root.exists()
            try:
                root.mkdir(parents=True, exist_ok=True)
                download(name, self.download, root, otherwise=self.instruction(root))
            finally:
                if not existed:
                    _remove_if_empty(root, root / f".{name}.lock")
        if found is None:
            raise MissingFilesError(
                f"{name} is not in {root}: {self.instruction(root)}, or say where it is with --data or $MACC_DATA; "
                f"it comes from {self.origin}"
            )
        if verify and self.download is not None and found.name == self.download.name:
            check_md5(found, self.download.md5)
        return found

    def require_folder(self, name: str, root: Path, *, only: str, verify: bool) -> Path:
        """The same, where an archive has to be unpacked: its folder ``only`` beside it."""
        found = self.require(name, root, verify=verify)
        if is_archive(found):
            try:
                unpack(found, root, only=only)
            except OSError as error:
                raise ValueError(
                    f"{root} cannot hold what {found.name} unpacks to: {error}; unpack it where there is room and say "
                    "so with --data or $MACC_DATA"
                ) from error
            return root / only
        return found

    def status(self, root: Path) -> str:
        """Whether it is there, in a few words."""
        found = self.find(root)
        if found is not None:
            return "packed" if is_archive(found) else "yes"
        return "no" if self.download is None else f"no, {_size(self.download.megabytes)}"

    def place(self, root: Path) -> Path:
        """Where it is, or should be."""
        return self.find(root) or root / self.names[0]

    def instruction(self, root: Path) -> str:
        """What a person is to put where."""
        return f"put {' or '.join(self.names)} into {root}"


def _size(megabytes: int) -> str:
    """The size of a download in three or four characters and a unit."""
    return f"{megabytes} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


def _remove_if_empty(root: Path, lock: Path) -> None:
    """After a failure, a folder that was made for nothing."""
    try:
        if not any(path.is_file() for path in root.rglob("*") if path != lock):
            shutil.rmtree(root)
    except OSError:
        pass  # a folder too many does no harm, and the error that matters is under way


def download(name: str, wanted: Download, root: Path, *, otherwise: str) -> None:
    """Fetch one file; its checksum is compared before it gets its name."""
    cure = f"{otherwise}, or say where it is with --data or $MACC_DATA; it comes from {wanted.url}"
    if os.environ.get("MACC_OFFLINE"):
        raise MissingFilesError(f"{name} is not in {root} and $MACC_OFFLINE forbids downloads: {cure}")
    try:
        import pooch
        import requests
    except ImportError:
        raise MissingFilesError(
            f"{name} is not in {root}: pip install 'macc-torch[data]' to let it be downloaded, or {cure}"
        ) from None
    pooch.get_logger().setLevel("ERROR")
    path = root / wanted.name
    try:
        with download_bar(f"{path.name} ({wanted.megabytes} MB)") as bar:
            pooch.retrieve(
                wanted.url,
                known_hash=f"md5:{wanted.md5}",
                fname=path.name,
                path=path.parent,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
            )
    except ValueError as error:
        raise ValueError(f"{wanted.url} is not the file it should be ({_one_line(error)}): {cure}") from error
    except requests.ConnectionError as error:
        host = urlsplit(wanted.url).hostname
        raise MissingFilesError(
            f"{name} is not in {root}, and there is no connection to {host}: {cure}"
        ) from error
    except OSError as error:
        raise MissingFilesError(
            f"{name} is not in {root} and could not be downloaded ({_one_line(error)}): {cure}"
        ) from error


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def check_md5(path: Path, expected: str) -> None:
    """An error unless the file has this MD5: a cut or changed file is never opened."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    _compare(path, found, expected)


def read_file(path: Path, *, md5: str | None) -> bytes:
    """The bytes of a file, checked against ``md5`` where one is given."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if md5 is not None:
        compare_md5(path, content, md5)
    return content


def compare_md5(path: Path, content: bytes, expected: str) -> None:
    """An error unless the content of a file has this MD5."""
    _compare(path, hashlib.md5(content, usedforsecurity=False).hexdigest(), expected)


def _compare(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(
            f"{path} is not the published file: its MD5 is {found}, expected {expected}; "
            "it may be cut or changed: delete it and get it again, or read it as it is with --no-verify (verify=False)"
        )

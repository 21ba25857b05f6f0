"""What any reader may do with any file: give a value, or refuse it in one printable line, soon and
in little memory.
"""

import ctypes
import gc
import random
import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fuzz.mutations import Mutator, bytes_of
from macc.words import shown

SECONDS = 20
MEMORY = 2**30
LONGEST = 1500  # a few texts of 200 characters and the sentence around them, with a long path


@dataclass(frozen=True)
class Reader:
    """A reader, sound files for it, and how these are spoiled.

    Args:
        prepare: Writes sound files into a folder.
        read: Reads them from there.
        mutators: How each file is spoiled, by a pattern of its name; files that match none stay
            sound.
        seal: Makes checksums fit what was spoiled, so that more than the checksum is tested.
    """

    prepare: Callable[[Path], object]
    read: Callable[[Path], object]
    mutators: dict[str, Mutator]
    seal: Callable[[Path], object] = lambda _: None


class TooSlowError(BaseException):
    """Not an Exception: no reader may take it for damage."""


def _status(name: str) -> int:
    """A size of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(found)


def _give_back() -> None:
    """Hand freed memory back to the system: ``macc train`` lets a process keep it, and a reader
    that fills kept memory would seem to use none.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc
        libc.malloc_trim(0)


@contextmanager
def limits() -> Iterator[None]:
    """An end after 20 seconds, and of the address space; what a reader may use of it is
    measured.
    """

    def stop(*_):
        raise TooSlowError

    before = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + 4 * MEMORY, before[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, previous)


def complaint(read: Callable[[], object]) -> str | None:
    """What is wrong with how a reader took a file; None if it gave a value or refused it well."""
    gc.collect()  # garbage of earlier tests that is freed meanwhile would hide what the reader uses
    _give_back()
    used, of_files = _status("VmRSS"), _status("RssFile")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
    wrong = _complaint(read)
    # So would pages of libraries that the system takes back.
    more = _status("VmHWM") - used + max(0, of_files - _status("RssFile"))
    return wrong or (f"it used {more >> 20} MB" if more > MEMORY else None)


def _complaint(read: Callable[[], object]) -> str | None:
    try:
        with limits(), warnings.catch_warnings(action="ignore"):
            read()
    except TooSlowError:
        return f"it took longer than {SECONDS} seconds"
    except ValueError as error:
        words = str(error)
        if not words or shown(words, None) != words:
            return f"its refusal is not one printable line: {words!r}"
        if len(words) > LONGEST:
            return f"its refusal has {len(words)} characters: {words[:300]!r}"
        if type(error) is not ValueError and not type(error).__module__.startswith("macc"):
            return f"its refusal is a {type(error).__module__}.{type(error).__name__}: {words!r}"
    except Exception as error:  # this is what is looked for
        where = traceback.extract_tb(error.__traceback__)
        own = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in where if "macc" in frame.filename]
        return f"{type(error).__name__} at {' '.join(own[-2:])}: {str(error)[:300]!r}"
    return None


def _spoiled(content: bytes, mutator: Mutator, draw: random.Random) -> bytes:
    """Where an earlier change left nothing to take apart, the next is a blind one."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return mutator(content, draw)
    except Exception:  # whatever the libraries raise that take it apart
        return bytes_of(content, draw)


class Workshop:
    """A folder with the sound files of a reader, spoiled one at a time."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self.reader, self.folder = reader, folder
        folder.mkdir(parents=True)
        reader.prepare(folder)
        self.sound = {
            path.relative_to(folder): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        self.targets = [
            (name, mutator)
            for name in self.sound
            for pattern, mutator in reader.mutators.items()
            if name.match(pattern)
        ]
        assert self.targets, f"no file matches {list(reader.mutators)}"

    def check_sound(self) -> None:
        """Sound files have to be read: otherwise nothing is tested."""
        with warnings.catch_warnings(action="ignore"):
            self.reader.read(self.folder)

    def attempt(self, seed: object) -> str | None:
        """Spoil one file by a seed, and say what is wrong with how it was taken."""
        draw = random.Random(str(seed))
        name, mutator = draw.choice(self.targets)
        content = self.sound[name]
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            content = _spoiled(content, mutator, draw)
        return self.with_content(name, content)

    def with_content(self, name: Path, content: bytes) -> str | None:
        """What is wrong with how a content in place of a file was taken."""
        place = self.folder / name
        place.write_bytes(content)
        try:
            self.reader.seal(self.folder)
            return complaint(lambda: self.reader.read(self.folder))
        finally:
            for each, sound in self.sound.items():
                (self.folder / each).write_bytes(sound)


@contextmanager
def workshop(reader: Reader) -> Iterator[Workshop]:
    """A workshop in a temporary folder with a short name."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    gc.collect()
    gc.freeze()  # what there is already need not be looked through again at each attempt
    try:
        yield Workshop(reader, root / "files")
    finally:
        gc.unfreeze()
        shutil.rmtree(root, ignore_errors=True)

"""Kills a command at any moment, lets it end, and compares every file with those of an uninterrupted one."""

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from soak.scenarios import Scenario

# What says when something was written, how long it took, where and of which source, and the checksum of a file that says so; nothing
# else may differ.
TIMES = re.compile(
    r"seconds|minutes|hours|started|finished|ended|created|time|date|host|pid|commit|state\.json",
    re.IGNORECASE,
)
KINDS = ("time", "event", "full", "two")


def on_file_events(act: Callable[[int], None]) -> None:
    """Call with its number before each file event of this process: opened to write, synced, renamed, removed, made."""
    count = 0

    def happens() -> None:
        nonlocal count
        act(count)
        count += 1

    def watch(event, arguments):
        flags = arguments[2] if event == "open" else None
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            happens()

    sys.addaudithook(watch)
    sync = os.fsync

    def synced(handle):
        happens()
        sync(handle)

    os.fsync = synced


def child(
    action: Callable[[], object], folder: Path, *, dies_at: int | None = None, room: int | None = None
) -> int:
    """Fork a process that acts in a folder; it may kill itself at a file event, or find no room for more bytes."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if room is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        if dies_at is not None:
            on_file_events(lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == dies_at else None)
        action()
        code = 0
    except Exception as error:
        (folder.parent / "said").write_text(f"{type(error).__name__}: {error}"[:500])
    finally:
        os._exit(code)


def ended(process: int) -> int:
    """The exit code of a child, negative for the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


class Campaign:
    """One command, killed in many ways.

    Args:
        scenario: The command.
        folder: Where all of it happens.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self.folder = scenario, folder
        folder.mkdir(parents=True)
        self.sound = folder / "sound"
        self.sound.mkdir()
        scenario.prepare(self.sound)
        whole, events = self.fresh("whole"), folder / "events"
        began = time.monotonic()
        counted = lambda: (on_file_events(lambda n: os.pwrite(handle, b"%09d" % n, 0)), scenario.act())  # noqa: E731
        handle = os.open(events, os.O_RDWR | os.O_CREAT)
        code = ended(child(counted, whole))
        os.close(handle)
        self.seconds = time.monotonic() - began
        if code:
            raise RuntimeError(f"the uninterrupted command failed: {self.said()}")
        self.events = int(events.read_text()) + 1
        self.whole = contents(whole)

    def fresh(self, name: str) -> Path:
        """A folder of the same name within another one, so that no path differs, with what the command reads."""
        place = self.folder / name / "work"
        shutil.rmtree(place.parent, ignore_errors=True)
        shutil.copytree(self.sound, place)
        return place

    def said(self) -> str:
        """What children have said that failed."""
        return "; ".join(path.read_text() for path in self.folder.glob("*/said")) or "nothing"

    def attempt(self, seed: object) -> tuple[str, int, str | None]:
        """Disturb the command as a seed says and let it end: how, how many kills, and what is wrong in the end."""
        draw = random.Random(str(seed))
        kind = draw.choice(KINDS if self.scenario.shared else KINDS[:3])
        place, act, kills = self.fresh("disturbed"), self.scenario.act, 0
        for _ in range(draw.randint(1, 3)):
            if kind == "event":
                kills += ended(child(act, place, dies_at=draw.randrange(self.events))) == -signal.SIGKILL
            elif kind == "full":
                code = ended(child(act, place, room=draw.choice((0, 100, 1000, 10_000, 100_000))))
                if code < 0:
                    return kind, kills, f"a full disk ended it by signal {-code}"
            else:
                first = child(act, place)
                second = child(act, place) if kind == "two" else None
                time.sleep(draw.uniform(0, self.seconds))
                os.kill(first, signal.SIGKILL)
                kills += ended(first) == -signal.SIGKILL
                if second is not None:
                    ended(second)
        (place.parent / "said").unlink(missing_ok=True)
        if ended(child(act, place)):
            return kind, kills, f"it did not end well: {self.said()}"
        return kind, kills, difference(contents(place), self.whole)


def contents(folder: Path) -> dict[str, object]:
    """Every file below a folder but locks, without the times in it."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".lock"):
            found[str(path.relative_to(folder))] = timeless(path)
    return found


def timeless(path: Path) -> object:
    """What a file holds but times; a database is compared by what is written from it."""
    if path.suffix in (".db", ".sqlite", ".sqlite3", ".log") or path.name.endswith(("-wal", "-shm")):
        return None
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl", ""):
        try:
            return [
                without_times(json.loads(line))
                for line in ([content] if path.suffix != ".jsonl" else content.splitlines())
            ]
        except ValueError:
            return content
    return content


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if not TIMES.search(key)}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def difference(found: dict[str, object], whole: dict[str, object]) -> str | None:
    """The first files that differ; None if none does."""
    more, less = sorted(found.keys() - whole.keys()), sorted(whole.keys() - found.keys())
    other = [name for name in sorted(found.keys() & whole.keys()) if found[name] != whole[name]]
    parts = [
        f"{what}: {', '.join(names[:4])}"
        for what, names in (("too many", more), ("missing", less), ("differ", other))
        if names
    ]
    return "; ".join(parts) or None

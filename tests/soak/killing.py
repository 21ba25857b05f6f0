"""Kills a command at any moment, lets it end, and compares every file with those of an
uninterrupted one.
"""

import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from helpers.postgres import NoServerError, Server
from soak.scenarios import Scenario

# A kill after a time, or at a file event; a limit on the size of files, or a disk that is full; two
# processes, one of them killed; the database gone for a while.
KINDS = ("time", "event", "limit", "full", "two", "server")
PATIENCE = 1800  # on a busy machine what takes seconds alone takes minutes
_running: set[int] = set()  # children that nobody has waited for yet


def on_file_events(act: Callable[[int], None]) -> None:
    """Call with its number before each file event of this process: opened to write, synced,
    renamed, removed, made.
    """
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
    """Fork a process that acts in a folder; it may kill itself at a file event, or find no room for
    more bytes.
    """
    parent = os.getpid()
    process = os.fork()
    if process:
        _running.add(process)
        return process
    code = 1
    try:
        _die_with(parent)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if room is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        if dies_at is not None:
            on_file_events(lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == dies_at else None)
        action()
        code = 0
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        frame = traceback.extract_tb(error.__traceback__)[-1]
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        said = f"{kind}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        (folder.parent / "said").write_text(said[:700])
    finally:
        os._exit(code)


def _die_with(parent: int) -> None:
    """No child outlives the campaign, however that ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it died before it was asked to tell
        os._exit(1)


def end_all() -> None:
    """Kill the children that are still there."""
    for process in list(_running):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        _running.discard(process)


class BadEndError(Exception):
    """A command did not end, or not as it should."""


def ended(process: int) -> int:
    """The exit code of a child, negative for the signal that killed it."""
    if not _waited(process, PATIENCE):
        raise BadEndError(f"it did not end within {PATIENCE} seconds")
    _running.discard(process)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _waited(process: int, seconds: float) -> bool:
    """Wait until a child ends, no longer than some time; whether it did."""
    until = time.monotonic() + seconds
    while not (over := os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return bool(over)


def mounted(folder: Path, *options: str) -> bool:
    """Whether a file system in memory could be put there."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    return done.returncode == 0


class Campaign:
    """One command, killed in many ways.

    Args:
        scenario: The command.
        folder: Where all of it happens.
        server: The database, where the command needs one.
    """

    def __init__(self, scenario: Scenario, folder: Path, server: Server | None = None) -> None:
        self.scenario, self.folder, self.server = scenario, folder, server
        folder.mkdir(parents=True)
        self.sound = folder / "sound"
        self.sound.mkdir()
        scenario.prepare(self.sound)
        if scenario.warm:  # in this process, so that children inherit what a first time imports and sets up
            with self.fresh("warm") as place, chdir(place):
                scenario.act()
        able = {"two": scenario.shared, "server": server is not None, "full": _can_mount(folder)}
        self.kinds = [kind for kind in KINDS if able.get(kind, True)]
        events = folder / "events"
        with self.fresh("whole") as whole:
            counted = lambda: (on_file_events(lambda n: os.pwrite(handle, b"%09d" % n, 0)), scenario.act())  # noqa: E731
            handle = os.open(events, os.O_RDWR | os.O_CREAT)
            began = time.monotonic()
            code = ended(child(counted, whole))
            self.seconds = time.monotonic() - began
            os.close(handle)
            if code:
                raise RuntimeError(f"the uninterrupted command failed: {self.said()}")
            self.events = int(events.read_text()) + 1
            self.whole = contents(whole)

    @contextmanager
    def fresh(self, name: str, *, small: bool = False) -> Iterator[Path]:
        """A folder of the same name within another one, so that no path differs, with what the
        command reads.
        """
        place = self.folder / name / "work"
        shutil.rmtree(place.parent, ignore_errors=True)
        place.mkdir(parents=True)
        if small and not mounted(place):
            raise RuntimeError(f"nothing can be mounted at {place}")
        try:
            shutil.copytree(self.sound, place, dirs_exist_ok=True)
            if self.server is not None:
                self.server.empty()
                os.environ["MACC_STORAGE"] = self.server.address
            yield place
        finally:
            os.environ.pop("MACC_STORAGE", None)
            if small:
                subprocess.run(["umount", "-l", str(place)], check=True)

    def said(self) -> str:
        """What children have said that failed."""
        return "; ".join(path.read_text() for path in self.folder.glob("*/said")) or "nothing"

    def attempt(self, seed: object) -> tuple[str, int, str | None]:
        """Disturb the command as a seed says and let it end: how, how many kills, and what is wrong
        in the end.
        """
        draw, kills = random.Random(str(seed)), 0
        kind = draw.choice(self.kinds)
        try:
            with self.fresh("disturbed", small=kind == "full") as place:
                for _ in range(draw.randint(1, 4)):
                    kills += self._disturb(kind, place, draw)
                (place.parent / "said").unlink(missing_ok=True)
                if ended(child(self.scenario.act, place)):
                    return kind, kills, f"it did not end well: {self.said()}"
                return kind, kills, difference(contents(place), self.whole)
        except (BadEndError, NoServerError) as error:
            return kind, kills, str(error)
        finally:
            end_all()

    def _disturb(self, kind: str, place: Path, draw: random.Random) -> int:
        """Begin the command and disturb it; how many processes were killed."""
        act = self.scenario.act
        if kind == "event":
            return ended(child(act, place, dies_at=draw.randrange(self.events))) == -signal.SIGKILL
        if kind == "limit":
            room = draw.choice((0, 100, 1000, 10_000, 100_000))
            self._check_refusal(ended(child(act, place, room=room)))
            return 0
        if kind == "full":
            used = sum(path.stat().st_size // 4096 + 1 for path in place.rglob("*"))
            room = used + draw.choice((1, 2, 4, 8, 16, 32, 64, 128))
            mounted(place, "-o", f"remount,size={4 * room}k")
            code = ended(child(act, place))
            mounted(place, "-o", "remount,size=1g")
            self._check_refusal(code)
            return 0
        first = child(act, place)
        second = child(act, place) if kind == "two" else None
        _waited(first, draw.uniform(0, self.seconds))
        if kind == "server":
            return self._without_server(first, draw)
        os.kill(first, signal.SIGKILL)
        killed = ended(first) == -signal.SIGKILL
        if second is not None:
            ended(second)
        return killed

    def _check_refusal(self, code: int) -> None:
        """A full disk is one sentence, and no crash."""
        said = self.said()
        if code < 0 or (code and not said.startswith(("RefusedError", "ValueError"))):
            raise BadEndError(f"a full disk ended it with {code}: {said}")

    def _without_server(self, process: int, draw: random.Random) -> int:
        """Stop or kill the server for a while, and the command with it in one case of three."""
        assert self.server is not None
        way = draw.choice(("fast", "immediate", "kill"))
        if way == "kill":
            self.server.kill()
        else:
            self.server.stop(way)
        kills = int(way == "kill")
        time.sleep(draw.uniform(0, 2))
        if draw.random() < 1 / 3:
            os.kill(process, signal.SIGKILL)
        self.server.start(PATIENCE)
        return kills + (ended(process) == -signal.SIGKILL)


def _can_mount(folder: Path) -> bool:
    place = folder / "mount"
    place.mkdir()
    able = mounted(place)
    if able:
        subprocess.run(["umount", str(place)], check=True)
    return able


def contents(folder: Path) -> dict[str, object]:
    """Every file below a folder but locks, without the times in it."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(".lock"):
            found[str(path.relative_to(folder))] = timeless(path)
    return found


def timeless(path: Path) -> object:
    """The bytes of a file; of what says how long something took everything else; of a database only
    that it is there.

    A run says how long epochs took in its history and in the state of its checkpoints, whose
    ``complete`` has the checksum of that state; the result and the page of an experiment say how
    long trainings took. Nothing else may differ.
    """
    if path.suffix == ".db" or path.name.endswith(("-wal", "-shm", "-journal")):
        return None
    content = path.read_bytes()
    if path.name == "report.html":
        return re.sub(rb"[0-9.]+ (seconds|minutes)", b"", content)
    if path.name not in ("history.jsonl", "state.json", "complete", "result.json"):
        return content
    lines = content.splitlines() if path.suffix == ".jsonl" else [content]
    return [without_times(json.loads(line)) for line in lines]


def without_times(value: object) -> object:
    if isinstance(value, dict):
        left = {key: each for key, each in value.items() if key not in ("seconds", "minutes", "state.json")}
        return {key: without_times(each) for key, each in left.items()}
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

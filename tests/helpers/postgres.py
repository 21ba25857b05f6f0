"""A PostgreSQL server of our own, with a password, that can be stopped, killed and started."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 300  # seconds; on a busy machine what takes one alone takes many


class NoServerError(Exception):
    """A PostgreSQL server cannot be had here, and why."""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _programs() -> Path:
    found = shutil.which("postgres")
    folder = Path(found).parent if found else max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
    if folder is None:
        raise NoServerError("there is no PostgreSQL server here (Debian: apt-get install postgresql)")
    return folder


class Server:
    """A server in a folder, not yet started; PostgreSQL does not run as root, so somebody else does
    it then.
    """

    def __init__(self, folder: Path) -> None:
        programs = _programs()
        self._become: list[str] = []
        if os.geteuid() == 0:
            if not shutil.which("setpriv"):
                raise NoServerError(
                    "PostgreSQL does not run as root, and there is no setpriv to become somebody else"
                )
            self._become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        self._folder, self._data, self._control = folder, folder / "data", str(programs / "pg_ctl")
        secret = folder / "password"
        secret.write_text("s3cr3t-word\n")
        if self._become:
            for path in (folder, secret):
                shutil.chown(path, "nobody", "nogroup")
        self._port = _free_port()
        self.address = f"postgresql://macc:s3cr3t-word@127.0.0.1:{self._port}/postgres"
        initdb, password = str(programs / "initdb"), f"--pwfile={secret}"
        self._call(
            *(initdb, "-D", str(self._data), "-U", "macc", "-A", "scram-sha-256", password, "--no-sync")
        )

    def _call(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self._become, *arguments], capture_output=True, text=True, cwd="/", timeout=2 * PATIENCE
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-300:]
            raise NoServerError(f"a PostgreSQL server cannot be started here: {said}")

    def _control_it(self, *arguments: str) -> None:
        self._call(self._control, "-D", str(self._data), "-w", "-t", str(PATIENCE), *arguments)

    def start(self, patience: float = 0) -> None:
        """Start it, and wait until it answers; what a killed one left may hold its memory for some
        seconds.
        """
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        until = time.monotonic() + patience
        while True:
            try:
                return self._control_it("-l", str(self._folder / "log"), "-o", options, "start")
            except NoServerError:
                if time.monotonic() > until:
                    raise
            time.sleep(1)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` or ``immediate``."""
        self._control_it("-m", mode, "stop")

    def kill(self) -> None:
        """SIGKILL, and wait until what it left has noticed and let go of its memory."""
        process = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        left = [p for p in _children(process) if p != process]
        os.kill(process, signal.SIGKILL)
        until = time.monotonic() + PATIENCE
        while any(_alive(each) for each in (process, *left)) and time.monotonic() < until:
            time.sleep(0.05)

    def empty(self) -> None:
        """Forget everything in the database."""
        import psycopg

        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")


def _children(process: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == process:
            found.append(int(status.parent.name))
    return found


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def postgres() -> Iterator[Server]:
    """A started server, stopped and removed at the end.

    Raises:
        NoServerError: Where there can be none.
    """
    folder = Path(tempfile.mkdtemp(prefix="macc-postgres-", dir="/tmp"))
    try:
        server = Server(folder)
        server.start()
        try:
            yield server
        finally:
            with suppress(NoServerError):  # it may be down already
                server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

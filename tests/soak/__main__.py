"""``python -m soak``: kills, spoiled files and random calls for as long as there is time; what
fails has a seed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sklearn import datasets as _  # noqa: F401 - imported before forking

from fuzz.oracle import workshop
from fuzz.readers import READERS
from helpers.postgres import NoServerError, Server, postgres
from soak.killing import Campaign
from soak.scenarios import SCENARIOS


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


@contextmanager
def database() -> Iterator[Server | None]:
    """A server, where there can be one, with its address where the command looks for it."""
    try:
        with postgres() as server:
            os.environ["MACC_STORAGE"] = server.address
            yield server
    except NoServerError as error:
        say(f"postgres: left out; {error}")
        yield None
    finally:
        os.environ.pop("MACC_STORAGE", None)


def kill(name: str, seconds: float, seed: int, folder: Path, server: Server | None = None) -> tuple[int, int]:
    """Disturb one command for some time; how many kills, and how many ended differently."""
    scenario = SCENARIOS[name]
    place = folder / f"{name}-warm"
    place.mkdir()
    with working_in(place):  # in this process, so that children inherit what a first time imports and sets up
        scenario.prepare(place)
        if name != "workers":
            scenario.act()
    campaign = Campaign(scenario, folder / name, server)
    until, number, kills, wrong, kinds = time.monotonic() + seconds, 0, 0, 0, Counter()
    while time.monotonic() < until:
        kind, some, found = campaign.attempt(f"{name} {seed} {number}")
        kills, kinds[kind] = kills + some, kinds[kind] + 1
        if found:
            wrong += 1
            say(f"  FAILED {name}, seed {seed!r}, number {number} ({kind}): {found}")
        number += 1
    ways = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    say(
        f"{name}: {number} disturbed ({ways}), {kills} kills, {campaign.events} file events each, {wrong} failures"
    )
    return kills, wrong


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def spoil(name: str, seconds: float, seed: int) -> int:
    """Spoil the files of one reader for some time; how many were taken badly."""
    until, number, wrong = time.monotonic() + seconds, 0, 0
    with workshop(READERS[name]) as shop:
        shop.check_sound()
        while time.monotonic() < until:
            if found := shop.attempt(f"{name} {seed} {number}"):
                wrong += 1
                say(f"  FAILED {name}, seed {seed}, number {number}: {found}")
            number += 1
    say(f"{name}: {number} spoiled files, {wrong} failures")
    return wrong


def call(cases: int) -> int:
    """Random calls against slow loops; 1 if one differs."""
    tests = Path(__file__).parents[1] / "fuzz" / "test_api.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "MACC_CASES": str(cases)},
        capture_output=True,
        text=True,
        check=False,
    )
    say(f"calls: {cases} cases of each property: {done.stdout.strip().splitlines()[-1]}")
    if done.returncode:
        say(done.stdout[-3000:])
    return min(done.returncode, 1)


def main() -> int:
    """The number of failures, at most 1."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="for kills and spoiled files")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--cases", type=int, default=2500, help="of each property, for random calls")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=[*SCENARIOS, *READERS, "calls"],
        help="commands, readers, calls; all if not given",
    )
    options = parser.parse_args()
    wanted = options.only or [*SCENARIOS, *READERS, "calls"]
    commands, readers = [n for n in wanted if n in SCENARIOS], [n for n in wanted if n in READERS]
    # Half of the time is for kills, half for spoiled files.
    share = 60 * options.minutes / (bool(commands) + bool(readers) or 1)
    kills = wrong = 0
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        os.environ |= {"MACC_CACHE": str(folder / "cache"), "MACC_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        for command in commands:
            seconds = share * SCENARIOS[command].share / sum(SCENARIOS[each].share for each in commands)
            if SCENARIOS[command].database:
                with database() as server:
                    found = (0, 0) if server is None else kill(command, seconds, options.seed, folder, server)
            else:
                found = kill(command, seconds, options.seed, folder)
            kills, wrong = kills + found[0], wrong + found[1]
        for reader in readers:
            wrong += spoil(reader, share / len(readers), options.seed)
    if "calls" in wanted:
        wrong += call(options.cases)
    say(f"{kills} kills, {wrong} failures")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

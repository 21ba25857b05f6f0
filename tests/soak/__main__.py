"""``python -m soak``: kills, spoiled files and random calls for as long as there is time; what fails has a seed."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from sklearn import datasets as _  # noqa: F401 - imported before forking

from fuzz.oracle import workshop
from fuzz.readers import READERS
from helpers import killed
from soak.killing import Campaign
from soak.scenarios import SCENARIOS


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def kill(name: str, seconds: float, seed: int, folder: Path) -> int:
    """Disturb one command for some time; how many ended differently."""
    campaign = Campaign(SCENARIOS[name], folder / name)
    until, number, kills, wrong, kinds = time.monotonic() + seconds, 0, 0, 0, {}
    while time.monotonic() < until:
        kind, some, found = campaign.attempt(f"{name} {seed} {number}")
        kills, kinds[kind] = kills + some, kinds.get(kind, 0) + 1
        if found:
            wrong += 1
            say(f"  FAILED {name}, seed {seed!r}, number {number} ({kind}): {found}")
        number += 1
    ways = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    say(
        f"{name}: {number} disturbed ({ways}), {kills} kills, {campaign.events} file events each, {wrong} failures"
    )
    return wrong


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


def main() -> int:
    """The number of failures, at most 1."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="for all of it")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--only", nargs="*", help="names of commands and readers; all if not given")
    options = parser.parse_args()
    wanted = options.only or [*SCENARIOS, *READERS]
    commands, readers = [n for n in wanted if n in SCENARIOS], [n for n in wanted if n in READERS]
    # Half of the time is for kills, half for spoiled files.
    share = 60 * options.minutes / (bool(commands) + bool(readers) or 1)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        os.environ |= {"MACC_CACHE": str(folder / "cache"), "MACC_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        if commands:
            killed.fit(folder / "warm")  # so that children inherit what a first step sets up
        for command in commands:
            wrong += kill(command, share / len(commands), options.seed, folder)
        for reader in readers:
            wrong += spoil(reader, share / len(readers), options.seed)
    say(f"{wrong} failures")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

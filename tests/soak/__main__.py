"""``python -m soak``: kills, spoiled files and random calls for as long as there is time; what
fails has a seed.
"""

import os

os.environ["OMP_NUM_THREADS"] = (
    "1"  # threads that have computed once do not survive a fork, and what waits for them hangs
)

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from sklearn import datasets as _  # noqa: F401 - imported before forking

from fuzz.oracle import workshop
from fuzz.readers import READERS
from helpers.postgres import NoServerError, Server, postgres
from macc.training.runs import source_commit
from soak.killing import Campaign, end_all
from soak.scenarios import SCENARIOS

TELL_SECONDS = 600


def say(*words: object, sep: str = " ") -> None:
    sys.stdout.write(sep.join(map(str, words)) + "\n")
    sys.stdout.flush()


@dataclass
class Tally:
    """What has been done to one command so far."""

    name: str
    campaign: Campaign
    number: int = 0
    kills: int = 0
    wrong: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def due(self) -> float:
        """Of the commands, the one with the least of this is disturbed next."""
        return self.seconds / self.campaign.scenario.share

    def disturb(self, seed: int) -> None:
        """Once more; the seed and the number give the same again."""
        began = time.monotonic()
        kind, kills, found = self.campaign.attempt(f"{self.name} {seed} {self.number}")
        self.seconds += time.monotonic() - began
        self.kills, self.kinds[kind] = self.kills + kills, self.kinds[kind] + 1
        if found:
            self.wrong += 1
            say(f"  FAILED {self.name}, seed {seed!r}, number {self.number} ({kind}): {found}")
        self.number += 1

    def __str__(self) -> str:
        ways = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        events = f"{self.campaign.events} file events each"
        return f"{self.name}: {self.number} disturbed ({ways}), {self.kills} kills, {events}, {self.wrong} failures"


def kill(commands: Sequence[str], seconds: float, least: int, seed: int, folder: Path) -> tuple[int, int]:
    """Disturb commands in turn for some time, and until there were so many kills; how many there
    were, and how many commands ended differently.
    """
    tallies: list[Tally] = []
    with ExitStack() as stack:
        for name in commands:
            scenario = SCENARIOS[name]
            server: Server | None = None
            if scenario.database:
                try:
                    server = stack.enter_context(postgres())
                except NoServerError as error:
                    say(f"{name}: left out; {error}")
                    continue
            tallies.append(Tally(name, Campaign(scenario, folder / name, server)))
        stack.callback(lambda: say(*tallies, sep="\n"))
        stack.callback(end_all)
        until, told = time.monotonic() + seconds, time.monotonic()
        while tallies and (time.monotonic() < until or sum(each.kills for each in tallies) < least):
            min(tallies, key=lambda each: each.due).disturb(seed)
            if time.monotonic() > told + TELL_SECONDS:
                told = time.monotonic()
                say("so far:", *tallies, sep="\n  ")
    return sum(each.kills for each in tallies), sum(each.wrong for each in tallies)


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
    parser.add_argument("--kills", type=int, default=0, help="at least so many, however long they take")
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
    signal.signal(signal.SIGTERM, lambda *about: sys.exit(143))
    say(f"commit {source_commit()}, seed {options.seed}, threads {torch.get_num_threads()}")
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        os.environ |= {"MACC_CACHE": str(folder / "cache"), "MACC_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        if commands:
            kills, wrong = kill(commands, share, options.kills, options.seed, folder)
        for reader in readers:
            wrong += spoil(reader, share / len(readers), options.seed)
    if "calls" in wanted:
        wrong += call(options.cases)
    say(f"{kills} kills, {wrong} failures")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

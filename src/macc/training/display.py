"""What training tells of itself while it runs; those who show it are in the command line."""

from collections.abc import Mapping
from typing import Any


class Display:
    """Hears how far training is, and shows nothing."""

    def say(self, text: str) -> None:
        """Something to say once."""

    def begin(self, *, epochs: int, steps: int, done: int) -> None:
        """Training begins with ``done`` steps behind it."""

    def step(self, done: int) -> None:
        """So many steps of the whole run are done."""

    def epoch(self, row: Mapping[str, Any]) -> None:
        """An epoch is done."""

    def end(self) -> None:
        """Training is over, however it ended."""

"""What an experiment tells of itself while it runs; those who show it are in the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from macc.experiments.ledger import Ledger


class Listener:
    """Hears how far an experiment is, and shows nothing."""

    def say(self, text: str) -> None:
        """Something to say once."""

    @contextmanager
    def of(self, ledger: Ledger) -> Iterator[None]:  # noqa: ARG002 - for those who show it
        """While the trainings of a ledger are done."""
        yield

    def tell(self, event: tuple[str, Any]) -> None:
        """An event of a worker."""

"""What is wrong with predictions, said in the words of whoever gave them: Python's or those of a file.

Positions have one convention. In Python they are indices from 0, written as code: ``probs[5]``. In files they
are what a person counts: a line of a text file, as an editor shows it, and otherwise a row, from 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from macc.words import shown


@dataclass(frozen=True)
class Words:
    """How somebody who calls Python functions knows samples and options."""

    declare_logits: str = "pass from_logits=True"
    rescale: str = "pass normalise=True"
    from_logits: str = "from_logits=True"
    normalise: str = "normalise=True"
    more_columns: str = ""

    def entry(self, name: str, row: int, column: int | None) -> str:
        """One number: ``probs[5, 2]``."""
        return f"{name}[{row}]" if column is None else f"{name}[{row}, {column}]"

    def total(self, name: str, row: int) -> str:
        """The numbers of one sample, and the verb: ``probs[5] sums``."""
        return f"{name}[{row}] sums"


PYTHON = Words()


class InputError(ValueError):
    """Predictions that cannot be measured, for a reason that can be said in other words than Python's.

    Args:
        sentence: What is wrong and how to mend it, in given words.

    Example:
        >>> error = InputError(lambda words: f"{words.entry('probs', 5, 1)} is nan")
        >>> print(error)
        probs[5, 1] is nan
        >>> print(error.said_of("p.csv", Words()))
        p.csv: probs[5, 1] is nan
    """

    def __init__(self, sentence: Callable[[Words], str]):
        super().__init__(sentence(PYTHON))
        self.sentence = sentence

    def said_of(self, path: object, words: Words) -> ValueError:
        """The same error about a file."""
        text = self.sentence(words)
        comma = text.startswith(("line ", "row "))
        return ValueError(f"{shown(path)}{',' if comma else ':'} {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Processes send errors to one another, and sentences cannot be sent."""
        return ValueError, (str(self),)

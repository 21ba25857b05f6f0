"""What is wrong with predictions, said in the words of whoever gave them: Python's or those of a
file.

Positions have one convention. In Python they are indices from 0, written as code: ``probs[5]``. In
files they are what a person counts: a line of a text file, as an editor shows it, and otherwise a
row, from 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from macc.words import shown


@dataclass(frozen=True)
class Words:
    """How somebody who calls Python functions knows samples and options."""

    declare_logits: str = "pass from_logits=True"
    rescale: str = "pass normalise=True"
    from_logits: str = "from_logits=True"
    normalise: str = "normalise=True"
    ignore_index: str = "ignore_index="
    more_columns: str = ""
    pixels: Callable[[int], tuple[int, ...]] | None = None
    """Of maps, the image of a sample and its place in it."""
    first: int = 0
    """Of maps, how many images stand before those that were looked at."""

    def entry(self, name: str, row: int, column: int | str | None) -> str:
        """One number: ``probs[5, 2]``, or ``probs[5, 2, 7, 8]`` of a map."""
        image, *place = (row,) if self.pixels is None else self.pixels(row)
        parts = [self.first + image, *([] if column is None else [column]), *place]
        return f"{name}[{', '.join(map(str, parts))}]"

    def total(self, name: str, row: int) -> str:
        """The numbers of one sample, and the verb: ``probs[5] sums``."""
        return f"{self.entry(name, row, None if self.pixels is None else ':')} sums"


PYTHON = Words()


class InputError(ValueError):
    """Predictions that cannot be measured, for a reason that can be said in other words than
    Python's.

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

    def of_pixels(self, pixels: Callable[[int], tuple[int, ...]]) -> "InputError":
        """The same error about maps: what it calls a sample is a pixel."""
        return InputError(lambda words: self.sentence(replace(words, pixels=pixels)))

    def after(self, images: int) -> "InputError":
        """The same error about maps before which so many others stand."""
        return InputError(lambda words: self.sentence(replace(words, first=images)))

    def said_of(self, path: object, words: Words) -> ValueError:
        """The same error about a file."""
        text = self.sentence(words)
        comma = text.startswith(("line ", "row ", "image "))
        return ValueError(f"{shown(path)}{',' if comma else ':'} {text}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Processes send errors to one another, and sentences cannot be sent."""
        return ValueError, (str(self),)

"""What is wrong with predictions, in the words of somebody who gave a file on the command line.

Positions are what a person counts: a line of a text file, as an editor shows it, and otherwise a
row, from 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from macc.metrics.refusals import Words
from macc.words import quoted, shown


@dataclass(frozen=True)
class FileWords(Words):
    """How they are known; ``place`` says where a sample stands.

    Example:
        >>> from macc.metrics.refusals import InputError
        >>> error = InputError(lambda words: f"{words.entry('probs', 5, 1)} is nan")
        >>> print(error.said_of("p.csv", FileWords(classes=["cat", "dog"], place=lambda row: f"line {row + 2}")))
        p.csv, line 7: the probability of 'dog' is nan
    """

    rescale: str = "add --normalise"
    from_logits: str = "--logits"
    normalise: str = "--normalise"
    ignore_index: str = "--ignore-index "
    classes: Sequence[str] | None = None
    place: Callable[[int], str] = field(default=lambda row: f"row {row + 1}")

    def entry(self, name: str, row: int, column: int | str | None) -> str:
        """One number: ``line 7: the probability of 'dog'``."""
        what = {"logits": "logit", "labels": "label"}.get(name, "probability")
        if not isinstance(column, int):
            return f"{self._where(row)}: the {what}"
        named = f"class {column}" if self.classes is None else quoted(self.classes[column])
        return f"{self._where(row)}: the {what} of {named}"

    def total(self, name: str, row: int) -> str:
        """The numbers of one sample, and the verb: ``line 7: the probabilities sum``."""
        return f"{self._where(row)}: the {'logits' if name == 'logits' else 'probabilities'} sum"

    def _where(self, row: int) -> str:
        if self.pixels is None:
            return self.place(row)
        image, *pixel = self.pixels(row)
        return f"{self.place(self.first + image)}, pixel {tuple(pixel)}"


def rows_only(path: object) -> str:
    """What is said of maps where rows are needed."""
    return (
        f"{shown(path)} has maps of whole images, and this command takes rows (N, K); macc evaluate, check and compare "
        "take maps"
    )

"""Texts as the ids of their words."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

_SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


@dataclass(frozen=True)
class Tokeniser:
    """Texts in, the ids of their last known words out, padded with 0 in front.

    Letters are made small, and punctuation separates words.

    Args:
        words: The word of each id; id 0 is the padding.
        length: How many ids a text has.

    Example:
        >>> Tokeniser(("", "the", "cat"), length=4)(["The cat, the *cat* sat."])
        tensor([[1, 2, 1, 2]], dtype=torch.int32)
    """

    words: tuple[str, ...]
    length: int

    @staticmethod
    def split(text: str) -> list[str]:
        """The words of a text, in order."""
        return [word for word in text.lower().translate(_SEPARATORS).split(" ") if word]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: k for k, word in enumerate(self.words) if k}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Token ids ``(N, length)``, int32."""
        tokens = np.zeros((len(texts), self.length), np.int32)
        ids = self._ids
        for row, text in zip(tokens, texts, strict=True):
            last = [ids[word] for word in self.split(text) if word in ids][-self.length :]
            if last:
                row[-len(last) :] = last
        return torch.from_numpy(tokens)

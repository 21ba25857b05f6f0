"""20 Newsgroups as fixed features: the mean and the largest GloVe vectors of each text.

python -m benchmarks.newsgroups_bag DATA
    newsgroups_bag.npz into DATA, which has the texts and glove.6B.100d.txt, for
    results/newsgroups_bag.yaml
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macc import data

FILE = "newsgroups_bag.npz"
TEXTS = 500
"""How many texts are looked up at once."""


def main(arguments: Sequence[str]) -> int:
    """``DATA``."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    splits = data.load("newsgroups", root=arguments[0])
    if splits.vectors is None:
        raise ValueError(f"{arguments[0]} has no GloVe vectors; put glove.6B.100d.txt there")
    arrays: dict[str, Any] = {"classes": np.array(splits.classes)}
    for name, part in {"train": splits.train, "val": splits.val, "test": splits.test}.items():
        rows = [
            features(tokens, splits.vectors) for tokens in torch.split(torch.as_tensor(part.inputs), TEXTS)
        ]
        arrays[f"{name}_features"] = torch.cat(rows).numpy()
        arrays[f"{name}_labels"] = np.asarray(part.labels)
    np.savez_compressed(Path(arguments[0]) / FILE, **arrays)
    return 0


def features(tokens: Tensor, vectors: Tensor) -> Tensor:
    """The mean and the largest vector of the words that have one; zeros where none has.

    Example:
        >>> vectors = torch.tensor([[0.0], [2.0], [4.0], [0.0]])
        >>> features(torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]]), vectors)
        tensor([[3., 4.],
                [0., 0.]])
    """
    found = vectors[tokens.long()]
    known = found.ne(0).any(-1, keepdim=True)
    count = known.sum(1).clamp(min=1)
    largest = found.masked_fill(~known, -torch.inf).amax(1)
    return torch.cat([found.sum(1) / count, largest.masked_fill(~known.any(1), 0.0)], dim=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

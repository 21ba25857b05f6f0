"""Samples dealt into folds, for whatever is fitted on some of them and measured on the others."""

import torch
from torch import Tensor

from macc.words import documented


@documented
def dealt(labels: Tensor, folds: int, seed: int = 0) -> Tensor:
    """The fold ``(N,)`` that holds out each sample, on the CPU; classes are dealt out evenly.

    Args:
        folds: Number of folds.
        seed: Of the shuffling within classes.

    Example:
        >>> dealt(torch.tensor([0, 0, 0, 0, 1, 1]), 2).bincount()
        tensor([3, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(labels), generator=generator, device="cpu")
    order = shuffled[labels.cpu()[shuffled].argsort(stable=True)]
    result = torch.empty(len(labels), dtype=torch.int64, device="cpu")
    result[order] = torch.arange(len(labels), device="cpu") % folds
    return result

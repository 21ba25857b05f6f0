"""Dense prediction for metrics: every labelled pixel is a sample that knows its image."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array, as_tensor, sample_weights
from macc.metrics.refusals import InputError

# 16 MB of float64.
_ELEMENTS = 2**21


class Pixels(NamedTuple):
    """Pixels as samples: scores ``(M, K)``, labels ``(M,)``, and of maps where each was.

    ``at`` ``(M,)`` counts the pixels of all images, of shape ``(N, H, W)``; rows have none.
    """

    scores: Array
    labels: Array
    at: Tensor | None
    shape: tuple[int, ...]

    @property
    def images(self) -> Tensor | None:
        """The number of each pixel's image."""
        return None if self.at is None else self.at // max(1, int(np.prod(self.shape[1:])))

    def place(self, row: int) -> tuple[int, ...]:
        """The image of a pixel, and its place in it."""
        flat = row if self.at is None else int(self.at[row])
        return tuple(int(part) for part in np.unravel_index(flat, self.shape))


def is_dense(probs: object) -> bool:
    """Whether scores are maps ``(N, K, H, W)``, or of more dimensions."""
    return len(getattr(probs, "shape", ())) >= 4


def num_at_once(shape: Sequence[int]) -> int:
    """How many maps ``(K, H, W)`` are read together."""
    return max(1, _ELEMENTS // max(1, int(np.prod(shape, dtype=np.int64))))


def maps_at_once(shape: Sequence[int]) -> Iterator[slice]:
    """Which maps of an array ``(N, K, H, W)`` are read together, in their order."""
    count, size = shape[0], num_at_once(shape[1:])
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def as_pixels(probs: Array, labels: Array, ignore_index: int | None = None) -> Pixels:
    """Scores ``(M, K)`` and labels ``(M,)`` of all labelled pixels; rows as they are.

    Args:
        probs: ``(N, K, H, W)``, or anything else.
        labels: ``(N, H, W)``.
        ignore_index: The label of samples or pixels to leave out.
    """
    dense = is_dense(probs)
    if not dense and ignore_index is None:
        return Pixels(probs, labels, None, ())
    scores, targets = as_tensor(probs, "probs"), as_tensor(labels, "labels")
    targets = targets if targets.is_floating_point() else targets.long()  # uint16 knows no comparisons
    at, shape = None, tuple(targets.shape)
    if dense:
        num_classes = scores.shape[1]
        wanted = (len(scores), *scores.shape[2:])
        if shape != wanted:
            raise ValueError(f"labels of scores {tuple(scores.shape)} must have shape {wanted}, got {shape}")
        scores, targets = scores.movedim(1, -1).flatten(0, -2), targets.flatten()
        at = torch.arange(len(targets), device="cpu")
    if ignore_index is not None and len(targets) == len(scores):
        kept = (targets != ignore_index).to(scores.device)
        scores, targets = scores[kept], targets.to(scores.device)[kept]
        at = None if at is None else at[kept.cpu()]
    found = Pixels(scores, targets, at, shape)
    if dense:
        _refuse_outside(found, targets, num_classes)
    return found


def kept_weights(weights: Array, labels: Array, ignore_index: int | None, *, some: bool = True) -> Tensor:
    """The weights ``(N,)`` of rows that are not ignored; ``some`` has to be above 0."""
    each = sample_weights(weights, len(labels), some=some).cpu()
    return each if ignore_index is None else each[as_tensor(labels, "labels").cpu() != ignore_index]


def _refuse_outside(pixels: Pixels, labels: Tensor, num_classes: int) -> None:
    """Refuse a label that is no class, as pixels at borders often have."""
    wrong = (labels < 0) | (labels >= num_classes)
    if not bool(wrong.any()):
        return
    row = int(wrong.nonzero()[0, 0])
    value = labels[row].item()
    raise InputError(
        lambda words: (
            f"{words.entry('labels', row, None)} is {value}, and labels of {num_classes} classes lie in "
            f"[0, {num_classes - 1}]; {words.ignore_index}{value} leaves such pixels out"
        )
    ).of_pixels(pixels.place)

"""Dense prediction for every loss: each pixel is a row, and pixels without a label are left out.

Shape legend: ``N`` images, ``K`` classes, ``H`` and ``W`` sides of the map, ``M`` rows.
"""

from typing import Any

import torch
from torch import Tensor

from macc.heads import LogitMoments
from macc.losses._checks import UNKNOWN, Output, values_readable


def as_rows(
    output: Output, labels: Tensor, ignore_index: int | None, *, independent: bool = False
) -> tuple[Output, Tensor]:
    """Logits or moments ``(M, K)`` and labels, of maps too, without labels to be ignored.

    Rows without anything to ignore are returned as they are; what is no tensor is left to the
    checks of the losses. Leaving rows out waits for an accelerator once, because their number has
    to be known. Of ``independent`` labels single ones can be ignored: they become ``UNKNOWN``.
    """
    mean = _mean(output)
    if not isinstance(mean, Tensor) or not isinstance(labels, Tensor):
        return output, labels
    if mean.ndim >= 4:
        labels = _label_rows(labels, mean)
        output = flat(output)
    if ignore_index is None:
        return output, labels
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise ValueError(f"`ignore_index` must be a whole number, got {ignore_index!r}")
    if independent and labels.ndim == 2:
        return output, _marked(labels, ignore_index)
    if labels.ndim != 1:
        raise ValueError(
            f"`ignore_index` is for class indices and for the labels of BinaryCrossEntropy and BinaryFocal, got labels "
            f"of {labels.dtype} and shape {tuple(labels.shape)}; leave it out"
        )
    if len(labels) != len(_mean(output)):
        return output, labels
    kept = labels != ignore_index
    if values_readable(kept):
        _refuse_nothing_left(kept, ignore_index)
        if bool(kept.all()):
            return output, labels
    return _each(output, lambda part: part[kept] if len(part) == len(kept) else part), labels[kept]


def flat(output: Output) -> Output:
    """Every pixel of ``(N, K, H, W)`` as a row of ``(M, K)``, image by image; rows as they are."""
    return _each(output, lambda part: part.movedim(1, -1).flatten(0, -2) if part.ndim >= 4 else part)


def _marked(labels: Tensor, ignore_index: int) -> Tensor:
    """Independent labels as numbers, those to be ignored ``UNKNOWN``."""
    kept = labels != ignore_index
    if values_readable(kept):
        _refuse_nothing_left(kept, ignore_index)
    return (labels if labels.is_floating_point() else labels.float()).where(kept, UNKNOWN)


def _refuse_nothing_left(kept: Tensor, ignore_index: int) -> None:
    if not bool(kept.any()):
        raise ValueError(f"every label of the batch is the ignored {ignore_index}; skip the batch")


def _mean(output: Output) -> Tensor:
    return output.mean if isinstance(output, LogitMoments) else output


def _each(output: Output, change: Any) -> Output:
    if isinstance(output, Tensor):
        return change(output)  # type: ignore[no-any-return]
    return LogitMoments(*(change(part) if isinstance(part, Tensor) else part for part in output))


def _label_rows(labels: Tensor, mean: Tensor) -> Tensor:
    images, _, *sides = mean.shape
    if labels.shape == mean.shape:
        return labels.movedim(1, -1).flatten(0, -2)
    if labels.shape == torch.Size((images, *sides)):
        return labels.flatten()
    cure = "resize the logits to the labels first, or move the classes to the second axis"
    if labels.shape == torch.Size((images, 1, *sides)):
        cure = "use `labels.squeeze(1)`"
    raise ValueError(
        f"labels of logits {tuple(mean.shape)} must have shape {(images, *sides)}, got {tuple(labels.shape)}; {cure}"
    )

"""Dense prediction for metrics: every pixel with a label is a sample, of an image that is remembered."""

import torch
from torch import Tensor

from macc.metrics.inputs import Array


def as_pixels(
    probs: Array, labels: Array, ignore_index: int | None = None
) -> tuple[Array, Array, Tensor | None]:
    """Scores ``(M, K)``, labels ``(M,)`` and the number of each pixel's image, from maps; rows have no images.

    Args:
        probs: ``(N, K, H, W)``, or anything else, which is returned as it is.
        labels: ``(N, H, W)``.
        ignore_index: The label of samples or pixels to leave out.
    """
    dense = len(getattr(probs, "shape", ())) >= 4
    if not dense and ignore_index is None:
        return probs, labels, None
    scores, targets = torch.as_tensor(probs).detach(), torch.as_tensor(labels)
    images = None
    if dense:
        count, _, *sides = scores.shape
        if targets.shape != (count, *sides):
            raise ValueError(
                f"labels of scores {tuple(scores.shape)} must have shape {(count, *sides)}, got {tuple(targets.shape)}"
            )
        scores, targets = scores.movedim(1, -1).flatten(0, -2), targets.flatten()
        images = torch.arange(count).repeat_interleave(len(targets) // max(1, count))
    if ignore_index is None or len(targets) != len(scores):
        return scores, targets, images
    kept = (targets != ignore_index).to(scores.device)
    if images is not None:
        images = images[kept.cpu()]
    return scores[kept], targets.to(scores.device)[kept], images

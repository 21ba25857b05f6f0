"""Digital: contrast, elastic bending, pixels, JPEG, and saturation."""

import io
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from macc.data.corruptions._tools import ImageDraws, smooth

CONTRAST = {
    32: (0.75, 0.5, 0.4, 0.3, 0.15),
    64: (0.4, 0.3, 0.2, 0.1, 0.05),
    224: (0.4, 0.3, 0.2, 0.1, 0.05),
}
# The last value is the size that the others are shares of: the original's for large images is 244.
ELASTIC = {
    32: (
        (0, 0, 0.08, 32),
        (0.05, 0.2, 0.07, 32),
        (0.08, 0.06, 0.06, 32),
        (0.1, 0.04, 0.05, 32),
        (0.1, 0.03, 0.03, 32),
    ),
    64: (
        (0, 0, 0.08, 64),
        (0.05, 0.3, 0.06, 64),
        (0.1, 0.08, 0.06, 64),
        (0.1, 0.03, 0.03, 64),
        (0.16, 0.03, 0.02, 64),
    ),
    224: (
        (2, 0.7, 0.1, 244),
        (2, 0.08, 0.2, 244),
        (0.05, 0.01, 0.02, 244),
        (0.07, 0.01, 0.02, 244),
        (0.12, 0.01, 0.02, 244),
    ),
}
PIXELATE = {
    32: (0.95, 0.9, 0.85, 0.75, 0.65),
    64: (0.9, 0.8, 0.7, 0.6, 0.5),
    224: (0.6, 0.5, 0.4, 0.3, 0.25),
}
JPEG = {32: (80, 65, 58, 50, 40), 64: (65, 58, 50, 40, 25), 224: (25, 18, 15, 10, 7)}
SATURATE = {
    32: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    64: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
    224: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}


def contrast(x: Tensor, factor: float, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """Every channel is drawn to its mean."""
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * factor + mean


def elastic_transform(
    x: Tensor, displacement: float, softness: float, shear: float, size: float, draws: ImageDraws
) -> Tensor:
    """Three points moved at random, then smooth random displacements; borders are reflected."""
    count, _, height, width = x.shape
    centre, third = torch.tensor([width // 2, height // 2]), min(height, width) // 3
    points = (centre + third * torch.tensor([[1, 1], [1, -1], [-1, -1]])).float()
    moved = points + draws.uniform(3, 2, low=-shear * size, high=shear * size, what="points").cpu()
    # For each place of the result its place in the image: the map from moved points to the old
    # ones.
    ones = torch.ones(count, 3, 1)
    inverse = torch.linalg.solve(
        torch.cat([moved, ones], dim=2).double(), points.double().expand(count, 3, 2)
    )
    columns, rows = torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")
    grid = torch.stack([columns, rows, torch.ones_like(rows)], dim=-1).view(1, -1, 3).double()
    source = (grid @ inverse).view(count, height, width, 2).float().to(x.device)
    bent = _sampled(x, source, at_pixels=True)
    if displacement == 0:
        return bent
    steps = draws.uniform(2, height, width, low=-1, high=1, what="steps")
    steps = smooth(steps, softness * size, border="reflect", truncate=3.0) * (displacement * size)
    places = torch.stack([columns, rows], dim=-1).float().to(x.device) + steps.permute(0, 2, 3, 1)
    return _sampled(bent, places, at_pixels=False)


def _sampled(x: Tensor, places: Tensor, *, at_pixels: bool) -> Tensor:
    """Bilinear values at ``(column, row)``, reflected at the outermost pixels or at their edges."""
    side = places.new_tensor([x.shape[-1], x.shape[-2]])
    unit = 2 * places / (side - 1) - 1 if at_pixels else (2 * places + 1) / side - 1
    return F.grid_sample(x, unit, mode="bilinear", padding_mode="reflection", align_corners=at_pixels)


def pixelate(x: Tensor, share: float, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """Made smaller by means of boxes of pixels, and larger again by repeating them."""
    height, width = x.shape[-2:]
    few, narrow = int(height * share), int(width * share)
    small = _box_matrix(height, few).to(x.device) @ x @ _box_matrix(width, narrow).to(x.device).T
    for axis, old, new in ((2, height, few), (3, width, narrow)):
        repeated = ((torch.arange(old) + 0.5) * new / old).long().to(x.device)
        small = small.index_select(axis, repeated)
    return small


@lru_cache(maxsize=64)
def _box_matrix(old: int, new: int) -> Tensor:
    """``(new, old)``, ``new`` ≤ ``old``: the mean of the old pixels with centres in a new one."""
    scale = old / new
    centre = (torch.arange(new).double()[:, None] + 0.5) * scale
    at = (torch.arange(old).double() + 0.5 - centre) / scale
    weights = ((at > -0.5) & (at <= 0.5)).double()
    return (weights / weights.sum(dim=1, keepdim=True)).float()


def jpeg_compression(images: Tensor, quality: int, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """Written as JPEG and read again, one image after another; takes and gives bytes."""
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("JPEG needs Pillow: pip install 'macc-torch[data]'") from None
    found = []
    for pixels in images.permute(0, 2, 3, 1).contiguous().cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=quality)
        with Image.open(file) as image:
            found.append(np.asarray(image))
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).to(images.device)


def saturate(x: Tensor, factor: float, added: float, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """HSV saturation · ``factor`` + ``added``; hue and value stay, grey counts as red."""
    value = x.amax(dim=1, keepdim=True)
    below = value - x
    chroma = below.amax(dim=1, keepdim=True)
    old = chroma / value.clamp(min=1e-12)
    new = (factor * old + added).clamp(0, 1)
    red = torch.cat([torch.zeros_like(value), value, value], dim=1)
    return value - torch.where(chroma > 0, below * (new / old.clamp(min=1e-12)), red * new)

"""Shifted test sets of small grey images: noise and rotation, at five levels each."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from macc.data._parts import Part
from macc.data._splits import SPLIT_SEED

NOISE = (0.1, 0.2, 0.3, 0.4, 0.5)  # standard deviation, pixels in [0, 1]
ROTATION = (10, 20, 30, 40, 50)  # degrees


def noise_and_rotation(test: Part) -> dict[str, Part]:
    """``noise-1`` … ``rotation-5`` of a test set, the same at every call."""
    shifts = {f"noise-{level}": noisy(test, sd, level) for level, sd in enumerate(NOISE, start=1)}
    return shifts | {
        f"rotation-{level}": rotated(test, angle) for level, angle in enumerate(ROTATION, start=1)
    }


def noisy(part: Part, sd: float, level: int) -> Part:
    """Grey images under Gaussian noise of a standard deviation, drawn for each level anew."""
    generator = torch.Generator().manual_seed(SPLIT_SEED + level)
    noise = torch.randn(part.inputs.shape, generator=generator)
    return Part(inputs=_to_bytes(part.inputs / 255 + sd * noise), labels=part.labels)


def rotated(part: Part, degrees: float) -> Part:
    """Grey images turned about their middle, with black corners."""
    angle = math.radians(degrees)
    matrix = torch.tensor([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]])
    grid = F.affine_grid(
        matrix.expand(len(part), 2, 3), [len(part), *part.inputs.shape[1:]], align_corners=False
    )
    return Part(
        inputs=_to_bytes(F.grid_sample(part.inputs / 255, grid, align_corners=False)), labels=part.labels
    )


def _to_bytes(images: Tensor) -> Tensor:
    return images.clamp(0, 1).mul(255).round().to(torch.uint8)

"""Pictures to corrupt, and the random numbers to corrupt them with."""

import torch

from macc.data.corruptions import _tools


def picture(side, count=1, seed=0):
    """Smooth shapes in colour with some texture, as uint8 ``(N, 3, side, side)``."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(count, 3, side, side, generator=generator)
    smooth = _tools.smooth(rough, side / 10)
    span = smooth.amax(dim=(1, 2, 3), keepdim=True) - smooth.amin(dim=(1, 2, 3), keepdim=True)
    shapes = (smooth - smooth.amin(dim=(1, 2, 3), keepdim=True)) / span
    return (shapes * 200 + rough * 55).round().to(torch.uint8)


def draws(count=1, key="k"):
    """The same random numbers at each call."""
    return _tools.ImageDraws(key=key, indices=range(count), device=torch.device("cpu"))

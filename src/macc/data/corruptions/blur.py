"""Blur: out of focus, through glass, of motion, of zooming, and Gaussian."""

import math

import torch
from torch import Tensor

from macc.data.corruptions._tools import ImageDraws, filtered, motion_blurred, smooth, zoomed

DEFOCUS = {
    32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    64: ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    224: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
}
GLASS = {
    32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    64: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    224: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
}
MOTION = {
    32: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    64: ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    224: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
}
_SMALL_ZOOM = ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))
ZOOM = {
    32: _SMALL_ZOOM,
    64: _SMALL_ZOOM,
    224: ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
}
GAUSSIAN = {32: (0.4, 0.6, 0.7, 0.8, 1), 64: (0.5, 0.75, 1, 1.25, 1.5), 224: (1, 2, 3, 4, 6)}


def defocus_blur(x: Tensor, radius: float, softness: float, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """A disk, itself softened a little."""
    return filtered(x, disk(radius, softness))


def disk(radius: float, softness: float) -> Tensor:
    """A disk of ``radius`` with a smoothed edge: three pixels, five for large ones; sum 1."""
    reach = int(radius)
    edge = 1 if radius <= 8 else 2
    side = torch.arange(-reach - edge, reach + edge + 1)
    kernel = (side[:, None] ** 2 + side**2 <= radius**2).double()
    steps = torch.arange(-edge, edge + 1).double()
    weights = torch.exp(-0.5 * (steps / softness) ** 2)
    line = weights / weights.sum()
    soft = torch.nn.functional.conv2d(
        torch.nn.functional.pad(kernel[None, None], (edge,) * 4), line.outer(line)[None, None]
    )[0, 0]
    return (soft / soft.sum()).float()


def glass_blur(x: Tensor, sigma: float, reach: int, rounds: int, draws: ImageDraws) -> Tensor:
    """A little smoothing, every pixel replaced by a neighbour's, from the bottom right on, and
    smoothing again.

    The published generator means to swap the two; for arrays of colours its line copies one onto
    the other, and the published images are made by that.
    """
    x = smooth(x, sigma)
    _, channels, height, width = x.shape
    for turn in range(rounds):
        # Steps from −reach to reach − 1, as in the original.
        steps = draws.uniform(2, height * width, low=-reach, high=reach, what=f"round {turn}").floor().long()
        sources = _sources(steps, height, width, reach)
        x = x.flatten(2).gather(2, sources[:, None].expand(-1, channels, -1)).view(x.shape)
    return smooth(x, sigma)


def _sources(steps: Tensor, height: int, width: int, reach: int) -> Tensor:
    """``(N, H · W)``: the place that each place ends up with the pixel of.

    In the order of rows and columns from the bottom right, a place takes what its neighbour has by
    then: the neighbour's own pixel, or what the neighbour took if its turn was before. Chains of
    such turns are followed for all places at once, twice as far each time.

    Args:
        steps: ``(N, 2, H · W)``: how many rows and columns each place's neighbour is away.
        height: ``H``.
        width: ``W``.
        reach: The longest step; places nearer to the border have no turn.
    """
    place = torch.arange(height * width, device=steps.device).expand(len(steps), -1)
    row, column = place // width, place % width
    turn = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)
    neighbour = torch.where(turn, place + steps[:, 0] * width + steps[:, 1], place)
    before = turn.gather(1, neighbour) & (neighbour > place)
    last = torch.where(before, neighbour, place)
    while not torch.equal(last, further := last.gather(1, last)):
        last = further
    return neighbour.gather(1, last)


def motion_blur(x: Tensor, radius: int, sigma: float, draws: ImageDraws) -> Tensor:
    """A one-sided Gaussian along an angle of up to 45 degrees either way."""
    return motion_blurred(x, radius, sigma, draws.uniform(low=-45, high=45))


def zoom_blur(x: Tensor, limit: float, step: float, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """The mean of the image and its zooms by 1, 1 + step, … below ``limit``."""
    # Rounded, because 32 / 1.28 must be 25 and not a little more.
    factors = [round(1 + step * k, 6) for k in range(math.ceil((limit - 1) / step - 1e-6))]
    total = x.clone()
    for factor in factors:
        total += zoomed(x, factor)
    return total / (len(factors) + 1)


def gaussian_blur(x: Tensor, sigma: float, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """Gaussian smoothing."""
    return smooth(x, sigma)

"""Noise: normal, Poisson, salt and pepper, and speckle."""

from torch import Tensor

from macc.data.corruptions._tools import ImageDraws

GAUSSIAN = {
    32: (0.04, 0.06, 0.08, 0.09, 0.10),
    64: (0.04, 0.08, 0.12, 0.15, 0.18),
    224: (0.08, 0.12, 0.18, 0.26, 0.38),
}
SHOT = {32: (500, 250, 100, 75, 50), 64: (250, 100, 50, 30, 15), 224: (60, 25, 12, 5, 3)}
IMPULSE = {
    32: (0.01, 0.02, 0.03, 0.05, 0.07),
    64: (0.01, 0.02, 0.05, 0.08, 0.14),
    224: (0.03, 0.06, 0.09, 0.17, 0.27),
}
SPECKLE = {
    32: (0.06, 0.10, 0.12, 0.16, 0.20),
    64: (0.15, 0.20, 0.25, 0.30, 0.35),
    224: (0.15, 0.20, 0.35, 0.45, 0.60),
}


def gaussian_noise(x: Tensor, sd: float, draws: ImageDraws) -> Tensor:
    """``x + N(0, sd²)``."""
    return x + sd * draws.normal(*x.shape[1:])


def shot_noise(x: Tensor, photons: float, draws: ImageDraws) -> Tensor:
    """``Poisson(x · photons) / photons``."""
    return draws.poisson(x * photons) / photons


def impulse_noise(x: Tensor, share: float, draws: ImageDraws) -> Tensor:
    """A share of all values becomes 0 or 1, as often the one as the other."""
    chance = draws.uniform(*x.shape[1:])
    return x.masked_fill(chance < share, 0.0).masked_fill(chance < share / 2, 1.0)


def speckle_noise(x: Tensor, sd: float, draws: ImageDraws) -> Tensor:
    """``x + x · N(0, sd²)``."""
    return x + x * sd * draws.normal(*x.shape[1:])

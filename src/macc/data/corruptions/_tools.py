"""What several corruptions need: random numbers of each image, smoothing, motion, zooming, crops.

Everything acts on whole batches, ``(N, C, H, W)``.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Border = Literal["reflect", "nearest"]

LARGE_KERNEL = 9


@dataclass(frozen=True, kw_only=True)
class ImageDraws:
    """Random numbers that belong to images, whatever their batch: each has its own generator.

    Args:
        key: What else the numbers depend on.
        indices: The place of each image in its set.
        device: Where the numbers are wanted; they are drawn on the CPU.
    """

    key: str
    indices: Sequence[int]
    device: torch.device

    def _filled(
        self, shape: Sequence[int], what: str, fill: Callable[[Tensor, torch.Generator], object]
    ) -> Tensor:
        found = torch.empty(len(self.indices), *shape)
        for row, index in zip(found, self.indices, strict=True):
            digest = hashlib.blake2b(f"{self.key} {what} {index}".encode(), digest_size=8).digest()
            fill(row, torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1))
        return found.to(self.device)

    def normal(self, *shape: int, what: str = "") -> Tensor:
        """Standard normal numbers, ``(N, *shape)``; ``what`` names one of several draws."""
        return self._filled(shape, what, lambda row, generator: row.normal_(generator=generator))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0, what: str = "") -> Tensor:
        """Uniform numbers in ``[low, high)``, ``(N, *shape)``."""
        return self._filled(shape, what, lambda row, generator: row.uniform_(low, high, generator=generator))

    def poisson(self, rates: Tensor) -> Tensor:
        """Poisson numbers of these rates, ``(N, ...)``."""
        home = iter(rates.cpu())
        return self._filled(
            rates.shape[1:],
            "",
            lambda row, generator: row.copy_(torch.poisson(next(home), generator=generator)),
        )


@lru_cache(maxsize=64)
def smoothing_matrix(side: int, sigma: float, border: Border, truncate: float) -> Tensor:
    """A Gaussian along a line of ``side`` pixels, ``(side, side)``, cut at ``truncate`` sigmas."""
    radius = int(truncate * sigma + 0.5)
    steps = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (steps.double() / max(sigma, 1e-12)) ** 2)
    weights /= weights.sum()
    at = torch.arange(side)[:, None] + steps
    if border == "nearest":
        at = at.clamp(0, side - 1)
    else:  # … c b a | a b c … a | a b …: reflected at the edges of pixels
        at = at % (2 * side)
        at = torch.where(at < side, at, 2 * side - 1 - at)
    matrix = torch.zeros(side, side, dtype=torch.float64)
    matrix.scatter_add_(1, at, weights.expand(side, -1).contiguous())
    return matrix.float()


def smooth(images: Tensor, sigma: float, *, border: Border = "nearest", truncate: float = 4.0) -> Tensor:
    """Gaussian smoothing of both axes, as two matrix products, which are quick at any sigma."""
    height, width = images.shape[-2:]
    rows = smoothing_matrix(height, sigma, border, truncate).to(images.device)
    columns = rows if height == width else smoothing_matrix(width, sigma, border, truncate).to(images.device)
    return rows @ images @ columns.T


def filtered(images: Tensor, kernel: Tensor) -> Tensor:
    """Every channel with one odd, square kernel; borders are reflected at pixels."""
    side = kernel.shape[0]
    reach = side // 2
    count, channels, height, width = images.shape
    planes = images.reshape(count * channels, 1, height, width)
    padded = (
        F.pad(planes, (reach,) * 4, mode="reflect")
        if reach < min(height, width)
        else _reflected(planes, reach)
    )
    kernel = kernel.to(images.device)
    if side < LARGE_KERNEL:
        total = torch.zeros_like(planes)
        for place, weight in enumerate(kernel.flatten().tolist()):
            if weight:
                top, left = divmod(place, side)
                total.add_(padded[..., top : top + height, left : left + width], alpha=weight)
        return total.view(images.shape)
    # A large kernel is quicker as a product of spectra; what wraps around is cut off.
    shape = [_next_fast(length) for length in padded.shape[-2:]]
    spectrum = torch.fft.rfft2(padded, s=shape) * torch.fft.rfft2(kernel.flip(0, 1), s=shape)
    found: Tensor = torch.fft.irfft2(spectrum, s=shape)
    return found[..., side - 1 : side - 1 + height, side - 1 : side - 1 + width].reshape(images.shape)


def _next_fast(length: int) -> int:
    """The next length whose only prime factors are 2, 3 and 5."""
    while True:
        rest = length
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return length
        length += 1


def _reflected(planes: Tensor, reach: int) -> Tensor:
    """Reflection of more than the image is wide."""
    for axis in (2, 3):
        side = planes.shape[axis]
        at = torch.arange(-reach, side + reach, device=planes.device) % max(1, 2 * side - 2)
        planes = planes.index_select(axis, torch.where(at < side, at, 2 * side - 2 - at))
    return planes


def zoomed(images: Tensor, factor: float) -> Tensor:
    """The centre, enlarged to the whole by linear interpolation between the corners."""
    height, width = images.shape[-2:]
    tall, wide = math.ceil(height / factor - 1e-9), math.ceil(width / factor - 1e-9)
    top, left = (height - tall) // 2, (width - wide) // 2
    larger = F.interpolate(
        images[..., top : top + tall, left : left + wide],
        size=(round(tall * factor), round(wide * factor)),
        mode="bilinear",
        align_corners=True,
    )
    top, left = (larger.shape[-2] - height) // 2, (larger.shape[-1] - width) // 2
    return larger[..., top : top + height, left : left + width]


def crops(images: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """A window of each image: ``top`` and ``left`` are ``(N,)``, on the CPU.

    Every row of a window is a stretch of neighbouring values: one `index_select` copies whole rows.
    """
    count, channels, tall, wide = images.shape
    images = images.contiguous()
    plane = torch.arange(count * channels).view(count, channels) * (tall * wide)
    start = plane + (top * wide + left)[:, None]
    rows = start[..., None] + torch.arange(height) * wide
    stretches = images.view(-1).as_strided((images.numel() - width + 1, width), (1, 1))
    picked = rows.view(-1).to(images.device)
    return stretches.index_select(0, picked).view(count, channels, height, width)


def motion_blurred(images: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """A one-sided Gaussian of ``2 radius + 1`` steps along an angle of each image."""
    length = 2 * radius + 1
    weights = torch.exp(-0.5 * (torch.arange(length) / sigma) ** 2)
    weights /= weights.sum()
    angle = torch.deg2rad(degrees.cpu().double())
    height, width = images.shape[-2:]
    padded = F.pad(images, (length,) * 4, mode="replicate")
    total = torch.zeros_like(images)
    for step, weight in enumerate(weights.tolist()):
        down = torch.ceil(step * angle.sin() - 0.5).long().clamp(-length, length)
        right = torch.ceil(step * angle.cos() - 0.5).long().clamp(-length, length)
        total.add_(crops(padded, length + down, length + right, height, width), alpha=weight)
    return total

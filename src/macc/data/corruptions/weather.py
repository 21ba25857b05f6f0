"""Weather: snow, frost, fog, brightness, and spatter."""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from macc.data.corruptions._tools import ImageDraws, crops, filtered, motion_blurred, smooth, zoomed

SNOW = {
    32: (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    64: (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    224: (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
}
FROST = {
    32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    64: ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    224: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
}
FOG = {
    32: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    64: ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    224: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
}
BRIGHTNESS = {
    32: (0.05, 0.1, 0.15, 0.2, 0.3),
    64: (0.1, 0.2, 0.3, 0.4, 0.5),
    224: (0.1, 0.2, 0.3, 0.4, 0.5),
}
SPATTER = {
    32: (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    64: (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    224: (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
}
GREY = (0.299, 0.587, 0.114)
TURQUOISE = (175 / 255, 238 / 255, 238 / 255)
BROWN = (63 / 255, 42 / 255, 20 / 255)
ICE = (0.80, 0.90, 1.0)
FROST_SHEETS = 5


def snow(
    x: Tensor,
    mean: float,
    sd: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    kept: float,
    draws: ImageDraws,
) -> Tensor:
    """Bright flakes in motion over a paler image, added with their half turn."""
    height, width = x.shape[-2:]
    layer = zoomed(mean + sd * draws.normal(1, height, width), zoom)
    layer = torch.where(layer < threshold, 0.0, layer).clamp(0, 1)
    layer = motion_blurred(layer, radius, sigma, draws.uniform(low=-135, high=-45, what="angle"))
    grey = (x * x.new_tensor(GREY).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    pale = kept * x + (1 - kept) * torch.maximum(x, 1.5 * grey + 0.5)
    return pale + layer + layer.rot90(2, dims=(2, 3))


def frost_synthetic(x: Tensor, image: float, ice: float, draws: ImageDraws) -> Tensor:
    """``image · x + ice · (crop of a sheet of made-up ice crystals)``."""
    side = max(x.shape[-2:])
    sheets = frost_sheets(side).to(x.device)
    chosen = draws.uniform(3)
    place = (chosen[:, 1:] * (sheets.shape[-1] - side + 1)).long().cpu()
    sheet = sheets[(chosen[:, 0] * FROST_SHEETS).long()]
    return image * x + ice * crops(sheet, place[:, 0], place[:, 1], *x.shape[-2:])


@lru_cache(maxsize=4)
def frost_sheets(side: int) -> Tensor:
    """Five sheets of ice twice as large as the image, ``(5, 3, 2 side, 2 side)``.

    A sheet is divided into grains; the needles of a grain run along one of six directions, and
    grains are brightest where they meet.
    """
    draws = ImageDraws(key=f"frost {side}", indices=range(FROST_SHEETS), device=torch.device("cpu"))
    size = 2 * side
    needle = max(2, side // 12)
    noise = draws.normal(1, size, size, what="needles")
    angles = torch.arange(6) * 30.0
    needles = []
    for angle in angles:
        line = motion_blurred(noise, needle, needle / 1.2, torch.full((FROST_SHEETS,), float(angle)))
        line = line - smooth(line, max(1.0, needle / 2))
        needles.append(line / line.std(dim=(2, 3), keepdim=True))
    grains = 40
    seeds = draws.uniform(2, grains, what="grains") * size
    grid = torch.arange(size).float()
    # Distances on a torus, so that no border shows.
    far = [(grid[:, None] - seeds[:, axis, None, :]).abs() for axis in (0, 1)]
    far = [torch.minimum(one, size - one).square() for one in far]
    distance = (far[0][:, :, None, :] + far[1][:, None, :, :]).sqrt()
    nearest, owner = distance.topk(2, dim=3, largest=False)
    seam = torch.exp(-(nearest[..., 1] - nearest[..., 0]) / (0.04 * side))[:, None]
    direction = (owner[..., 0] % len(angles))[:, None, None]
    crystal = smooth(torch.stack(needles, dim=1).gather(1, direction).squeeze(1), 0.7)
    veil = plasma(draws.uniform(_power(size), _power(size), low=-1, high=1, what="veil"), 1.6)[
        ..., :size, :size
    ]
    light = (0.25 + 0.18 * crystal + 0.35 * seam + 0.45 * veil[:, None]).clamp(0, 1)
    return light * torch.tensor(ICE).view(1, 3, 1, 1)


def fog(x: Tensor, amount: float, decay: float, draws: ImageDraws) -> Tensor:
    """A plasma fractal is added, and all brought back to the image's own brightest value."""
    height, width = x.shape[-2:]
    size = _power(max(height, width))
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    layer = plasma(draws.uniform(size, size, low=-1, high=1), decay)[:, None, :height, :width]
    return (x + amount * layer) * brightest / (brightest + amount).clamp(min=1e-6)


def _power(side: int) -> int:
    return 1 << (side - 1).bit_length()


def plasma(noise: Tensor, decay: float) -> Tensor:
    """Diamond-square fractals in ``[0, 1]``, ``(N, S, S)``, from noise; ``S`` is a power of 2.

    Points between known ones get their mean and noise, whose size is divided by ``decay²`` each
    time the distance is halved; the map is periodic.
    """
    size = noise.shape[1]
    heights = torch.zeros_like(noise)
    step, scale = size, 1.0
    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        below = corners.roll(-1, 1)
        centres = (corners + below + corners.roll(-1, 2) + below.roll(-1, 2)) / 4
        centres = centres + scale * noise[:, half::step, half::step]
        across = (corners + corners.roll(-1, 2) + centres + centres.roll(1, 1)) / 4
        down = (corners + below + centres + centres.roll(1, 2)) / 4
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = across + scale * noise[:, ::step, half::step]
        heights[:, half::step, ::step] = down + scale * noise[:, half::step, ::step]
        step, scale = half, scale / decay**2
    heights = heights - heights.amin(dim=(1, 2), keepdim=True)
    return heights / heights.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)


def brightness(x: Tensor, amount: float, draws: ImageDraws) -> Tensor:  # noqa: ARG001
    """HSV value + ``amount``; hue and saturation stay, so all channels are scaled alike."""
    value = x.amax(dim=1, keepdim=True)
    brighter = (value + amount).clamp(0, 1)
    # Black has no colour and becomes grey.
    return torch.where(value > 0, x * (brighter / value.clamp(min=1e-12)), brighter)


def spatter(
    x: Tensor,
    mean: float,
    sd: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: int,
    draws: ImageDraws,
) -> Tensor:
    """Drops where smoothed noise is high: turquoise water with shaded edges, or brown mud."""
    height, width = x.shape[-2:]
    liquid = smooth(mean + sd * draws.normal(1, height, width), sigma)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    if mud:
        cover = smooth((liquid > threshold).float(), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return x * (1 - cover) + cover * x.new_tensor(BROWN).view(1, 3, 1, 1)
    water = (255 * liquid.clamp(0, 1)).floor() * _relief(liquid > 0)
    water = strength * water / water.amax(dim=(2, 3), keepdim=True).clamp(min=1e-12)
    return x + water * x.new_tensor(TURQUOISE).view(1, 3, 1, 1)


def _relief(inside: Tensor) -> Tensor:
    """Light from one side on the distance to a drop's edge, its histogram made even."""
    around = filtered(inside.float(), torch.ones(3, 3))
    edge = inside & (around < 8.5)
    distance = _distance(edge, 20)
    even = _equalised(filtered(distance, torch.full((3, 3), 1 / 9)).floor())
    lit = filtered(even, torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])).clamp(0, 255)
    return filtered(lit, torch.full((3, 3), 1 / 9)).floor()


def _distance(edge: Tensor, most: int) -> Tensor:
    """Distance to the nearest pixel of ``edge`` in each image, at most ``most``."""
    # Squared distances along one axis, then along both; short integers, because memory is what this
    # waits for.
    found = torch.where(edge, 0, most**2).to(torch.int16)
    for axis in (2, 3):
        side = found.shape[axis]
        padding = (0, 0, most, most) if axis == 2 else (most, most, 0, 0)
        padded = F.pad(found, padding, value=most**2)
        for step in range(-most, most + 1):
            if abs(step) < side:
                found = torch.minimum(found, padded.narrow(axis, most + step, side) + step**2)
    return found.clamp(max=most**2).float().sqrt()


def _equalised(values: Tensor) -> Tensor:
    """Whole numbers of each image spread over ``[0, 255]`` so that each stretch is as frequent."""
    count = len(values)
    flat = values.view(count, -1).long()
    histogram = torch.zeros(count, int(flat.max()) + 1, device=values.device)
    histogram.scatter_add_(1, flat, torch.ones_like(flat, dtype=histogram.dtype))
    below = histogram.cumsum(dim=1)
    first = below.gather(1, flat.amin(dim=1, keepdim=True))
    spread = 255 * (below - first) / (flat.shape[1] - first).clamp(min=1)
    return spread.clamp(min=0).gather(1, flat).round().view(values.shape)

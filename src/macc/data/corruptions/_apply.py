"""Corruptions by name: a batch, or a whole data set."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from macc.data._cells import LEVELS, STANDARD, SYNTHETIC_FROST, cell
from macc.data._parts import Part
from macc.data._splits import Splits
from macc.data.corruptions import blur, digital, noise, weather
from macc.data.corruptions._tools import ImageDraws

# So many values at once keep the intermediate results within the processor's caches. Glass takes
# many short steps, each as long for few images as for many.
BATCH_VALUES = 2**20
GLASS_VALUES = 2**23


@dataclass(frozen=True, kw_only=True)
class _Corruption:
    apply: Callable[..., Tensor]
    constants: Mapping[int, Sequence[Any]]


@cache
def _table() -> dict[str, _Corruption]:
    pairs: tuple[tuple[Callable[..., Tensor], Mapping[int, Sequence[Any]]], ...] = (
        (noise.gaussian_noise, noise.GAUSSIAN),
        (noise.shot_noise, noise.SHOT),
        (noise.impulse_noise, noise.IMPULSE),
        (blur.defocus_blur, blur.DEFOCUS),
        (blur.glass_blur, blur.GLASS),
        (blur.motion_blur, blur.MOTION),
        (blur.zoom_blur, blur.ZOOM),
        (weather.snow, weather.SNOW),
        (weather.frost_synthetic, weather.FROST),
        (weather.fog, weather.FOG),
        (weather.brightness, weather.BRIGHTNESS),
        (digital.contrast, digital.CONTRAST),
        (digital.elastic_transform, digital.ELASTIC),
        (digital.pixelate, digital.PIXELATE),
        (digital.jpeg_compression, digital.JPEG),
        (noise.speckle_noise, noise.SPECKLE),
        (blur.gaussian_blur, blur.GAUSSIAN),
        (weather.spatter, weather.SPATTER),
        (digital.saturate, digital.SATURATE),
    )
    return {apply.__name__: _Corruption(apply=apply, constants=constants) for apply, constants in pairs}


def names(*, standard: bool = False) -> tuple[str, ...]:
    """All 19, or the 15 of the standard set; ours has ``frost_synthetic`` in the place of
    ``frost``.

    Example:
        >>> len(names()), len(names(standard=True)), names()[-1]
        (19, 15, 'saturate')
    """
    published = [SYNTHETIC_FROST if name == "frost" else name for name in STANDARD]
    return tuple(name for name in _table() if not standard or name in published)


def corrupt(images: Tensor, corruption: str, severity: int, *, seed: int = 0, first: int = 0) -> Tensor:
    """A batch of images under a corruption.

    The constants are those of the published sets: of CIFAR-10-C for images below 48 pixels, of
    Tiny-ImageNet-C below 128, of ImageNet-C above.

    Args:
        images: ``(N, 3, H, W)``, uint8, on any device.
        corruption: One of :func:`names`.
        severity: 1 … 5.
        seed: Another seed, another draw.
        first: The place of the first image in its set: an image's draw is the same in any batch.

    Returns:
        Images of the same shape and dtype.

    Example:
        >>> grey = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
        >>> corrupt(grey, "brightness", 4).unique()
        tensor([179], dtype=torch.uint8)
        >>> alone = corrupt(grey[1:], "gaussian_noise", 3, first=1)
        >>> torch.equal(corrupt(grey, "gaussian_noise", 3)[1:], alone)
        True
    """
    table = _table()
    if corruption not in table:
        hint = "; photographs of frost are not shipped" if corruption == "frost" else ""
        raise ValueError(f"no corruption is called {corruption!r}{hint}; there are {', '.join(table)}")
    if severity not in LEVELS:
        raise ValueError(f"`severity` must be 1, 2, 3, 4 or 5, got {severity!r}")
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        raise ValueError(
            f"corruptions are of colour images, uint8 (N, 3, H, W); got {images.dtype} {tuple(images.shape)}"
        )
    if min(images.shape[2:]) < 16:
        raise ValueError(f"corruptions need images of at least 16 pixels, got {tuple(images.shape[2:])}")
    chosen = table[corruption]
    side = max(images.shape[2:])
    settings = chosen.constants[32 if side < 48 else 64 if side < 128 else 224][severity - 1]
    settings = settings if isinstance(settings, tuple) else (settings,)
    result = torch.empty_like(images, memory_format=torch.contiguous_format)
    values = GLASS_VALUES if corruption == "glass_blur" else BATCH_VALUES
    for start, piece in _pieces(images, values):
        draws = ImageDraws(
            key=f"{seed} {corruption} {severity}",
            indices=range(first + start, first + start + len(piece)),
            device=images.device,
        )
        if chosen.apply is digital.jpeg_compression:
            result[start : start + len(piece)] = chosen.apply(piece, *settings, draws)
            continue
        changed = chosen.apply(piece.float().div_(255), *settings, draws)
        result[start : start + len(piece)] = changed.clamp_(0, 1).mul_(255).round_()
    return result


def _pieces(images: Tensor, values: int) -> Iterator[tuple[int, Tensor]]:
    size = max(1, values // max(1, images[0].numel())) if len(images) else 1
    for start in range(0, len(images), size):
        yield start, images[start : start + size]


def corrupted(
    splits: Splits,
    *,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = LEVELS,
    seed: int = 0,
) -> Splits:
    """The set with its test images under corruptions as its shifts, made on the fly and held in
    memory.

    Args:
        splits: Colour images.
        corruptions: Some of :func:`names`; all 19 if not given.
        severities: Some of 1 … 5.
        seed: Another seed, another draw.

    Returns:
        The same splits, called ``<name>_c_regen``, with shifts ``gaussian_noise-1`` and so on.

    Example:
        >>> from macc import data
        >>> part = data.Part(inputs=torch.zeros(4, 3, 32, 32, dtype=torch.uint8), labels=torch.arange(4) % 2)
        >>> grey = data.Splits(name="grey", kind="image", classes=("a", "b"), train=part, val=part, test=part)
        >>> list(corrupted(grey, corruptions=["fog"], severities=[1, 5]).shifts)
        ['fog-1', 'fog-5']
    """
    if splits.kind != "image":
        raise ValueError(f"{splits.name} holds {splits.kind}; only images can be corrupted")
    shifts = {
        cell(name, level): Part(
            inputs=corrupt(splits.test.inputs, name, level, seed=seed), labels=splits.test.labels
        )
        for name in (names() if corruptions is None else corruptions)
        for level in severities
    }
    return replace(splits, name=f"{splits.name}_c_regen", shifts=shifts)

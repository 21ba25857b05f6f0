"""Corrupted test sets: their names, and their files in the layout of CIFAR-10-C.

A cell is one corruption at one of five levels. A file holds the five cells of a corruption one
after another, ``(5 N, H, W, C)`` bytes; ``labels.npy`` has the labels.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from macc.data._parts import Part
from macc.data._splits import Splits
from macc.io.arrays import Array, open_npy

LEVELS = (1, 2, 3, 4, 5)
STANDARD = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
# Ours has no photographs of frost and says so by its name.
SYNTHETIC_FROST = "frost_synthetic"


def cell(corruption: str, level: int) -> str:
    """The name of a shift."""
    return f"{corruption}-{level}"


def choose(
    name: str,
    present: set[str],
    wanted: Sequence[str] | None,
    place: Path,
    *,
    standard: Sequence[str] = STANDARD,
    every: Sequence[str] = (*STANDARD, *EXTRA),
) -> tuple[str, ...]:
    """The corruptions to read: those asked for, else all whose files are there."""
    if wanted is None:
        wanted = every if present >= set(every) - set(standard) else standard
    elif unknown := [one for one in wanted if one not in every]:
        raise ValueError(f"no corruption is called {unknown[0]!r}; there are {', '.join(every)}")
    if missing := [one for one in wanted if one not in present]:
        raise ValueError(
            f"{name} is incomplete: {place} lacks {', '.join(missing)}; get or make it again, or say which to read: "
            f"macc.data.{name}(corruptions=[...])"
        )
    return tuple(wanted)


def read_cells(name: str, folder: Path, clean: Splits, *, corruptions: Sequence[str], verify: bool) -> Splits:
    """The clean set with the cells of ``folder`` as its shifts, whose pixels stay in their files.

    Args:
        name: Of the new set.
        folder: Holds ``<corruption>.npy`` and ``labels.npy``.
        clean: What was corrupted.
        corruptions: Which to read.
        verify: Check that the labels are those of the clean test images.
    """
    labels = torch.from_numpy(open_npy(folder / "labels.npy").astype("int64"))
    if labels.ndim != 1 or len(labels) % len(LEVELS):
        raise ValueError(
            f"{folder / 'labels.npy'} must hold the labels of five levels, got {tuple(labels.shape)}"
        )
    count = len(labels) // len(LEVELS)
    for level in LEVELS:
        own = labels[(level - 1) * count : level * count]
        if verify and not torch.equal(own, clean.test.labels):
            raise ValueError(
                f"the labels of level {level} in {folder / 'labels.npy'} are not those of the {len(clean.test)} test "
                f"images of {clean.name}; the files do not belong together"
            )
    shifts = {}
    for corruption in corruptions:
        pixels = _pixels(folder / f"{corruption}.npy", len(labels), clean.shape)
        for level in LEVELS:
            stretch = slice((level - 1) * count, level * count)
            images = torch.from_numpy(pixels[stretch]).permute(0, 3, 1, 2)
            shifts[cell(corruption, level)] = Part(inputs=images, labels=labels[stretch])
    return replace(clean, name=name, shifts=shifts)


def _pixels(path: Path, count: int, shape: tuple[int, ...]) -> Array:
    pixels = open_npy(path)
    channels, height, width = shape
    expected = (count, height, width, channels)
    if pixels.dtype != "uint8" or pixels.shape != expected:
        raise ValueError(f"{path} must hold uint8 {expected}, got {pixels.dtype} {pixels.shape}")
    return pixels

"""A contact sheet: what the images of a set look like, class by class and shift by shift."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macc.data._parts import Part
from macc.data._splits import Splits
from macc.io.writing import write_whole

GAP = 4
MARGIN = 20
WIDEST_LABEL = 180
ROWS = 20
MOST_CLASSES = 100
MOST_SHIFTS = 20
INK, FAINT = (32, 32, 32), (120, 120, 120)


def write_sheet(splits: Splits, path: Path) -> None:
    """Draw training images of every class, and the shifted test sets, into a PNG file.

    The file gets its name when it is complete.
    """
    if splits.kind != "image":
        raise ValueError(f"{splits.name} holds {splits.kind}, not images; there is nothing to draw")
    if path.suffix.lower() != ".png":
        raise ValueError(f"the contact sheet is a PNG file; call it {path.with_suffix('.png')}, not {path}")
    sheet = draw_sheet(splits)
    with write_whole(path) as file:
        sheet.save(file, format="PNG")


def draw_sheet(splits: Splits) -> Any:
    """The sheet as a Pillow image."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise ValueError("drawing images needs Pillow: pip install 'macc-torch[data]'") from None
    image_side = max(splits.shape[1:])
    # Small images in whole pixels, large ones small enough to see many.
    tile = image_side * max(1, round(56 / image_side)) if image_side <= 80 else 96
    shown = min(splits.num_classes, MOST_CLASSES)
    blocks = -(-shown // ROWS)
    per_class = max(4, (12 if tile < 80 else 8) // blocks)
    rows = min(shown, ROWS)
    title, text, small = (ImageFont.load_default(size) for size in (20, 14, 12))
    rows_of_shifts = _rows_of_shifts(splits)
    names = [*splits.classes[:shown], *rows_of_shifts]
    label_width = min(WIDEST_LABEL, 16 + max(int(text.getlength(name)) for name in names))
    block_width = label_width + per_class * (tile + GAP) + MARGIN
    per_shift = (blocks * block_width - label_width - MARGIN) // (tile + GAP)
    shift_top = MARGIN + 52 + rows * (tile + GAP) + 20
    height = shift_top + 24 + len(rows_of_shifts) * (tile + GAP) if rows_of_shifts else shift_top - 20
    image = Image.new("RGB", (MARGIN + max(blocks * block_width, 460), height + MARGIN - GAP), "white")
    draw = ImageDraw.Draw(image)

    def label(left: int, top: int, words: str) -> None:
        while text.getlength(words) > label_width - 12 and len(words) > 1:
            words = words.removesuffix("...")[:-1] + "..."
        draw.text((left, top + tile // 2), words, fill=INK, font=text, anchor="lm")

    def tiles(left: int, top: int, pictures: Tensor) -> None:
        for k, pixels in enumerate(pictures):
            image.paste(_tile(pixels, tile), (left + label_width + k * (tile + GAP), top))

    side = " by ".join(str(n) for n in splits.shape[1:])
    colour = "grey" if splits.shape[0] == 1 else "colour"
    draw.text((MARGIN, MARGIN), splits.name, fill=INK, font=title, anchor="lt")
    all_or_some = f"{shown} of {splits.num_classes}" if shown < splits.num_classes else f"{shown}"
    words = f"Training images of {all_or_some} classes, {side} pixels, {colour}"
    draw.text((MARGIN, MARGIN + 28), words, fill=FAINT, font=small, anchor="lt")
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(splits.train), generator=generator)
    labels = splits.train.labels[order]
    for k in range(shown):
        left = MARGIN + (k // ROWS) * block_width
        top = MARGIN + 52 + (k % ROWS) * (tile + GAP)
        label(left, top, splits.classes[k])
        tiles(left, top, splits.train.inputs.index_select(0, order[labels == k][:per_class]))
    if rows_of_shifts:
        same = all(torch.equal(part.labels, splits.test.labels) for part in splits.shifts.values())
        together = any(len(parts) > 1 for parts in rows_of_shifts.values())
        words = "The same test images under each shift" if same else "Test images of each shift"
        words = "Test images, then the same at each level" if together else words
        draw.text((MARGIN, shift_top), words, fill=FAINT, font=small, anchor="lt")
    for k, (name, parts) in enumerate(rows_of_shifts.items()):
        top = shift_top + 24 + k * (tile + GAP)
        label(MARGIN, top, name)
        each = max(1, per_shift // len(parts))
        tiles(MARGIN, top, torch.cat([part.inputs[:each] for part in parts]))
    return image


def _rows_of_shifts(splits: Splits) -> dict[str, list[Part]]:
    """What stands in a row: a shift or, of many, all levels of one after the clean images."""
    if len(splits.shifts) <= MOST_SHIFTS:
        # Where the test set is made of the shifts it would show the first of them again.
        pooled = len(splits.test) == sum(len(part) for part in splits.shifts.values())
        clean = {} if pooled or not splits.shifts else {"test": [splits.test]}
        return clean | {name: [part] for name, part in splits.shifts.items()}
    rows: dict[str, list[Part]] = {}
    for name, part in splits.shifts.items():
        head, _, level = name.rpartition("-")
        rows.setdefault(head if head and level.isdigit() else name, [splits.test]).append(part)
    return rows


def _tile(pixels: Tensor, side: int) -> Any:
    from PIL import Image, ImageOps

    values = pixels if pixels.dtype == torch.uint8 else pixels.mul(255).round().to(torch.uint8)
    array = values.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[2] == 1 else array).convert("RGB")
    larger = max(picture.size) <= side
    scaled = ImageOps.contain(
        picture, (side, side), Image.Resampling.NEAREST if larger else Image.Resampling.BILINEAR
    )
    return ImageOps.pad(scaled, (side, side), color="white")

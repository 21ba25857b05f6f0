"""The contact sheet."""

import numpy as np
import pytest
import torch

from macc import data
from macc.data import corruptions

Image = pytest.importorskip("PIL.Image")


def test_the_contact_sheet_has_a_row_for_each_corruption_with_its_levels(tmp_path):
    from macc.data.sheet import write_sheet

    images = torch.tensor([120, 60, 20], dtype=torch.uint8).view(1, 3, 1, 1).repeat(8, 1, 32, 32)
    part = data.Part(inputs=images, labels=torch.arange(8) % 2)
    grey = data.Splits(name="grey", kind="image", classes=("a", "b"), train=part, val=part, test=part)
    shifted = corruptions.corrupted(grey, corruptions=["brightness", *corruptions.names()[:4]])
    write_sheet(shifted, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet)
    # Brightness is the third row from the top, after two classes: one tile for each level.
    levels = [shifted.shifts[f"brightness-{k}"].inputs[0, :, 0, 0].numpy() for k in range(1, 6)]
    places = [np.argwhere((pixels == level).all(axis=2)) for level in levels]
    assert all(len(found) > 1000 for found in places)
    assert len({int(found[:, 0].min()) for found in places}) == 1
    lefts = [int(found[:, 1].min()) for found in places]
    assert lefts == sorted(lefts)
    assert len(set(lefts)) == 5

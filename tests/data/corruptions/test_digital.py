"""The corruptions of digital against slow, independent versions."""

import colorsys
import io

import numpy as np
import pytest
import torch
from scipy import ndimage

from helpers.pictures import draws, picture
from macc.data import corruptions
from macc.data.corruptions import digital

Image = pytest.importorskip("PIL.Image")


class TestDigital:
    def test_contrast(self):
        x = torch.rand(2, 3, 8, 8)
        found = digital.contrast(x, 0.3, draws())
        torch.testing.assert_close(found.mean(dim=(2, 3)), x.mean(dim=(2, 3)))
        torch.testing.assert_close(found.std(dim=(2, 3)), 0.3 * x.std(dim=(2, 3)))

    @pytest.mark.parametrize("side", [32, 64, 224])
    @pytest.mark.parametrize("severity", [1, 3, 5])
    def test_pixelate_is_pillow_s_box(self, side, severity):
        images = picture(side)
        few = int(side * digital.PIXELATE[side][severity - 1])
        expected = Image.fromarray(images[0].permute(1, 2, 0).numpy())
        expected = expected.resize((few, few), Image.Resampling.BOX).resize(
            (side, side), Image.Resampling.BOX
        )
        found = corruptions.corrupt(images, "pixelate", severity)[0].permute(1, 2, 0)
        # Pillow rounds between rows and columns.
        assert (found.int() - torch.from_numpy(np.array(expected)).int()).abs().max() <= 1

    def test_jpeg_is_pillow_s(self):
        images = picture(32)
        file = io.BytesIO()
        Image.fromarray(images[0].permute(1, 2, 0).numpy()).save(file, "JPEG", quality=40)
        with Image.open(file) as expected:
            pixels = torch.from_numpy(np.array(expected))
        assert torch.equal(corruptions.corrupt(images, "jpeg_compression", 5)[0].permute(1, 2, 0), pixels)

    @pytest.mark.parametrize(("factor", "added"), [(0.3, 0), (2.5, 0.2), (30, 0.2)])
    def test_saturate_changes_the_saturation_of_hsv(self, factor, added):
        x = torch.rand(1, 3, 6, 6)
        x[0, :, 0, 0] = 0
        x[0, :, 0, 1] = 0.5
        found = digital.saturate(x, factor, added, draws())
        for i in range(6):
            for j in range(6):
                hue, saturation, value = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
                expected = colorsys.hsv_to_rgb(hue, min(1, factor * saturation + added), value)
                assert found[0, :, i, j].tolist() == pytest.approx(expected, abs=1e-5)

    def test_bending_samples_as_scipy_does(self):
        x = torch.rand(1, 1, 10, 12)
        places = torch.rand(1, 10, 12, 2, generator=torch.Generator().manual_seed(0)) * 18 - 4
        at = [places[0, ..., 1].numpy(), places[0, ..., 0].numpy()]
        for mode, at_pixels in (("reflect", False), ("mirror", True)):
            expected = ndimage.map_coordinates(x[0, 0].numpy(), at, order=1, mode=mode)
            found = digital._sampled(x, places, at_pixels=at_pixels)[0, 0]
            np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_without_movement_nothing_bends(self):
        x = torch.rand(1, 3, 32, 32)
        torch.testing.assert_close(digital.elastic_transform(x, 0, 0, 0, 32, draws()), x, atol=1e-5, rtol=0)

    def test_three_points_go_where_they_were_moved(self):
        x = torch.zeros(1, 3, 64, 64)
        third, centre = 64 // 3, 32
        x[0, :, centre + third - 1 : centre + third + 2, centre + third - 1 : centre + third + 2] = 1
        moved = digital.elastic_transform(x, 0, 0, 0.08, 64, draws())[0, 0]
        step = draws().uniform(3, 2, low=-0.08 * 64, high=0.08 * 64, what="points")[0, 0]
        rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
        found = torch.stack([(moved * columns).sum(), (moved * rows).sum()]) / moved.sum()
        torch.testing.assert_close(found, torch.tensor([53.0, 53.0]) + step, atol=0.1, rtol=0)

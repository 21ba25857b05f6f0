"""The corruptions of weather against slow, independent versions."""

import colorsys

import numpy as np
import pytest
import torch
from scipy import ndimage

from helpers.pictures import draws
from macc.data.corruptions import weather


class TestWeather:
    def test_plasma_is_the_slow_diamond_square(self):
        size, decay = 8, 2.0
        given = torch.rand(2, size, size) * 2 - 1
        for n in range(2):
            grid, step, scale = np.zeros((size, size)), size, 1.0
            while step >= 2:
                half = step // 2
                for i in range(0, size, step):
                    for j in range(0, size, step):
                        four = [grid[i, j], grid[(i + step) % size, j], grid[i, (j + step) % size],
                                grid[(i + step) % size, (j + step) % size]]  # fmt: skip
                        grid[i + half, j + half] = sum(four) / 4 + scale * given[n, i + half, j + half]
                for i in range(0, size, half):
                    for j in range((i + half) % step, size, step):
                        four = [grid[(i - half) % size, j], grid[(i + half) % size, j],
                                grid[i, (j - half) % size], grid[i, (j + half) % size]]  # fmt: skip
                        grid[i, j] = sum(four) / 4 + scale * given[n, i, j]
                step, scale = half, scale / decay**2
            expected = (grid - grid.min()) / (grid.max() - grid.min())
            np.testing.assert_allclose(weather.plasma(given, decay)[n], expected, atol=1e-5)

    def test_brightness_adds_to_the_value_of_hsv(self):
        x = torch.rand(1, 3, 6, 6)
        x[0, :, 0, 0] = 0
        found = weather.brightness(x, 0.3, draws())
        for i in range(6):
            for j in range(6):
                hue, saturation, value = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
                expected = colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.3))
                assert found[0, :, i, j].tolist() == pytest.approx(expected, abs=1e-6)

    def test_fog_keeps_the_brightest_value_as_the_limit(self):
        x = torch.rand(4, 3, 32, 32) * 0.5
        for amount, decay in weather.FOG[32]:
            assert float(weather.fog(x, amount, decay, draws(4)).max()) <= float(x.max()) + 1e-6
        black = torch.zeros(1, 3, 32, 32)
        assert weather.fog(black, 1.0, 2.0, draws()).isfinite().all()

    def test_distances_are_scipy_s_up_to_a_limit(self):
        edge = torch.rand(2, 1, 30, 30, generator=torch.Generator().manual_seed(0)) > 0.99
        for n in range(2):
            expected = np.minimum(ndimage.distance_transform_edt(~edge[n, 0].numpy()), 6)
            np.testing.assert_allclose(weather._distance(edge, 6)[n, 0], expected, atol=1e-5)

    def test_histograms_become_even(self):
        values = torch.tensor([[0.0, 0, 1, 1, 2, 2, 3, 3]]).view(1, 1, 2, 4)
        assert weather._equalised(values).flatten().tolist() == [0, 0, 85, 85, 170, 170, 255, 255]

    def test_snow_is_the_layer_and_its_half_turn(self):
        black = torch.zeros(2, 3, 32, 32)
        found = weather.snow(black, *weather.SNOW[32][0][:-1], 1.0, draws(2))
        torch.testing.assert_close(found, found.rot90(2, dims=(2, 3)))
        assert (found >= 0).all()
        assert found.max() > 0

    def test_water_brightens_and_mud_is_brown(self):
        grey = torch.full((4, 3, 32, 32), 0.5)
        water = weather.spatter(grey, *weather.SPATTER[32][2], draws(4))
        assert (water >= 0.5 - 1e-6).all()
        added = (water - 0.5).amax(dim=(2, 3))
        torch.testing.assert_close(added, torch.tensor([weather.TURQUOISE] * 4) * 0.5)
        mud = weather.spatter(grey, *weather.SPATTER[224][4], draws(4))
        covered = (mud - 0.5).abs().amax(dim=1) > 0.3
        assert covered.any()
        assert (mud.amax(dim=1)[covered] < 0.35).all()

    def test_frost_sheets_are_the_same_everywhere_and_icy(self):
        sheets = weather.frost_sheets(32)
        assert sheets.shape == (5, 3, 64, 64)
        assert torch.equal(sheets, weather.frost_sheets.__wrapped__(32))
        assert (sheets[:, 2] >= sheets[:, 0]).all()  # bluish
        assert 0.2 < float(sheets.mean()) < 0.7
        assert float(sheets.std()) > 0.1
        first, second = sheets[0].flatten(), sheets[1].flatten()
        assert torch.corrcoef(torch.stack([first, second]))[0, 1] < 0.3

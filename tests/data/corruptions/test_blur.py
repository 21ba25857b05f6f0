"""The corruptions of blur against slow, independent versions."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from helpers.pictures import draws
from macc.data.corruptions import _tools, blur


class TestBlur:
    @pytest.mark.parametrize(("border", "truncate"), [("nearest", 4.0), ("reflect", 3.0)])
    @pytest.mark.parametrize("sigma", [0.05, 0.7, 3.0, 40.0])
    def test_smoothing_is_scipy_s(self, sigma, border, truncate):
        x = torch.rand(2, 3, 20, 20)
        expected = ndimage.gaussian_filter(
            x.double().numpy(), (0, 0, sigma, sigma), mode=border, truncate=truncate
        )
        found = _tools.smooth(x, sigma, border=border, truncate=truncate)
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)

    def test_the_disk(self):
        kernel = blur.disk(3, 0.1)
        inside = torch.tensor([[float(x * x + y * y <= 9) for x in range(-4, 5)] for y in range(-4, 5)])
        torch.testing.assert_close(kernel, inside / inside.sum())
        assert blur.disk(10, 0.5).sum() == pytest.approx(1)
        small = blur.disk(0.3, 0.4)
        assert small.shape == (3, 3)
        assert float(small[0, 1] / small[1, 1]) == pytest.approx(math.exp(-0.5 / 0.16), rel=1e-5)

    def test_filters_are_scipy_s(self):
        x, kernel = torch.rand(1, 2, 12, 12), torch.rand(5, 5)
        expected = [ndimage.correlate(plane, kernel.numpy(), mode="mirror") for plane in x[0].numpy()]
        np.testing.assert_allclose(_tools.filtered(x, kernel)[0].numpy(), expected, rtol=1e-5)
        wide = torch.rand(27, 27)
        expected = [ndimage.correlate(plane, wide.numpy(), mode="mirror") for plane in x[0].numpy()]
        np.testing.assert_allclose(_tools.filtered(x, wide)[0].numpy(), expected, rtol=1e-4)

    @pytest.mark.parametrize(("reach", "side"), [(1, 9), (2, 12), (4, 17)])
    def test_pixels_behind_glass_are_those_of_the_published_loop(self, reach, side):
        steps = torch.randint(-reach, reach, (3, 2, side * side), generator=torch.Generator().manual_seed(0))
        found = blur._sources(steps, side, side, reach)
        for n in range(3):
            # Numpy's assignment to colours of an array copies; it does not swap.
            slow = np.arange(side * side).repeat(3).reshape(side, side, 3)
            for row in range(side - reach, reach, -1):
                for column in range(side - reach, reach, -1):
                    down, right = steps[n, :, row * side + column].tolist()
                    there = row + down, column + right
                    slow[row, column], slow[there] = slow[there], slow[row, column]
            assert found[n].tolist() == slow[:, :, 0].flatten().tolist()

    def test_motion_is_a_sum_of_shifted_images(self):
        x, angle, radius, sigma = torch.rand(1, 1, 16, 16), torch.tensor([30.0]), 4, 2.0
        weights = np.exp(-0.5 * (np.arange(9) / sigma) ** 2)
        expected = np.zeros((16, 16))
        for k, weight in enumerate(weights / weights.sum()):
            down = math.ceil(k * math.sin(math.radians(30)) - 0.5)
            right = math.ceil(k * math.cos(math.radians(30)) - 0.5)
            rows = np.clip(np.arange(16) + down, 0, 15)
            columns = np.clip(np.arange(16) + right, 0, 15)
            expected += weight * x[0, 0].numpy()[rows][:, columns]
        np.testing.assert_allclose(_tools.motion_blurred(x, radius, sigma, angle)[0, 0], expected, atol=1e-6)

    @pytest.mark.parametrize("factor", [1.03, 1.25, 1.75, 2.25])
    def test_zooming_is_scipy_s(self, factor):
        x = torch.rand(1, 1, 32, 32)
        side = math.ceil(32 / factor)
        top = (32 - side) // 2
        larger = ndimage.zoom(x[0, 0, top : top + side, top : top + side].double().numpy(), factor, order=1)
        trim = (larger.shape[0] - 32) // 2
        expected = larger[trim : trim + 32, trim : trim + 32]
        np.testing.assert_allclose(_tools.zoomed(x, factor)[0, 0], expected, atol=1e-5)

    def test_zoom_blur_is_the_mean_over_factors_below_the_limit(self):
        x = torch.rand(1, 3, 32, 32)
        for limit, step in (*blur.ZOOM[32], *blur.ZOOM[224]):
            factors = [round(f, 6) for f in np.arange(1, limit, step) if f < limit - 1e-9]
            expected = (x + sum(_tools.zoomed(x, float(f)) for f in factors)) / (len(factors) + 1)
            torch.testing.assert_close(blur.zoom_blur(x, limit, step, draws()), expected)

"""The corruptions of noise against slow, independent versions."""

import math

import pytest
import torch

from helpers.pictures import draws
from macc.data.corruptions import noise


class TestNoise:
    @pytest.mark.parametrize("severity", [1, 3, 5])
    @pytest.mark.parametrize("size", [32, 64, 224])
    def test_moments_are_the_constants(self, severity, size):
        grey = torch.full((40, 3, 32, 32), 0.5)
        count = grey.numel()

        sd = noise.GAUSSIAN[size][severity - 1]
        found = noise.gaussian_noise(grey, sd, draws(40)) - 0.5
        assert float(found.mean()) == pytest.approx(0, abs=4 * sd / math.sqrt(count))
        assert float(found.std()) == pytest.approx(sd, rel=0.02)

        sd = noise.SPECKLE[size][severity - 1]
        assert float((noise.speckle_noise(grey, sd, draws(40)) - 0.5).std()) == pytest.approx(
            sd / 2, rel=0.02
        )

        photons = noise.SHOT[size][severity - 1]
        found = noise.shot_noise(grey, photons, draws(40))
        assert float(found.mean()) == pytest.approx(0.5, abs=4 * math.sqrt(0.5 / photons / count))
        assert float(found.var()) == pytest.approx(0.5 / photons, rel=0.03)

        share = noise.IMPULSE[size][severity - 1]
        found = noise.impulse_noise(grey, share, draws(40))
        error = 4 * math.sqrt(share / count)
        assert float((found == 0).float().mean()) == pytest.approx(share / 2, abs=error)
        assert float((found == 1).float().mean()) == pytest.approx(share / 2, abs=error)

    def test_channels_are_independent(self):
        found = noise.gaussian_noise(torch.zeros(20, 3, 32, 32), 1.0, draws(20))
        together = torch.corrcoef(found.transpose(0, 1).flatten(1))
        assert (together - torch.eye(3)).abs().max() < 0.03

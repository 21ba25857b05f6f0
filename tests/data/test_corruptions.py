"""The 19 corruptions against slow, independent versions, against their constants, and as files."""

import colorsys
import io
import json
import math
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from scipy import ndimage
from typer.testing import CliRunner

from helpers import trees
from helpers.trees import write_cifar10
from macc import data, training
from macc.cli import app
from macc.data import corruptions, regenerated
from macc.data.corruptions import _tools, blur, digital, noise, weather

Image = pytest.importorskip("PIL.Image")
NAMES = corruptions.names()
# By their published constants these do not change the mean pixel ever more: water turns to mud, colours first fade
# and then glow, the image fades under frost, bending gets finer instead of wider, and glass moves pixels more and
# blurs less. `TestGrowthByOtherMeasures` has what does grow.
OTHERWISE = ("spatter", "saturate", "frost_synthetic", "elastic_transform", "glass_blur")


def picture(side, count=1, seed=0):
    """Smooth shapes in colour with some texture, as uint8 ``(N, 3, side, side)``."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(count, 3, side, side, generator=generator)
    smooth = _tools.smooth(rough, side / 10)
    span = smooth.amax(dim=(1, 2, 3), keepdim=True) - smooth.amin(dim=(1, 2, 3), keepdim=True)
    shapes = (smooth - smooth.amin(dim=(1, 2, 3), keepdim=True)) / span
    return (shapes * 200 + rough * 55).round().to(torch.uint8)


def draws(count=1, key="k"):
    return _tools.Draws(key=key, indices=range(count), device=torch.device("cpu"))


class TestEvery:
    def test_there_are_19_of_which_15_are_standard(self):
        assert len(NAMES) == 19
        assert NAMES[:15] == corruptions.names(standard=True)
        assert "frost" not in NAMES  # made-up crystals do not carry the name of photographs

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("side", [32, 64])
    def test_shape_dtype_range_and_the_input_are_kept(self, name, side):
        images = picture(side, 3)
        before = images.clone()
        for severity in (1, 5):
            changed = corruptions.corrupt(images, name, severity)
            assert changed.shape == images.shape
            assert changed.dtype == torch.uint8
            assert not torch.equal(changed, images)
        assert torch.equal(images, before)

    @pytest.mark.parametrize("name", NAMES)
    def test_an_image_s_draw_depends_on_its_place_and_not_on_the_batch(self, name):
        images = picture(32, 5)
        whole = corruptions.corrupt(images, name, 4, first=7)

        assert torch.equal(whole, corruptions.corrupt(images, name, 4, first=7))
        for k in range(5):
            alone = corruptions.corrupt(images[k : k + 1], name, 4, first=7 + k)
            # Matrix products of other sizes may round a value the other way.
            assert (alone.int() - whole[k].int()).abs().max() <= 1
            assert (alone != whole[k]).float().mean() < 1e-3

    @pytest.mark.parametrize(
        "name", [n for n in NAMES if n not in ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate",
                                              "jpeg_compression", "gaussian_blur", "saturate")]
    )  # fmt: skip
    def test_random_ones_differ_by_image_severity_and_seed(self, name):
        same = picture(32).repeat(2, 1, 1, 1)
        one = corruptions.corrupt(same, name, 3)

        assert not torch.equal(one[0], one[1])
        assert not torch.equal(one, corruptions.corrupt(same, name, 3, seed=1))

    @pytest.mark.parametrize("name", [name for name in NAMES if name not in OTHERWISE])
    @pytest.mark.parametrize("side", [32, 64])
    def test_the_mean_change_grows_with_severity(self, name, side):
        images = picture(side, 24, seed=1)
        change = [
            (corruptions.corrupt(images, name, k).float() - images.float()).abs().mean() for k in range(1, 6)
        ]
        assert change == sorted(change)
        assert change[0] > 0

    @pytest.mark.parametrize("name", NAMES)
    def test_images_need_not_be_square(self, name):
        images = picture(48, 2)[:, :, 8:40]
        assert corruptions.corrupt(images, name, 3).shape == (2, 3, 32, 48)

    @pytest.mark.parametrize("name", NAMES)
    def test_large_images(self, name):
        images = picture(224)
        mild, strong = (corruptions.corrupt(images, name, severity) for severity in (1, 5))

        assert strong.shape == images.shape
        assert not torch.equal(mild, strong)

    def test_constants_have_five_severities_at_three_sizes(self):
        from macc.data.corruptions._apply import _table

        for name, one in _table().items():
            assert set(one.constants) == {32, 64, 224}, name
            assert all(len(levels) == 5 for levels in one.constants.values()), name

    @pytest.mark.parametrize(
        ("images", "name", "severity", "message"),
        [
            (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fogg", 1, "no corruption is called 'fogg'; there are"),
            (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "frost", 1, "photographs of frost are not shipped"),
            (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "fog", 6, "`severity` must be 1, 2, 3, 4 or 5, got 6"),
            (torch.zeros(1, 1, 32, 32, dtype=torch.uint8), "fog", 1, "colour images, uint8"),
            (torch.zeros(1, 3, 32, 32), "fog", 1, "got torch.float32"),
            (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "fog", 1, "at least 16 pixels"),
        ],
    )  # fmt: skip
    def test_mistakes(self, images, name, severity, message):
        with pytest.raises(ValueError, match=message):
            corruptions.corrupt(images, name, severity)


@pytest.mark.parametrize("side", [32, 64])
class TestGrowthByOtherMeasures:
    """Each test looks at all five levels of an ``OTHERWISE`` corruption."""

    def levels(self, name, images):
        return [corruptions.corrupt(images, name, level).float() for level in range(1, 6)]

    def detail(self, images):
        return images - _tools.smooth(images, 2.0)

    def test_water_and_mud_cover_ever_more(self, side):
        images = picture(side, 100, seed=1)
        change = [float((x - images).abs().mean()) for x in self.levels("spatter", images)]
        assert 0 < change[0] < change[1] < change[2]
        assert 0 < change[3] < change[4]

    def test_colours_fade_and_then_glow(self, side):
        def saturation(x):
            return float((1 - x.amin(1) / x.amax(1).clamp(min=1)).mean())

        images = picture(side, 24, seed=1).float()
        first, second, *others = map(saturation, self.levels("saturate", images.to(torch.uint8)))
        rising = [second, first, saturation(images), *others]
        assert rising == sorted(rising)
        assert len(set(rising)) == 6

    def test_the_image_is_lost_under_frost(self, side):
        images = picture(side, 100, seed=1)
        likeness = [self.likeness(x, images) for x in self.levels("frost_synthetic", images)]
        assert likeness == sorted(likeness, reverse=True)
        assert likeness[0] > likeness[4] + 0.1

    def test_bending_gets_stronger(self, side):
        """What is left of the displacement of a ramp when the best affine map is taken away, in pixels."""
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        ramp = torch.stack([rows, columns]).float().repeat(60, 1, 1, 1)
        inner = slice(3 * side // 8, -(3 * side // 8))  # away from reflections
        known = torch.stack([rows, columns, torch.ones_like(rows)])[:, inner, inner].reshape(3, -1).T.double()
        bent = []
        for constants in digital.ELASTIC[side]:
            moved = digital.elastic_transform(ramp, *constants, draws(60))
            places = moved[:, :, inner, inner].reshape(120, -1).T.double()
            left = places - known @ torch.linalg.lstsq(known, places).solution
            bent.append(float(left.square().mean().sqrt()))
        assert bent == sorted(bent)
        assert bent[0] < 1e-4
        assert bent[4] > 0.4

    def test_glass_moves_pixels_more_or_blurs_more(self, side):
        """At equal draws, because the first two levels at 32 pixels hardly differ."""
        images = picture(side, 100, seed=1) / 255
        constants = blur.GLASS[side]
        found = [self.detail(blur.glass_blur(images, *level, draws(100))) for level in constants]
        energy = [float(x.square().mean()) for x in found]
        likeness = [self.likeness(x, self.detail(images)) for x in found]
        for k in range(5):
            for j in range(k):
                (soft, *moves), (softer, *more) = constants[j], constants[k]
                if moves == more:
                    assert softer > soft
                    assert energy[k] < energy[j]
                elif side == 32:  # where the blur hardly differs, moving twice takes more of the detail
                    assert more == [1, 2]
                    assert likeness[k] < likeness[j]
                else:  # where the blur grows from level to level
                    assert softer > soft
                    assert energy[k] < energy[j]

    def likeness(self, changed, images):
        """The mean correlation of images with what they were."""
        one, two = (
            x.float().flatten(1) - x.float().flatten(1).mean(1, keepdim=True) for x in (changed, images)
        )
        return float(torch.nn.functional.cosine_similarity(one, two).mean())


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


@pytest.fixture
def root(tmp_path, monkeypatch):
    """CIFAR-10 in small, whose checksums are not compared."""
    write_cifar10(tmp_path)
    monkeypatch.setenv("MACC_OFFLINE", "1")
    monkeypatch.setenv("MACC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MACC_DATA", raising=False)
    return tmp_path


def corrupt_command(root, *more):
    arguments = ["data", "corrupt", "cifar10", "--data", str(root), "--no-verify", *more]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result


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


class TestFiles:
    def test_written_read_and_made_on_the_fly_are_the_same(self, root, monkeypatch):
        monkeypatch.setattr(regenerated, "CHUNK", 7)  # of 20 images
        result = corrupt_command(root)
        assert result.stdout == f"{root / 'cifar10_c_regen'}\n"
        assert "gaussian_noise (1 of 19): 100 images\n" in result.stderr
        splits = data.load("cifar10_c_regen", root=root, verify=False)

        assert splits.name == "cifar10_c_regen"
        assert len(splits.shifts) == 95
        clean = data.load("cifar10", root=root, verify=False)
        made = corruptions.corrupted(clean, corruptions=["fog", "frost_synthetic"], severities=[2, 5])
        assert made.name == splits.name
        for name, part in made.shifts.items():
            assert (splits.shifts[name].inputs.int() - part.inputs.int()).abs().max() <= 1
            assert torch.equal(splits.shifts[name].labels, part.labels)
        # The official layout, so that it could be read as one.
        pixels = np.load(root / "cifar10_c_regen" / "fog.npy")
        assert pixels.shape == (100, 32, 32, 3)
        assert np.load(root / "cifar10_c_regen" / "labels.npy").tolist() == 5 * clean.test.labels.tolist()

    def test_what_is_there_is_not_made_again(self, root):
        corrupt_command(root, "--only", "fog")
        file = root / "cifar10_c_regen" / "fog.npy"
        written = file.stat().st_mtime_ns
        result = corrupt_command(root, "--only", "fog", "--only", "snow")

        assert "fog (1 of 2): there already\nsnow (2 of 2): 100 images\n" in result.stderr
        assert file.stat().st_mtime_ns == written
        with pytest.raises(ValueError, match="cifar10_c_regen is incomplete: .* lacks gaussian_noise"):
            data.load("cifar10_c_regen", root=root, verify=False)
        few = data.cifar10_c_regen(root=root, verify=False, corruptions=["snow"])
        assert len(few.shifts) == 5

    def test_killed_it_goes_on(self, root):
        code = (
            "import time\nfrom macc.data import regenerated\n"
            "def slow(count): print('made', flush=True); time.sleep(60)\n"
            f"regenerated.write_corrupted('cifar10', root={str(root)!r}, verify=False, "
            "corruptions=['brightness', 'contrast'], on_start=lambda name, _: print(name, flush=True), "
            "on_images=lambda _: time.sleep(60 if regenerated.done() else 0))\n"
        )
        code = code.replace("regenerated.done()", "(lambda: __import__('pathlib').Path("
                            f"{str(root / 'cifar10_c_regen' / 'brightness.npy')!r}).is_file())()")  # fmt: skip
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        folder = root / "cifar10_c_regen"
        for _ in range(600):
            if list(folder.glob(".writing-*")) and (folder / "brightness.npy").is_file():
                break
            time.sleep(0.1)
        process.kill()
        process.communicate()

        assert not (folder / "contrast.npy").exists()
        written = (folder / "brightness.npy").stat().st_mtime_ns
        corrupt_command(root, "--only", "brightness", "--only", "contrast")
        assert (folder / "brightness.npy").stat().st_mtime_ns == written
        assert sorted(path.name for path in folder.iterdir()) == [
            ".lock", "about.json", "brightness.npy", "contrast.npy", "labels.npy",
        ]  # fmt: skip

    def test_other_images_are_not_mixed_in(self, root):
        corrupt_command(root, "--only", "fog")
        about = root / "cifar10_c_regen" / "about.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"version": 0}))
        with pytest.raises(ValueError, match="made from other images or by another version; delete it"):
            corrupt_command(root, "--only", "snow")

    def test_sets_of_another_version_are_not_read(self, root):
        corrupt_command(root, "--only", "fog")
        about = root / "cifar10_c_regen" / "about.json"
        whole = about.read_text()
        for text in (json.dumps(json.loads(whole) | {"version": 1}), "{}", "no"):
            about.write_text(text)
            with pytest.raises(
                ValueError, match="by another version; delete it .* macc data corrupt cifar10"
            ):
                data.cifar10_c_regen(root=root, verify=False, corruptions=["fog"])
        about.unlink()
        with pytest.raises(ValueError, match="by another version"):
            data.cifar10_c_regen(root=root, verify=False, corruptions=["fog"])

    def test_what_is_gone_or_cut_is_made_again(self, root):
        corrupt_command(root, "--only", "fog")
        folder = root / "cifar10_c_regen"
        before = (folder / "fog.npy").read_bytes()
        (folder / "labels.npy").unlink()
        (folder / "fog.npy").write_bytes(before[:-5])
        assert "fog (1 of 1): 100 images" in corrupt_command(root, "--only", "fog").stderr
        assert (folder / "fog.npy").read_bytes() == before
        assert len(data.cifar10_c_regen(root=root, verify=False, corruptions=["fog"]).shifts) == 5

    def test_mistakes(self, root, tmp_path):
        with pytest.raises(ValueError, match="no corruption is called 'fogg'; there are gaussian_noise"):
            corrupt_command(root, "--only", "fogg")
        with pytest.raises(
            ValueError, match="corrupted files are written of cifar10, cifar100, tiny_imagenet"
        ):
            regenerated.write_corrupted("digits")
        with pytest.raises(ValueError, match="`macc data corrupt cifar10`"):
            data.load("cifar10_c_regen", root=root, verify=False)
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="cannot be written"):
            corrupt_command(root, "-o", str(tmp_path / "file"))
        with pytest.raises(ValueError, match="holds features; only images can be corrupted"):
            corruptions.corrupted(data.load("synthetic"))

    def test_tiny_imagenet(self, root):
        tree = trees.write_tiny_imagenet(root, 3, 4, 2)
        for path, pixels in zip((tree / "val" / "images").iterdir(), picture(64, 6), strict=True):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
        folder = root / "tiny_imagenet_c_regen"
        made = []
        for chosen in (["fog"], ["fog", "pixelate"]):
            regenerated.write_corrupted(
                "tiny_imagenet", root=root, verify=False, corruptions=chosen,
                on_start=lambda *words: made.append(words),
            )  # fmt: skip
            assert not list(folder.glob(".writing-*"))
            # As a killed process leaves it.
            shutil.rmtree(folder / "fog" / "4")
            (folder / ".writing-fog" / "level").mkdir(parents=True)

        assert made == [("fog", 30), ("fog", 6), ("pixelate", 30)]
        with pytest.raises(ValueError, match="is incomplete: .* lacks fog; get or make it again"):
            data.tiny_imagenet_c_regen(root=root, verify=False, corruptions=["fog"])
        splits = data.tiny_imagenet_c_regen(root=root, verify=False, corruptions=["pixelate"])
        expected = corruptions.corrupt(splits.test.inputs, "pixelate", 5)
        stored = splits.shifts["pixelate-5"]
        assert torch.equal(stored.labels, splits.test.labels)
        assert (stored.inputs.float() - expected.float()).abs().mean() < 10  # JPEG
        # The official layout, so that it can be read as one.
        folder.rename(root / "Tiny-ImageNet-C")
        official = data.tiny_imagenet_c(root=root, verify=False, corruptions=["pixelate"])
        assert torch.equal(official.shifts["pixelate-5"].inputs, stored.inputs)


def test_a_run_is_evaluated_on_official_and_on_generated_files_by_one_mechanism(root, monkeypatch):
    read = data.load
    monkeypatch.setattr(data, "load", lambda name, **options: read(name, **{**options, "verify": False}))
    labels = read("cifar10", root=root, verify=False).test.labels.tolist()
    from macc.data._cells import STANDARD

    trees.write_cifar_c(root / "CIFAR-10-C", labels, STANDARD)
    regenerated.write_corrupted(
        "cifar10", root=root, verify=False, corruptions=corruptions.names(standard=True)
    )
    recipe = training.Recipe(
        dataset="cifar10", model="linear", loss="CrossEntropy", epochs=1, batch_size=30,
        optimiser={"name": "sgd", "lr": 0.01}, subset={"test": 10},
    )  # fmt: skip
    run = training.fit(recipe, root=root, out=root / "runs")
    for name, frost in (("cifar10_c", "frost-3"), ("cifar10_c_regen", "frost_synthetic-3")):
        written = training.predict(run, data=name, root=root)
        found = {path.relative_to(run.path / "predictions").as_posix() for path in written}
        assert len(found) == 75
        assert {f"{name}/fog-5.npz", f"{name}/{frost}.npz"} <= found
        with (
            np.load(run.path / "predictions" / name / "fog-5.npz") as cell,
            np.load(run.path / "predictions" / "test.npz") as clean,
        ):
            assert cell["logits"].shape == (10, 10)
            assert cell["labels"].tolist() == clean["labels"].tolist()  # the same images as the run's own

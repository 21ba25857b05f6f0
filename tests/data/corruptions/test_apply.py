"""The 19 corruptions against slow, independent versions, against their constants, and as files."""

import pytest
import torch

from helpers.pictures import draws, picture
from macc.data import corruptions
from macc.data.corruptions import _tools, blur, digital

NAMES = corruptions.names()
# By their published constants these do not change the mean pixel ever more: water turns to mud,
# colours first fade and then glow, the image fades under frost, bending gets finer instead of
# wider, and glass moves pixels more and blurs less. `TestGrowthByOtherMeasures` has what does grow.
OTHERWISE = ("spatter", "saturate", "frost_synthetic", "elastic_transform", "glass_blur")


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
        """What is left of the displacement of a ramp when the best affine map is taken away, in
        pixels.
        """
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

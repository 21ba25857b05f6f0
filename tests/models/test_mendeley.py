"""The network of the chest X-rays."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from helpers.networks import parameters
from macc import attach, models


class TestMendeley:
    def test_sizes_at_the_paper_s_pixels(self):
        with torch.device("meta"):
            model = models.freeze(models.build("mendeley", num_classes=2))

        assert model.fc.fc1.in_features == 512 * 13 * 13
        assert model.fc.out.in_features == 64
        assert (
            parameters(model) == (2048 * 512 + 3 * 512) + (86528 * 256 + 3 * 256) + (256 * 64 + 3 * 64) + 130
        )
        assert model(torch.zeros(2, 1, 832, 832, device="meta")).shape == (2, 2)
        x = torch.randn(2, 3, 26, 26)
        assert torch.equal(model.fc.reduce[3](x), nn.functional.max_pool2d(x, 2))

    def test_grey_is_three_equal_channels(self):
        model = models.build("mendeley", num_classes=2).eval()
        x = torch.randn(2, 1, 64, 64)
        torch.testing.assert_close(model(x), model(x.repeat(1, 3, 1, 1)))

    def test_an_attached_head_replaces_the_last_dropout(self):
        torch.manual_seed(0)
        plain, attached = (models.build("mendeley", num_classes=2) for _ in range(2))
        attached = attach(attached, p=0.2)
        seen = []
        for model in (plain, attached):
            model.fc.out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            model(torch.randn(4, 1, 64, 64))

        # Without a head half of what the ReLU leaves is dropped; with one, batch norm and ReLU
        # alone make zeros.
        assert (seen[0] == 0).float().mean() > 0.65
        assert (seen[1] == 0).float().mean() < 0.6

    def test_dropout_in_evaluation_only_under_the_legacy_name(self):
        x = torch.randn(2, 1, 64, 64)
        right, legacy = (models.build(n, num_classes=2).eval() for n in ("mendeley", "mendeley_dropout"))
        legacy.load_state_dict(right.state_dict())

        assert torch.equal(right(x), right(x))
        assert not torch.equal(legacy(x), legacy(x))
        legacy.fc.always = False
        torch.testing.assert_close(legacy(x), right(x))

    def test_weights_of_an_imagenet_resnet50(self, tmp_path):
        source = models.build("resnet50", num_classes=1000)
        save_file(source.state_dict(), tmp_path / "resnet50.safetensors")
        with pytest.warns(UserWarning, match="this model has 2: its classifier 'fc' starts fresh"):
            model = models.build("mendeley", num_classes=2, pretrained=str(tmp_path / "resnet50.safetensors"))

        assert torch.equal(model.layer4[2].conv3.weight, source.layer4[2].conv3.weight)

    def test_freezing_keeps_the_statistics_of_the_backbone_alone(self):
        model = models.freeze(models.build("mendeley", num_classes=2)).train()
        backbone, head = model.bn1.running_mean.clone(), model.fc.bn1.running_mean.clone()
        model(torch.randn(4, 1, 64, 64))

        assert torch.equal(model.bn1.running_mean, backbone)
        assert not torch.equal(model.fc.bn1.running_mean, head)

"""Weights from files of other libraries."""

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from macc import models
from macc.models._weights import load_weights


@cache
def torchvision_names(name):
    """The tensors in torchvision's weight file, by the rule of its architecture."""
    blocks, convs, expansion = {"resnet18": ((2, 2, 2, 2), 2, 1), "resnet50": ((3, 4, 6, 3), 3, 4)}[name]
    names = ["conv1.weight"] + [f"bn1.{t}" for t in ("weight", "bias", "running_mean", "running_var")]
    for stage, count in enumerate(blocks, start=1):
        for block in range(count):
            for conv in range(1, convs + 1):
                names.append(f"layer{stage}.{block}.conv{conv}.weight")
                names += [
                    f"layer{stage}.{block}.bn{conv}.{t}"
                    for t in ("weight", "bias", "running_mean", "running_var")
                ]
            if block == 0 and (stage > 1 or expansion > 1):
                names.append(f"layer{stage}.0.downsample.0.weight")
                names += [
                    f"layer{stage}.0.downsample.1.{t}"
                    for t in ("weight", "bias", "running_mean", "running_var")
                ]
    return {*names, "fc.weight", "fc.bias"}


class TestWeights:
    @pytest.mark.parametrize("name", ["resnet18", "resnet50"])
    def test_names_are_torchvisions(self, name):
        with torch.device("meta"):
            found = models.build(name, num_classes=1000).state_dict()

        assert {key for key in found if not key.endswith("num_batches_tracked")} == torchvision_names(name)

    @pytest.fixture
    def source(self):
        torch.manual_seed(3)
        return models.build("resnet20", num_classes=10)

    @pytest.mark.parametrize("form", ["safetensors", "pth", "wrapped", "ddp", "old"])
    def test_every_form_of_file(self, source, tmp_path, form):
        state, path = source.state_dict(), tmp_path / "w.pth"
        if form == "safetensors":
            save_file(state, path := tmp_path / "w.safetensors")
        elif form == "wrapped":
            torch.save({"epoch": 3, "state_dict": state}, path)
        elif form == "ddp":
            torch.save({f"module.{key}": value for key, value in state.items()}, path)
        elif form == "old":
            torch.save({k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}, path)
        else:
            torch.save(state, path)
        model = models.build("resnet20", num_classes=10, pretrained=str(path))

        torch.testing.assert_close(model.state_dict(), state)

    def test_a_classifier_of_another_size_is_left_fresh_and_said(self, source, tmp_path):
        torch.save(source.state_dict(), tmp_path / "w.pth")
        with pytest.warns(
            UserWarning, match="w.pth has 10 classes, this model has 7: its classifier 'fc' starts fresh"
        ):
            model = models.build("resnet20", num_classes=7, pretrained=str(tmp_path / "w.pth"))
        assert model.fc.out_features == 7
        assert torch.equal(model.layer3[0].conv1.weight, source.layer3[0].conv1.weight)
        headless = {k: v for k, v in source.state_dict().items() if not k.startswith("fc.")}
        torch.save(headless, tmp_path / "w.pth")
        with pytest.warns(UserWarning, match="w.pth has no such classifier, this model has 7"):
            models.build("resnet20", num_classes=7, pretrained=str(tmp_path / "w.pth"))

    def test_another_network(self, source, tmp_path):
        torch.save(source.state_dict(), tmp_path / "w.pth")
        with pytest.raises(
            ValueError,
            match=r"another network than ResNet: \d+ tensors are missing \(layer1.0.conv3.weight, .*; \d+ tensors do not fit",
        ):
            models.build("resnet56", num_classes=10, pretrained=str(tmp_path / "w.pth"))
        torch.save({**source.state_dict(), "extra": torch.ones(1)}, tmp_path / "w.pth")
        with pytest.raises(ValueError, match=r"1 tensors are unknown \(extra\)"):
            models.build("resnet20", num_classes=10, pretrained=str(tmp_path / "w.pth"))

    def test_files_that_are_none(self, tmp_path):
        def build(name):
            models.build("resnet20", num_classes=10, pretrained=str(tmp_path / name))

        with pytest.raises(ValueError, match="there is no weight file .*none.pth"):
            build("none.pth")
        (tmp_path / "a.txt").write_text("x")
        with pytest.raises(ValueError, match="must be a .safetensors, .pth, .pt or .bin file"):
            build("a.txt")
        (tmp_path / "a.safetensors").write_text("x")
        with pytest.raises(ValueError, match="damaged or no .safetensors file"):
            build("a.safetensors")
        torch.save([1, 2], tmp_path / "a.pth")
        with pytest.raises(ValueError, match="holds no state dict"):
            build("a.pth")
        whole = (tmp_path / "a.pth").read_bytes()
        (tmp_path / "a.pth").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match="a.pth is damaged"):
            build("a.pth")
        for text in ("access denied", "this is text", "epoch,loss\n1,2\n"):
            (tmp_path / "a.pth").write_text(text)
            with pytest.raises(ValueError, match="a.pth is damaged"):
                build("a.pth")

    @pytest.mark.parametrize("kind", [OSError, AssertionError, KeyError, NotImplementedError])
    def test_whatever_torch_raises_on_a_damaged_file_is_one_sentence(self, tmp_path, monkeypatch, kind):
        def load(*_, **__):
            raise kind("strange\nbytes")

        (tmp_path / "a.pth").write_bytes(b"x")
        monkeypatch.setattr(torch, "load", load)
        with pytest.raises(ValueError, match="a.pth is damaged or cut"):
            models.build("resnet20", num_classes=10, pretrained=str(tmp_path / "a.pth"))

    def test_a_counter_of_batches_is_not_missed_in_a_head(self, tmp_path):
        def network():
            return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)))

        source, model = network(), network()
        source.trained = model.trained = "1"
        nn.init.constant_(source[1][0].weight, 7)
        old = {k: v for k, v in source.state_dict().items() if not k.endswith("num_batches_tracked")}
        torch.save(old, tmp_path / "w.pth")
        load_weights(model, tmp_path / "w.pth")

        assert (model[1][0].weight == 7).all()

    def test_half_a_classifier_is_none(self, source, tmp_path):
        torch.save({k: v for k, v in source.state_dict().items() if k != "fc.bias"}, tmp_path / "w.pth")
        with pytest.warns(UserWarning, match="w.pth lacks fc.bias: its classifier 'fc' starts fresh"):
            model = models.build("resnet20", num_classes=10, pretrained=str(tmp_path / "w.pth"))
        assert not torch.equal(model.fc.weight, source.fc.weight)
        torch.save({**source.state_dict(), "fc.weight": torch.ones(10, 128)}, tmp_path / "w.pth")
        with pytest.raises(ValueError, match=r"fc.weight is \(10, 128\) and should be \(10, 64\)"):
            models.build("resnet20", num_classes=10, pretrained=str(tmp_path / "w.pth"))

    def test_a_file_cannot_run_code(self, tmp_path):
        class Trap:
            def __reduce__(self):
                return (Path.touch, (tmp_path / "sprung",))

        torch.save({"fc.weight": Trap()}, tmp_path / "a.pth")
        with pytest.raises(ValueError, match="holds more than tensors and could run code"):
            models.build("resnet20", num_classes=10, pretrained=str(tmp_path / "a.pth"))
        assert not (tmp_path / "sprung").exists()

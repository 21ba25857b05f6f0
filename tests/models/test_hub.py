"""Models of other libraries come through one door."""

import json
import sys
import types

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from macc import LogitMoments, attach, detach, models


class TestTransformers:
    @pytest.fixture(autouse=True)
    def _offline(self, monkeypatch):
        pytest.importorskip("transformers")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    @pytest.fixture
    def vit(self, tmp_path):
        from transformers import ViTConfig, ViTForImageClassification

        torch.manual_seed(0)
        config = ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=8,
            patch_size=4,
            num_labels=3,
        )
        model = ViTForImageClassification(config)
        model.save_pretrained(tmp_path / "vit")
        return model

    def test_a_local_folder(self, vit, tmp_path, capfd):
        capfd.readouterr()
        model = models.build(f"hf:{tmp_path / 'vit'}", num_classes=3)
        x = torch.randn(2, 3, 8, 8)

        torch.testing.assert_close(model.eval()(x), vit.eval()(x).logits)
        with pytest.warns(UserWarning, match="are not for 5 classes: its classifier starts fresh"):
            other = models.build(f"hf:{tmp_path / 'vit'}", num_classes=5)
        assert other(x).shape == (2, 5)
        assert capfd.readouterr() == ("", "")

    def test_a_configuration(self, vit, tmp_path):
        model = models.build(f"hf:{tmp_path / 'vit' / 'config.json'}", num_classes=4, in_channels=1)

        assert model(torch.randn(2, 1, 8, 8)).shape == (2, 4)
        assert isinstance(attach(model)(torch.randn(2, 1, 8, 8)), LogitMoments)

    @pytest.mark.parametrize("values", [{"patch_size": 0}, {"hidden_size": "abc"}])
    def test_a_damaged_configuration(self, vit, tmp_path, values):
        path = tmp_path / "vit" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
        with pytest.raises(ValueError, match="config.json cannot be read"):
            models.build(f"hf:{path}", num_classes=4)

    def test_weights_from_a_file(self, vit, tmp_path):
        path = tmp_path / "vit" / "model.safetensors"
        model = models.build(f"hf:{tmp_path / 'vit' / 'config.json'}", num_classes=3, pretrained=str(path))

        torch.testing.assert_close(model.model.state_dict(), vit.state_dict())
        save_file(model.state_dict(), tmp_path / "ours.safetensors")
        again = models.build(
            f"hf:{tmp_path / 'vit'}", num_classes=3, pretrained=str(tmp_path / "ours.safetensors")
        )
        torch.testing.assert_close(again.state_dict(), model.state_dict())

    def test_text(self, tmp_path):
        from transformers import BertConfig

        BertConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=50
        ).save_pretrained(tmp_path)
        model = models.build(f"hf:{tmp_path / 'config.json'}", num_classes=4).eval()
        tokens = torch.tensor([[5, 6, 7, 0, 0]])

        torch.testing.assert_close(model(tokens), model(tokens[:, :3]))
        torch.testing.assert_close(model({"input_ids": tokens[:, :3]}), model(tokens[:, :3]))

    def test_refusals(self, vit, tmp_path):
        with pytest.raises(ValueError, match="take 3 channels, got in_channels=1"):
            models.build(f"hf:{tmp_path / 'vit'}", num_classes=3, in_channels=1)
        (tmp_path / "vit" / "model.safetensors").unlink()
        torch.save(vit.state_dict(), tmp_path / "vit" / "pytorch_model.bin")
        with pytest.raises(
            ValueError, match="cannot be read .* give a folder with config.json and model.safetensors"
        ):
            models.build(f"hf:{tmp_path / 'vit'}", num_classes=3)
        with pytest.raises(ValueError, match="hf:nobody/nothing cannot be read"):
            models.build("hf:nobody/nothing", num_classes=3)
        from transformers import GPT2Config

        GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=10).save_pretrained(tmp_path / "gpt")
        with pytest.raises(ValueError, match="classifies every token and picks one afterwards"):
            models.build(f"hf:{tmp_path / 'gpt' / 'config.json'}", num_classes=3)

    def test_remote_code_is_never_run(self, tmp_path):
        (tmp_path / "config.json").write_text(
            json.dumps(
                {
                    "model_type": "mine",
                    "auto_map": {"AutoConfig": "code.C", "AutoModelForImageClassification": "code.M"},
                }
            )
        )
        (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
        with pytest.raises(ValueError):
            models.build(f"hf:{tmp_path}", num_classes=3)
        assert not (tmp_path / "sprung").exists()

    def test_weights_that_do_not_fit_their_configuration(self, vit, tmp_path):
        path = tmp_path / "vit" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 2}))
        with pytest.raises(
            ValueError, match="do not fit its configuration: vit.*are missing or of another shape"
        ):
            models.build(f"hf:{tmp_path / 'vit'}", num_classes=3)


class TestOtherLibraries:
    """The libraries do not import everywhere; stand-ins show what is asked of them."""

    @pytest.fixture
    def timm(self, monkeypatch):
        module = types.ModuleType("timm")

        def create_model(name, *, pretrained, num_classes, in_chans):
            assert not pretrained
            if name != "net":
                raise RuntimeError(f"Unknown model ({name})")
            return nn.Sequential(
                nn.Flatten(), nn.Linear(in_chans * 4, 5), nn.ReLU(), nn.Linear(5, num_classes)
            )

        module.create_model = create_model
        module.get_pretrained_cfg = lambda name: types.SimpleNamespace(hf_hub_id="org/net")
        monkeypatch.setitem(sys.modules, "timm", module)
        return module

    def test_timm(self, timm, tmp_path, monkeypatch):
        model = models.build("timm:net", num_classes=3, in_channels=2)
        assert attach(model)(torch.randn(4, 2, 2, 2)).mean.shape == (4, 3)
        save_file(detach(model).state_dict(), tmp_path / "w.safetensors")
        again = models.build(
            "timm:net", num_classes=3, in_channels=2, pretrained=str(tmp_path / "w.safetensors")
        )
        torch.testing.assert_close(again.state_dict(), model.state_dict())
        asked = []
        hub = types.ModuleType("huggingface_hub")
        hub.hf_hub_download = lambda *args: asked.append(args) or tmp_path / "w.safetensors"
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        again = models.build("timm:net", num_classes=3, in_channels=2, pretrained="hub")
        torch.testing.assert_close(again.state_dict(), model.state_dict())
        assert asked == [("org/net", "model.safetensors")]
        with pytest.raises(ValueError, match="timm has no network 'other'"):
            models.build("timm:other", num_classes=3)

    def test_torchvision(self, monkeypatch):
        package, module = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")

        def get_model(name, *, weights, num_classes):
            assert weights is None
            if name != "net":
                raise ValueError("Unknown model")
            return nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes))

        module.get_model = get_model
        package.models = module
        monkeypatch.setitem(sys.modules, "torchvision", package)
        monkeypatch.setitem(sys.modules, "torchvision.models", module)

        assert models.build("torchvision:net", num_classes=3)(torch.randn(4, 3, 2, 2)).shape == (4, 3)
        with pytest.raises(ValueError, match="torchvision has no network 'other'"):
            models.build("torchvision:other", num_classes=3)
        with pytest.raises(ValueError, match="take images of 3 channels, got in_channels=1"):
            models.build("torchvision:net", num_classes=3, in_channels=1)

    @pytest.mark.parametrize(
        ("library", "cure"),
        [
            ("timm", r"pip install timm, after the torchvision that belongs to torch \d"),
            ("torchvision", r"install the torchvision that belongs to torch \d"),
            ("hf", r"pip install 'macc-torch\[transformers\]'"),
        ],
    )
    def test_absent(self, library, cure, monkeypatch):
        for name in ("timm", "torchvision", "torchvision.models", "transformers"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ValueError, match=f"is needed for this network: {cure}"):
            models.build(f"{library}:resnet18", num_classes=3)

    def test_broken(self, monkeypatch, tmp_path):
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").write_text(
            "raise RuntimeError('operator torchvision::nms does not exist')"
        )
        monkeypatch.syspath_prepend(tmp_path)
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            monkeypatch.delitem(sys.modules, name)
        with pytest.raises(
            ValueError, match="torchvision is installed and does not import beside torch .*nms does not exist"
        ):
            models.build("torchvision:resnet18", num_classes=3)

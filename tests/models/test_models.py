"""The networks are the ones the papers count, and other libraries' come through one door."""

import copy
import json
import pickle
import sys
import types
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from macc import LogitMoments, attach, detach, losses, models
from macc.models._weights import load_weights


def multiply_adds(model: nn.Module, x: torch.Tensor) -> int:
    total = 0

    def count(module, _inputs, output):
        nonlocal total
        per_output = module.weight[0].numel()
        total += output.numel() * per_output

    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model.eval()(x)
    return total


def parameters(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def weighted_layers(model):
    return sum(
        isinstance(m, nn.Conv2d | nn.Linear) for n, m in model.named_modules() if "downsample" not in n
    )


def classifier(model):
    return [m for m in model.modules() if isinstance(m, nn.Linear)][-1]


# What each network takes: a small input, to be quick.
INPUTS = {
    "gpcnn": lambda n: torch.randint(1, 2000, (n, 30)),
    "linear": lambda n: torch.randn(n, 3),
    "mlp": lambda n: torch.randn(n, 3),
    "hf:deit-tiny-patch4-32": lambda n: torch.randn(n, 3, 32, 32),
}
# Batch norm over a handful of values makes the loss too rough for a step of any length to be judged.
SIDES = {"mendeley": 96, "mendeley_dropout": 96, "resnet18": 64, "resnet50": 96, "resnet50_tiny": 24}
ALL = [*sorted(models.known()), "hf:deit-tiny-patch4-32"]


def inputs(name, n=8):
    torch.manual_seed(0)
    side = SIDES.get(name, 16)
    return INPUTS.get(name, lambda n: torch.randn(n, 3, side, side))(n)


def small_step(model, value):
    """The change of a loss by a short step against its gradient."""
    before = value()
    before.backward()
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.optim.SGD(model.parameters(), lr=0.01 / float(norm)).step()
    return (value() - before).item()


class TestCounts:
    """Parameters and multiply-adds as the papers and torchvision state them."""

    @pytest.mark.parametrize(
        ("name", "classes", "count", "features", "layers"),
        [
            ("resnet20", 10, 272_474, 64, 20),
            ("resnet56", 10, 591_322, 256, 56),
            ("resnet110", 10, 1_147_738, 256, 110),
            ("resnet18", 1000, 11_689_512, 512, 18),
            ("resnet50", 1000, 25_557_032, 2048, 50),
            ("resnet50_tiny", 200, 25_138_952, 8192, 50),
        ],
    )
    def test_resnets(self, name, classes, count, features, layers):
        with torch.device("meta"):
            model = models.build(name, num_classes=classes)

        assert parameters(model) == count
        assert model.fc.in_features == features
        assert weighted_layers(model) == layers

    @pytest.mark.parametrize(
        ("name", "classes", "side", "expected"),
        [
            ("resnet56", 10, 32, 87.2e6),
            ("resnet50_tiny", 200, 64, 5.19e9),
            ("resnet18", 1000, 224, 1.814e9),
            ("resnet50", 1000, 224, 4.089e9),
        ],
    )
    def test_multiply_adds_of_resnets(self, name, classes, side, expected):
        with torch.device("meta"):
            model = models.build(name, num_classes=classes)

        assert multiply_adds(model, torch.zeros(1, 3, side, side, device="meta")) == pytest.approx(
            expected, rel=2e-3
        )

    def test_gpcnn(self):
        model = models.gpcnn(num_classes=20, vectors=torch.randn(50, 100))

        assert parameters(model) == 247_316
        assert model.fc.in_features == 128
        assert multiply_adds(model, torch.ones(1, 1000, dtype=torch.int64)) == pytest.approx(225e6, rel=2e-3)

    @pytest.mark.parametrize(("side", "patch", "count"), [(224, 16, 5_717_416), (32, 4, 5_553_832)])
    def test_deit_tiny(self, side, patch, count):
        with torch.device("meta"):
            model = models.build(f"hf:deit-tiny-patch{patch}-{side}", num_classes=1000)

        assert parameters(model) == count
        assert classifier(model).in_features == 192
        assert model(torch.zeros(1, 3, side, side, device="meta")).shape == (1, 1000)

    def test_feature_networks(self):
        assert parameters(models.build("linear", num_classes=7, in_channels=2048)) == 7 * 2049
        assert (
            parameters(models.build("mlp", num_classes=7, in_channels=64))
            == 64 * 256 + 256 * 256 + 512 + 7 * 257
        )


class TestEveryModel:
    @pytest.mark.parametrize("name", ALL)
    @pytest.mark.parametrize("estimator", ["sampled", "analytic"])
    def test_a_step_with_an_attached_head_reduces_the_loss(self, name, estimator):
        torch.manual_seed(0)
        model = attach(models.build(name, num_classes=4), estimator=estimator)
        criterion = losses.CrossEntropy() + losses.MACC()
        x, y = inputs(name), torch.arange(8) % 4

        def value():
            torch.manual_seed(1)  # the same masks, so that the step is the only difference
            output = model(x)
            assert isinstance(output, LogitMoments)
            return criterion(output, y)

        assert small_step(model, value) < 0

    @pytest.mark.parametrize("name", ALL)
    def test_a_plain_step_reduces_the_loss(self, name):
        torch.manual_seed(0)
        model = models.build(name, num_classes=4)
        x, y = inputs(name), torch.arange(8) % 4

        def value():
            torch.manual_seed(1)  # the same masks of ordinary dropout
            return nn.functional.cross_entropy(model(x), y)

        assert small_step(model, value) < 0

    @pytest.mark.parametrize("name", ALL)
    def test_state_dict_round_trip_also_through_a_head(self, name):
        first, second = (models.build(name, num_classes=3).eval() for _ in range(2))
        x = inputs(name, 2)

        def output(model):
            torch.manual_seed(1)  # mendeley_dropout drops in evaluation too
            return model(x)

        second.load_state_dict(first.state_dict())
        torch.testing.assert_close(output(second), output(first))
        state = attach(first).state_dict()
        assert state.keys() == second.state_dict().keys()
        torch.testing.assert_close(output(detach(first)), output(second))

    @pytest.mark.parametrize("name", ALL)
    def test_freezing_leaves_the_classifier(self, name):
        model = models.freeze(models.build(name, num_classes=3))
        trained = [p for p in model.parameters() if p.requires_grad]

        head = model.fc if name.startswith("mendeley") else classifier(model)
        assert {id(p) for p in trained} == {id(p) for p in head.parameters()}


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

        # Without a head half of what the ReLU leaves is dropped; with one, batch norm and ReLU alone make zeros.
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


def test_build_hands_on_the_vocabulary_and_the_vectors():
    assert models.build("gpcnn", num_classes=2, vocabulary=7).embedding.weight.shape == (7, 100)
    vectors = torch.randn(9, 5)
    assert torch.equal(
        models.build("gpcnn", num_classes=2, vectors=vectors).embedding.weight[1:], vectors[1:]
    )
    assert models.build("linear", num_classes=2, vocabulary=7)[1].in_features == 3


def test_gpcnn_vectors():
    vectors = torch.randn(9, 5)
    frozen = models.gpcnn(num_classes=2, vectors=vectors)
    learned = models.gpcnn(num_classes=2, vectors=vectors, frozen=False)

    assert not frozen.embedding.weight.requires_grad
    assert learned.embedding.weight.requires_grad
    assert torch.equal(frozen.embedding.weight[1:], vectors[1:])
    assert not frozen.embedding.weight[0].any()
    assert models.gpcnn(num_classes=2).embedding.weight.shape == (2000, 100)
    with pytest.raises(ValueError, match="at least 21 tokens, got 20; pad them with 0"):
        frozen(torch.ones(1, 20, dtype=torch.int64))
    with pytest.raises(ValueError, match="`frozen=True` would keep random word vectors"):
        models.gpcnn(num_classes=2, frozen=True)
    with pytest.raises(ValueError, match=r"`vectors` must be \(vocabulary, dimensions\), got shape \(9,\)"):
        models.gpcnn(num_classes=2, vectors=torch.ones(9))


class TestFreeze:
    def test_statistics_of_batch_norm_stay(self):
        model = models.freeze(models.build("resnet20", num_classes=3)).train()
        before = copy.deepcopy(model.state_dict())
        model(torch.randn(4, 3, 8, 8))
        torch.testing.assert_close(model.state_dict(), before)
        torch.testing.assert_close(model(x := torch.randn(4, 3, 8, 8)), model.eval()(x))

    def test_a_second_stage_trains_everything(self):
        model = models.freeze(models.build("resnet20", num_classes=3))
        before = model.bn1.running_mean.clone()
        models.unfreeze(model).train()(torch.randn(4, 3, 8, 8)).sum().backward()

        assert all(p.grad is not None for p in model.parameters())
        assert not torch.equal(model.bn1.running_mean, before)
        models.freeze(models.freeze(model), bn=False).train()
        before = model.bn1.running_mean.clone()
        model(torch.randn(4, 3, 8, 8))
        assert not torch.equal(model.bn1.running_mean, before)

    def test_and_drift_when_asked(self):
        model = models.freeze(models.build("resnet20", num_classes=3), bn=False).train()
        before = model.bn1.running_mean.clone()
        model(torch.randn(4, 3, 8, 8))

        assert not torch.equal(model.bn1.running_mean, before)

    def test_before_and_after_attach(self):
        for order in ((attach, models.freeze), (models.freeze, attach)):
            model = models.build("resnet20", num_classes=3)
            for step in order:
                model = step(model)
            assert [name for name, p in model.named_parameters() if p.requires_grad] == [
                "fc.weight",
                "fc.bias",
            ]

    def test_copies_and_pickles(self):
        model = models.freeze(models.build("resnet20", num_classes=3))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            before = copy.deepcopy(other.state_dict())
            other.train()(torch.randn(4, 3, 8, 8))
            torch.testing.assert_close(other.state_dict(), before)

    def test_a_larger_head(self):
        model = models.freeze(models.build("resnet20", num_classes=3), head="layer3").train()
        before = copy.deepcopy(model.state_dict())
        model(torch.randn(4, 3, 8, 8))
        after = model.state_dict()

        assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} == {"layer3"}
        moved = {key.split(".")[0] for key in before if not torch.equal(before[key], after[key])}
        assert moved == {"layer3"}
        with pytest.raises(ValueError, match="no module called 'body'; it has conv1, bn1"):
            models.freeze(model, head="body")


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
        ("library", "extra"), [("timm", "vision"), ("torchvision", "vision"), ("hf", "transformers")]
    )
    def test_absent(self, library, extra, monkeypatch):
        for name in ("timm", "torchvision", "torchvision.models", "transformers"):
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(
            ValueError, match=rf"is needed for this network: pip install 'macc-torch\[{extra}\]'"
        ):
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


def test_mistakes():
    with pytest.raises(ValueError, match="no model is called 'resnet65'; did you mean 'resnet56'"):
        models.build("resnet65", num_classes=10)
    with pytest.raises(
        ValueError, match="no model is called 'q'; there are gpcnn, linear, mendeley, mendeley_dropout, mlp"
    ):
        models.build("q", num_classes=10)
    with pytest.raises(ValueError, match="no model is called 'freeze'"):
        models.build("freeze", num_classes=10)
    with pytest.raises(ValueError, match="`num_classes` must be at least 2, got 1"):
        models.build("resnet20", num_classes=1)
    with pytest.raises(ValueError, match="`in_channels` must be at least 1, got 0"):
        models.build("resnet20", num_classes=3, in_channels=0)
    with pytest.raises(ValueError, match="no library is called 'keras'"):
        models.build("keras:net", num_classes=3)
    with pytest.raises(ValueError, match="'hf:' names no network; write hf:NAME"):
        models.build("hf:", num_classes=3)

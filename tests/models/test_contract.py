"""The networks are the ones the papers count, and every one learns, takes a head and gives it
back.
"""

import pytest
import torch
from torch import nn

from helpers.networks import inputs, parameters
from macc import LogitMoments, attach, detach, losses, models


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


def weighted_layers(model):
    return sum(
        isinstance(m, nn.Conv2d | nn.Linear) for n, m in model.named_modules() if "downsample" not in n
    )


def classifier(model):
    return [m for m in model.modules() if isinstance(m, nn.Linear)][-1]


ALL = [*sorted(models.known()), "hf:deit-tiny-patch4-32"]


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

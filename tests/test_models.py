"""The networks are the ones the papers count."""

import pytest
import torch
from torch import nn

from macc import LogitMoments, attach, losses, models


def multiply_adds(model: nn.Module, x: torch.Tensor) -> int:
    total = 0

    def count(module, _inputs, output):
        nonlocal total
        per_output = module.weight[0].numel()
        total += output.numel() * per_output

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model.eval()(x)
    return total


def test_resnet56_is_the_papers():
    model = models.build("resnet56", num_classes=10)

    assert model.fc.in_features == 256
    assert sum(p.numel() for p in model.parameters()) == 591_322
    assert multiply_adds(model, torch.zeros(1, 3, 32, 32)) == pytest.approx(87.2e6, rel=1e-3)
    # 56 weighted layers: the stem, 18 blocks of three convolutions, the classifier.
    assert (
        sum(isinstance(m, nn.Conv2d | nn.Linear) for n, m in model.named_modules() if "downsample" not in n)
        == 56
    )


def test_resnet20():
    model = models.build("resnet20", num_classes=10)

    assert model.fc.in_features == 64
    assert sum(p.numel() for p in model.parameters()) == 272_474
    assert (
        sum(isinstance(m, nn.Conv2d | nn.Linear) for n, m in model.named_modules() if "downsample" not in n)
        == 20
    )


@pytest.mark.parametrize("name", ["resnet20", "resnet56", "small_cnn"])
@pytest.mark.parametrize("estimator", ["sampled", "analytic"])
def test_a_few_steps_with_an_attached_head_reduce_the_loss(name, estimator):
    torch.manual_seed(0)
    model = attach(models.build(name, num_classes=4, in_channels=2), estimator=estimator)
    criterion = losses.CrossEntropy() + losses.MACC()
    x, y = torch.randn(8, 2, 16, 16), torch.arange(8) % 4
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    values = []
    for _ in range(8):
        optimiser.zero_grad()
        output = model(x)
        assert isinstance(output, LogitMoments)
        value = criterion(output, y)
        value.backward()
        optimiser.step()
        values.append(value.item())

    assert values[-1] < values[0]


@pytest.mark.parametrize("name", ["resnet20", "small_cnn"])
def test_state_dict_round_trip(name):
    first, second = (models.build(name, num_classes=3, in_channels=1).eval() for _ in range(2))
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 1, 8, 8)

    torch.testing.assert_close(second(x), first(x))


def test_mistakes():
    with pytest.raises(ValueError, match="no model is called 'resnet65'; did you mean 'resnet56'"):
        models.build("resnet65", num_classes=10)
    with pytest.raises(ValueError, match="`num_classes` must be at least 2, got 1"):
        models.build("resnet20", num_classes=1)
    with pytest.raises(ValueError, match="no pretrained weights"):
        models.build("resnet20", num_classes=10, pretrained="x.pt")

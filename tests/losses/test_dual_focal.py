"""The dual focal loss by hand and by a slow loop."""

import math

import pytest
import torch

import reference
from macc import losses


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(40, 6, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, 6, (40,), generator=generator)


def test_by_hand():
    logits = torch.tensor([[6.0, 3.0, 1.0]], dtype=torch.float64).log()  # s = (.6, .3, .1)

    assert losses.DualFocal(gamma=2)(logits, torch.tensor([0])).item() == pytest.approx(-0.49 * math.log(0.6))
    assert losses.DualFocal(gamma=2)(logits, torch.tensor([1])).item() == pytest.approx(-0.64 * math.log(0.3))
    # Nothing lies below the least likely class.
    assert losses.DualFocal(gamma=2)(logits, torch.tensor([2])).item() == pytest.approx(-0.81 * math.log(0.1))


@pytest.mark.parametrize("gamma", [0, 0.5, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_matches_the_slow_reference(gamma, seed):
    logits, labels = batch(seed)

    value = losses.DualFocal(gamma=gamma)(logits, labels).item()
    assert value == pytest.approx(reference.dual_focal(logits.tolist(), labels.tolist(), gamma), rel=1e-12)


def test_gamma_0_is_cross_entropy():
    logits, labels = batch(0)

    torch.testing.assert_close(
        losses.DualFocal(gamma=0)(logits, labels), losses.CrossEntropy()(logits, labels)
    )


def test_masked_classes_are_not_the_runner_up():
    logits = torch.tensor([[1.0, 0.0, -torch.inf]], dtype=torch.float64)

    torch.testing.assert_close(
        losses.DualFocal()(logits, torch.tensor([0])), losses.DualFocal()(logits[:, :2], torch.tensor([0]))
    )

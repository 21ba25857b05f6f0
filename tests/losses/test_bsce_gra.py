"""The weighting of gradients by the Brier error."""

import math

import pytest
import torch

import reference
from macc import losses


def test_by_hand():
    logits = torch.tensor([[3.0, 1.0]], dtype=torch.float64).log()  # s = (3/4, 1/4), Brier score 1/8 and 9/8

    assert losses.BSCEGRA()(logits, torch.tensor([0])).item() == pytest.approx(math.log(4 / 3) / 8)
    assert losses.BSCEGRA()(logits, torch.tensor([1])).item() == pytest.approx(9 / 8 * math.log(4))


@pytest.mark.parametrize("gamma", [0, 1, 2, 3.5])
def test_matches_the_slow_reference(gamma):
    logits = 2 * torch.randn(40, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    labels = torch.arange(40) % 6

    value = losses.BSCEGRA(gamma=gamma)(logits, labels).item()
    assert value == pytest.approx(reference.bsce_gra(logits.tolist(), labels.tolist(), gamma), rel=1e-12)


def test_the_gradient_is_that_of_cross_entropy_times_the_brier_score():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0, 1])
    leaf = logits.clone().requires_grad_()
    losses.BSCEGRA()(leaf, labels).backward()

    gap = logits.softmax(1) - torch.nn.functional.one_hot(labels, 3)
    torch.testing.assert_close(leaf.grad, gap.square().sum(1, keepdim=True) * gap / 5)

"""The penalty of confident predictions."""

import math

import pytest
import torch

import reference
from macc import losses


def test_by_hand():
    logits = torch.tensor([[3.0, 1.0]], dtype=torch.float64).log()
    entropy = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)

    assert losses.EntropyPenalty()(logits, torch.tensor([0])).item() == pytest.approx(math.log(2) - entropy)
    assert losses.EntropyPenalty()(torch.zeros(3, 4), torch.zeros(3).long()).item() == pytest.approx(
        0, abs=1e-6
    )


def test_matches_the_slow_reference():
    logits = 2 * torch.randn(40, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    value = losses.EntropyPenalty()(logits, torch.zeros(40).long()).item()
    assert value == pytest.approx(reference.entropy_penalty(logits.tolist()), rel=1e-12)


def test_a_step_against_its_gradient_raises_the_entropy():
    logits = torch.tensor([[2.0, 0.0, -1.0]], requires_grad=True)
    losses.EntropyPenalty()(logits, torch.tensor([0])).backward()
    after = logits.detach() - logits.grad

    assert after.softmax(1).max() < logits.softmax(1).max()


def test_a_masked_class_adds_nothing():
    logits = torch.tensor([[1.0, 0.0, -torch.inf]], requires_grad=True)
    value = losses.EntropyPenalty()(logits, torch.tensor([0]))
    value.backward()
    two = losses.EntropyPenalty()(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))

    assert value.item() == pytest.approx(two.item() + math.log(3 / 2), abs=1e-6)
    assert logits.grad.isfinite().all()

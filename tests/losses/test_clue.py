"""Alignment of the loss with the uncertainty under dropout."""

import math

import pytest
import torch

import reference
from macc import LogitMoments, losses


def test_matches_the_slow_reference():
    generator = torch.Generator().manual_seed(3)
    mean = 2 * torch.randn(40, 6, generator=generator, dtype=torch.float64)
    variance = 2 * torch.rand(40, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 6, (40,), generator=generator)

    value = losses.CLUE()(LogitMoments(mean, variance), labels).item()
    expected = reference.clue(mean.tolist(), variance.tolist(), labels.tolist())
    assert value == pytest.approx(expected, rel=1e-12)


def test_by_hand_without_variance():
    mean = torch.tensor([[3.0, 1.0]], dtype=torch.float64).log()
    entropy = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)

    value = losses.CLUE()(LogitMoments(mean, torch.zeros_like(mean)), torch.tensor([0])).item()
    assert value == pytest.approx((math.log(4 / 3) - entropy) ** 2)


def test_variance_raises_the_uncertainty_as_drawn_logits_do():
    """The closed form against the entropy of the mean prediction of many drawn logits."""
    generator = torch.Generator().manual_seed(0)
    mean, variance = torch.tensor([[1.5, 0.0, -1.0]]).double(), torch.full((1, 3), 2.0).double()
    drawn = mean + variance.sqrt() * torch.randn(200_000, 3, generator=generator, dtype=torch.float64)
    probs = drawn.softmax(1).mean(0)
    exact = -(probs * probs.log()).sum().item()
    label = torch.tensor([0])
    without = losses.CLUE()(LogitMoments(mean, 0 * variance), label).sqrt().item()
    found = losses.CLUE()(LogitMoments(mean, variance), label).sqrt().item()
    loss = losses.CrossEntropy()(mean, label).item()

    assert loss + found == pytest.approx(exact, abs=0.06)
    assert abs(loss + found - exact) < abs(loss + without - exact) / 3


def test_plain_logits_are_refused():
    with pytest.raises(ValueError, match="CLUE needs the variance of the logits"):
        losses.CLUE()(torch.zeros(2, 3), torch.tensor([0, 1]))

"""Accuracy versus uncertainty."""

import math

import pytest
import torch

import reference
from macc import losses


@pytest.mark.parametrize("threshold", [None, 0.3, 1.2])
def test_matches_the_slow_reference(threshold):
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(40, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 6, (40,), generator=generator)

    value = losses.AvUC(threshold=threshold)(logits, labels).item()
    assert value == pytest.approx(reference.avuc(logits.tolist(), labels.tolist(), threshold), rel=1e-7)


def test_by_hand():
    """Two samples of 3/4: one right and one wrong, both certain below a threshold of 1."""
    logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]], dtype=torch.float64).log()

    value = losses.AvUC(threshold=1)(logits, torch.tensor([0, 1])).item()
    assert value == pytest.approx(math.log(1 + 0.25 / 0.75))


def test_sure_mistakes_cost_more_than_unsure_ones():
    right, labels = [9.0, 0.0], torch.tensor([0, 0])
    sure = losses.AvUC(threshold=0.3)(torch.tensor([right, [0.0, 9.0]]), labels)
    unsure = losses.AvUC(threshold=0.3)(torch.tensor([right, [0.0, 0.5]]), labels)

    assert sure > unsure
    assert unsure == 0

"""Adaptive and conditional label smoothing."""

import pytest
import torch

import reference
from macc import losses


def test_by_hand():
    logits = torch.tensor([[8.0, 1.0, -1.0]])

    # The largest is 2 above the margin; the others lie 7 and 9 below it, 1 and 3 beyond the margin.
    assert losses.ACLS(margin=6)(logits, torch.tensor([0])).item() == pytest.approx(4 + 0.1 / 2 * (1 + 9))
    assert losses.ACLS(margin=9)(logits, torch.tensor([0])).item() == 0


@pytest.mark.parametrize("margin", [0, 1, 3])
def test_matches_the_slow_reference(margin):
    logits = 4 * torch.randn(40, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    value = losses.ACLS(margin=margin, top=0.7, others=0.3)(logits, torch.zeros(40).long()).item()
    assert value == pytest.approx(reference.acls(logits.tolist(), margin, 0.7, 0.3), rel=1e-12)


def test_the_largest_logit_feels_the_first_term_only():
    logits = torch.tensor([[8.0, 1.0]], requires_grad=True)
    losses.ACLS(margin=6)(logits, torch.tensor([0])).backward()

    torch.testing.assert_close(logits.grad, torch.tensor([[2 * 2.0, -0.1 * 2 * 1.0]]))


def test_a_shift_of_all_logits_matters():
    logits, label = torch.tensor([[8.0, 7.0]]), torch.tensor([0])

    assert losses.ACLS(margin=6)(logits, label) > 0
    assert losses.ACLS(margin=6)(logits - 7, label) == 0

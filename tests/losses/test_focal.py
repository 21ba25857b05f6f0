"""Focal loss is exact where its formula cancels or overflows."""

import pytest
import torch
from torch.nn import functional as F

from helpers.moments import random_batch
from macc import losses


def test_focal_without_discount_is_cross_entropy_to_the_last_digits():
    logits, labels = torch.tensor([[100.0, 90.0], [0.0, 9.0]]), torch.tensor([0, 0])

    torch.testing.assert_close(
        losses.Focal(gamma=0)(logits, labels), losses.CrossEntropy()(logits, labels), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_focal_of_masked_classes_has_finite_gradients(gamma):
    logits = torch.tensor([[1.0, -torch.inf, -torch.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    labels = torch.tensor([0, 1])
    loss = losses.Focal(gamma=gamma)(logits, labels)
    loss.backward()

    assert logits.grad[0].tolist() == [0.0, 0.0, 0.0]
    assert logits.grad[1].isfinite().all()
    if gamma == 0:
        torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels))


@pytest.mark.parametrize("gamma", [0.0, 3.0])
def test_focal_of_a_label_that_is_masked_is_infinite(gamma):
    logits = torch.tensor([[1.0, -torch.inf, 0.0], [0.0, 1.0, 2.0]])
    assert losses.Focal(gamma=gamma)(logits, torch.tensor([1, 1])) == torch.inf


def test_focal_agrees_with_the_textbook_formula_and_gradient():
    output, labels = random_batch()
    logits = output.mean.clone().requires_grad_()
    log_s = F.log_softmax(logits, 1).gather(1, labels[:, None]).squeeze(1)
    textbook = (-((1 - log_s.exp()) ** 2) * log_s).mean()
    ours = losses.Focal(gamma=2)(logits, labels)
    (theirs_grad,) = torch.autograd.grad(textbook, logits)
    (our_grad,) = torch.autograd.grad(ours, logits)

    torch.testing.assert_close(ours, textbook)
    torch.testing.assert_close(our_grad, theirs_grad)

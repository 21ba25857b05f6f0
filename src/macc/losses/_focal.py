"""Focal loss (FL)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from macc.losses._checks import Output, check_number
from macc.losses._terms import Task


def log_probs_of_label(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """``log s[y]`` and ``log(1 - s[y])``, ``(N,)`` each, with finite gradients throughout.

    A label whose own logit is -inf has a log-probability of -inf, as in cross-entropy.
    """
    log_probs, labels = logits.log_softmax(dim=1), labels.unsqueeze(1)
    # Classes that are masked by a logit of -inf have a probability of 0, and no others may be left.
    finite = log_probs.clamp(min=torch.finfo(logits.dtype).min)
    others = finite.scatter(1, labels, -torch.inf).logsumexp(dim=1)
    return log_probs.gather(1, labels).squeeze(1), others


def focal(logits: Tensor, labels: Tensor, gamma: float | Tensor) -> Tensor:
    """Focal loss per sample, ``(N,)``."""
    log_s, log_rest = log_probs_of_label(logits, labels)
    # The power of 1 - s has an infinite slope at s = 1 for gamma < 1; the exponential of a
    # logarithm has none.
    return -(gamma * log_rest).exp() * log_s


class Focal(Task):
    r"""Cross-entropy that counts easy samples less.

    .. math:: -\frac1N \sum_i (1 - s_i[y_i])^\gamma \log s_i[y_i]

    The gradient flows through both factors. Published codes differ in the reduction only: this is
    the batch mean, as in MDCA; the original focal-calibration code sums.

    Args:
        gamma: How strongly easy samples are discounted, at least 0; 0 is cross-entropy.

    Returns:
        Scalar in ``[0, ∞)``.

    Example:
        >>> import torch
        >>> Focal(gamma=2)(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.1733)

    Reference:
        Mukhoti et al., *Calibrating Deep Neural Networks using Focal Loss*, NeurIPS 2020.
    """

    label = "FL"
    shown = ("gamma",)

    def __init__(self, *, gamma: float = 3, weight: Tensor | Sequence[float] | None = None) -> None:
        super().__init__(weight=weight)
        self.gamma = check_number("gamma", gamma, low=0)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`focal` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        return self.weighted_mean(focal(logits, labels, self.gamma), labels, logits.shape[1])

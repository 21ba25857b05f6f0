"""Dual focal loss (DFL)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from macc.losses._checks import Output, check_number
from macc.losses._focal import log_probs_of_label
from macc.losses._terms import Task


def dual_focal(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Dual focal loss per sample, ``(N,)``."""
    log_s, log_rest = log_probs_of_label(logits, labels)
    log_probs = logits.log_softmax(dim=1)
    below = log_probs < log_s.unsqueeze(1)
    runner_up = log_probs.masked_fill(~below, -torch.inf).amax(dim=1)
    # As in the focal loss, a power through its logarithm has a finite slope at s = 1.
    return -(gamma * torch.logaddexp(log_rest, runner_up)).exp() * log_s


class DualFocal(Task):
    r"""Focal loss that also looks at the strongest class below the label's.

    .. math:: -\frac1N \sum_i (1 - s_i[y_i] + s_i[j_i])^\gamma \log s_i[y_i], \qquad
        s_i[j_i] = \max \{ s_i[k] : s_i[k] < s_i[y_i] \}

    and 0 where no class lies below the label's. The focal loss makes networks under-confident in
    places; the second probability gives some of the confidence back where the label leads clearly.

    Args:
        gamma: How strongly easy samples are discounted, at least 0; 0 is cross-entropy.

    Returns:
        Scalar in ``[0, ∞)``.

    Example:
        >>> import torch
        >>> DualFocal(gamma=2)(torch.tensor([[3.0, 1.0]]).log(), torch.tensor([0]))
        tensor(0.0719)

    Reference:
        Tao, Dong and Xu, *Dual Focal Loss for Calibration*, ICML 2023.
    """

    label = "DFL"
    shown = ("gamma",)

    def __init__(self, *, gamma: float = 5, weight: Tensor | Sequence[float] | None = None) -> None:
        super().__init__(weight=weight)
        self.gamma = check_number("gamma", gamma, low=0)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`dual_focal` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        return self.weighted_mean(dual_focal(logits, labels, self.gamma), labels, logits.shape[1])

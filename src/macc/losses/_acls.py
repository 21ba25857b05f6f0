"""Adaptive and conditional label smoothing (ACLS)."""

from torch import Tensor

from macc.losses._checks import Output, check_number
from macc.losses._terms import Penalty


def acls(logits: Tensor, *, margin: float, top: float, others: float) -> Tensor:
    """Mean squared excess of the largest logit, and of its distance to the others, ``(N, K)``."""
    rows, classes = logits.shape
    largest, index = logits.max(dim=1, keepdim=True)
    above = (largest - margin).relu().square().sum() / rows
    # The distance pulls the other logits up; it does not push the largest down, which the first
    # term does.
    below = (largest.detach() - logits - margin).relu().square().scatter(1, index, 0.0)
    return top * above + others * below.sum() / (rows * (classes - 1))


class ACLS(Penalty):
    r"""A largest logit beyond a margin, and other logits further than the margin below it, both
    squared.

    .. math:: \frac1N \sum_i \Bigl[ \lambda_1 \max(0,\ z_i[t_i] - m)^2
        + \frac{\lambda_2}{K - 1} \sum_{k \ne t_i} \max(0,\ z_i[t_i] - z_i[k] - m)^2 \Bigr],
        \qquad t_i = \arg\max_k z_i[k]

    No gradient flows through the largest logit in the second term, as in the authors' code. The
    first term depends on where the logits lie and not only on their differences: biases matter. The
    authors' loss is cross-entropy plus this with weight 0.1: write
    ``CrossEntropy() + 0.1 * ACLS()``.

    Args:
        margin: What costs nothing, ``m``, at least 0. The authors take 6 for CIFAR-10 and 10 for
            Tiny-ImageNet.
        top: Weight λ₁ of the largest logit.
        others: Weight λ₂ of the others.

    Returns:
        Scalar in ``[0, ∞)``. Labels are not used.

    Example:
        >>> import torch
        >>> ACLS(margin=10)(torch.tensor([[12.0, 0.0]]), torch.tensor([0]))
        tensor(4.4000)

    Reference:
        Park et al., *ACLS: Adaptive and Conditional Label Smoothing for Network Calibration*,
        ICCV 2023.
    """

    soft_targets = True
    shown = ("margin",)

    def __init__(self, *, margin: float = 10, top: float = 1, others: float = 0.1, warmup: int = 0) -> None:
        super().__init__(warmup=warmup)
        self.margin = check_number("margin", margin, low=0)
        self.top = check_number("top", top, low=0)
        self.others = check_number("others", others, low=0)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`acls` of checked logits."""
        logits, _ = self.checked(output, labels)
        return acls(logits, margin=self.margin, top=self.top, others=self.others)

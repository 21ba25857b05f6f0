"""Margin-based label smoothing (MbLS)."""

from torch import Tensor

from macc.losses._checks import Output, check_number
from macc.losses._terms import Penalty


def mbls(logits: Tensor, margin: float) -> Tensor:
    """How far logits ``(N, K)`` lie below the largest of their row beyond a margin, on average."""
    return (logits.amax(dim=1, keepdim=True) - logits - margin).relu().mean()


class MbLS(Penalty):
    r"""How far logits lie below the largest one beyond a margin, averaged over samples and classes.

    .. math:: \frac1{NK} \sum_{ik} \max(0,\ \max_l z_i[l] - z_i[k] - m)

    The authors' loss is cross-entropy plus this with weight 0.1: write
    ``CrossEntropy() + 0.1 * MbLS()``.

    Args:
        margin: The distance ``m`` that costs nothing, at least 0.

    Returns:
        Scalar in ``[0, ∞)``. Labels are not used.

    Example:
        >>> import torch
        >>> MbLS(margin=10)(torch.tensor([[12.0, 0.0]]), torch.tensor([0]))
        tensor(1.)

    Reference:
        Liu et al., *The Devil is in the Margin: Margin-based Label Smoothing for Network
        Calibration*, CVPR 2022.
    """

    label = "MbLS"
    soft_targets = True
    shown = ("margin",)

    def __init__(self, *, margin: float = 10, warmup: int = 0) -> None:
        super().__init__(warmup=warmup)
        self.margin = check_number("margin", margin, low=0)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`mbls` of checked logits."""
        logits, _ = self.checked(output, labels)
        return mbls(logits, self.margin)

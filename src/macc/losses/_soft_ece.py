"""Expected calibration error with soft bins (SB-ECE)."""

import torch
from torch import Tensor

from macc.losses._checks import Output, check_number, check_whole
from macc.losses._terms import BatchPenalty
from macc.losses.distributed import batch_mean


def soft_ece(
    confidence: Tensor, right: Tensor, *, bins: int, temperature: float, norm: int, sync: bool = False
) -> Tensor:
    """The soft-binned error of confidences and of 1 for right and 0 for wrong, ``(N,)`` each."""
    centres = (torch.arange(bins, dtype=confidence.dtype, device=confidence.device) + 0.5) / bins
    share = (-(confidence[:, None] - centres).square() / temperature).softmax(dim=1)
    gap = share * (right - confidence)[:, None]
    gap, share = batch_mean(torch.stack([gap, share], dim=1), sync=sync).unbind(dim=0)
    if norm == 1:
        return gap.abs().sum()
    # gap² / share is share · (difference of the means)²; a bin that is as good as empty has no gap
    # either.
    return ((gap.square() / share.clamp(min=1e-12)).sum() + 1e-10).sqrt()


class SoftECE(BatchPenalty):
    r"""ECE of the top label, with every sample in all bins to a degree.

    With :math:`g_{ib}` the softmax over bins of :math:`-(c_i - \xi_b)^2 / T`, where :math:`\xi_b`
    is the centre of bin ``b``, and :math:`a_i` whether prediction ``i`` with confidence :math:`c_i`
    is right:

    .. math:: \Bigl( \sum_b S_b\, |A_b - C_b|^q \Bigr)^{1/q}, \qquad S_b = \frac1N \sum_i g_{ib}, \quad
        S_b (A_b - C_b) = \frac1N \sum_i g_{ib} (a_i - c_i)

    Args:
        temperature: The width ``T`` of the bins' borders, in squared confidence.
        norm: ``q``, 1 or 2; with 2, 10⁻¹⁰ under the root keeps its slope finite.

    Returns:
        Scalar in ``[0, 1]``, rounding aside.

    Example:
        >>> import torch
        >>> SoftECE()(torch.zeros(2, 2), torch.tensor([0, 0]))
        tensor(0.5000)

    Reference:
        Karandikar et al., *Soft Calibration Objectives for Neural Networks*, NeurIPS 2021.
    """

    label = "SB-ECE"

    def __init__(
        self,
        *,
        bins: int = 15,
        temperature: float = 0.01,
        norm: int = 2,
        warmup: int = 0,
        sync: bool = True,
    ) -> None:
        super().__init__(warmup=warmup, sync=sync)
        self.bins = check_whole("bins", bins, low=1, high=10_000)
        self.temperature = check_number("temperature", temperature, low=1e-6)
        self.norm = check_whole("norm", norm, low=1, high=2)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`soft_ece` of checked logits."""
        logits, labels = self.checked(output, labels)
        confidence, prediction = logits.softmax(dim=1).max(dim=1)
        right = (prediction == labels).to(confidence.dtype)
        return soft_ece(
            confidence, right, bins=self.bins, temperature=self.temperature, norm=self.norm, sync=self.sync
        )

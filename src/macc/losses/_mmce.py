"""Maximum mean calibration error (MMCE)."""

import torch
from torch import Tensor

from macc.losses._checks import Output, check_flag, check_number
from macc.losses._terms import BatchPenalty
from macc.losses.distributed import all_rows

# Above this many rows, a matrix of all pairs is too large.
MANY = 4096


def mmce(confidence: Tensor, right: Tensor, *, width: float) -> Tensor:
    """The unweighted form, of confidences and of 1 for right and 0 for wrong, ``(N,)`` each."""
    return _quadratic_form((right - confidence) / len(confidence), confidence, width)


def weighted_mmce(confidence: Tensor, right: Tensor, *, width: float, legacy: bool) -> Tensor:
    """The weighted form, of confidences and of 1 for right and 0 for wrong, ``(N,)`` each."""
    num_right, num_wrong = right.sum(), (1 - right).sum()
    power = 2 if legacy else 1
    residual = right * (1 - confidence) / num_right.clamp(min=1) ** power
    residual = residual - (1 - right) * confidence / num_wrong.clamp(min=1) ** power
    # The kernel is positive definite, so a negative value is rounding, and its root would be NaN.
    distance = (_quadratic_form(residual, confidence, width).clamp(min=0) + 1e-10).sqrt()
    return distance * ((num_right > 0) & (num_wrong > 0))


def _quadratic_form(residual: Tensor, confidence: Tensor, width: float) -> Tensor:
    if len(confidence) > MANY and width >= 0.01:
        return _sorted_form(residual, confidence, width)
    kernel = (-(confidence[:, None] - confidence[None, :]).abs() / width).exp()
    return (residual[:, None] * kernel * residual[None, :]).sum()


def _sorted_form(residual: Tensor, confidence: Tensor, width: float) -> Tensor:
    """The same in the memory of a few rows: of sorted values the kernel is a product."""
    ascending, order = confidence.double().sort()
    sorted_residual = residual.double()[order]
    growth = ((ascending - 0.5) / width).exp()
    weighted = sorted_residual * growth
    before = weighted.cumsum(0) - weighted
    form = sorted_residual.square().sum() + 2 * (sorted_residual / growth * before).sum()
    return form.to(residual.dtype)


class MMCE(BatchPenalty):
    r"""Kernel distance between confidence and correctness.

    With ``r`` the largest probability, ``c`` whether it is right and
    ``k(a, b) = exp(-|a - b| / width)``:

    .. math:: \text{weighted: } \sqrt{\sum_{ij} d_i d_j\, k(r_i, r_j) + 10^{-10}}, \qquad
        d_i = \frac{c_i (1 - r_i)}{m} - \frac{(1 - c_i)\, r_i}{n}

    with ``m`` right and ``n`` wrong samples, and 0 where there are none of either;

    .. math:: \text{unweighted: } \frac1{N^2} \sum_{ij} (c_i - r_i)(c_j - r_j)\, k(r_i, r_j)

    Published codes of the weighted form, the authors' own among them, take means over pairs and
    divide by ``m²``, ``n²`` and ``mn`` once more; ``legacy=True`` does the same. MbLS's code uses
    the unweighted form.

    Args:
        weighted: Whether right and wrong samples count the same, whatever their numbers.
        legacy: Divide twice, as published codes do; for the weighted form.
        width: Width of the kernel.
        sync: Whether to use the batch of all processes. Their sizes are exchanged first, which
            waits for the device once a step; the other penalties do not.

    Returns:
        Scalar, at least 0.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
        >>> MMCE(weighted=False)(logits, torch.tensor([0, 0]))
        tensor(0.2500)

    Reference:
        Kumar, Sarawagi and Jain, *Trainable Calibration Measures for Neural Networks from Kernel
        Mean Embeddings*, ICML 2018.
    """

    label = "MMCE"

    def __init__(
        self,
        *,
        weighted: bool = True,
        legacy: bool = False,
        width: float = 0.4,
        warmup: int = 0,
        sync: bool = True,
    ) -> None:
        super().__init__(warmup=warmup, sync=sync)
        self.weighted = check_flag("weighted", weighted)
        self.legacy = check_flag("legacy", legacy)
        self.width = check_number("width", width, low=1e-6)
        if legacy and not weighted:
            raise ValueError("`legacy` belongs to the weighted form; leave it out with weighted=False")

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`mmce` or :func:`weighted_mmce` of checked logits."""
        logits, labels = self.checked(output, labels)
        confidence, prediction = logits.softmax(dim=1).max(dim=1)
        right = (prediction == labels).to(confidence.dtype)
        confidence, right = all_rows(torch.stack([confidence, right], dim=1), sync=self.sync).unbind(dim=1)
        if not self.weighted:
            return mmce(confidence, right, width=self.width)
        return weighted_mmce(confidence, right, width=self.width, legacy=self.legacy)

"""Cross-entropy, the negative log-likelihood (NLL)."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from macc.losses._checks import NO_LABEL, Output, check_number
from macc.losses._terms import Task


def cross_entropy(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy ``(N,)`` of labels ``(N,)`` or ``(N, K)``, smoothed over all classes."""
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing, ignore_index=NO_LABEL)


class CrossEntropy(Task):
    r"""Negative log-likelihood of the labels.

    .. math:: -\frac1N \sum_i \log \mathrm{softmax}(\mathrm{scale} \cdot z_i)[y_i]

    With ``scale=1`` this is :math:`-\log s_i[y_i]`. Another scale is the control for methods that
    change the size of the logits: the network's own logits are then too small (above 1) or too
    large (below 1) by this factor, which a temperature fitted to validation logits mends.

    Args:
        scale: What the logits are multiplied by, in [0.001, 1000].

    Returns:
        Scalar in ``[0, ∞)``. Labels may be class probabilities ``(N, K)``.

    Example:
        >>> import torch
        >>> CrossEntropy()(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.6931)

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017: what it does to
        calibration.
    """

    label = "NLL"
    soft_targets = True

    def __init__(self, *, scale: float = 1, weight: Tensor | Sequence[float] | None = None) -> None:
        super().__init__(weight=weight)
        self.scale = check_number("scale", scale, low=1e-3, high=1e3)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`cross_entropy` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        if self.scale != 1:
            logits = self.scale * logits
        return self.weighted_mean(cross_entropy(logits, labels), labels, logits.shape[1])

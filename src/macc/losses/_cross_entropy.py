"""Cross-entropy, the negative log-likelihood (NLL)."""

from torch import Tensor
from torch.nn import functional as F

from macc.losses._checks import NO_LABEL, Output
from macc.losses._terms import Task


def cross_entropy(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy per sample, ``(N,)``, of labels ``(N,)`` or ``(N, K)``, smoothed over all classes."""
    return F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing, ignore_index=NO_LABEL)


class CrossEntropy(Task):
    r"""Negative log-likelihood of the labels.

    .. math:: -\frac1N \sum_i \log s_i[y_i]

    Args:
        weight: A weight per class, ``(K,)``, as in ``nn.CrossEntropyLoss``.

    Returns:
        Scalar in ``[0, ∞)``. Labels may be class probabilities ``(N, K)``.

    Example:
        >>> import torch
        >>> CrossEntropy()(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.6931)

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017: what it does to calibration.
    """

    label = "NLL"
    soft_targets = True

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`cross_entropy` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        return self.weighted_mean(cross_entropy(logits, labels), labels, logits.shape[1])

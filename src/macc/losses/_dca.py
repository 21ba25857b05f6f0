"""Difference between confidence and accuracy (DCA)."""

from torch import Tensor

from macc.losses._checks import Output
from macc.losses._terms import BatchPenalty
from macc.losses.distributed import batch_mean


def dca(probs: Tensor, labels: Tensor, *, sync: bool = False) -> Tensor:
    """Gap between mean confidence and accuracy of probabilities ``(N, K)`` and labels ``(N,)``."""
    confidence, prediction = probs.max(dim=1)
    return batch_mean(confidence - (prediction == labels).to(confidence.dtype), sync=sync).abs()


class DCA(BatchPenalty):
    r"""Gap between mean confidence and accuracy of a batch.

    .. math:: \Bigl| \frac1N \sum_i \max_k s_i[k] - \frac1N \sum_i \mathbb 1[\hat y_i = y_i] \Bigr|

    Returns:
        Scalar in ``[0, 1]``.

    Example:
        >>> import torch
        >>> DCA()(torch.zeros(1, 2), torch.tensor([1]))
        tensor(0.5000)

    Reference:
        Liang et al., *Improved Trainable Calibration Method for Neural Networks on Medical Imaging
        Classification*, BMVC 2020.
    """

    label = "DCA"

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`dca` of checked logits."""
        logits, labels = self.checked(output, labels)
        return dca(logits.softmax(dim=1), labels, sync=self.sync)

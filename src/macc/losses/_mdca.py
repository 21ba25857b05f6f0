"""Multi-class difference between confidence and accuracy (MDCA)."""

from torch import Tensor

from macc.losses._checks import UNKNOWN, Output, label_probs
from macc.losses._terms import BatchPenalty
from macc.losses.distributed import batch_mean


def mdca(probs: Tensor, targets: Tensor, *, known: Tensor | None = None, sync: bool = False) -> Tensor:
    """Gap between the batch means of probabilities and targets ``(N, K)``, averaged over classes;
    of what is ``known``.
    """
    return batch_mean(probs - targets, known=known, sync=sync).abs().mean()


class MDCA(BatchPenalty):
    r"""Gap between mean confidence and frequency of each class in a batch, averaged over classes.

    .. math:: \frac1K \sum_j \Bigl| \frac1N \sum_i s_i[j] - \frac1N \sum_i \mathbb 1[y_i = j] \Bigr|

    Beside a task of independent labels, ``s`` is the sigmoid of each logit and the frequency that
    of its label.

    Returns:
        Scalar in ``[0, 1]``. Labels may be class probabilities ``(N, K)``.

    Example:
        >>> import torch
        >>> MDCA()(torch.zeros(2, 2), torch.tensor([0, 0]))
        tensor(0.5000)

    Reference:
        Hebbalaguppe et al., *A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for
        Improved Neural Network Calibration*, CVPR 2022.
    """

    label = "MDCA"
    soft_targets = True

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`mdca` of checked logits."""
        logits, labels = self.checked(output, labels)
        return mdca(logits.softmax(dim=1), label_probs(labels, logits), sync=self.sync)

    def measure_labels(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`mdca` of sigmoids."""
        logits, labels = self.checked_labels(output, labels)
        return mdca(logits.sigmoid(), labels.clamp(min=0), known=labels != UNKNOWN, sync=self.sync)

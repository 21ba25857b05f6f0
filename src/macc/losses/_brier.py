"""Brier score as a loss (BS)."""

from torch import Tensor

from macc.losses._checks import Output, label_probs
from macc.losses._terms import Task


def brier(probs: Tensor, targets: Tensor) -> Tensor:
    """Squared distance of probabilities to targets ``(N, K)``, per sample ``(N,)``."""
    return (probs - targets).square().sum(dim=1)


class Brier(Task):
    r"""Squared distance between the probabilities and the one-hot label, summed over classes.

    .. math:: \frac1N \sum_i \sum_k (s_i[k] - \mathbb 1[y_i = k])^2

    Returns:
        Scalar in ``[0, 2]``. Labels may be class probabilities ``(N, K)``.

    Example:
        >>> import torch
        >>> Brier()(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.5000)

    Reference:
        Brier, *Verification of Forecasts Expressed in Terms of Probability*, 1950.
    """

    label = "BS"
    soft_targets = True

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`brier` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        values = brier(logits.softmax(dim=1), label_probs(labels, logits))
        return self.weighted_mean(values, labels, logits.shape[1])

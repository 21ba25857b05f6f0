"""Binary cross-entropy of one logit or of several independent labels (BCE)."""

from torch import Tensor
from torch.nn import functional as F

from macc.losses._checks import Output, known_mean
from macc.losses._label_task import LabelTask


def binary_cross_entropy(logits: Tensor, labels: Tensor, pos_weight: Tensor | None = None) -> Tensor:
    """Cross-entropy of each logit and its label, ``(N, K)``."""
    return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=pos_weight, reduction="none")


class BinaryCrossEntropy(LabelTask):
    r"""Negative log-likelihood of independent labels, averaged over samples and labels.

    .. math:: -\frac1{NK} \sum_{ik} \bigl[ w_k\, y_i[k] \log s_i[k] + (1 - y_i[k]) \log (1 - s_i[k]) \bigr],
        \qquad s = \mathrm{sigmoid}(z)

    It is ``nn.BCEWithLogitsLoss``. Logits are ``(N, K)``, with ``K = 1`` for a binary classifier of
    one logit; labels are ``(N, K)``, or ``(N,)`` for one logit, in {0, 1} as floats, whole numbers
    or booleans. A penalty that is added takes sigmoids too: ``BinaryCrossEntropy() + MACC()``
    compares ``sigmoid(z̄)`` with certainty, label by label.

    Args:
        pos_weight: How much a label of 1 counts, :math:`w`: a number for all labels, or one per
            label, ``(K,)``.

    Returns:
        Scalar in ``[0, ∞)``. Labels may lie between 0 and 1.

    Example:
        >>> import torch
        >>> BinaryCrossEntropy()(torch.zeros(2, 1), torch.tensor([0, 1]))
        tensor(0.6931)

    Reference:
        Good, *Rational Decisions*, 1952: the logarithmic score.
    """

    label = "BCE"
    soft_targets = True

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`binary_cross_entropy` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        values = binary_cross_entropy(logits, labels.clamp(min=0), self.weight_for(logits))
        return known_mean(values, labels)

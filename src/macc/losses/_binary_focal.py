"""Focal loss of one logit or of several independent labels (BFL)."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from macc.losses._checks import Output, check_number, known_mean
from macc.losses._label_task import LabelTask


def binary_focal(logits: Tensor, labels: Tensor, gamma: float, pos_weight: Tensor | None = None) -> Tensor:
    """Focal loss of each logit and its label, ``(N, K)``."""
    towards = (2 * labels - 1) * logits
    # log(1 - s) = -softplus(z): the exponential of a logarithm has a finite slope at s = 1 for
    # gamma < 1 too.
    values = (-gamma * F.softplus(towards)).exp() * F.softplus(-towards)
    return values if pos_weight is None else values * (1 + (pos_weight - 1) * labels)


class BinaryFocal(LabelTask):
    r"""Binary cross-entropy that counts easy labels less, averaged over samples and labels.

    .. math:: -\frac1{NK} \sum_{ik} w_{ik} (1 - q_i[k])^\gamma \log q_i[k], \qquad
        q = s \text{ where } y = 1, \; 1 - s \text{ elsewhere}, \quad s = \mathrm{sigmoid}(z)

    with :math:`w_{ik}` the ``pos_weight`` of label ``k`` where it is 1, and 1 elsewhere. The
    authors' α-balanced form is this with a ``pos_weight`` of :math:`\alpha / (1 - \alpha)`, times
    :math:`1 - \alpha`. Shapes are those of :class:`BinaryCrossEntropy`.

    Args:
        gamma: How strongly easy labels are discounted, at least 0; 0 is binary cross-entropy.
        pos_weight: How much a label of 1 counts: a number for all labels, or one per label,
            ``(K,)``.

    Returns:
        Scalar in ``[0, ∞)``. Labels are 0 or 1 and nothing between.

    Example:
        >>> import torch
        >>> BinaryFocal(gamma=2)(torch.zeros(2, 1), torch.tensor([0, 1]))
        tensor(0.1733)

    Reference:
        Lin et al., *Focal Loss for Dense Object Detection*, ICCV 2017.
    """

    label = "BFL"
    shown = ("gamma",)

    def __init__(
        self, *, gamma: float = 2, pos_weight: Tensor | Sequence[float] | float | None = None
    ) -> None:
        super().__init__(pos_weight=pos_weight)
        self.gamma = check_number("gamma", gamma, low=0)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`binary_focal` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        values = binary_focal(logits, labels.clamp(min=0), self.gamma, self.weight_for(logits))
        return known_mean(values, labels)

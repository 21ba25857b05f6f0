"""Alignment of the loss with the uncertainty under dropout (CLUE)."""

import math

from torch import Tensor

from macc.losses._checks import Output, check_moments
from macc.losses._cross_entropy import cross_entropy
from macc.losses._entropy import entropy
from macc.losses._terms import Penalty


def clue(mean: Tensor, variance: Tensor, labels: Tensor) -> Tensor:
    """Squared difference of loss and uncertainty per sample, ``(N,)``, from ``(N, K)`` moments."""
    spread = variance.mean(dim=1, keepdim=True)
    uncertainty = entropy(mean / (1 + math.pi / 8 * spread).sqrt())
    return (cross_entropy(mean, labels) - uncertainty).square()


class CLUE(Penalty):
    r"""Squared distance between the loss of each sample and its uncertainty under dropout.

    .. math:: \frac1N \sum_i \bigl( -\log s_i[y_i] - H(\tilde s_i) \bigr)^2, \qquad
        \tilde s_i = \mathrm{softmax}\Bigl( \bar z_i \big/ \sqrt{1 + \tfrac\pi8 \tfrac1K \textstyle\sum_k u_i[k]} \Bigr)

    where :math:`H` is the entropy. The cross-entropy of a calibrated model is its entropy on
    average, and this asks for it sample by sample. The authors draw networks and take the entropy
    of their mean prediction; the moments of the logits give it in closed form, by the usual
    approximation of a softmax under normal logits, with one variance for each sample. Their loss is
    :math:`\alpha L + (1 - \alpha)(L - u)^2`, which is ``CrossEntropy() + w * CLUE()`` with
    :math:`w = (1 - \alpha) / \alpha`.

    Returns:
        Scalar in ``[0, ∞)``. Labels may be class probabilities ``(N, K)``.

    Example:
        >>> import torch
        >>> from macc import LogitMoments
        >>> CLUE()(LogitMoments(torch.zeros(1, 2), torch.ones(1, 2)), torch.tensor([0]))
        tensor(0.)

    Reference:
        Mendes, Romano and Garlan, *CLUE: Neural Networks Calibration via Learning Uncertainty-Error
        Alignment*, 2025.
    """

    soft_targets = True
    needs_variance = True

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`clue` of checked moments, averaged."""
        moments = check_moments(output, "CLUE")
        _, labels = self.checked(moments, labels)
        return clue(*moments, labels).mean()

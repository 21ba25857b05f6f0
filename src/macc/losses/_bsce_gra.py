"""Cross-entropy with gradients weighted by the Brier error (BSCE-GRA)."""

from collections.abc import Sequence

from torch import Tensor

from macc.losses._brier import brier
from macc.losses._checks import Output, check_number, label_probs
from macc.losses._cross_entropy import cross_entropy
from macc.losses._terms import Task


def bsce_gra(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Weighted cross-entropy per sample, ``(N,)``; the weight is a constant for the gradient."""
    error = brier(logits.detach().softmax(dim=1), label_probs(labels, logits))
    return error.pow(gamma / 2) * cross_entropy(logits, labels)


class BSCEGRA(Task):
    r"""Cross-entropy whose gradient is scaled, sample by sample, by the Brier error.

    .. math:: -\frac1N \sum_i w_i \log s_i[y_i], \qquad w_i = \lVert \mathbf 1_{y_i} - s_i \rVert_2^\gamma

    No gradient flows through :math:`w_i`, so training is that of cross-entropy with uncertain
    samples counted more. With ``gamma=2`` the weight is the Brier score of the sample.

    Args:
        gamma: The power of the error, at least 0; 0 is cross-entropy.

    Returns:
        Scalar in ``[0, ∞)``. Labels may be class probabilities ``(N, K)``. Its gradient is not the
        derivative of its value.

    Example:
        >>> import torch
        >>> BSCEGRA()(torch.zeros(1, 2), torch.tensor([0]))
        tensor(0.3466)

    Reference:
        Lin et al., *Uncertainty Weighted Gradients for Model Calibration*, CVPR 2025.
    """

    label = "BSCE-GRA"
    soft_targets = True

    def __init__(self, *, gamma: float = 2, weight: Tensor | Sequence[float] | None = None) -> None:
        super().__init__(weight=weight)
        self.gamma = check_number("gamma", gamma, low=0)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`bsce_gra` of checked logits, averaged."""
        logits, labels = self.checked(output, labels)
        return self.weighted_mean(bsce_gra(logits, labels, self.gamma), labels, logits.shape[1])

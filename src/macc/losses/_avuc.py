"""Accuracy versus uncertainty calibration (AvUC)."""

import torch
from torch import Tensor

from macc.losses._checks import Output, check_number
from macc.losses._entropy import entropy
from macc.losses._terms import BatchPenalty
from macc.losses.distributed import batch_mean


def avuc(
    confidence: Tensor, right: Tensor, uncertainty: Tensor, threshold: float | None, *, sync: bool = False
) -> Tensor:
    """The loss of confidences, of right (1) or wrong (0), and of uncertainties, ``(N,)`` each."""
    wrong = 1 - right
    if threshold is None:
        fixed = uncertainty.detach()
        sums = batch_mean(torch.stack([right, wrong, right * fixed, wrong * fixed], dim=1), sync=sync)
        means = sums[2:] / sums[:2].clamp(min=torch.finfo(sums.dtype).tiny)
        # Where all are right, or all wrong, there is one mean and no middle.
        border = means.sum() / (sums[:2] > 0).sum()
    else:
        border = uncertainty.new_full((), threshold)
    unsure = (uncertainty > border).to(confidence.dtype)
    degree = uncertainty.tanh()
    bad = right * unsure * confidence * degree + wrong * (1 - unsure) * (1 - confidence) * (1 - degree)
    good = right * (1 - unsure) * confidence * (1 - degree) + wrong * unsure * (1 - confidence) * degree
    bad, good = batch_mean(torch.stack([bad, good], dim=1), sync=sync).unbind()
    return (bad / (good + 1e-10)).log1p()


class AvUC(BatchPenalty):
    r"""Predictions should be certain where they are right and uncertain where they are wrong.

    The uncertainty :math:`u_i` is the entropy of the probabilities, and a prediction is *certain*
    where it is at most the threshold. With soft counts of the four cases, right or wrong (``A``,
    ``I``) and certain or uncertain (``C``, ``U``),

    .. math:: n_{AC} = \sum p_i (1 - \tanh u_i), \quad n_{AU} = \sum p_i \tanh u_i, \quad
        n_{IC} = \sum (1 - p_i)(1 - \tanh u_i), \quad n_{IU} = \sum (1 - p_i) \tanh u_i

    over the samples of each case with confidence :math:`p_i`, the loss is

    .. math:: \log \Bigl( 1 + \frac{n_{AU} + n_{IC}}{n_{AC} + n_{IU}} \Bigr)

    Args:
        threshold: The largest entropy of a certain prediction; by default the middle between the
            mean entropies of right and of wrong predictions in the batch. The authors take it from
            the epoch before.

    Returns:
        Scalar, at least 0.

    Example:
        >>> import torch
        >>> sure_and_right, unsure_and_wrong = [9.0, 0.0], [0.0, 0.1]
        >>> AvUC()(torch.tensor([sure_and_right, unsure_and_wrong]), torch.tensor([0, 0]))
        tensor(0.)

    Reference:
        Krishnan and Tickoo, *Improving Model Calibration with Accuracy versus Uncertainty
        Optimization*, NeurIPS 2020.
    """

    def __init__(self, *, threshold: float | None = None, warmup: int = 0, sync: bool = True) -> None:
        super().__init__(warmup=warmup, sync=sync)
        self.threshold = None if threshold is None else check_number("threshold", threshold, low=0)

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """:func:`avuc` of checked logits."""
        logits, labels = self.checked(output, labels)
        confidence, prediction = logits.softmax(dim=1).max(dim=1)
        right = (prediction == labels).to(confidence.dtype)
        return avuc(confidence, right, entropy(logits), self.threshold, sync=self.sync)

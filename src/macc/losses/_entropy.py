"""Penalty of confident predictions by their entropy (ECP)."""

import math

import torch
from torch import Tensor

from macc.losses._checks import Output, known_mean
from macc.losses._terms import Penalty


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the probabilities, ``(N,)``, with finite gradients however saturated."""
    # A class that is masked by a logit of -inf adds nothing.
    log_probs = logits.log_softmax(dim=1).clamp(min=torch.finfo(logits.dtype).min)
    return -(log_probs.exp() * log_probs).sum(dim=1)


class EntropyPenalty(Penalty):
    r"""How far the entropy of predictions lies below its largest value, on average.

    .. math:: \log K - \frac1N \sum_i H(s_i), \qquad H(s) = -\sum_k s[k] \log s[k]

    Minimised, it raises the entropy. It is the confidence penalty :math:`-H` and a constant, so
    that it is never negative. The authors' weight is 0.1: write
    ``CrossEntropy() + 0.1 * EntropyPenalty()``.

    Beside a task of independent labels it is the mean over labels too, of :math:`\log 2 - H` with
    the entropy of each label's sigmoid.

    Returns:
        Scalar in ``[0, log K]``. Labels are not used.

    Example:
        >>> import torch
        >>> EntropyPenalty()(torch.tensor([[100.0, 0.0]]), torch.tensor([0]))
        tensor(0.6931)

    Reference:
        Pereyra et al., *Regularizing Neural Networks by Penalizing Confident Output Distributions*,
        ICLR workshop 2017.
    """

    label = "ECP"
    soft_targets = True

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """The mean :func:`entropy` of checked logits, subtracted from its largest value."""
        logits, _ = self.checked(output, labels)
        return (math.log(logits.shape[1]) - entropy(logits).mean()).clamp(min=0)

    def measure_labels(self, output: Output, labels: Tensor) -> Tensor:
        """The same of sigmoids, where each logit is a choice of two."""
        logits, labels = self.checked_labels(output, labels)
        two = torch.stack([logits, torch.zeros_like(logits)], dim=-1).flatten(0, 1)
        return (math.log(2) - known_mean(entropy(two).view_as(logits), labels)).clamp(min=0)

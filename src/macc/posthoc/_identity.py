"""Doing nothing, which every other calibrator has to beat."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from macc.metrics.inputs import Array
from macc.posthoc._base import Calibrator, sample


@dataclass(frozen=True, eq=False)
class Identity(Calibrator):
    r"""The model's own probabilities, :math:`\operatorname{softmax}(z)`.

    Example:
        >>> from macc import posthoc
        >>> posthoc.Identity.fit([[1.0, 1.0], [0.0, 2.0]], [0, 1])([[1.0, 1.0]])
        array([[0.5, 0.5]])
    """

    keeps_argmax: ClassVar[bool] = True
    holds_identity: ClassVar[bool] = True

    @classmethod
    def fit(cls, logits: Array, labels: Array) -> "Identity":
        """Only the number of classes is learnt.

        Args:
            logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
            labels: Class indices ``(N,)``.

        Returns:
            The calibrator.
        """
        return cls(sample(logits, labels).num_classes)

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        return logits.log_softmax(1)

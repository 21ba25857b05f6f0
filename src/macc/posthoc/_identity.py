"""Doing nothing, which every other calibrator has to beat."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from macc.metrics.inputs import Array
from macc.posthoc._base import Calibrator, sample
from macc.words import documented


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
    @documented
    def fit(cls, logits: Array, labels: Array, *, weights: Array | None = None) -> "Identity":
        """Only the number of classes is learnt.

        Returns:
            The calibrator.
        """
        return cls(sample(logits, labels, weights).num_classes)

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        return logits.log_softmax(1)

"""What tasks of independent labels share: one logit each, a sigmoid, labels of 0 and 1."""

from collections.abc import Sequence

from torch import Tensor

from macc.losses._checks import Output
from macc.losses._terms import Task, class_weight


class LabelTask(Task):
    """A task whose logits are independent labels, or the one logit of a binary classifier.

    Args:
        pos_weight: How much a label of 1 counts, as in ``nn.BCEWithLogitsLoss``: a number for all
            labels, or one per label, ``(K,)``.
    """

    independent_labels = True
    pos_weight: Tensor | None

    def __init__(self, *, pos_weight: Tensor | Sequence[float] | float | None = None) -> None:
        super().__init__()
        if isinstance(pos_weight, int | float) and not isinstance(pos_weight, bool):
            pos_weight = [pos_weight]
        self.register_buffer(
            "pos_weight",
            None if pos_weight is None else class_weight("pos_weight", pos_weight, each="label", least=1),
        )

    def checked(self, output: Output, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Mean logits and labels, both numbers ``(N, K)``."""
        return self.checked_labels(output, labels)

    def weight_for(self, logits: Tensor) -> Tensor | None:
        """``pos_weight`` in the type of logits ``(N, K)``."""
        if self.pos_weight is None:
            return None
        if len(self.pos_weight) not in (1, logits.shape[1]):
            raise ValueError(
                "`pos_weight` must be one number or have one entry per label, "
                f"got {len(self.pos_weight)} for {logits.shape[1]} labels"
            )
        return self.pos_weight.to(logits.dtype)

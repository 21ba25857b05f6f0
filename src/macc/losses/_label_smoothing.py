"""Label smoothing (LS)."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from macc.losses._checks import Output, check_number
from macc.losses._cross_entropy import cross_entropy
from macc.losses._terms import Task


class LabelSmoothing(Task):
    r"""Cross-entropy against labels softened by ``alpha``.

    .. math:: -\frac1N \sum_i \sum_k q_i[k] \log s_i[k]

    ``over="others"`` takes ``alpha`` from the true class and spreads it over the others,
    ``q[y] = 1 - α`` and ``α/(K-1)`` elsewhere, as the code base the paper follows (MDCA) does.
    ``over="all"`` spreads it over all classes, ``q[y] = 1 - α + α/K`` and ``α/K`` elsewhere, as
    PyTorch and MbLS do. The two agree when the first ``alpha`` is ``(K-1)/K`` of the second.

    Args:
        alpha: Probability mass to spread, in ``[0, 1]``.
        over: ``"others"`` or ``"all"``.

    Returns:
        Scalar in ``[0, ∞)``. Labels may be class probabilities ``(N, K)``, softened further.

    Example:
        >>> import torch
        >>> logits, labels = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0])
        >>> LabelSmoothing(alpha=0.1)(logits, labels)
        tensor(0.4395)
        >>> LabelSmoothing(alpha=0.15, over="all")(logits, labels)
        tensor(0.4395)

    Reference:
        Müller, Kornblith and Hinton, *When Does Label Smoothing Help?*, NeurIPS 2019.
    """

    label = "LS"
    soft_targets = True
    shown = ("alpha",)

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        over: Literal["others", "all"] = "others",
        weight: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(weight=weight)
        self.alpha = check_number("alpha", alpha, low=0, high=1)
        if over not in ("others", "all"):
            raise ValueError(f"`over` must be 'others' or 'all', got {over!r}")
        self.over = over

    def measure(self, output: Output, labels: Tensor) -> Tensor:
        """Cross-entropy with PyTorch's own smoothing, which is over all classes."""
        logits, labels = self.checked(output, labels)
        classes = logits.shape[1]
        alpha = self.alpha
        if self.over == "others":
            alpha *= classes / (classes - 1)
            if alpha > 1:
                raise ValueError(
                    f"`alpha` must be at most (K-1)/K = {(classes - 1) / classes:g} for {classes} classes, "
                    f"got {self.alpha:g}: the true class would be the least likely"
                )
        return self.weighted_mean(cross_entropy(logits, labels, smoothing=alpha), labels, classes)

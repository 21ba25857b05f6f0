"""Streaming calibration as a torchmetrics metric."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from macc.metrics import Calibration
from macc.metrics._streaming import Sums, summary
from macc.metrics.inputs import check_bins, check_num_classes
from macc.words import did_you_mean

try:
    from torchmetrics import Metric
except ImportError as error:
    raise ValueError(
        f"CalibrationMetric needs torchmetrics ({error}); install it with: pip install 'macc-torch[torchmetrics]'"
    ) from error


class CalibrationMetric(Metric):
    """:class:`macc.metrics.Calibration` for those whose loops collect torchmetrics metrics.

    The state is a sum of fixed size, where torchmetrics' own calibration error keeps every sample,
    and confidence 1 falls in the last bin.

    Args:
        num_classes: Number of classes K.
        bins: Number of bins of equal width.
        names: Which values to give, of those that :meth:`macc.metrics.Calibration.compute` has; all by default.
        from_logits: Updates hold logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        **kwargs: Passed on to ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> from macc.integrations.torchmetrics import CalibrationMetric
        >>> metric = CalibrationMetric(2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]), torch.tensor([0, 1, 1]))
        >>> round(metric.compute()["ece"], 6)
        0.333333
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    gaps: Tensor
    top: Tensor
    scores: Tensor

    def __init__(
        self,
        num_classes: int,
        bins: int = 15,
        *,
        names: Iterable[str] | None = None,
        from_logits: bool = False,
        normalise: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_num_classes(num_classes)
        check_bins(bins)
        self.num_classes = num_classes
        self.bins = bins
        self.from_logits = from_logits
        self.normalise = normalise
        self.names = _checked(names)
        for name, zeros in Sums.zeros(num_classes, bins)._asdict().items():
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in probabilities ``(N, K)`` and labels ``(N,)``; the names are those of torchmetrics."""
        batch = Sums.zeros(self.num_classes, self.bins)
        batch.add(batch.fitting(preds, target, from_logits=self.from_logits, normalise=self.normalise))
        self.gaps = self.gaps + batch.gaps.to(self.gaps.device)
        self.top = self.top + batch.top.to(self.top.device)
        self.scores = self.scores + batch.scores.to(self.scores.device)

    def compute(self) -> dict[str, Any]:
        """The metrics of all samples so far, as :meth:`macc.metrics.Calibration.compute` gives them."""
        found = summary(Sums(self.gaps.cpu(), self.top.cpu(), self.scores.cpu()))
        return found if self.names is None else {name: found[name] for name in self.names}


def _checked(names: Iterable[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    wanted = (names,) if isinstance(names, str) else tuple(names)
    one = Calibration(2)
    one.update([[0.5, 0.5]], [0])
    known = one.compute()
    for name in wanted:
        if name not in known:
            raise ValueError(f"no streaming metric is called {name!r}; {did_you_mean(name, known)}")
    return wanted

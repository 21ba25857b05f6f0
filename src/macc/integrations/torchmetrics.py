"""Streaming calibration as a torchmetrics metric."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from macc.metrics import Calibration
from macc.words import did_you_mean, documented

try:
    from torchmetrics import Metric
except ImportError as error:
    raise ValueError(
        f"CalibrationMetric needs torchmetrics ({error}); install it with: pip install 'macc-torch[torchmetrics]'"
    ) from error


@documented
class CalibrationMetric(Metric):
    """:class:`macc.metrics.Calibration` for those whose loops collect torchmetrics metrics.

    The state is a sum of fixed size, where torchmetrics' own calibration error keeps every sample,
    and confidence 1 falls in the last bin.

    Args:
        num_classes: Number of classes K.
        names: Which values to give, of those that :meth:`macc.metrics.Calibration.compute` has; all
            by default.
        from_logits: Updates hold logits.
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
        # It checks the options and each batch; its sums are the state that torchmetrics keeps and
        # adds up.
        self._batch = Calibration(num_classes, bins, from_logits=from_logits, normalise=normalise, sync=False)
        self.names = _checked(names, num_classes)
        for name, zeros in self._batch.sums().parts.items():
            self.add_state(name, zeros.clone(), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in probabilities ``(N, K)`` and labels ``(N,)``, as torchmetrics names them."""
        self._batch.reset()
        self._batch.update(preds, target)
        for name, part in self._batch.sums().parts.items():
            kept = getattr(self, name)
            setattr(self, name, kept + part.to(kept.device))

    def compute(self) -> dict[str, Any]:
        """The metrics of all samples so far; see :meth:`macc.metrics.Calibration.compute`."""
        sums = self._batch.sums()
        found = sums.having({name: getattr(self, name).cpu() for name in sums.parts}).values()
        return found if self.names is None else {name: found[name] for name in self.names}


def _checked(names: Iterable[str] | None, num_classes: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    wanted = (names,) if isinstance(names, str) else tuple(names)
    one = Calibration(num_classes)
    one.update([[1.0] + [0.0] * (num_classes - 1)], [0])
    known = one.compute()
    for name in wanted:
        if name not in known:
            raise ValueError(f"no streaming metric is called {name!r}; {did_you_mean(name, known)}")
    return wanted

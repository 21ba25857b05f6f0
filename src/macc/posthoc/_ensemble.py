"""Ensemble temperature scaling: a mixture of three opinions that keeps the predicted class."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.metrics.temperature import best_temperature, tempered
from macc.posthoc._base import Calibrator, Floats, Sample, accept, parameter, sample
from macc.posthoc._temperature import check_temperature


@dataclass(frozen=True, eq=False)
class EnsembleTemperature(Calibrator):
    r"""Mix-n-Match: a convex mix of tempered, plain and uniform probabilities; the predicted class stays.

    .. math:: w_1 \operatorname{softmax}(z / T) + w_2 \operatorname{softmax}(z) + w_3 / K,
        \qquad w \ge 0, \; w_1 + w_2 + w_3 = 1

    T is the best temperature, and w then the weights of the least negative log-likelihood.

    Args:
        temperature: The temperature T.
        weights: The weights w, ``(3,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> fitted = posthoc.EnsembleTemperature.fit(3 * logits, labels)
        >>> round(float(fitted.weights.sum()), 6)
        1.0

    Reference:
        Zhang, Kailkhura and Han, *Mix-n-Match: Ensemble and Compositional Methods for Uncertainty
        Calibration in Deep Learning*, ICML 2020.
    """

    temperature: float
    weights: Floats = parameter(3)

    keeps_argmax: ClassVar[bool] = True
    holds_identity: ClassVar[bool] = True

    @classmethod
    def fit(cls, logits: Array, labels: Array) -> "EnsembleTemperature":
        """Find the temperature, then the weights.

        Args:
            logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
            labels: Class indices ``(N,)``.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels)
        found = best_temperature(data.logits, data.labels)
        weights = best_mixture(_opinions(data, found.value))
        return accept(cls(data.num_classes, found.value, weights, notes=found.notes), data)

    def _check(self) -> None:
        check_temperature(type(self).__name__, self.temperature)
        if (self.weights < 0).any() or abs(self.weights.sum() - 1) > 1e-9:
            raise ValueError("EnsembleTemperature.weights must be at least 0 and sum to 1")

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        log_weights = logits.new_tensor(self.weights).log()
        tempered_, plain = tempered(logits, self.temperature), logits.log_softmax(1)
        uniform = torch.full_like(plain, -np.log(self.num_classes))
        return torch.stack([tempered_, plain, uniform], dim=2).add_(log_weights).logsumexp(2)


def _opinions(data: Sample, temperature: float) -> Floats:
    """Probability of the label by each of the three, ``(N, 3)``, each row divided by its largest."""
    parts = []
    for rows, labels in data.blocks():
        opinions = [tempered(rows, temperature), rows.log_softmax(1)]
        own = [opinion.gather(1, labels[:, None]) for opinion in opinions]
        own.append(torch.full_like(own[0], -np.log(data.num_classes)))
        logs = torch.cat(own, dim=1)
        parts.append((logs - logs.amax(1, keepdim=True)).exp().cpu())
    return torch.cat(parts).numpy()


def best_mixture(likelihood: Floats) -> Floats:
    """Weights of the largest mean ``log(likelihood @ weights)`` on the simplex: a convex problem."""
    from scipy.optimize import LinearConstraint, minimize

    size, count = likelihood.shape

    def objective(weights: Floats) -> tuple[float, Floats]:
        # The search may look a little outside of the simplex.
        mixed = np.maximum(likelihood @ weights, 1e-300)
        return -float(np.log(mixed).mean()), -(likelihood / mixed[:, None]).sum(0) / size

    found = minimize(
        objective,
        np.full(count, 1 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints=LinearConstraint(np.ones(count), 1, 1),
        options={"ftol": 1e-14, "maxiter": 500},
    ).x
    # Each opinion alone is a candidate too, so that a search that fails does no harm.
    corners = [*np.eye(count), np.clip(found, 0, 1) / np.clip(found, 0, 1).sum()]
    return min(corners, key=lambda weights: objective(weights)[0])

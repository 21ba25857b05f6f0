"""Ensemble temperature scaling: a mixture of three opinions that keeps the predicted class."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.metrics.temperature import Optimum, best_temperature, tempered
from macc.posthoc._base import Calibrator, Floats, Sample, accept, check_objective, parameter, sample
from macc.posthoc._temperature import Temperature, check_temperature, of_least

# Where to look first, times the best single temperature.
_FACTORS = (0.5, 0.75, 1.0, 1.5)
_PRECISION = 1e-3


@dataclass(frozen=True, eq=False)
class EnsembleTemperature(Calibrator):
    r"""Mix-n-Match: a convex mix of tempered, plain and uniform probabilities; the predicted class stays.

    .. math:: w_1 \operatorname{softmax}(z / T) + w_2 \operatorname{softmax}(z) + w_3 / K,
        \qquad w \ge 0, \; w_1 + w_2 + w_3 = 1

    T and w are those of the least negative log-likelihood together: for each T of a search the best weights are found.
    (With the best single temperature in place of T, the other two opinions hardly ever get a weight.)

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
    def fit(
        cls, logits: Array, labels: Array, *, objective: str = "nll", weights: Array | None = None
    ) -> "EnsembleTemperature":
        """Find the temperature and the weights.

        Args:
            logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
            labels: Class indices ``(N,)``.
            objective: ``"nll"`` or ``"brier"``.
            weights: How often each sample counts, ``(N,)``, at least 0; whole weights are repeated samples.

        Returns:
            The fitted calibrator.
        """
        check_objective(objective)
        data = sample(logits, labels, weights)
        mixed = _mixture if objective == "nll" else _least_squares
        single = best_temperature(data.logits, data.labels, weights=data.weights)
        # The profile over T may have two valleys; the better of a few values says where to look closely.
        values = [single.value * factor for factor in _FACTORS]
        start = min(values, key=lambda value: mixed(data, value)[1])
        near = Optimum(start, single.at_bound)
        found = of_least(lambda value: mixed(data, value)[1], near, tolerance=_PRECISION)
        fitted = cls(data.num_classes, found.value, mixed(data, found.value)[0], notes=single.notes)
        plain = Temperature(data.num_classes, single.value)
        return accept(fitted, data, objective=objective, around=plain)

    def _check(self) -> None:
        check_temperature(type(self).__name__, self.temperature)
        if (self.weights < 0).any() or abs(self.weights.sum() - 1) > 1e-9:
            raise ValueError("EnsembleTemperature.weights must be at least 0 and sum to 1")

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        log_weights = logits.new_tensor(self.weights).log()
        tempered_, plain = tempered(logits, self.temperature), logits.log_softmax(1)
        uniform = torch.full_like(plain, -np.log(self.num_classes))
        return torch.stack([tempered_, plain, uniform], dim=2).add_(log_weights).logsumexp(2)


def _mixture(data: Sample, temperature: float) -> tuple[Floats, float]:
    """The weights of least NLL at a temperature, and that NLL."""
    parts = []
    for opinions, labels in _opinions(data, temperature):
        parts.append(torch.cat([each.gather(1, labels[:, None]) for each in opinions], dim=1).cpu())
    logs = torch.cat(parts).numpy()
    top = logs.max(1, keepdims=True)
    likelihood = np.exp(logs - top)
    each = np.ones(len(logs)) if data.weights is None else data.weights.cpu().numpy()
    each = each / each.sum()

    def objective(weights: Floats) -> tuple[float, Floats]:
        # The search may look a little outside of the simplex.
        mixed = np.maximum(likelihood @ weights, 1e-300)
        return -float(each @ np.log(mixed)), -each @ (likelihood / mixed[:, None])

    weights, value = _on_simplex(objective)
    return weights, value - float(each @ top[:, 0])


def _least_squares(data: Sample, temperature: float) -> tuple[Floats, float]:
    """The weights of least Brier score at a temperature, and that score: a quadratic form of the weights."""
    products, hits = (torch.zeros(*shape, dtype=torch.float64, device="cpu") for shape in ((3, 3), (3,)))
    done, total = 0, 0.0
    for opinions, labels in _opinions(data, temperature):
        counted = (
            torch.ones_like(opinions[0][:, 0])
            if data.weights is None
            else data.weights[done : done + len(labels)]
        )
        own = torch.stack([each.gather(1, labels[:, None])[:, 0].exp() @ counted for each in opinions])
        probs = torch.stack([(each.exp_() * counted.sqrt()[:, None]).flatten() for each in opinions])
        hits += own.cpu()
        products += (probs @ probs.T).cpu()
        total += float(counted.sum())
        done += len(labels)
    form, line = products.numpy() / total, hits.numpy() / total

    def objective(weights: Floats) -> tuple[float, Floats]:
        return float(weights @ form @ weights - 2 * line @ weights) + 1, 2 * (form @ weights - line)

    return _on_simplex(objective)


def _opinions(data: Sample, temperature: float) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Logarithms of the tempered, plain and uniform probabilities of some rows, and their labels."""
    for rows, labels in data.blocks():
        tempered_, plain = tempered(rows, temperature), rows.log_softmax(1)
        yield [tempered_, plain, torch.full_like(plain, -np.log(data.num_classes))], labels


def _on_simplex(objective: Callable[[Floats], tuple[float, Floats]]) -> tuple[Floats, float]:
    """The least value of a convex function of three weights that sum to 1, and where it is."""
    from scipy.optimize import LinearConstraint, minimize

    found = minimize(
        objective,
        np.full(3, 1 / 3),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints=LinearConstraint(np.ones(3), 1, 1),
        options={"ftol": 1e-12, "maxiter": 500},
    ).x
    # Each opinion alone is a candidate too, so that a search that fails does no harm.
    corners = [*np.eye(3), np.clip(found, 0, 1) / np.clip(found, 0, 1).sum()]
    best = min(corners, key=lambda weights: objective(weights)[0])
    return best, objective(best)[0]

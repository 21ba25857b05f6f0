"""Ensemble temperature scaling: a mixture of three opinions that keeps the predicted class."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.metrics.temperature import Optimum, best_temperature, tempered
from macc.posthoc._base import Calibrator, Floats, Sample, accept, check_objective, parameter, sample
from macc.posthoc._temperature import Temperature, check_temperature, of_least
from macc.words import documented

# Where to look first, times the best single temperature, and how far around the best of these to
# look closely.
_FACTORS = (0.35, 0.6, 1.0, 1.7)
_REACH = math.log(1.8)
# Of log T: a fiftieth changes the NLL by about a hundred-thousandth.
_PRECISION = 2e-2
# What a step of the weights must promise at least.
_NO_GAIN = 1e-12


@dataclass(frozen=True, eq=False)
class EnsembleTemperature(Calibrator):
    r"""Mix-n-Match: a convex mix of tempered, plain and uniform probabilities; the predicted class
    stays.

    .. math:: w_1 \operatorname{softmax}(z / T) + w_2 \operatorname{softmax}(z) + w_3 / K,
        \qquad w \ge 0, \; w_1 + w_2 + w_3 = 1

    T and w are those of the least negative log-likelihood together: for each T of a search the best
    weights are found. (With the best single temperature in place of T, the other two opinions
    hardly ever get a weight.)

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
    @documented
    def fit(
        cls, logits: Array, labels: Array, *, objective: str = "nll", weights: Array | None = None
    ) -> "EnsembleTemperature":
        """Find the temperature and the weights.

        Args:
            objective: ``"nll"`` or ``"brier"``.

        Returns:
            The fitted calibrator.
        """
        check_objective(objective)
        data = sample(logits, labels, weights)
        mixed = cache(_mixture(data) if objective == "nll" else _least_squares(data))
        single = best_temperature(data.logits, data.labels, weights=data.weights)
        # The profile over T may have two valleys; the better of a few values says where to look
        # closely.
        values = [single.value * factor for factor in _FACTORS]
        start = min(values, key=lambda value: mixed(value)[1])
        near = Optimum(start, single.at_bound)
        found = of_least(lambda value: mixed(value)[1], near, tolerance=_PRECISION, reach=_REACH)
        fitted = cls(data.num_classes, found.value, mixed(found.value)[0], notes=single.notes)
        plain = Temperature(data.num_classes, single.value)
        return accept(fitted, data, objective=objective, around=plain)

    def _check(self) -> None:
        check_temperature(type(self).__name__, self.temperature)
        if (self.weights < 0).any() or abs(self.weights.sum() - 1) > 1e-9:
            raise ValueError("EnsembleTemperature.weights must be at least 0 and sum to 1")

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        tempered_, plain, uniform = (float(weight) for weight in self.weights)
        parts = []
        if tempered_:
            parts.append(tempered(logits, self.temperature) + math.log(tempered_))
        if plain:
            parts.append(logits.log_softmax(1) + math.log(plain))
        if uniform:
            parts.append(logits.new_tensor(math.log(uniform / self.num_classes)))
        return reduce(torch.logaddexp, parts).expand_as(logits).clone()


def _mixture(data: Sample) -> Callable[[float], tuple[Floats, float]]:
    """A function of the temperature that gives the weights of least NLL, and that NLL."""
    plain = _label_logs(data, 1.0)
    uniform = np.full(len(plain), -math.log(data.num_classes))
    each = np.ones(len(plain)) if data.weights is None else data.weights.cpu().numpy()
    each = each / each.sum()
    # Temperatures take turns, and the best weights of one are a good start for the next.
    last = np.full(3, 1 / 3)

    def best_weights(temperature: float) -> tuple[Floats, float]:
        nonlocal last
        logs = np.stack([_label_logs(data, temperature), plain, uniform])
        top = logs.max(0)
        likelihood = np.exp(logs - top)

        def objective(weights: Floats) -> tuple[float, Floats, Floats]:
            mixed = weights @ likelihood
            if mixed.min() <= 0:
                return math.inf, weights, np.eye(3)
            shares = likelihood / mixed
            counted = shares * each
            return -float(each @ np.log(mixed)), -counted.sum(1), counted @ shares.T

        last, value = _on_simplex(objective, last)
        return last, value - float(each @ top)

    return best_weights


def _least_squares(data: Sample) -> Callable[[float], tuple[Floats, float]]:
    """A function of the temperature that gives the weights of least Brier score, and that score."""

    def best_weights(temperature: float) -> tuple[Floats, float]:
        products, hits = (torch.zeros(*shape, dtype=torch.float64, device="cpu") for shape in ((3, 3), (3,)))
        done, total = 0, 0.0
        for rows, labels in data.blocks():
            plain = rows.softmax(1)
            probs = [tempered(rows, temperature).exp_(), plain, torch.full_like(plain, 1 / data.num_classes)]
            counted = torch.ones_like(plain[:, 0])
            if data.weights is not None:
                counted = data.weights[done : done + len(labels)]
            hits += torch.stack([each.gather(1, labels[:, None])[:, 0] @ counted for each in probs]).cpu()
            if data.weights is not None:
                probs = [each * counted.sqrt()[:, None] for each in probs]
            flat = torch.stack(probs).view(3, -1)
            products += (flat @ flat.T).cpu()
            total += float(counted.sum())
            done += len(labels)
        form, line = 2 * products.numpy() / total, 2 * hits.numpy() / total
        found = _least_on_simplex(form, -line)
        return found, float(found @ form @ found / 2 - line @ found) + 1

    return best_weights


def _label_logs(data: Sample, temperature: float) -> Floats:
    """The logarithm of the tempered probability of each label, ``(N,)``."""
    parts = []
    for rows, labels in data.blocks():
        rows -= rows.amax(1, keepdim=True)
        rows /= temperature
        own = rows.gather(1, labels[:, None])[:, 0]
        parts.append(own - rows.exp_().sum(1).log_())
    return torch.cat(parts).cpu().numpy()


def _on_simplex(
    objective: Callable[[Floats], tuple[float, Floats, Floats]], start: Floats
) -> tuple[Floats, float]:
    """Where a convex function of three weights of sum 1 is least, and its value, by Newton.

    Args:
        objective: Gives value, slope and curvature.
        start: Where to begin; in the middle instead, where the value there is infinite.
    """
    at = start
    value, slope, curvature = objective(at)
    if math.isinf(value):
        at = np.full(3, 1 / 3)
        value, slope, curvature = objective(at)
    for _ in range(100):
        step = _least_on_simplex(curvature, slope - curvature @ at) - at
        gain = -float(slope @ step)
        if gain <= _NO_GAIN:
            break
        for _ in range(50):
            after = objective(at + step)
            if after[0] <= value - 1e-4 * gain:
                break
            step, gain = step / 2, gain / 2
        else:
            break
        at, (value, slope, curvature) = at + step, after
    at = np.clip(at, 0, 1)
    return at / at.sum(), value


def _least_on_simplex(form: Floats, line: Floats) -> Floats:
    """Where ``w form w / 2 + line w`` is least among three weights that sum to 1."""
    # Along two edges that begin at the last corner, the form has two coordinates.
    edges = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    (a, b), (_, c) = edges @ form @ edges.T
    x, y = edges @ (form[2] + line)
    volume = a * c - b * b
    # Opinions that agree on all labels leave the form flat.
    if volume > 1e-12 * a * c:
        one, two = (b * y - c * x) / volume, (b * x - a * y) / volume
        if one >= 0 and two >= 0 and one + two <= 1:
            return np.array([one, two, 1 - one - two])
    found = []
    for i, j in combinations(range(3), 2):
        bend = form[i, i] + form[j, j] - 2 * form[i, j]
        slope = form[i, j] - form[j, j] + line[i] - line[j]
        share = min(max(-slope / bend, 0.0), 1.0) if bend > 0 else float(slope < 0)
        weights = np.zeros(3)
        weights[i], weights[j] = share, 1 - share
        found.append(weights)
    return min(found, key=lambda weights: float(weights @ form @ weights / 2 + line @ weights))

"""Curves of the difference of two logits: Platt, quadratic and spline scaling; two classes only.

``P(1) = sigmoid(f(z_1 - z_0))``, and f is fitted around temperature scaling: a slope and an offset
cost half their squared distance from it against the sum of the negative log-likelihoods. What bends
the curve costs what the evidence says, as in :mod:`macc.posthoc._evidence`: without need the curve
stays straight.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.posthoc._base import Floats, accept, parameter, sample
from macc.posthoc._classwise import ClassWise, tempering
from macc.posthoc._optimise import minimise
from macc.posthoc._temperature import Temperature
from macc.words import documented

_ROUNDS = 5
_KNOTS = 6


@dataclass(frozen=True, eq=False)
class _Curve(ClassWise):
    """A curve ``a m + b`` and more of the margin ``m = z_1 - z_0``."""

    slope: float = parameter()
    intercept: float = parameter()

    holds_identity: ClassVar[bool] = True
    two_classes: ClassVar[bool] = True

    @classmethod
    @documented
    def fit(cls, logits: Array, labels: Array, *, weights: Array | None = None) -> Self:
        """Fit the curve.

        Args:
            logits: ``(N, 2)``, or ``(N,)`` of class 1.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels, weights)
        if data.num_classes != 2:
            raise ValueError(
                f"{cls.__name__} is for two classes, and logits has {data.num_classes}; "
                "use VectorScaling or Temperature"
            )
        around = tempering(data)
        temperature = around["temperature"]
        margins = data.map(_margins)
        shape = cls._shape(margins)
        straight = torch.stack([margins / temperature, torch.ones_like(margins)], dim=1)
        features = torch.cat([straight, cls._bends(margins, **shape)], dim=1)
        each = torch.ones_like(margins) if data.weights is None else data.weights.cpu()
        at, notes = _penalised(features, data.labels.cpu().double(), each)
        around["notes"] += notes
        bent: dict[str, Any] = {"bend": at[2:]} if features.shape[1] > 2 else {}
        fitted = cls(2, slope=at[0] / temperature, intercept=at[1], **shape, **bent, **around)
        return accept(fitted, data, around=Temperature(2, temperature))

    @classmethod
    @abstractmethod
    def _shape(cls, margins: Tensor) -> dict[str, Any]:
        """What says which functions bend the curve, by the names of its fields."""

    @staticmethod
    @abstractmethod
    def _bends(margins: Tensor, **shape: Any) -> Tensor:
        """The functions that bend the curve, ``(N, number)``."""

    @abstractmethod
    def _bent(self, margins: Tensor) -> Tensor:
        """What the bends add to the straight line."""

    def _check_parameters(self) -> None:
        if self.num_classes != 2:
            raise ValueError(f"{type(self).__name__}.num_classes must be 2, got {self.num_classes}")

    def _scores(self, logits: Tensor) -> Tensor:
        margins = _margins(logits)
        scores = self.slope * margins + self.intercept + self._bent(margins)
        return torch.stack([torch.zeros_like(scores), scores], dim=1)


@dataclass(frozen=True, eq=False)
class Platt(_Curve):
    r"""A logistic curve of the difference of the two logits; two classes only.

    .. math:: P(1) = \sigma(a (z_1 - z_0) + b)

    The negative log-likelihood is minimised with a penalty of
    :math:`\frac12 (a T - 1)^2 + \frac12 b^2` on its sum, T being the best temperature: a few
    samples outweigh it, and it keeps the curve finite where the classes can be separated without
    error.

    Args:
        slope: The slope a.
        intercept: The intercept b.

    Example:
        >>> from macc import posthoc
        >>> fitted = posthoc.Platt.fit([-3.0, 3.0, 3.0, -3.0, 3.0, 3.0] * 50, [0, 1, 0, 0, 1, 1] * 50)
        >>> fitted([-3.0, 0.0, 3.0]).round(2)
        array([0.01, 0.15, 0.75])

    Reference:
        Platt, *Probabilistic Outputs for Support Vector Machines*, 1999.
    """

    @classmethod
    def _shape(cls, _: Tensor) -> dict[str, Any]:
        return {}

    @staticmethod
    def _bends(margins: Tensor, **_: Any) -> Tensor:
        return margins.new_empty(len(margins), 0)

    def _bent(self, margins: Tensor) -> Tensor:
        return torch.zeros_like(margins)


@dataclass(frozen=True, eq=False)
class Quadratic(_Curve):
    r"""A logistic curve with a square of the difference of the two logits; two classes only.

    .. math:: P(1) = \sigma(a m + b + c (\min(\max(m, l), h) / h_0)^2), \qquad m = z_1 - z_0

    This is the right curve where the margins of both classes are normal with different spreads. The
    square stays what it is outside of the margins l to h that the fit has seen; :math:`h_0` is
    their root mean square.

    Args:
        slope: The slope a.
        intercept: The intercept b.
        bend: The factor c, ``(1,)``.
        span: l, h and :math:`h_0`, ``(3,)``.

    Example:
        >>> import numpy as np
        >>> from macc import posthoc
        >>> rng = np.random.default_rng(0)
        >>> labels = rng.integers(0, 2, 5000)
        >>> margins = np.where(labels == 1, 1 + 2 * rng.normal(size=5000), rng.normal(size=5000))
        >>> posthoc.Quadratic.fit(margins, labels).bend > 0.5
        array([ True])

    Reference:
        Berta, Holzmüller, Jordan and Bach, *Structured Matrix Scaling for Multi-Class
        Calibration*, 2025.
    """

    bend: Floats = parameter(1)
    span: Floats = parameter(3, fitted=False)

    @classmethod
    def _shape(cls, margins: Tensor) -> dict[str, Any]:
        size = float(margins.square().mean().sqrt()) or 1.0
        return {"span": np.array([float(margins.min()), float(margins.max()), size])}

    @staticmethod
    def _bends(margins: Tensor, **shape: Any) -> Tensor:
        low, high, size = map(float, shape["span"])
        return (margins.clamp(low, high) / size).square()[:, None]

    def _bent(self, margins: Tensor) -> Tensor:
        return self._bends(margins, span=self.span)[:, 0] * float(self.bend[0])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.span[0] > self.span[1] or self.span[2] <= 0:
            raise ValueError("Quadratic.span must hold a low end, a high end and a size above 0")


@dataclass(frozen=True, eq=False)
class Spline(_Curve):
    r"""A smooth curve of the difference of the two logits, straight at both ends; two classes only.

    .. math:: P(1) = \sigma\Bigl(a m + b + \sum_k c_k N_k(m)\Bigr), \qquad m = z_1 - z_0

    N are natural cubic splines with knots at six quantiles of the margins, each divided by its
    spread there.

    Args:
        slope: The slope a.
        intercept: The intercept b.
        bend: The factors c, two fewer than knots.
        knots: Rising margins, at least 3.
        spread: The spread of each N, as many as factors.

    Example:
        >>> import numpy as np
        >>> from macc import posthoc
        >>> rng = np.random.default_rng(0)
        >>> margins = 3 * rng.normal(size=5000)
        >>> labels = (rng.random(5000) < 0.1 + 0.8 / (1 + np.exp(-margins))).astype(int)
        >>> posthoc.Spline.fit(margins, labels)([-9.0, 0.0, 9.0]).round(1)
        array([0.1, 0.5, 0.9])

    Reference:
        Lucena, *Spline-Based Probability Calibration*, 2018; natural splines as in Hastie,
        Tibshirani and Friedman, *The Elements of Statistical Learning*, section 5.2.1.
    """

    bend: Floats = parameter("*")
    knots: Floats = parameter("*", fitted=False)
    spread: Floats = parameter("*", fitted=False)

    @classmethod
    def _shape(cls, margins: Tensor) -> dict[str, Any]:
        places = np.quantile(margins.numpy(), np.linspace(0.02, 0.98, _KNOTS))
        width = float(margins.max() - margins.min()) or 1.0
        # Equal margins leave no room between knots: then they are where they cannot matter.
        if (np.diff(places) < 1e-6 * width).any():
            places = float(margins.min()) + width * np.linspace(0, 1, _KNOTS)
        raw = cls._bends(margins, knots=places, spread=np.ones(_KNOTS - 2))
        spread = raw.std(0, correction=0).numpy()
        return {"knots": places, "spread": np.where(spread > 0, spread, 1.0)}

    @staticmethod
    def _bends(margins: Tensor, **shape: Any) -> Tensor:
        knots, spread = margins.new_tensor(shape["knots"]), margins.new_tensor(shape["spread"])
        width = knots[-1] - knots[0]
        cubes = ((margins[:, None] - knots) / width).clamp(min=0) ** 3
        # Differences of truncated cubes whose cubic and square parts cancel beyond the last knot.
        parts = (cubes[:, :-1] - cubes[:, -1:]) / ((knots[-1] - knots[:-1]) / width)
        return (parts[:, :-1] - parts[:, -1:]) / spread

    def _bent(self, margins: Tensor) -> Tensor:
        return self._bends(margins, knots=self.knots, spread=self.spread) @ margins.new_tensor(self.bend)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if len(self.knots) < 3 or (np.diff(self.knots) <= 0).any():
            raise ValueError("Spline.knots must rise, and be at least 3")
        if not len(self.bend) == len(self.spread) == len(self.knots) - 2 or (self.spread <= 0).any():
            raise ValueError("Spline.bend and spread must be two fewer than knots, and spreads above 0")


def _margins(logits: Tensor) -> Tensor:
    return logits[:, 1] - logits[:, 0]


def _penalised(features: Tensor, hits: Tensor, each: Tensor) -> tuple[Floats, tuple[str, ...]]:
    """The coefficients of least penalised loss; penalties after the first two are MacKay's."""
    size, count = float(each.sum()), features.shape[1]
    start = np.zeros(count)
    start[0] = 1.0
    costs = np.ones(count)

    def objective(at: Floats) -> tuple[float, Floats]:
        scores = features @ torch.from_numpy(at)
        losses = torch.nn.functional.binary_cross_entropy_with_logits(scores, hits, reduction="none")
        gradient = (features.T @ (each * (scores.sigmoid() - hits))).numpy()
        away = at - start
        return float(each @ losses) / size + float(costs @ away**2) / (2 * size), (
            gradient + costs * away
        ) / size

    found = minimise(objective, start)
    for _ in range(_ROUNDS if count > 2 else 0):
        probs = (features @ torch.from_numpy(found.at)).sigmoid()
        curvature = (features.T @ (features * (each * probs * (1 - probs))[:, None])).numpy() + np.diag(costs)
        determined = 1 - costs * np.diag(np.linalg.inv(curvature))
        squares = float((found.at[2:] ** 2).sum())
        costs[2:] = min(max(float(determined[2:].sum()), 1e-6) / max(squares, 1e-9), 100.0 * size)
        found = minimise(objective, found.at)
    return found.at, found.notes

"""Linear maps of the logits: Platt, vector, matrix and Dirichlet scaling.

All of them are fitted around the best temperature: features are divided by it, the map begins at the
identity, and penalties pull towards that. So the fit is never worse than temperature scaling on its own
data, penalties mean the same for logits of any scale, and the objective is convex.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.metrics.temperature import blocks
from macc.posthoc._base import Floats, Sample, accept, parameter, sample
from macc.posthoc._classwise import ClassWise, tempering
from macc.posthoc._optimise import check_penalty, minimise


@dataclass(frozen=True, eq=False)
class Platt(ClassWise):
    r"""A logistic curve of the difference of the two logits; two classes only.

    .. math:: P(1) = \sigma(a (z_1 - z_0) + b)

    The negative log-likelihood is minimised with a penalty of :math:`\frac12 (a T - 1)^2 + \frac12 b^2`
    on its sum, T being the best temperature: a few samples outweigh it, and it keeps the curve finite
    where the classes can be told apart without error.

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

    slope: float = parameter()
    intercept: float = parameter()

    holds_identity: ClassVar[bool] = True

    @classmethod
    def fit(cls, logits: Array, labels: Array) -> "Platt":
        """Fit the curve.

        Args:
            logits: ``(N, 2)``, or ``(N,)`` of class 1.
            labels: Class indices ``(N,)``.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels)
        if data.num_classes != 2:
            raise ValueError(
                f"Platt is for two classes, and logits has {data.num_classes}; use VectorScaling or Temperature"
            )
        around = tempering(data)
        temperature = around["temperature"]
        margins = data.map(_margins) / temperature
        hits = data.labels.cpu().double()

        def objective(at: Floats) -> tuple[float, Floats]:
            scores = at[0] * margins + at[1]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, hits)
            residual = (scores.sigmoid() - hits) / len(hits)
            gradient = np.array([float(residual @ margins), float(residual.sum())])
            away = at - [1.0, 0.0]
            return float(loss) + float(away @ away) / (2 * len(hits)), gradient + away / len(hits)

        found = minimise(objective, np.array([1.0, 0.0]))
        around["notes"] += found.notes
        return accept(cls(2, slope=found.at[0] / temperature, intercept=found.at[1], **around), data)

    def _check_parameters(self) -> None:
        if self.num_classes != 2:
            raise ValueError(f"Platt.num_classes must be 2, got {self.num_classes}")

    def _scores(self, logits: Tensor) -> Tensor:
        scores = self.slope * _margins(logits) + self.intercept
        return torch.stack([torch.zeros_like(scores), scores], dim=1)


@dataclass(frozen=True, eq=False)
class VectorScaling(ClassWise):
    r"""A factor and an offset for each class.

    .. math:: \operatorname{softmax}(w \circ (z - \bar z) + b)

    :math:`\bar z` is the mean of the row: adding a number to all logits of a sample changes nothing.

    Args:
        weight: The factors w, ``(K,)``.
        bias: The offsets b, ``(K,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> posthoc.VectorScaling.fit(logits, labels).weight.round(1)
        array([2. , 1.9, 2.1])

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    weight: Floats = parameter("K")
    bias: Floats = parameter("K")

    holds_identity: ClassVar[bool] = True

    @classmethod
    def fit(cls, logits: Array, labels: Array, *, penalty: float = 1.0) -> "VectorScaling":
        """Fit factors and offsets.

        Args:
            logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
            labels: Class indices ``(N,)``.
            penalty: What half the squared distance of the parameters from temperature scaling costs
                against the *sum* of the negative log-likelihoods.

        Returns:
            The fitted calibrator.
        """
        check_penalty("penalty", penalty)
        data = sample(logits, labels)
        ones = np.ones(data.num_classes)
        return accept(cls(data.num_classes, **_fit_map(data, centred, ones, penalty * ones, penalty)), data)

    def _scores(self, logits: Tensor) -> Tensor:
        weight, bias = logits.new_tensor(self.weight), logits.new_tensor(self.bias)
        return torch.addcmul(bias, centred(logits), weight)


@dataclass(frozen=True, eq=False)
class _MatrixMap(ClassWise):
    """A linear map of some features of the logits, as many as there are classes."""

    weight: Floats = parameter("K", "K")
    bias: Floats = parameter("K")

    holds_identity: ClassVar[bool] = True

    @classmethod
    def fit(
        cls, logits: Array, labels: Array, *, off_diagonal: float | None = None, bias: float = 1.0
    ) -> Self:
        """Fit the matrix and the offsets.

        Args:
            logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
            labels: Class indices ``(N,)``.
            off_diagonal: What half the squared off-diagonal entries, for features divided by the best
                temperature, cost against the *sum* of the negative log-likelihoods; 10 K if not given.
            bias: The same for the offsets, and for changes of the diagonal.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels)
        off = 10.0 * data.num_classes if off_diagonal is None else off_diagonal
        check_penalty("off_diagonal", off)
        check_penalty("bias", bias)
        start = np.eye(data.num_classes)
        costs = np.where(start == 1, bias, off)
        return accept(cls(data.num_classes, **_fit_map(data, cls._features, start, costs, bias)), data)

    @staticmethod
    @abstractmethod
    def _features(logits: Tensor) -> Tensor:
        """The features, ``(N, K)``; their softmax is that of the logits."""

    def _scores(self, logits: Tensor) -> Tensor:
        weight, bias = logits.new_tensor(self.weight), logits.new_tensor(self.bias)
        return torch.addmm(bias, self._features(logits), weight.T)


@dataclass(frozen=True, eq=False)
class MatrixScaling(_MatrixMap):
    r"""A linear map of the logits, kept near temperature scaling by penalties.

    .. math:: \operatorname{softmax}(W (z - \bar z) + b)

    Args:
        weight: The matrix W, ``(K, K)``.
        bias: The offsets b, ``(K,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> posthoc.MatrixScaling.fit(logits, labels).weight.shape
        (3, 3)

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017; penalties in the manner of
        Kull et al., *Beyond temperature scaling*, NeurIPS 2019.
    """

    @staticmethod
    def _features(logits: Tensor) -> Tensor:
        return centred(logits)


@dataclass(frozen=True, eq=False)
class Dirichlet(_MatrixMap):
    r"""A linear map of the logarithms of the probabilities, with penalties.

    .. math:: \operatorname{softmax}(W \log \operatorname{softmax}(z) + b)

    These are the right maps where the probabilities of the samples of each class follow a Dirichlet
    distribution.

    Args:
        weight: The matrix W, ``(K, K)``.
        bias: The offsets b, ``(K,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> posthoc.Dirichlet.fit(logits, labels)(logits).shape
        torch.Size([2000, 3])

    Reference:
        Kull et al., *Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities with
        Dirichlet calibration*, NeurIPS 2019.
    """

    @staticmethod
    def _features(logits: Tensor) -> Tensor:
        return logits.log_softmax(1)


def centred(logits: Tensor) -> Tensor:
    """Logits less the mean of their row."""
    return logits - logits.mean(1, keepdim=True)


def _margins(logits: Tensor) -> Tensor:
    return logits[:, 1] - logits[:, 0]


def _fit_map(
    data: Sample,
    features: Callable[[Tensor], Tensor],
    start: Floats,
    costs: Floats,
    bias_cost: float,
) -> dict[str, Any]:
    """The fields of a linear map of the features, which are divided by the best temperature.

    Args:
        data: What to fit to.
        features: Of some rows, ``(N, K)``.
        start: The weight that is temperature scaling, ``(K,)`` for a diagonal or ``(K, K)``.
        costs: What half the squared change of each weight costs.
        bias_cost: The same of each offset.
    """
    around = tempering(data)
    temperature, free, absent = around["temperature"], around["present"], data.absent
    size, rows = data.num_samples, data.map(lambda rows: features(rows) / temperature)
    labels = data.labels.cpu()
    # Only the samples of a class can tell its score. Classes without samples stay out of the comparison, or the
    # scores of all others would rise against theirs.
    free_weights = free.reshape(-1, *[1] * (start.ndim - 1))

    def objective(at: Floats) -> tuple[float, Floats]:
        weight, bias = at[: start.size].reshape(start.shape), at[start.size :]
        w, b = torch.from_numpy(weight), torch.from_numpy(bias)
        loss, slope, offset = 0.0, torch.zeros_like(w), torch.zeros_like(b)
        for part in blocks(rows):
            x, y = rows[part], labels[part, None]
            scores = torch.addcmul(b, x, w) if w.ndim == 1 else torch.addmm(b, x, w.T)
            scores[:, absent] = -torch.inf
            scores = scores.log_softmax(1)
            loss -= float(scores.gather(1, y).sum())
            residual = scores.exp_()
            residual.scatter_add_(1, y, residual.new_full(y.shape, -1.0))
            offset += residual.sum(0)
            slope += (residual * x).sum(0) if w.ndim == 1 else residual.T @ x
        away = weight - start
        value = loss + float((costs * away**2).sum() + bias_cost * (bias**2).sum()) / 2
        gradients = (slope.numpy() + costs * away) * free_weights, (offset.numpy() + bias_cost * bias) * free
        return value / size, np.concatenate([part.ravel() for part in gradients]) / size

    found = minimise(objective, np.concatenate([start.ravel(), np.zeros(data.num_classes)]))
    weight, bias = found.at[: start.size].reshape(start.shape), found.at[start.size :]
    around["notes"] += found.notes
    return {"weight": weight / temperature, "bias": bias, **around}

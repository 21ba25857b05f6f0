"""Linear maps of the logits: vector, matrix and Dirichlet scaling.

All of them are fitted around the best temperature: features are divided by it, the map begins at
the identity, and penalties pull towards that. So the fit is never worse than temperature scaling on
its own data, penalties mean the same for logits of any scale, and the objective is convex. Vector,
matrix and Dirichlet scaling let the data choose the penalties: see :mod:`macc.posthoc._evidence`.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.posthoc._base import Floats, Sample, accept, check_objective, parameter, sample
from macc.posthoc._classwise import ClassWise, tempering
from macc.posthoc._evidence import FittedMap, Penalties, Problem, fit_map
from macc.posthoc._optimise import check_penalty
from macc.posthoc._temperature import Temperature
from macc.words import documented


@dataclass(frozen=True, eq=False)
class _LinearMap(ClassWise):
    """A linear map near temperature scaling of features whose softmax is that of the logits."""

    penalties: Floats = parameter("*", fitted=False)

    holds_identity: ClassVar[bool] = True

    @staticmethod
    @abstractmethod
    def _shift(logits: Tensor) -> Tensor:
        """What is taken off the logits of a row to make them features, ``(N, 1)``."""

    @classmethod
    def _fitted(cls, data: Sample, given: Penalties, *, mixes: bool, objective: str = "nll") -> Self:
        """The map of the least penalised loss."""
        for name, cost in given._asdict().items():
            if cost is not None:
                check_penalty(_KNOBS.get(name, name) if mixes else "penalty", cost)
        around = tempering(data)
        temperature: float = around["temperature"]
        present = torch.from_numpy(around["present"]) == 1

        def features(rows: Tensor) -> Tensor:
            shift = cls._shift(rows)
            if not mixes:
                return (rows - shift) / temperature
            means = rows.mean(1, keepdim=True)
            return (
                torch.cat([rows - means, means - shift, torch.full_like(means, temperature)], 1) / temperature
            )

        each = None if data.weights is None else data.weights.cpu()
        problem = Problem(data.map(features), data.labels.cpu(), present, each=each)
        found = fit_map(problem, given, objective=objective)
        around["notes"] += found.notes
        fitted = cls(data.num_classes, penalties=found.penalties, **cls._fields(found, temperature), **around)
        return accept(fitted, data, objective=objective, around=Temperature(data.num_classes, temperature))

    def _check_parameters(self) -> None:
        if (self.penalties < 0).any():
            raise ValueError(f"{type(self).__name__}.penalties must be at least 0")

    @staticmethod
    @abstractmethod
    def _fields(found: FittedMap, temperature: float) -> dict[str, Any]:
        """Weight and bias, from the numbers of the fit."""


_KNOBS = {"own": "diagonal", "other": "off_diagonal", "offset": "bias"}


@dataclass(frozen=True, eq=False)
class VectorScaling(_LinearMap):
    r"""A factor and an offset for each class.

    .. math:: \operatorname{softmax}(w \circ (z - \max z) + b)

    The largest logit of each row is taken off: so adding a number to all logits of a sample changes
    nothing, and the factor of a class says how fast it loses against the favourite. (Less the mean
    instead, the factor of the favourite would count most. Over the networks of CIFAR-100 that made
    NLL, Brier score and accuracy worse than temperature scaling does.)

    Args:
        weight: The factors w, ``(K,)``.
        bias: The offsets b, ``(K,)``.
        penalties: What half the squared distances of factors (times the temperature, from 1) and
            offsets (from 0) cost against the *sum* of the negative log-likelihoods, ``(2,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> posthoc.VectorScaling.fit(logits, labels).weight.round(1)
        array([2., 2., 2.])

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017; penalties by MacKay,
        *Bayesian Interpolation*, Neural Computation 1992.
    """

    penalties: Floats = parameter(2, fitted=False)
    weight: Floats = parameter("K")
    bias: Floats = parameter("K")

    @classmethod
    @documented
    def fit(
        cls,
        logits: Array,
        labels: Array,
        *,
        penalty: float | None = None,
        objective: str = "nll",
        weights: Array | None = None,
    ) -> "VectorScaling":
        """Fit factors and offsets.

        Args:
            penalty: The penalties, both; if not given, those under which the labels are most
                likely.
            objective: ``"nll"`` or ``"brier"``.

        Returns:
            The fitted calibrator.
        """
        check_objective(objective)
        given = Penalties(own=penalty, offset=penalty)
        return cls._fitted(sample(logits, labels, weights), given, mixes=False, objective=objective)

    @staticmethod
    def _shift(logits: Tensor) -> Tensor:
        return logits.amax(1, keepdim=True)

    @staticmethod
    def _fields(found: FittedMap, temperature: float) -> dict[str, Any]:
        return {"weight": (1 + found.own) / temperature, "bias": found.offset}

    def _scores(self, logits: Tensor) -> Tensor:
        weight, bias = logits.new_tensor(self.weight), logits.new_tensor(self.bias)
        return torch.addcmul(bias, logits - self._shift(logits), weight)


@dataclass(frozen=True, eq=False)
class _MatrixMap(_LinearMap):
    """A linear map of some features of the logits, as many as there are classes."""

    penalties: Floats = parameter(3, fitted=False)
    weight: Floats = parameter("K", "K")
    bias: Floats = parameter("K")

    @classmethod
    @documented
    def fit(
        cls,
        logits: Array,
        labels: Array,
        *,
        off_diagonal: float | None = None,
        diagonal: float | None = None,
        bias: float | None = None,
        weights: Array | None = None,
    ) -> Self:
        """Fit the matrix and the offsets.

        Penalties that are not given are those under which the labels are most likely.

        Args:
            off_diagonal: What half the squared off-diagonal entries, for features divided by the
                best temperature, cost against the *sum* of the negative log-likelihoods.
            diagonal: The same for changes of the diagonal.
            bias: The same for the offsets.

        Returns:
            The fitted calibrator.
        """
        given = Penalties(own=diagonal, other=off_diagonal, offset=bias)
        return cls._fitted(sample(logits, labels, weights), given, mixes=True)

    @staticmethod
    def _fields(found: FittedMap, temperature: float) -> dict[str, Any]:
        other = np.asarray(found.other)
        # Other classes count less the mean of the row, which rows of sum 0 do by themselves.
        weight = np.diag(1 + found.own) + other - other.mean(1, keepdims=True)
        return {"weight": weight / temperature, "bias": found.offset}

    def _scores(self, logits: Tensor) -> Tensor:
        weight, bias = logits.new_tensor(self.weight), logits.new_tensor(self.bias)
        return torch.addmm(bias, logits - self._shift(logits), weight.T)


@dataclass(frozen=True, eq=False)
class MatrixScaling(_MatrixMap):
    r"""A linear map of the logits, kept near temperature scaling by penalties that the data choose.

    .. math:: \operatorname{softmax}(W (z - \max z) + b)

    Args:
        weight: The matrix W, ``(K, K)``.
        bias: The offsets b, ``(K,)``.
        penalties: Those of the diagonal, of the other entries and of the offsets, ``(3,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> posthoc.MatrixScaling.fit(logits, labels).weight.shape
        (3, 3)

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017; separate penalties as in
        Kull et al., *Beyond temperature scaling*, NeurIPS 2019, chosen as in MacKay, *Bayesian
        Interpolation*, Neural Computation 1992.
    """

    @staticmethod
    def _shift(logits: Tensor) -> Tensor:
        return logits.amax(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Dirichlet(_MatrixMap):
    r"""A linear map of the logarithms of the probabilities, with penalties that the data choose.

    .. math:: \operatorname{softmax}(W \log \operatorname{softmax}(z) + b)

    These are the right maps where the probabilities of the samples of each class follow a Dirichlet
    distribution.

    Args:
        weight: The matrix W, ``(K, K)``.
        bias: The offsets b, ``(K,)``.
        penalties: Those of the diagonal, of the other entries and of the offsets, ``(3,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> posthoc.Dirichlet.fit(logits, labels)(logits).shape
        torch.Size([2000, 3])

    Reference:
        Kull et al., *Beyond temperature scaling: Obtaining well-calibrated multiclass probabilities
        with Dirichlet calibration*, NeurIPS 2019.
    """

    @staticmethod
    def _shift(logits: Tensor) -> Tensor:
        return logits.logsumexp(1, keepdim=True)

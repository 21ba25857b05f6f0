"""A mixture of two calibrators that repair different things, weighed by held-out samples."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from macc.metrics.folds import dealt
from macc.metrics.inputs import Array
from macc.posthoc._base import Calibrator, Sample, accept, sample
from macc.posthoc._linear import Dirichlet, VectorScaling
from macc.posthoc._local import LocalTemperature
from macc.words import documented

# A matrix of more classes than this takes minutes, and wins seldom.
MOST_MATRIX_CLASSES = 100
FOLDS = 5
# What is believed of the weight before samples are seen: a density of 3 w**2. The power was chosen
# on six networks and checked on seven others (docs/posthoc.md).
_PRIOR_POWER = 2
_POINTS = 50
# Where the posterior is e**-30 of its peak, it counts for nothing.
_FALL = 30.0


@dataclass(frozen=True, eq=False)
class Mixture(Calibrator):
    r"""A weighted mean of the probabilities of two calibrators.

    .. math:: w \, p_1(z) + (1 - w) \, p_2(z)

    The first is :class:`LocalTemperature`, which knows the sample; the second :class:`Dirichlet`
    (:class:`VectorScaling` for more than 100 classes), which knows the classes. The weight is
    learned from held-out samples: it is the mean of its posterior, which begins at the density
    3 w², of mean 3/4, because few samples are enough for the first and not for the second. Where
    samples are few, the likeliest weight alone would nearly be a guess. Both are then fitted to all
    samples.

    Args:
        weight: The weight w of the first, between 0 and 1.
        parts: The two calibrators.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> fitted = posthoc.Mixture.fit(logits, labels)
        >>> [type(part).__name__ for part in fitted.parts]
        ['LocalTemperature', 'Dirichlet']

    Reference:
        Wolpert, *Stacked Generalization*, Neural Networks 1992.
    """

    weight: float
    parts: tuple[Calibrator, ...]

    holds_identity: ClassVar[bool] = True

    @classmethod
    @documented
    def fit(cls, logits: Array, labels: Array, *, seed: int = 0, weights: Array | None = None) -> "Mixture":
        """Fit both calibrators and their weight.

        Args:
            seed: Of the five folds.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels, weights)
        folds = dealt(data.labels, min(FOLDS, data.num_samples), seed)
        held_out = [held_out_losses(data, kind.fit, folds)[0] for kind in mixed_kinds(data.num_classes)]
        return cls.of(
            data,
            learned_weight(held_out[0], held_out[1], None if data.weights is None else data.weights.cpu()),
        )

    @classmethod
    def of(cls, data: Sample, weight: float) -> "Mixture":
        """The mixture of this weight, its parts fitted to some samples."""
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            parts = tuple(
                kind.fit(data.logits, data.labels, **weighing(data.weights))
                for kind in mixed_kinds(data.num_classes)
            )
        # What was unusual about both is said once.
        notes = dict.fromkeys(note for part in parts for note in part.notes if "the fit" not in note)
        return accept(cls(data.num_classes, weight, parts, notes=tuple(notes)), data)

    @property
    def num_parameters(self) -> int:
        """How many numbers the fits have found."""
        return 1 + sum(part.num_parameters for part in self.parts)

    def _check(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"Mixture.weight must lie between 0 and 1, got {self.weight:g}")
        if len(self.parts) != 2 or any(isinstance(part, Mixture) for part in self.parts):
            raise ValueError("Mixture.parts must be two calibrators, and no mixtures")
        if any(part.num_classes != self.num_classes for part in self.parts):
            raise ValueError(f"Mixture.parts must be of {self.num_classes} classes, as the mixture is")

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        shares = zip(self.parts, (self.weight, 1 - self.weight), strict=True)
        # Maps may overwrite what they are given.
        found = [part._log_probs(logits.clone()) + math.log(share) for part, share in shares if share > 0]
        return found[0] if len(found) == 1 else torch.logaddexp(*found)


def mixed_kinds(num_classes: int) -> tuple[Any, Any]:
    """The two calibrators to mix."""
    return LocalTemperature, Dirichlet if num_classes <= MOST_MATRIX_CLASSES else VectorScaling


def learned_weight(first: Tensor, second: Tensor, each: Tensor | None = None) -> float:
    """The weight of the first of two calibrators: the mean of its posterior, from held-out labels.

    Args:
        first: Negative log-likelihoods of held-out labels, ``(N,)``.
        second: Those of the second calibrator.
        each: How often each sample counts, ``(N,)``.
    """
    least = torch.minimum(first, second)
    one, two = (least - first).exp(), (least - second).exp()

    def log_density(weight: float) -> float:
        logs = torch.log(weight * one + (1 - weight) * two)
        return float(logs.sum() if each is None else logs @ each) + _PRIOR_POWER * math.log(weight)

    low, high = 0.0, 1.0
    while True:
        step = (high - low) / _POINTS
        points = low + step * (np.arange(_POINTS) + 0.5)
        logs = np.array([log_density(float(point)) for point in points])
        (inside,) = np.nonzero(logs > logs.max() - _FALL)
        # The density has one peak. Where that is narrow, look again at it alone.
        if len(inside) > _POINTS / 4:
            break
        low, high = points[inside[0]] - step, points[inside[-1]] + step
        low, high = max(low, 0.0), min(high, 1.0)
    density = np.exp(logs - logs.max())
    return float(points @ density / density.sum())


def mixed_losses(first: Tensor, second: Tensor, folds: Tensor, each: Tensor | None = None) -> Tensor:
    """Losses of the mixture, ``(N,)``: each fold with the weight that the other folds tell."""
    result = torch.empty_like(first)
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        weight = learned_weight(first[~out], second[~out], None if each is None else each[~out])
        logs = torch.tensor([weight, 1 - weight], dtype=first.dtype, device=first.device).log()
        result[out] = -torch.logaddexp(logs[0] - first[out], logs[1] - second[out])
    return result


def weighing(weights: Tensor | None) -> dict[str, Any]:
    """What a fit is given where samples have weights, which not every function knows."""
    return {} if weights is None else {"weights": weights}


def held_out_losses(data: Sample, fit: Callable[..., Calibrator], folds: Tensor) -> tuple[Tensor, int]:
    """The loss of each sample when its fold is held out, and the most parameters that a fit had."""
    size = 0
    losses = torch.empty(data.num_samples, dtype=torch.float64, device="cpu")
    # That a class has no samples is no merit of a calibrator that takes it to be rare.
    among = data.present if data.absent else None
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        here, there = out.to(data.logits.device), (~out).to(data.logits.device)
        with warnings.catch_warnings():
            # The fit to all samples says what is worth saying.
            warnings.simplefilter("ignore", UserWarning)
            weights = None if data.weights is None else data.weights[there]
            fitted = fit(data.logits[there], data.labels[there], **weighing(weights))
        size = max(size, fitted.num_parameters)
        losses[out] = Sample(data.logits[here], data.labels[here]).losses(fitted, among=among).cpu()
    return losses, size

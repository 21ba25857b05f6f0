"""Local temperature scaling: a temperature for each sample."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array, counted, like
from macc.metrics.temperature import best_temperature, tempered
from macc.posthoc._base import Calibrator, Floats, Sample, accept, parameter, sample
from macc.posthoc._optimise import check_penalty, minimise
from macc.words import documented

_LARGEST_LOGITS = 10
_UNITS = 8
_STEPS = 200
# Of log T, so that no feature however strange makes an infinity.
_FARTHEST = math.log(1e6)


@dataclass(frozen=True, eq=False)
class LocalTemperature(Calibrator):
    r"""A small network gives each sample its own temperature; the predicted class stays.

    .. math:: \operatorname{softmax}(z / T(x)), \qquad
        \log T(x) = t + v^\top \tanh(U \phi(x) + u)

    :math:`\phi` are the ten largest logits less the largest, or features given with the logits (for
    instance those of the last layer), in both cases standardised. Eight
    units are fitted by 200 steps of L-BFGS from temperature scaling, with a penalty on the change
    of all weights, and so never further from the data than temperature scaling is.

    Args:
        given_features: Whether features have to be given.
        mean: Mean of the features, ``(F,)``.
        spread: Their standard deviation, ``(F,)``.
        hidden: U and, in the last column, u, ``(units, F + 1)``.
        output: v and, at the end, t, ``(units + 1,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> fitted = posthoc.LocalTemperature.fit(logits, labels)
        >>> fitted.temperatures(logits).shape
        torch.Size([2000])

    Reference:
        Ding et al., *Local Temperature Scaling for Probability Calibration*, ICCV 2021, where a
        convolutional network looks at the image.
    """

    given_features: bool
    mean: Floats = parameter("*", fitted=False)
    spread: Floats = parameter("*", fitted=False)
    hidden: Floats = parameter("*", "*")
    output: Floats = parameter("*")

    keeps_argmax: ClassVar[bool] = True
    holds_identity: ClassVar[bool] = True

    @classmethod
    @documented
    def fit(
        cls,
        logits: Array,
        labels: Array,
        *,
        features: Array | None = None,
        penalty: float = 30.0,
        seed: int = 0,
        weights: Array | None = None,
    ) -> "LocalTemperature":
        """Fit the network.

        Args:
            features: ``(N, F)`` to tell the temperature from, in place of the sorted logits.
            penalty: What half the squared change of the weights costs against the *sum* of the
                negative log-likelihoods.
            seed: Of the weights to begin with.

        Returns:
            The fitted calibrator.
        """
        check_penalty("penalty", penalty)
        data = sample(logits, labels, weights)
        given = None if features is None else _feature_rows(features, len(labels))
        counts = counted(weights)
        given = given if given is None or counts is None else counts.of(given)
        raw = data.map(_sorted_logits) if given is None else given.cpu().double()
        mean, spread = raw.mean(0), raw.std(0, correction=0)
        spread = torch.where(spread > 0, spread, 1.0)
        scaled = (raw - mean) / spread
        at_first = best_temperature(data.logits, data.labels, weights=data.weights)
        rng = np.random.default_rng(seed)
        shape = _UNITS, raw.shape[1] + 1
        hidden = rng.normal(size=shape) / math.sqrt(shape[1])
        output = np.append(np.zeros(_UNITS), math.log(at_first.value))
        start = np.concatenate([hidden.ravel(), output])

        def objective(at: Floats) -> tuple[float, Floats]:
            numbers = torch.from_numpy(at)
            u, v = numbers[: hidden.size].view(shape), numbers[hidden.size :]
            units, logs = _network(scaled, u, v)
            loss, slopes = _losses(data, logs)
            # Backwards through the two layers.
            inner = slopes[:, None] * v[:-1] * (1 - units.square())
            to_hidden = torch.cat([inner.T @ scaled, inner.sum(0)[:, None]], dim=1)
            to_output = torch.cat([slopes @ units, slopes.sum()[None]])
            gradient = torch.cat([to_hidden.view(-1), to_output]).numpy()
            away = at - start
            size = data.size
            return (loss + penalty * away @ away / 2) / size, (gradient + penalty * away) / size

        # Where the search is stopped is part of the method, and worth no note.
        found = minimise(objective, start, steps=_STEPS)
        fitted = cls(
            data.num_classes,
            given is not None,
            mean.numpy(),
            spread.numpy(),
            found.at[: hidden.size].reshape(shape),
            found.at[hidden.size :],
            notes=at_first.notes,
        )
        return accept(fitted, data if given is None else replace(data, more=(given,)))

    @documented
    def __call__(self, logits: Array, features: Array | None = None) -> Any:
        """Calibrated probabilities.

        Args:
            features: ``(N, F)``, where the calibrator was fitted to features.

        Returns:
            Probabilities of the shape and kind of the logits.
        """
        return self._apply(logits, *self._more(logits, features))

    def temperatures(self, logits: Array, features: Array | None = None) -> Any:
        """The temperature of each sample, ``(N,)``."""
        rows = self._rows(logits).double()
        return like(self._temperatures(rows, *self._more(logits, features)), logits)

    def _more(self, logits: Array, features: Array | None) -> tuple[Tensor, ...]:
        if self.given_features != (features is not None):
            wanted = (
                "with features; pass features=" if self.given_features else "to logits; leave features out"
            )
            raise ValueError(f"this LocalTemperature was fitted {wanted}")
        if features is None:
            return ()
        rows = _feature_rows(features, len(logits))
        if rows.shape[1] != len(self.mean):
            raise ValueError(
                f"features has {rows.shape[1]} columns, and this LocalTemperature was fitted to {len(self.mean)}"
            )
        return (rows,)

    def _check(self) -> None:
        size = len(self.mean)
        whole = len(self.spread) == size and self.hidden.shape[1] == size + 1
        if not whole or len(self.output) != len(self.hidden) + 1 or (self.spread <= 0).any():
            raise ValueError("LocalTemperature: mean, spread, hidden and output do not fit together")
        if not self.given_features and size != min(self.num_classes, _LARGEST_LOGITS + 1) - 1:
            raise ValueError(
                f"LocalTemperature.mean has {size} entries, and sorted logits have another number"
            )

    def _temperatures(self, logits: Tensor, *more: Tensor) -> Tensor:
        raw = more[0].to(logits) if more else _sorted_logits(logits)
        mean, spread, hidden, output = (
            logits.new_tensor(part) for part in (self.mean, self.spread, self.hidden, self.output)
        )
        return _bounded(_network((raw - mean) / spread, hidden, output)[1]).exp()

    def _log_probs(self, logits: Tensor, *more: Tensor) -> Tensor:
        return tempered(logits, self._temperatures(logits, *more)[:, None])


def _sorted_logits(logits: Tensor) -> Tensor:
    """The largest logits but the first, less the first."""
    top = logits.topk(min(logits.shape[1], _LARGEST_LOGITS + 1), dim=1).values
    return top[:, 1:] - top[:, :1]


def _network(features: Tensor, hidden: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden units, and ``log T``, of each row of standardised features."""
    units = torch.addmm(hidden[:, -1], features, hidden[:, :-1].T).tanh()
    return units, units @ output[:-1] + output[-1]


def _losses(data: Sample, logs: Tensor) -> tuple[float, Tensor]:
    """Sum of the negative log-likelihoods at ``log T`` of each row, and its slopes."""
    losses, slopes, start, bounded = [], [], 0, _bounded(logs)
    for rows, labels in data.blocks():
        inverse = (-bounded[start : start + len(rows)]).exp().to(rows.device)[:, None]
        start += len(rows)
        rows -= rows.amax(1, keepdim=True)
        rows *= inverse
        own, scores = rows.gather(1, labels[:, None])[:, 0], rows.exp()
        mass = scores.sum(1)
        losses.append((mass.log() - own).cpu())
        slopes.append((own - torch.linalg.vecdot(scores, rows) / mass).cpu())
    each = 1.0 if data.weights is None else data.weights.cpu()
    inside = torch.where(bounded == logs, torch.cat(slopes), 0.0)
    return float((each * torch.cat(losses)).sum()), each * inside


def _bounded(logs: Tensor) -> Tensor:
    return logs.clamp(-_FARTHEST, _FARTHEST)


def _feature_rows(features: Array, num_samples: int) -> Tensor:
    rows = (
        features.detach()
        if isinstance(features, Tensor)
        else torch.tensor(np.asarray(features), device="cpu")
    )
    if rows.ndim != 2 or rows.shape[1] == 0 or not rows.is_floating_point():
        raise ValueError(f"features must be floating-point of shape (N, F), got {tuple(rows.shape)}")
    if len(rows) != num_samples:
        raise ValueError(f"features has {len(rows)} samples and logits has {num_samples}; they must pair up")
    if not bool(rows.isfinite().all()):
        at = (~rows.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"features[{at[0]}, {at[1]}] is not finite; remove the sample or repair what wrote it"
        )
    return rows

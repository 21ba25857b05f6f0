"""Meta-Cal: samples that are probably wrong get no opinion, and few right ones are lost."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from macc.metrics.inputs import Array, like
from macc.metrics.temperature import best_temperature, tempered
from macc.posthoc._base import Calibrator, accept, parameter, sample, whole_only
from macc.posthoc._temperature import check_temperature
from macc.words import documented


@dataclass(frozen=True, eq=False)
class MetaCal(Calibrator):
    r"""Temperature scaling for samples of low entropy, uniform probabilities for the others.

    .. math:: \operatorname{softmax}(z / T) \text{ if } H(\operatorname{softmax}(z)) \le h, \quad 1 / K \text{ otherwise}

    Of the samples that the model classifies correctly, at most the share ``miscoverage`` gets the
    uniform answer. The threshold h is an order statistic of the entropies of the n correct
    validation samples: the k-th, with the smallest k for which
    :math:`P(\text{Bin}(n, 1 - \text{miscoverage}) \ge k)` is at most 1 - ``confidence``. So the
    bound holds, with that confidence, for new samples of the same kind. T is fitted to the samples
    within the threshold.

    Args:
        temperature: The temperature T.
        threshold: The entropy h, in nats.
        miscoverage: The bound.
        confidence: The chance that it holds.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> fitted = posthoc.MetaCal.fit(logits, labels, miscoverage=0.1)
        >>> right = logits.argmax(1) == labels
        >>> bool(fitted.uncertain(logits)[right].double().mean() <= 0.1)
        True

    Reference:
        Ma and Blaschko, *Meta-Cal: Well-controlled Post-hoc Calibration by Ranking*, ICML 2021.
    """

    temperature: float
    threshold: float
    miscoverage: float = parameter(fitted=False)
    confidence: float = parameter(fitted=False)

    @classmethod
    @documented
    def fit(
        cls,
        logits: Array,
        labels: Array,
        *,
        miscoverage: float = 0.05,
        confidence: float = 0.95,
        weights: Array | None = None,
    ) -> "MetaCal":
        """Find the threshold, then the temperature.

        Args:
            miscoverage: The largest share of correctly classified samples to get the uniform
                answer.
            confidence: The chance with which this has to hold for new samples.
            weights: How often each sample counts, ``(N,)``: whole numbers, which are repeated
                samples.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels, weights)
        whole_only("MetaCal", data.weights)
        for name, value in (("miscoverage", miscoverage), ("confidence", confidence)):
            if not 0 < value < 1:
                raise ValueError(f"{name} must lie in (0, 1), got {value!r}")
        entropies = data.map(entropy)
        predicted = data.map(lambda rows: rows.argmax(1))
        right = entropies[predicted == data.labels.cpu()].sort().values
        place = order_statistic(len(right), miscoverage, confidence)
        notes: tuple[str, ...] = ()
        if place is None:
            needed = math.ceil(math.log(1 - confidence) / math.log(1 - miscoverage))
            notes = (
                f"{len(right)} correctly classified samples are too few for any threshold "
                f"({needed} are needed); no sample is called uncertain",
            )
        # No entropy is larger than the logarithm of the number of classes, except for rounding.
        threshold = 2 * math.log(data.num_classes) if place is None else float(right[place - 1])
        kept = entropies <= threshold
        found = best_temperature(
            data.logits[kept.to(data.logits.device)], data.labels[kept.to(data.labels.device)]
        )
        fitted = (found.value, threshold, miscoverage, confidence)
        return accept(cls(data.num_classes, *fitted, notes=notes + found.notes), data)

    def uncertain(self, logits: Array) -> Any:
        """Which samples get the uniform answer, boolean ``(N,)``: those for a person."""
        rows = self._rows(logits)
        return like(entropy(rows.double()) > self.threshold, logits)

    def _check(self) -> None:
        check_temperature(type(self).__name__, self.temperature)
        if self.threshold < 0 or not (0 < self.miscoverage < 1 and 0 < self.confidence < 1):
            raise ValueError("MetaCal.threshold must be at least 0, miscoverage and confidence lie in (0, 1)")

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        unsure = entropy(logits)[:, None] > self.threshold
        return torch.where(unsure, -math.log(self.num_classes), tempered(logits, self.temperature))


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the model's probabilities, in nats."""
    log_probs = logits.log_softmax(1)
    mean: Tensor = torch.linalg.vecdot(log_probs.exp(), log_probs)
    return -mean.clamp(max=0)


def order_statistic(size: int, share: float, confidence: float) -> int | None:
    """The smallest k: at most a share of all exceeds the k-th smallest of ``size`` samples.

    The share beyond the k-th is above ``share`` with probability ``P(Bin(size, 1 - share) >= k)``,
    which must be at most ``1 - confidence``; ``None`` when even the largest sample cannot promise
    that.
    """
    from scipy.stats import binom

    if size == 0 or binom.sf(size - 1, size, 1 - share) > 1 - confidence:
        return None
    # isf gives the smallest m with P(Bin > m) <= 1 - confidence.
    return int(binom.isf(1 - confidence, size, 1 - share)) + 1

"""Beta calibration: a curve of three parameters for each class."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.posthoc._base import Floats, accept, parameter, sample
from macc.posthoc._binned import log_and_rest
from macc.posthoc._classwise import ClassWise, tempering
from macc.posthoc._optimise import minimise
from macc.words import documented


@dataclass(frozen=True, eq=False)
class Beta(ClassWise):
    r"""The curve that is right when probabilities of hits and of misses follow beta distributions.

    .. math:: p_j \leftarrow \sigma\bigl(a_j \log q_j - b_j \log(1 - q_j) + c_j\bigr), \qquad
        q = \operatorname{softmax}(z / T), \quad a_j, b_j \ge 0

    for each class against the rest; then rows are divided by their sum. T is the best temperature,
    and a penalty of half the squared distance from a = b = 1, c = 0 on the sum of the losses keeps
    curves finite.

    Args:
        a: ``(K,)``.
        b: ``(K,)``.
        c: ``(K,)``.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> posthoc.Beta.fit(logits, labels).a.shape
        (3,)

    Reference:
        Kull, Silva Filho and Flach, *Beta calibration*, AISTATS 2017.
    """

    a: Floats = parameter("K")
    b: Floats = parameter("K")
    c: Floats = parameter("K")

    holds_identity: ClassVar[bool] = True

    @classmethod
    @documented
    def fit(cls, logits: Array, labels: Array, *, weights: Array | None = None) -> "Beta":
        """Fit the three parameters of each class.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels, weights)
        device = data.logits.device
        once = torch.ones(data.num_samples, dtype=torch.float64, device=device)
        counted = (once if data.weights is None else data.weights.to(device))[:, None]
        classes, size = data.num_classes, float(counted.sum())
        around = tempering(data)
        temperature, free = around["temperature"], around["present"]
        start = np.repeat([1.0, 1.0, 0.0], classes)

        def objective(at: Floats) -> tuple[float, Floats]:
            a, b, c = torch.from_numpy(at).to(data.logits.device).view(3, classes)
            loss, gradient = 0.0, torch.zeros_like(a).repeat(3, 1)
            done = 0
            for rows, labels_ in data.blocks():
                each = counted[done : done + len(rows)]
                done += len(rows)
                log_q, log_rest = log_and_rest(rows / temperature)
                hits = torch.zeros_like(log_q).scatter_(1, labels_[:, None], 1.0)
                scores = a * log_q - b * log_rest + c
                loss += float(
                    torch.nn.functional.binary_cross_entropy_with_logits(scores, hits, each, reduction="sum")
                )
                residual = each * (scores.sigmoid() - hits)
                gradient[0] += (residual * log_q).sum(0)
                gradient[1] -= (residual * log_rest).sum(0)
                gradient[2] += residual.sum(0)
            away = at - start
            slope = (gradient.cpu().numpy().ravel() + away) * np.tile(free, 3)
            return (loss + away @ away / 2) / size, slope / size

        found = minimise(objective, start, bounds=[(0.0, None)] * 2 * classes + [(None, None)] * classes)
        around["notes"] += found.notes
        a, b, c = found.at.reshape(3, classes)
        return accept(cls(classes, a=a, b=b, c=c, **around), data)

    def _check_parameters(self) -> None:
        if (self.a < 0).any() or (self.b < 0).any():
            raise ValueError("Beta.a and Beta.b must be at least 0")

    def _scores(self, logits: Tensor) -> Tensor:
        log_q, log_rest = log_and_rest(logits / self.temperature)
        a, b, c = (logits.new_tensor(part) for part in (self.a, self.b, self.c))
        return torch.nn.functional.logsigmoid(a * log_q - b * log_rest + c)

"""Calibrators that learn something of each class, and what they do about unseen ones."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macc.metrics.temperature import Optimum, best_temperature, tempered
from macc.posthoc._base import Calibrator, Floats, Sample, parameter
from macc.posthoc._temperature import check_temperature


@dataclass(frozen=True, eq=False)
class ClassWise(Calibrator):
    r"""A calibrator with parameters for each class, which only samples of that class can tell.

    A class without validation samples keeps its tempered probability, and the fitted classes share
    the rest:

    .. math:: p_j = q_j \text{ for absent } j, \qquad
        p_j = \Bigl(\sum_{k \text{ present}} q_k\Bigr) \operatorname{softmax}_{\text{present}}(s)_j, \qquad
        q = \operatorname{softmax}(z / T)

    The samples compare the present classes with each other only, so a fit knows their scores s up
    to a number for each row. Whatever that number is, an absent class neither gains nor loses by
    it.

    Args:
        temperature: The temperature T of the least negative log-likelihood.
        present: 1 for classes that the validation set has, 0 for absent ones, ``(K,)``.
    """

    temperature: float = parameter(fitted=False)
    present: Floats = parameter("K", fitted=False)

    @abstractmethod
    def _scores(self, logits: Tensor) -> Tensor:
        """Scores ``(N, K)``, the logarithms of probabilities up to a number for each row."""

    def _check_parameters(self) -> None:
        """Refuse parameters that cannot come from a fit; nothing to refuse by default."""

    def _check(self) -> None:
        check_temperature(type(self).__name__, self.temperature)
        if not np.isin(self.present, (0, 1)).all() or not self.present.any():
            raise ValueError(f"{type(self).__name__}.present must hold 0 and 1, and at least one 1")
        self._check_parameters()

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        if self.present.all():
            return self._scores(logits).log_softmax(1)
        there = logits.new_tensor(self.present) == 1
        kept = tempered(logits, self.temperature)
        mass = kept.masked_fill(~there, -torch.inf).logsumexp(1, keepdim=True)
        own = self._scores(logits).masked_fill(~there, -torch.inf).log_softmax(1)
        return torch.where(there, own + mass, kept)


def tempering(data: Sample) -> dict[str, Any]:
    """The fields of :class:`ClassWise`, and notes, for some samples."""
    absent = data.absent
    # A class alone is compared with nothing: the likelihood of its samples asks for ever more of
    # it.
    found = Optimum(1.0, False)
    if len(data.present) > 1:
        found = best_temperature(data.logits, data.labels, weights=data.weights)
    notes = found.notes
    if absent:
        named = ", ".join(map(str, absent[:10])) + (", …" if len(absent) > 10 else "")
        who = (
            f"class {named} has no samples in the validation set; its probability is"
            if len(absent) == 1
            else f"{len(absent)} classes have no samples in the validation set ({named}); their probabilities are"
        )
        notes += (f"{who} only tempered",)
    present = (data.counts > 0).double().cpu().numpy()
    return {"temperature": found.value, "present": present, "notes": notes}


def laid_out(curves: Sequence[tuple[Floats, Floats]]) -> dict[str, Any]:
    """The fields ``x``, ``y`` and ``sizes`` that hold several curves, one after the other."""
    return {
        "x": np.concatenate([x for x, _ in curves]),
        "y": np.concatenate([y for _, y in curves]),
        "sizes": np.array([float(len(x)) for x, _ in curves]),
    }

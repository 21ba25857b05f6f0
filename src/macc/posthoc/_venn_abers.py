"""Venn-Abers calibration: isotonic regression that knows how unsure it is."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.posthoc._base import Floats, accept, parameter, sample, whole_only
from macc.posthoc._classwise import ClassWise, laid_out, tempering
from macc.words import documented


@dataclass(frozen=True, eq=False)
class VennAbers(ClassWise):
    r"""Inductive Venn-Abers, one class against one other.

    .. math:: p = \frac{f_1}{1 - f_0 + f_1}

    :math:`f_0` and :math:`f_1` are isotonic regressions of the validation samples of two classes
    and the new sample, once with the label 0 and once with 1, at the new sample. One of the two is
    calibrated whatever the scores are, and they lie apart where samples are few. For more than two
    classes the scores of each pair are differences of logits, and with :math:`r_{ij}` the answer
    for class i against j

    .. math:: p_i \propto \Bigl(\sum_{j \ne i} 1 / r_{ij} - (K - 2)\Bigr)^{-1}

    Args:
        x: Scores of the validation samples of each pair, rising, one pair after the other.
        y: The answers between and at them: below the first, at it, above it, …
        sizes: How many scores each pair has, ``(K (K - 1) / 2,)``.

    Example:
        >>> from macc import posthoc
        >>> fitted = posthoc.VennAbers.fit([-3.0, 3.0, 3.0, -3.0, 3.0, 3.0] * 50, [0, 1, 0, 0, 1, 1] * 50)
        >>> fitted([-3.0, 3.0]).round(2)
        array([0.01, 0.75])

    Reference:
        Vovk, Petej and Fedorova, *Large-scale probabilistic predictors with and without guarantees
        of validity*, NeurIPS 2015; pairs as in Manokhin, *Multi-class probabilistic classification
        using inductive and cross Venn-Abers predictors*, COPA 2017.
    """

    x: Floats = parameter("*")
    y: Floats = parameter("*")
    sizes: Floats = parameter("*", fitted=False)

    @classmethod
    @documented
    def fit(cls, logits: Array, labels: Array, *, weights: Array | None = None) -> "VennAbers":
        """Find the answers of each pair of classes.

        Args:
            weights: How often each sample counts, ``(N,)``: whole numbers, which are repeated
                samples.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels, weights)
        whole_only("VennAbers", data.weights)
        scores, targets = data.map(lambda rows: rows).numpy(), data.labels.cpu().numpy()
        members = [np.flatnonzero(targets == j) for j in range(data.num_classes)]
        curves = []
        for i, j in combinations(range(data.num_classes), 2):
            rows = np.concatenate([members[i], members[j]])
            curves.append(_answers(scores[rows, j] - scores[rows, i], targets[rows] == j))
        fitted = cls(
            data.num_classes,
            **laid_out(curves),
            **tempering(data),
        )
        return accept(fitted, data)

    def _check_parameters(self) -> None:
        pairs = self.num_classes * (self.num_classes - 1) // 2
        whole = (
            len(self.sizes) == pairs and (self.sizes >= 0).all() and (self.sizes == self.sizes.round()).all()
        )
        if not whole or self.sizes.sum() != len(self.x) or len(self.y) != 2 * len(self.x) + pairs:
            raise ValueError(
                "VennAbers.sizes must add up to the number of x, and y be two for each and one more"
            )
        if not ((self.y > 0) & (self.y < 1)).all():
            raise ValueError("VennAbers.y must lie between 0 and 1")
        if any((np.diff(x) <= 0).any() for x, _ in self._curves()):
            raise ValueError("VennAbers.x must rise within each pair")

    def _curves(self) -> list[tuple[Floats, Floats]]:
        ends = self.sizes.cumsum().astype(int)[:-1]
        y_ends = (2 * self.sizes + 1).cumsum().astype(int)[:-1]
        return list(zip(np.split(self.x, ends), np.split(self.y, y_ends), strict=True))

    def _scores(self, logits: Tensor) -> Tensor:
        classes = self.num_classes
        inverse = torch.zeros_like(logits)
        for (i, j), (x, y) in zip(combinations(range(classes), 2), self._curves(), strict=True):
            places, at = logits.new_tensor(x), (logits[:, j] - logits[:, i]).contiguous()
            # Between two scores both searches agree; at a score they differ by one.
            place = torch.searchsorted(places, at) + torch.searchsorted(places, at, right=True)
            second = logits.new_tensor(y)[place]
            inverse = inverse.index_add(1, logits.new_tensor([j]).long(), (1 / second)[:, None])
            inverse = inverse.index_add(1, logits.new_tensor([i]).long(), (1 / (1 - second))[:, None])
        # Each term is at least 1, so what is left is at least 1 except for rounding.
        return -(inverse - (classes - 2)).clamp(min=1.0).log()


def _answers(scores: Floats, hits: Floats) -> tuple[Floats, Floats]:
    """The distinct scores, and the answers below, at and between them."""
    from scipy.optimize import isotonic_regression

    places, group = np.unique(scores, return_inverse=True)
    counts = np.bincount(group, minlength=len(places)).astype(np.float64)
    right = np.bincount(group, weights=hits, minlength=len(places))
    answers = np.empty(2 * len(places) + 1)
    for place in range(len(answers)):
        at, inside = place // 2, place % 2
        both = []
        for label in (0.0, 1.0):
            total, of = np.insert(right, at, label), np.insert(counts, at, 1.0)
            if inside:
                total, of = right.copy(), counts.copy()
                total[at] += label
                of[at] += 1
            both.append(float(isotonic_regression(total / of, weights=of).x[at]))
        low, high = both
        answers[place] = high / (1 - low + high)
    return places, answers

"""Linear maps of logits near temperature scaling, with penalties that the data choose.

The score of class j is ``(1 + d_j) f_j + sum_k M_jk x_k + b_j``: f are the class's own features, whose softmax is
temperature scaling, x the logits less their mean, and M has no diagonal. Three groups of numbers, d, M and b, cost
``sum(c / 2 * number**2)`` against the sum of the negative log-likelihoods.

A penalty c is the inverse variance of a prior, and the evidence (the likelihood of the labels when the numbers are
averaged out) says which variance made the data. MacKay's rule finds it between two fits: ``c = (how many of the
numbers the data determine) / (sum of their squares)``. So penalties rise where samples are few for the classes, and
groups that the data do not ask for go to 0. Inside a group the prior has the tails of Student's t with 3 degrees of
freedom: a few large numbers (two classes taken for each other) do not loosen the penalty of all others.

The search is L-BFGS in coordinates in which the curvature of each class is the identity: these blocks of the Hessian
are Gram matrices of the few samples that are undecided about the class, made once. Ten to twenty passes over the data
are enough where plain L-BFGS takes thousands.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics.temperature import blocks
from macc.posthoc._base import Floats
from macc.posthoc._optimise import minimise

_TAILS = 3.0
# MacKay's rule creeps: with steps of the logarithm this much longer, three rounds come as far as five.
_STRIDES = (1.5, 1.5, 1.0)
# Samples for each class below which penalties begin higher.
_FEW = 60
# The largest slope in coordinates of curvature 1, where 0.001 is a thousandth of a standard error.
_ROUGH, _EXACT = 0.3, 1e-3
# Samples less undecided than this add nothing that a preconditioner has to know.
_UNDECIDED = 1e-3
# Blocks of more classes would fill the memory (K ** 3 numbers); their diagonals have to do.
_MOST_BLOCKS = 256
_OWN, _OTHER, _OFFSET = range(3)


class Penalties(NamedTuple):
    """What half the squared numbers of each group cost; None lets the evidence choose."""

    own: float | None = None
    other: float | None = None
    offset: float | None = None


@dataclass(frozen=True)
class Problem:
    """What a linear map is fitted to.

    Args:
        centred: Logits over the temperature less the mean of their row, ``(N, K)`` in float64.
        shift: What to take off them for a class's own features, ``(N, 1)``.
        labels: Class indices ``(N,)``.
        present: Which classes have samples, ``(K,)``; the others stay out of the comparison and as they are.
        mixes: Whether scores depend on the logits of other classes.
        brier: What to multiply the Brier score with, to minimise it; None for the negative log-likelihood.
    """

    centred: Tensor
    shift: Tensor
    labels: Tensor
    present: Tensor
    mixes: bool
    brier: float | None = None

    @property
    def width(self) -> int:
        """How many numbers a class has."""
        return self.centred.shape[1] + 1 if self.mixes else 2

    def single(self) -> "Problem":
        """The same in float32, at half the cost."""
        return replace(self, centred=self.centred.float(), shift=self.shift.float())

    def groups(self) -> Tensor:
        """The group of each number, ``(K, width)``: by class d (or M with d on its diagonal), and b at the end."""
        classes = self.centred.shape[1]
        result = torch.full((classes, self.width), _OTHER, device=self.centred.device)
        (result.diagonal() if self.mixes else result[:, 0]).fill_(_OWN)
        result[:, -1] = _OFFSET
        return result

    def rows(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Centred logits, own features and labels, a block of rows after the other."""
        parts = blocks(self.centred)
        return [(self.centred[p], self.centred[p] - self.shift[p], self.labels[p, None]) for p in parts]

    def log_probs(self, centred: Tensor, own: Tensor, change: Tensor) -> Tensor:
        """Logarithms of the probabilities of some rows when the numbers are these."""
        if self.mixes:
            # The diagonal of M is d, which multiplies the own feature and not the shared one.
            scores = torch.addmm(change[:, -1], centred, change[:, :-1].T)
            scores += own + (own - centred) * change.diagonal()
        else:
            scores = torch.addcmul(change[:, 1], own, change[:, 0] + 1)
        if not self.present.all():
            scores.masked_fill_(~self.present, -torch.inf)
        return scores.log_softmax(1)

    def slopes(self, centred: Tensor, own: Tensor, residual: Tensor) -> Tensor:
        """The gradient by the numbers, from that by the scores of some rows, ``(K, width)``."""
        result = residual.new_empty(residual.shape[1], self.width)
        own_slope = torch.linalg.vecdot(residual, own, dim=0)
        result[:, -1] = residual.sum(0)
        if self.mixes:
            torch.mm(residual.T, centred, out=result[:, :-1])
            result.diagonal().copy_(own_slope)
        else:
            result[:, 0] = own_slope
        return result

    def loss(self, change: Tensor) -> tuple[float, Tensor]:
        """The sum of the negative log-likelihoods, or that of the Brier scores, and its gradient."""
        total, slope = 0.0, torch.zeros_like(change)
        for centred, own, labels in self.rows():
            log_probs = self.log_probs(centred, own, change)
            total -= (
                float(log_probs.gather(1, labels).sum(dtype=torch.float64)) if self.brier is None else 0.0
            )
            probs = log_probs.exp_()
            residual = probs.scatter_add(1, labels, probs.new_full(labels.shape, -1.0))
            if self.brier is not None:
                total += self.brier * float(residual.square().sum(dtype=torch.float64))
                middle = (probs * residual).sum(1, keepdim=True)
                residual = 2 * self.brier * probs * (residual - middle)
            slope += self.slopes(centred, own, residual)
        return total, slope * self.present[:, None]

    def of_brier(self) -> "Problem":
        """The same by the Brier score, which counts so that at temperature scaling both objectives are equal."""
        start = self.centred.new_zeros(self.centred.shape[1], self.width)
        return replace(self, brier=self.loss(start)[0] / max(replace(self, brier=1.0).loss(start)[0], 1e-300))

    def curvature(self) -> Tensor:
        """Second derivatives by the numbers of each class at temperature scaling, ``(K, width, width)``.

        The diagonals alone, ``(K, width)``, where there are too many classes.
        """
        classes, width = self.centred.shape[1], self.width
        whole = not self.mixes or classes <= _MOST_BLOCKS
        result = self.centred.new_zeros(classes, width, *[width] * whole)
        start = self.centred.new_zeros(classes, width)
        for centred, own, _ in self.rows():
            probs = self.log_probs(centred, own, start).exp_()
            weights = probs - probs.square()
            if not self.mixes:
                first = torch.stack([own.square() * weights, own * weights, weights]).sum(1)
                result += first[[0, 1, 1, 2]].T.view(classes, 2, 2)
            elif whole:
                self._add_grams(result, centred, own, weights)
            else:
                result[:, :-1] += weights.T @ centred.square()
                result.diagonal().add_((weights * (own.square() - centred.square())).sum(0))
                result[:, -1] += weights.sum(0)
        return result

    @staticmethod
    def _add_grams(result: Tensor, centred: Tensor, own: Tensor, weights: Tensor) -> None:
        for j, weight in enumerate(weights.T):
            some = (weight > _UNDECIDED).nonzero()[:, 0]
            rows = torch.cat([centred[some], centred.new_ones(len(some), 1)], dim=1)
            rows[:, j] = own[some, j]
            result[j].addmm_((rows * weight[some, None]).T, rows)


class FittedMap(NamedTuple):
    """The numbers of a fit: ``own`` (K,), ``other`` (K, K) or None, ``offset`` (K,); their penalties; notes."""

    own: Floats
    other: Floats | None
    offset: Floats
    penalties: Floats
    notes: tuple[str, ...]


def fit_map(problem: Problem, given: Penalties, *, objective: str = "nll") -> FittedMap:
    """Find the numbers, with the penalties given and the others by the evidence.

    Args:
        problem: What to fit to.
        given: The penalties that are not to be chosen.
        objective: What to minimise in the end, with the penalties that suit the likelihood.
    """
    # Float32 is enough to see which penalties are right; the last fit polishes in float64.
    rough = problem.single()
    groups, curvature = problem.groups(), rough.curvature()
    classes = len(groups)
    # Where to begin: what suits a few thousand samples of ten classes, and more where samples are few for the classes,
    # because three rounds do not come all the way.
    few = max(1.0, _FEW * classes / len(problem.labels))
    first = {_OWN: few * classes / 2, _OTHER: few * 10.0 * classes, _OFFSET: few * classes / 2}
    scales = torch.tensor(
        [first[i] if cost is None else cost for i, cost in enumerate(given)],
        dtype=torch.float64,
        device="cpu",
    )
    chosen = [i for i, cost in enumerate(given) if cost is None and bool((groups == i).any())]
    weights = torch.ones_like(groups, dtype=torch.float64)
    change = torch.zeros_like(weights)
    for stride in _STRIDES if chosen else ():
        costs = scales[groups] * weights
        change, variance, _ = _fit(rough, curvature, costs, change, _ROUGH)
        squares, determined = change.square(), 1 - costs * variance
        for i in chosen:
            free = (groups == i) & problem.present[:, None]
            size = float((weights * squares)[free].sum())
            before = float(scales[i])
            # At most so much that the group is 0 whatever the data say.
            rule = min(
                max(float(determined[free].sum()), 1e-6) / max(size, 1e-9), 100.0 * len(problem.labels)
            )
            scales[i] = before * (rule / before) ** stride if before else rule
            tails = (_TAILS + 1) / (_TAILS + scales[i] * (squares + variance))
            weights = torch.where(free, tails, weights)
    costs = scales[groups] * weights
    last = problem if objective == "nll" else problem.of_brier()
    change, _, notes = _fit(last, curvature, costs, change, _EXACT)
    numbers = change.numpy()
    own = np.diagonal(numbers).copy() if problem.mixes else numbers[:, 0]
    other = numbers[:, :-1] * (1 - np.eye(classes)) if problem.mixes else None
    penalties = scales[[i for i in range(3) if bool((groups == i).any())]].numpy()
    return FittedMap(own, other, numbers[:, -1], penalties, notes)


def _fit(
    problem: Problem, curvature: Tensor, costs: Tensor, start: Tensor, tolerance: float
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """The numbers of least penalised loss, and the variance that each has, by the class's own curvature."""
    blocked, precision = curvature.ndim == 3, problem.centred.dtype
    costs, before = costs.to(precision), start.to(precision)
    # A class without samples and without penalty has no curvature at all; rounding may leave a little less than none.
    least = costs + 1e-6 * (1 + (curvature.diagonal(dim1=1, dim2=2) if blocked else curvature))
    total = (curvature + (torch.diag_embed(least) if blocked else least)).to(precision)
    root = torch.linalg.cholesky(total) if blocked else total.sqrt()

    def unwhitened(at: Floats) -> Tensor:
        steps: Tensor = torch.from_numpy(at).to(precision).view(start.shape)
        if not blocked:
            return steps / root
        return torch.linalg.solve_triangular(root.mT, steps[:, :, None], upper=True)[:, :, 0]  # type: ignore[no-any-return]

    def objective(at: Floats) -> tuple[float, Floats]:
        change = before + unwhitened(at)
        loss, slope = problem.loss(change)
        slope += costs * change * problem.present[:, None]
        if blocked:
            slope = torch.linalg.solve_triangular(root, slope[:, :, None], upper=False)[:, :, 0]
        else:
            slope = slope / root
        return loss + float((costs * change.square()).sum()) / 2, slope.double().numpy().ravel()

    found = minimise(objective, np.zeros(start.numel()), tolerance=tolerance, memory=10)
    if blocked:
        inverse = torch.linalg.solve_triangular(
            root, torch.eye(root.shape[1], dtype=root.dtype, device=root.device).expand_as(root), upper=False
        )
        variance = inverse.square().sum(1)
    else:
        variance = 1 / total
    return (before + unwhitened(found.at)).double(), variance.double(), found.notes

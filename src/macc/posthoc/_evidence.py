"""Linear maps of logits near temperature scaling, with penalties that the data choose.

The score of class j is ``(1 + d_j) f_j + sum_k M_jk x_k + b_j``: f are the class's own features,
whose softmax is temperature scaling, x the logits less their mean, and M has no diagonal. Three
groups of numbers, d, M and b, cost ``sum(c / 2 * number**2)`` against the sum of the negative
log-likelihoods.

A penalty c is the inverse variance of a prior, and the evidence (the likelihood of the labels when
the numbers are averaged out) says which variance made the data. MacKay's rule finds it between two
fits: ``c = (how many of the numbers the data determine) / (sum of their squares)``. So penalties
rise where samples are few for the classes, and groups that the data do not ask for go to 0. Inside
a group the prior has the tails of Student's t with 3 degrees of freedom: a few large numbers (two
classes taken for each other) do not loosen the penalty of all others.

The search is L-BFGS that begins with the curvature of each class instead of the identity: these
blocks of the Hessian are Gram matrices of the few samples that are undecided about the class, made
once. What it learns of the curvature goes over to the next penalties. Ten to twenty passes over the
data are enough where plain L-BFGS takes thousands.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics.temperature import blocks
from macc.posthoc._base import Floats

_TAILS = 3.0
# MacKay's rule creeps: steps of the logarithm are this much longer, one of them a round.
_STRIDES = (1.5, 1.5)
# Samples for each class below which penalties begin higher.
_FEW = 60
# The largest slope in coordinates of curvature 1, where 0.001 is a thousandth of a standard error.
_ROUGH, _FINE, _EXACT = 0.3, 3e-3, 1e-3
# Of samples less undecided about a class than this, the diagonal of the curvature is enough.
_UNDECIDED = 1e-2
# Blocks of more classes would fill the memory (K ** 3 numbers); their diagonals have to do.
_MOST_BLOCKS = 256
_OWN, _OTHER, _OFFSET = range(3)
# How many steps L-BFGS remembers, the most that it takes, and how often it halves one.
_MEMORY, _MOST_STEPS, _HALVINGS = 20, 1000, 20


class Penalties(NamedTuple):
    """What half the squared numbers of each group cost; None lets the evidence choose."""

    own: float | None = None
    other: float | None = None
    offset: float | None = None


@dataclass(frozen=True)
class Problem:
    """What a linear map is fitted to.

    Args:
        features: Of each sample, in float64. Where scores depend on the logits of other classes,
            ``(N, K + 2)``: logits over the temperature less the mean of their row, the distance
            from the class's own features to these, and 1. Else the own features alone, ``(N, K)``.
        labels: Class indices ``(N,)``.
        present: Which classes have samples, ``(K,)``; the others stay out of the comparison and as
            they are.
        brier: What to multiply the Brier score with, to minimise it; None for the negative
            log-likelihood.
        each: How often each sample counts, ``(N,)``; once without it.
    """

    features: Tensor
    labels: Tensor
    present: Tensor
    brier: float | None = None
    each: Tensor | None = None

    @property
    def size(self) -> float:
        """How often all samples count together."""
        return len(self.labels) if self.each is None else float(self.each.sum())

    @property
    def classes(self) -> int:
        """How many classes there are, K."""
        return len(self.present)

    @property
    def mixes(self) -> bool:
        """Whether scores depend on the logits of other classes."""
        return self.features.shape[1] > self.classes

    @property
    def width(self) -> int:
        """How many numbers a class has."""
        return self.classes + 1 if self.mixes else 2

    def single(self) -> "Problem":
        """The same in float32, at half the cost."""
        return replace(self, features=self.features.float())

    def groups(self) -> Tensor:
        """The group of each number, ``(K, width)``: by class d (or M with d on its diagonal), and b
        at the end.
        """
        result = torch.full((self.classes, self.width), _OTHER, device=self.features.device)
        (result.diagonal() if self.mixes else result[:, 0]).fill_(_OWN)
        result[:, -1] = _OFFSET
        return result

    def weights(self, change: Tensor) -> Tensor:
        """What the features count for each class when the numbers are these, ``(K, K + 2)``, or d
        and b for own features.

        The score ``(1 + d_j) (x_j - s) + sum_k M_jk x_k + b_j``, up to the s of the row, is a
        product with (x, -s, 1): d is the diagonal of M and counts for -s once more.
        """
        if not self.mixes:
            return change + change.new_tensor([1.0, 0.0])
        result = torch.cat([change[:, :-1], change.diagonal()[:, None], change[:, -1:]], dim=1)
        result.diagonal().add_(1)
        return result

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Scores of some rows; their softmax is the probabilities."""
        parts = weights[:, 1], features, weights[:, 0]
        scores = features @ weights.T if self.mixes else torch.addcmul(*parts)
        return scores if self.present.all() else scores.masked_fill_(~self.present, -torch.inf)

    def loss(self, change: Tensor) -> tuple[float, Tensor]:
        """The sum of the negative log-likelihoods, or that of the Brier scores, and its
        gradient.
        """
        weights = self.weights(change)
        total, slope = 0.0, torch.zeros_like(weights)
        for part in blocks(self.features):
            features, labels = self.features[part], self.labels[part, None]
            scores = self.scores(features, weights)
            probs = scores.softmax(1)
            if self.brier is None:
                # The largest probability is never 0, as that of the label may be.
                losses = scores.amax(1) - scores.gather(1, labels)[:, 0] - probs.amax(1).log()
                residual = probs.scatter_add_(1, labels, probs.new_full(labels.shape, -1.0))
            else:
                residual = probs.scatter_add(1, labels, probs.new_full(labels.shape, -1.0))
                losses = self.brier * residual.square().sum(1)
                middle = torch.linalg.vecdot(probs, residual)[:, None]
                residual = 2 * self.brier * probs * (residual - middle)
            if self.each is not None:
                each = self.each[part].to(losses)
                losses, residual = losses * each, residual * each[:, None]
            total += float(losses.sum(dtype=torch.float64))
            if self.mixes:
                slope.addmm_(residual.T, features)
            else:
                slope[:, 0] += torch.linalg.vecdot(residual, features, dim=0)
                slope[:, 1] += residual.sum(0)
        if self.mixes:
            slope.diagonal().add_(slope[:, -2])
            slope = torch.cat([slope[:, :-2], slope[:, -1:]], dim=1)
        return total, slope * self.present[:, None]

    def of_brier(self) -> "Problem":
        """The same by the Brier score, which counts so that at temperature scaling both objectives
        are equal.
        """
        start = self.features.new_zeros(self.classes, self.width)
        return replace(self, brier=self.loss(start)[0] / max(replace(self, brier=1.0).loss(start)[0], 1e-300))

    def curvature(self) -> Tensor:
        """Second derivatives by the numbers of each class at temperature scaling,
        ``(K, width, width)``.

        The diagonals alone, ``(K, width)``, where there are too many classes; and of samples that
        are hardly undecided.
        """
        diagonals = self.features.new_zeros(self.classes, self.width)
        weights, size = self.weights(diagonals), self.features.shape[1]
        blocked = self.mixes and self.classes <= _MOST_BLOCKS
        grams = self.features.new_zeros(self.classes, size, size) if blocked else None
        between = self.features.new_zeros(self.classes)
        for part in blocks(self.features):
            features = self.features[part]
            probs = self.scores(features, weights).softmax(1)
            counts = probs - probs.square()
            if self.each is not None:
                counts *= self.each[part, None].to(counts)
            if grams is not None:
                for gram, count in zip(grams, counts.T.contiguous(), strict=True):
                    some = (count > _UNDECIDED).nonzero()[:, 0]
                    rows = features.index_select(0, some)
                    gram.addmm_(rows.T, rows * count[some, None])
                counts.masked_fill_(counts > _UNDECIDED, 0.0)
            own = features
            if self.mixes:
                own = features[:, :-2] + features[:, -2:-1]
                diagonals[:, :-1] += counts.T @ features[:, :-2].square()
                diagonals.diagonal().sub_(torch.linalg.vecdot(counts, features[:, :-2].square(), dim=0))
            (diagonals.diagonal() if self.mixes else diagonals[:, 0]).add_(
                torch.linalg.vecdot(counts, own.square(), dim=0)
            )
            between += torch.linalg.vecdot(counts, own, dim=0)
            diagonals[:, -1] += counts.sum(0)
        if grams is None and self.mixes:
            return diagonals
        result = torch.diag_embed(diagonals)
        if grams is not None:
            result += _folded(grams)
        else:
            result[:, 0, 1] = result[:, 1, 0] = between
        return result


def _folded(grams: Tensor) -> Tensor:
    """Gram matrices of (x, -s, 1) for each class as those of x, with -s added to the entry of the
    class, and 1.
    """
    each = torch.arange(len(grams), device=grams.device)
    grams[each, each] += grams[:, -2]
    grams[each, :, each] += grams[:, :, -2]
    grams[:, -2] = grams[:, -1]
    grams[:, :, -2] = grams[:, :, -1]
    return grams[:, :-1, :-1]


class FittedMap(NamedTuple):
    """The numbers of a fit: ``own`` (K,), ``other`` (K, K) or None, ``offset`` (K,); their
    penalties; notes.
    """

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
    # Where to begin: what suits a few thousand samples, and more where samples are few for the
    # classes, because two rounds do not come all the way. Entries of a matrix, K for each class,
    # need it sooner than the others do.
    few = max(1.0, _FEW * classes / problem.size)
    first = {_OWN: few * classes / 2, _OTHER: 3 * few**1.5 * classes, _OFFSET: few * classes / 2}
    scales = torch.tensor(
        [first[i] if cost is None else cost for i, cost in enumerate(given)],
        dtype=torch.float64,
        device="cpu",
    )
    chosen = [i for i, cost in enumerate(given) if cost is None and bool((groups == i).any())]
    weights = torch.ones_like(groups, dtype=torch.float64)
    change = torch.zeros_like(weights)
    pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=_MEMORY)
    for stride in _STRIDES if chosen else ():
        costs = scales[groups] * weights
        root = _root(curvature, costs)
        change, _ = _fit([(rough, _ROUGH)], root, costs, change, pairs)
        variance = _variance(root)
        squares, determined = change.square(), 1 - costs * variance
        for i in chosen:
            free = (groups == i) & problem.present[:, None]
            size = float((weights * squares)[free].sum())
            before = float(scales[i])
            # At most so much that the group is 0 whatever the data say.
            rule = min(max(float(determined[free].sum()), 1e-6) / max(size, 1e-9), 100.0 * problem.size)
            scales[i] = before * (rule / before) ** stride if before else rule
            tails = (_TAILS + 1) / (_TAILS + scales[i] * (squares + variance))
            weights = torch.where(free, tails, weights)
    costs = scales[groups] * weights
    last = problem if objective == "nll" else problem.of_brier()
    root = _root(curvature.double(), costs)
    change, notes = _fit([(last.single(), _FINE), (last, _EXACT)], root, costs, change, pairs)
    numbers = change.numpy()
    own = np.diagonal(numbers).copy() if problem.mixes else numbers[:, 0]
    other = numbers[:, :-1] * (1 - np.eye(classes)) if problem.mixes else None
    penalties = scales[[i for i in range(3) if bool((groups == i).any())]].numpy()
    return FittedMap(own, other, numbers[:, -1], penalties, notes)


def _root(curvature: Tensor, costs: Tensor) -> Tensor:
    """The Cholesky root of curvature and penalties, class by class; the square root where there are
    diagonals only.
    """
    blocked, costs = curvature.ndim == 3, costs.to(curvature)
    # A class without samples and without penalty has no curvature at all; rounding may leave a
    # little less than none.
    least = costs + 1e-6 * (1 + (curvature.diagonal(dim1=1, dim2=2) if blocked else curvature))
    if not blocked:
        return (curvature + least).sqrt()
    total = curvature.clone()
    total.diagonal(dim1=1, dim2=2).add_(least)
    root: Tensor = torch.linalg.cholesky(total)
    return root


def _variance(root: Tensor) -> Tensor:
    """The variance of each number, by the class's own curvature, ``(K, width)``."""
    if root.ndim == 2:
        return root.double() ** -2
    return torch.cholesky_inverse(root).diagonal(dim1=1, dim2=2).double()


def _solved(root: Tensor, right: Tensor, *, half: bool = False) -> Tensor:
    """The solution of curvature times x equals the right side, ``(K, width)``; or of the root
    alone, half the way.
    """
    if root.ndim == 2:
        return right / root if half else right / root.square()
    result: Tensor = torch.linalg.solve_triangular(root, right[:, :, None], upper=False)
    if not half:
        result = torch.linalg.solve_triangular(root.mT, result, upper=True)
    return result[:, :, 0]


def _fit(
    stages: Sequence[tuple[Problem, float]],
    root: Tensor,
    costs: Tensor,
    start: Tensor,
    pairs: deque[tuple[Tensor, Tensor]],
) -> tuple[Tensor, tuple[str, ...]]:
    """The numbers of least penalised loss, by L-BFGS around the curvature that is known; and notes.

    With that a step of length 1 is nearly always right, so a step takes one pass over the data.

    Args:
        stages: The problem in rising precision, and the largest slope at which a stage ends, in
            standard errors.
        root: What :func:`_root` gave.
        costs: The penalty of each number.
        start: Where to begin.
        pairs: Earlier steps and the change of the loss's slope by each, whatever the penalties
            were; gets new ones.
    """
    at, steps = start, 0
    for problem, tolerance in stages:
        precision = problem.features.dtype
        at, root, costs = (each.to(precision) for each in (at, root, costs))
        value, slope = problem.loss(at)
        while True:
            whole = slope + costs * at * problem.present[:, None]
            if float(_solved(root, whole, half=True).abs().max()) <= tolerance:
                break
            if steps == _MOST_STEPS:
                return at.double(), (f"the search was stopped after {steps} steps, before its end",)
            steps += 1
            known = [(moved.to(precision), change.to(precision) + costs * moved) for moved, change in pairs]
            step = _towards_minimum(whole, root, known)
            before, down = value + _penalty(costs, at), float((step * whole).sum())
            for _ in range(_HALVINGS):
                value, after = problem.loss(at + step)
                if value + _penalty(costs, at + step) <= before + 1e-4 * down:
                    break
                step, down = step / 2, down / 2
            else:
                # Rounding hides what is left to gain.
                break
            pairs.append((step, after - slope))
            at, slope = at + step, after
    return at.double(), ()


def _penalty(costs: Tensor, at: Tensor) -> float:
    return float((costs * at.square()).sum(dtype=torch.float64)) / 2


def _towards_minimum(slope: Tensor, root: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The step of L-BFGS: minus the slope times the inverse curvature, which earlier steps
    correct.
    """
    # Where the Brier score is not convex, a step may tell nothing.
    pairs = [(moved, change) for moved, change in pairs if float((moved * change).sum()) > 0]
    sizes = [(moved * change).sum() for moved, change in pairs]
    step, counts = -slope, []
    for (moved, change), size in zip(reversed(pairs), reversed(sizes), strict=True):
        counts.append((moved * step).sum() / size)
        step = step - counts[-1] * change
    step = _solved(root, step)
    for (moved, change), size, count in zip(pairs, sizes, reversed(counts), strict=True):
        step = step + (count - (change * step).sum() / size) * moved
    return step

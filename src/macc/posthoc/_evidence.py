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
once. What it learns of the curvature goes over to the next penalties, and so does the loss where it
stands. Ten to twenty passes over the data are enough where plain L-BFGS takes thousands.
"""

from collections import deque
from collections.abc import Iterable, Sequence
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
# What the next step promises, in nats of all samples together, when a search may stop. In the end
# that is so little for each number that they lie about a thousandth of their standard errors from
# the optimum. In float32 the search goes so far that float64 hardly ever has more to do than to
# look.
_ROUGH = 0.1
_FINE, _EXACT = 4e-7, 5e-7
# Of samples less undecided about a class than this, the diagonal of the curvature is enough.
_UNDECIDED = 1e-2
# Blocks of more classes would fill the memory (K ** 3 numbers); their diagonals have to do.
_MOST_BLOCKS = 256
_MANY_ELEMENTS = 2**21
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
        """The group of each number, ``(K, width)``: d by class, or M with d in it; b last."""
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
        """The sum of negative log-likelihoods, or of Brier scores, and its gradient."""
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
        """The same by the Brier score, which at temperature scaling counts as much."""
        start = self.features.new_zeros(self.classes, self.width)
        return replace(self, brier=self.loss(start)[0] / max(replace(self, brier=1.0).loss(start)[0], 1e-300))

    def curvature(self) -> Tensor:
        """Second derivatives by each class's numbers at temperature scaling, ``(K, width, width)``.

        The diagonals alone, ``(K, width)``, where there are too many classes; and of samples that
        are hardly undecided.
        """
        diagonals = self.features.new_zeros(self.classes, self.width)
        weights, size = self.weights(diagonals), self.features.shape[1]
        blocked = self.mixes and self.classes <= _MOST_BLOCKS
        grams = self.features.new_zeros(self.classes, size, size) if blocked else None
        between = self.features.new_zeros(self.classes)
        # Gram matrices of many rows at once are faster.
        for part in blocks(self.features, elements=_MANY_ELEMENTS):
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
    """Gram matrices of (x, -s, 1) for each class from those of x."""
    each = torch.arange(len(grams), device=grams.device)
    grams[each, each] += grams[:, -2]
    grams[each, :, each] += grams[:, :, -2]
    grams[:, -2] = grams[:, -1]
    grams[:, :, -2] = grams[:, :, -1]
    return grams[:, :-1, :-1]


class FittedMap(NamedTuple):
    """The numbers of a fit, ``own`` (K,), ``other`` (K, K), ``offset`` (K,); penalties; notes."""

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
    costs = scales[groups]
    search = _Search(rough, torch.zeros_like(costs))
    for stride in _STRIDES if chosen else ():
        root = _root(curvature, costs)
        search.descend(root, costs, _ROUGH)
        variance = _variance(root)
        squares, determined = search.at.double().square(), 1 - costs * variance
        for i in chosen:
            free = (groups == i) & problem.present[:, None]
            size = float((weights * squares)[free].sum())
            before = float(scales[i])
            # At most so much that the group is 0 whatever the data say.
            rule = min(max(float(determined[free].sum()), 1e-6) / max(size, 1e-9), 100.0 * problem.size)
            scales[i] = before * (rule / before) ** stride if before else rule
            tails = (_TAILS + 1) / (_TAILS + scales[i] * (squares + variance))
            weights = torch.where(free, tails, weights)
        former, costs = costs, scales[groups] * weights
    root = _rescaled(root, curvature, former, costs) if chosen else _root(curvature, costs)
    last = problem
    if objective == "brier":
        last = problem.of_brier()
        search = _Search(last.single(), search.at, search.pairs)
    notes = search.descend(root, costs, _FINE * costs.numel())
    search = _Search(last, search.at, search.pairs)
    notes += search.descend(root, costs, _EXACT * costs.numel())
    numbers = search.at.numpy()
    own = np.diagonal(numbers).copy() if problem.mixes else numbers[:, 0]
    other = numbers[:, :-1] * (1 - np.eye(classes)) if problem.mixes else None
    penalties = scales[[i for i in range(3) if bool((groups == i).any())]].numpy()
    return FittedMap(own, other, numbers[:, -1], penalties, notes)


def _root(curvature: Tensor, costs: Tensor) -> Tensor:
    """The Cholesky root of curvature and penalties by class; the square root of diagonals."""
    diagonals = _diagonals(curvature, costs)
    if curvature.ndim == 2:
        return diagonals.sqrt()
    total = curvature.clone()
    total.diagonal(dim1=1, dim2=2).copy_(diagonals)
    root: Tensor = torch.linalg.cholesky(total)
    return root


def _rescaled(root: Tensor, curvature: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """About the root for other penalties than it was made with: that of the same correlations."""
    scales = (_diagonals(curvature, after) / _diagonals(curvature, before)).sqrt()
    return root * (scales if root.ndim == 2 else scales[:, :, None])


def _diagonals(curvature: Tensor, costs: Tensor) -> Tensor:
    """The diagonals of curvature and penalties, ``(K, width)``."""
    own = curvature if curvature.ndim == 2 else curvature.diagonal(dim1=1, dim2=2)
    # A class without samples and without penalty has no curvature at all; rounding may leave a
    # little less than none.
    return own + costs.to(curvature) + 1e-6 * (1 + own)


def _variance(root: Tensor) -> Tensor:
    """The variance of each number, by the class's own curvature, ``(K, width)``."""
    if root.ndim == 2:
        return root.double() ** -2
    return torch.cholesky_inverse(root).diagonal(dim1=1, dim2=2).double()


def _solved(root: Tensor, right: Tensor) -> Tensor:
    """The solution of curvature times x equals the right side, ``(K, width)``."""
    if root.ndim == 2:
        return right / root.square()
    half = torch.linalg.solve_triangular(root, right[:, :, None].to(root), upper=False)
    result: Tensor = torch.linalg.solve_triangular(root.mT, half, upper=True)
    return result[:, :, 0].to(right)


class _Search:
    """L-BFGS around a curvature that is known.

    With that a step of length 1 is nearly always right, so a step takes one pass over the data.
    What it has seen of the loss stays true when penalties change.

    Args:
        problem: What to fit to.
        at: Where to begin, ``(K, width)``.
        pairs: Earlier steps, and the change of the loss's slope by each.
    """

    def __init__(self, problem: Problem, at: Tensor, pairs: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        self.problem = problem
        self.at = at.to(problem.features)
        self.value, self.slope = problem.loss(self.at)
        self.pairs = deque(((step.to(self.at), change.to(self.at)) for step, change in pairs), maxlen=_MEMORY)
        self.steps = 0

    def descend(self, root: Tensor, costs: Tensor, tolerance: float) -> tuple[str, ...]:
        """Go to the numbers of least penalised loss; what is returned are notes.

        Args:
            root: What :func:`_root` gave.
            costs: The penalty of each number.
            tolerance: How much of the penalised loss is not worth a step.
        """
        costs = costs.to(self.at) * self.problem.present[:, None]
        known = deque((_bend(step, change, costs) for step, change in self.pairs), maxlen=_MEMORY)
        while True:
            slope = self.slope + costs * self.at
            step = _towards_minimum(slope, root, known)
            down = float((step * slope).sum(dtype=torch.float64))
            if -down / 2 <= tolerance:
                return ()
            if self.steps == _MOST_STEPS:
                return (f"the search was stopped after {self.steps} steps, before its end",)
            self.steps += 1
            before = self.value + _penalty(costs, self.at)
            for _ in range(_HALVINGS):
                value, after = self.problem.loss(self.at + step)
                if value + _penalty(costs, self.at + step) <= before + 1e-4 * down:
                    break
                step, down = step / 2, down / 2
            else:
                # Rounding hides what is left to gain.
                return ()
            self.pairs.append((step, after - self.slope))
            known.append(_bend(*self.pairs[-1], costs))
            self.at, self.value, self.slope = self.at + step, value, after


def _penalty(costs: Tensor, at: Tensor) -> float:
    return float((costs * at.square()).sum(dtype=torch.float64)) / 2


class _Bend(NamedTuple):
    """A step, the change of the penalised slope by it, and the product of both."""

    step: Tensor
    change: Tensor
    product: float


def _bend(step: Tensor, change: Tensor, costs: Tensor) -> _Bend:
    change = change + costs * step
    return _Bend(step, change, float((step * change).sum()))


def _towards_minimum(slope: Tensor, root: Tensor, known: Iterable[_Bend]) -> Tensor:
    """The step of L-BFGS: minus the slope times an inverse curvature of earlier steps."""
    # Where the Brier score is not convex, a step may tell nothing.
    known = [bend for bend in known if bend.product > 0]
    step, counts = -slope, []
    for bend in reversed(known):
        counts.append(float((bend.step * step).sum()) / bend.product)
        step = step - counts[-1] * bend.change
    step = _solved(root, step)
    for bend, count in zip(known, reversed(counts), strict=True):
        step = step + (count - float((bend.change * step).sum()) / bend.product) * bend.step
    return step

"""Maps of each class's probability that follow the data: histogram binning and isotonic regression.

Each class is taken against the rest, as a function of its log-odds, in which probabilities near 0
and near 1 keep their differences; then rows are divided by their sum. One imagined sample, spread
evenly over the classes, keeps every probability above 0.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from macc.metrics.inputs import Array, check_bins
from macc.posthoc._base import Floats, accept, parameter, sample
from macc.posthoc._classwise import ClassWise, laid_out, tempering
from macc.words import documented


@dataclass(frozen=True, eq=False)
class Histogram(ClassWise):
    r"""Histogram binning: the share of hits among validation samples of about the same probability.

    .. math:: p_j \leftarrow \frac{\text{hits}_b + 1 / K}{\text{samples}_b + 1},
        \quad b = \text{bin of } p_j

    for each class, with bins of equal mass; then rows are divided by their sum.

    Args:
        edges: Upper edges of all bins but the last, as log-odds, ``(K, bins - 1)``.
        values: What each bin gives, ``(K, bins)``.

    Example:
        >>> from macc import posthoc
        >>> fitted = posthoc.Histogram.fit([-3.0, 3.0, 3.0, -3.0, 3.0, 3.0] * 50, [0, 1, 0, 0, 1, 1] * 50, bins=2)
        >>> fitted([-3.0, 3.0]).round(2)
        array([0.  , 0.75])

    Reference:
        Zadrozny and Elkan, *Obtaining calibrated probability estimates from decision trees and
        naive Bayesian classifiers*, ICML 2001.
    """

    edges: Floats = parameter("K", "*")
    values: Floats = parameter("K", "*")

    @classmethod
    @documented
    def fit(
        cls, logits: Array, labels: Array, *, bins: int = 15, weights: Array | None = None
    ) -> "Histogram":
        """Count the hits of each bin.

        Args:
            bins: How many bins each class has; samples of equal probability share one.

        Returns:
            The fitted calibrator.
        """
        check_bins(bins)
        data = sample(logits, labels, weights)
        each = None if data.weights is None else data.weights.cpu().numpy()
        uniform = 1 / data.num_classes
        odds, targets = data.map(log_odds).numpy(), data.labels.cpu().numpy()
        edges = np.empty((data.num_classes, bins - 1))
        values = np.empty((data.num_classes, bins))
        for j in range(data.num_classes):
            x, hit = odds[:, j], targets == j
            edges[j] = _equal_mass(x, bins) if each is None else _equal_weight(x, bins, each)
            hits = _mass(x[hit], edges[j], None if each is None else each[hit])
            values[j] = (hits + uniform) / (_mass(x, edges[j], each) + 1)
        return accept(cls(data.num_classes, edges=edges, values=values, **tempering(data)), data)

    def _check_parameters(self) -> None:
        if self.values.shape[1] != self.edges.shape[1] + 1 or (np.diff(self.edges) < 0).any():
            raise ValueError("Histogram.edges must rise, and be one fewer than the values")
        _check_values("Histogram", self.values)

    def _scores(self, logits: Tensor) -> Tensor:
        at = torch.searchsorted(logits.new_tensor(self.edges), log_odds(logits).T.contiguous())
        return logits.new_tensor(self.values).log().gather(1, at).T


@dataclass(frozen=True, eq=False)
class Isotonic(ClassWise):
    r"""Isotonic regression: for each class, the best curve that never falls.

    .. math:: p_j \leftarrow \frac{N f_j(p_j) + 1 / K}{N + 1}, \qquad
        f_j = \arg\min_{f \text{ rising}} \sum_i \bigl(f(p_{ij}) - 1[y_i = j]\bigr)^2

    between validation samples linear in the log-odds; then rows are divided by their sum.

    Args:
        x: Log-odds at which the curves are given, those of all classes one after the other.
        y: The curves there.
        sizes: How many of them each class has, ``(K,)``.

    Example:
        >>> from macc import posthoc
        >>> fitted = posthoc.Isotonic.fit([-3.0, 3.0, 3.0, -3.0, 3.0, 3.0] * 50, [0, 1, 0, 0, 1, 1] * 50)
        >>> fitted([-3.0, 0.0, 3.0]).round(2)
        array([0.  , 0.38, 0.75])

    Reference:
        Zadrozny and Elkan, *Transforming classifier scores into accurate multiclass probability
        estimates*, KDD 2002.
    """

    x: Floats = parameter("*")
    y: Floats = parameter("*")
    sizes: Floats = parameter("K", fitted=False)

    @classmethod
    @documented
    def fit(cls, logits: Array, labels: Array, *, weights: Array | None = None) -> "Isotonic":
        """Find the curves.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels, weights)
        each = np.ones(data.num_samples) if data.weights is None else data.weights.cpu().numpy()
        odds, targets = data.map(log_odds).numpy(), data.labels.cpu().numpy()
        curves = [_rising(odds[:, j], targets == j, each) for j in range(data.num_classes)]
        size, classes = data.size, data.num_classes
        smooth = [(x, (size * y + 1 / classes) / (size + 1)) for x, y in curves]
        fitted = cls(classes, **laid_out(smooth), **tempering(data))
        return accept(fitted, data)

    def _check_parameters(self) -> None:
        whole = (self.sizes >= 1).all() and (self.sizes == self.sizes.round()).all()
        if not whole or not self.sizes.sum() == len(self.x) == len(self.y):
            raise ValueError("Isotonic.sizes must add up to the number of x and of y")
        _check_values("Isotonic", self.y)
        for x, y in self._curves():
            if (np.diff(x) < 0).any() or (np.diff(y) < 0).any():
                raise ValueError("Isotonic.x and y must rise within each class")

    def _curves(self) -> list[tuple[Floats, Floats]]:
        ends = self.sizes.cumsum().astype(int)[:-1]
        return list(zip(np.split(self.x, ends), np.split(self.y, ends), strict=True))

    def _scores(self, logits: Tensor) -> Tensor:
        columns = log_odds(logits).unbind(1)
        curves = ((logits.new_tensor(x), logits.new_tensor(y)) for x, y in self._curves())
        mapped = [_interpolated(column, *curve) for column, curve in zip(columns, curves, strict=True)]
        return torch.stack(mapped, dim=1).log()


def log_and_rest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """``log p`` and ``log(1 - p)`` of each class, both exact however close p is to 0 or 1."""
    log_probs = logits.log_softmax(1)
    # Only the largest can be close to 1: what is left is added up from the others.
    top = log_probs.argmax(1, keepdim=True)
    smaller = log_probs.scatter(1, top, -torch.inf)
    rest = torch.log1p(-smaller.exp())
    return log_probs, rest.scatter(1, top, smaller.logsumexp(1, keepdim=True))


def log_odds(logits: Tensor) -> Tensor:
    """``log(p / (1 - p))`` of each class against the rest."""
    log_probs, rest = log_and_rest(logits)
    return log_probs - rest


def _interpolated(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The curve through the points ``(x, y)``, linear between them and level outside."""
    if len(x) == 1:
        return y.expand(len(at))
    right = torch.searchsorted(x, at.detach().contiguous()).clamp(1, len(x) - 1)
    width = x[right] - x[right - 1]
    share = torch.where(width > 0, (at - x[right - 1]) / torch.where(width > 0, width, 1.0), 1.0)
    return torch.lerp(y[right - 1], y[right], share.clamp(0, 1))


def _check_values(owner: str, values: Floats) -> None:
    if not ((values > 0) & (values <= 1)).all():
        raise ValueError(f"{owner} must give probabilities above 0 and at most 1")


def _equal_mass(x: Floats, bins: int) -> Floats:
    """Upper edges of bins but the last, which share the samples as evenly as ties allow."""
    ordered = np.sort(x)
    wanted = (np.arange(1, bins) * len(x) + bins - 1) // bins
    values = ordered[wanted - 1]
    before, up_to = ordered.searchsorted(values), ordered.searchsorted(values, "right")
    # Of the two ends of a run of equal values the nearer one, and never the end of all.
    early = (before > 0) & ((wanted - before < up_to - wanted) | (up_to == len(x)))
    return np.where(early, ordered[np.maximum(before - 1, 0)], values)


def _mass(x: Floats, edges: Floats, each: Floats | None) -> Floats:
    """How many samples lie in each bin, or how much they weigh."""
    if each is None:
        up_to, total = np.sort(x).searchsorted(edges, "right"), float(len(x))
    else:
        order = x.argsort()
        sums = np.append(0.0, each[order].cumsum())
        up_to, total = sums[x[order].searchsorted(edges, "right")], sums[-1]
    result: Floats = np.diff(up_to, prepend=0.0, append=total)
    return result


def _equal_weight(x: Floats, bins: int, each: Floats) -> Floats:
    """:func:`_equal_mass` of weighted samples; one alone belongs to the bin that it ends."""
    places, group = np.unique(x, return_inverse=True)
    up_to = np.bincount(group, each).cumsum()
    before = np.append(0.0, up_to[:-1])
    wanted = np.arange(1, bins) / bins * up_to[-1]
    # A sum that rounding left a little below a cut reaches it.
    at = np.minimum(up_to.searchsorted(wanted * (1 - 1e-12)), len(places) - 1)
    nearer = (np.bincount(group)[at] > 1) & (wanted - before[at] < up_to[at] - wanted)
    early = (at > 0) & (nearer | (at == len(places) - 1))
    return np.asarray(places[at - early])


def _rising(x: Floats, hits: Floats, each: Floats) -> tuple[Floats, Floats]:
    """The ends of each level part of the isotonic curve of weighted hits."""
    from scipy.optimize import isotonic_regression

    places, group = np.unique(x, return_inverse=True)
    weights = np.bincount(group, each)
    levels = isotonic_regression(np.bincount(group, each * hits) / weights, weights=weights).x
    changes = np.flatnonzero(np.diff(levels) != 0)
    kept = np.unique(np.concatenate([[0], changes, changes + 1, [len(places) - 1]]))
    return places[kept], levels[kept]

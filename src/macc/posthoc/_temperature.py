"""Temperature scaling: one number for all logits."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from macc.metrics.inputs import Array
from macc.posthoc._base import Calibrator, Sample, accept, sample

LOWEST, HIGHEST = 0.01, 100.0
# At the bounds the logits of a typical row are at least this far apart, and at most this far.
_FAR, _NEAR = 100.0, 0.1
_TYPICAL_ROWS = 1000
GRID = tuple(i / 10 for i in range(1, 101))
# Newton's error is squared in each step, so a step this small was the last one needed.
_SMALL_STEP = 1e-6
_WARM_ELEMENTS = 2**19
_PATIENCE = 20


@dataclass(frozen=True, eq=False)
class Temperature(Calibrator):
    r"""Divide all logits by one temperature; the predicted class stays.

    .. math:: \operatorname{softmax}(z / T), \qquad
        T = \arg\min_T -\frac1N \sum_i \log \operatorname{softmax}(z_i / T)_{y_i}

    Newton's method on :math:`\log T`, kept between the bounds of the search. The loss is convex in
    :math:`1 / T`, so what it finds is the only optimum.

    Args:
        temperature: The temperature T; above 1 it lowers confidence.
        at_bound: The search ended at its limit, 0.01 or 100 for logits of an ordinary scale (0.1 or 10.0 on the
            grid): a validation set without errors asks for ever more confidence, one that contradicts the
            model for none.

    Example:
        >>> from macc import posthoc
        >>> logits, labels = [[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [0.0, 4.0]], [0, 1, 0, 0]
        >>> fitted = posthoc.Temperature.fit(logits, labels)
        >>> round(fitted.temperature, 4)
        3.641
        >>> fitted(logits)[0].round(4)  # three of four are right
        array([0.75, 0.25])

    Reference:
        Guo et al., *On Calibration of Modern Neural Networks*, ICML 2017.
    """

    temperature: float
    at_bound: bool = False

    keeps_argmax: ClassVar[bool] = True
    holds_identity: ClassVar[bool] = True

    @classmethod
    def fit(cls, logits: Array, labels: Array, *, grid: bool = False) -> "Temperature":
        """Find the temperature of the least negative log-likelihood.

        Args:
            logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
            labels: Class indices ``(N,)``.
            grid: Take the best of 0.1, 0.2, …, 10.0, the first of equally good ones, as the MACC paper
                and MDCA do.

        Returns:
            The fitted calibrator.
        """
        data = sample(logits, labels)
        found = best_temperature(data)
        if grid:
            found = _on_grid(data, found)
        return accept(cls(data.num_classes, *found, notes=found.notes), data)

    def _check(self) -> None:
        check_temperature("Temperature", self.temperature)

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        return tempered(logits, self.temperature)


class Optimum(NamedTuple):
    """A temperature, and whether the search was stopped by its bounds."""

    value: float
    at_bound: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the search ended at its bound, if it did."""
        if not self.at_bound:
            return ()
        if self.value < 1:
            why = "the validation set has no errors, or its logits hardly differ"
        else:
            why = "the logits say nothing about the labels of the validation set"
        return (f"the temperature reached its bound {self.value:g}: {why}",)


def best_temperature(data: Sample) -> Optimum:
    """The temperature of least NLL, by Newton's method on its logarithm inside a shrinking bracket."""
    ends = _bounds(data)
    start = 0.0
    # A part of the rows tells roughly where to begin, for a fraction of a pass.
    stride = data.logits.numel() // _WARM_ELEMENTS
    if stride >= 4:
        start = _newton(Sample(data.logits[::stride], data.labels[::stride]), 0.0, ends)
    log_t = _newton(data, start, ends)
    exact = {math.log(end): end for end in ends}
    return Optimum(exact.get(log_t, math.exp(log_t)), log_t in exact)


def _bounds(data: Sample) -> tuple[float, float]:
    """Between which temperatures to search: 0.01 and 100, or further apart for logits of a very small or large scale."""
    some = data.logits[:: max(1, data.num_samples // _TYPICAL_ROWS)].double()
    typical = float((some.amax(1) - some.amin(1)).median())
    return min(LOWEST, typical / _FAR) or LOWEST, max(HIGHEST, typical / _NEAR)


def check_temperature(owner: str, temperature: float) -> None:
    """Refuse a temperature that no search gives."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"{owner}.temperature must be above 0 and finite, got {temperature:g}")


def tempered(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """``log softmax(z / T)``; the largest logit is taken off first, so that nothing overflows."""
    logits = (logits - logits.amax(1, keepdim=True)) / temperature
    return logits.log_softmax(1)


def _newton(data: Sample, log_t: float, ends: tuple[float, float]) -> float:
    """The minimum over ``log T`` within the bounds, from a first guess.

    With ``u = log T``, ``L(u) = mean(logsumexp(z / T) - z_y / T)`` has one valley, so the sign of each
    slope moves one end of a bracket; a Newton step that leaves the bracket is replaced by its middle.
    """
    low, high = map(math.log, ends)
    bounds, seen_low, seen_high = (low, high), False, False
    for turn in range(200):
        slope, curvature = _derivatives(data, math.exp(-log_t))
        if slope == 0 or (slope > 0 and log_t == bounds[0]) or (slope < 0 and log_t == bounds[1]):
            break
        if slope > 0:
            high, seen_high = log_t, True
        else:
            low, seen_low = log_t, True
        target = log_t - slope / curvature if curvature > 0 else math.nan
        bracketed = seen_low and seen_high
        # Where there is no error the slope dies away, and Newton's steps with it, long before the bound.
        if not low < target < high or (turn >= _PATIENCE and not bracketed):
            if bracketed:
                target = (low + high) / 2
            else:
                # Nothing is known of that side yet: far, but not at once to the end.
                target = max(low, log_t - 2) if slope > 0 else min(high, log_t + 2)
        step, log_t = target - log_t, target
        if abs(step) < _SMALL_STEP and log_t not in bounds:
            break
    return log_t


def _derivatives(data: Sample, inverse: float) -> tuple[float, float]:
    """First and second derivative of the mean NLL by ``log T`` at ``inverse = 1 / T``.

    With ``d = (z - max z) / T`` and ``p = softmax(d)``: slope ``d_y - E_p d``, curvature
    ``Var_p d - slope``, summed over the rows.
    """
    slope = variance = 0.0
    for rows, labels in data.blocks():
        rows -= rows.amax(1, keepdim=True)
        rows *= inverse
        weights = rows.exp()
        mass = weights.sum(1)
        own = rows.gather(1, labels[:, None])[:, 0]
        weights *= rows
        first = weights.sum(1) / mass
        second = torch.linalg.vecdot(weights, rows) / mass
        slope += float((own - first).sum())
        variance += float((second - first.square()).sum())
    return slope / data.num_samples, (variance - slope) / data.num_samples


def _on_grid(data: Sample, optimum: Optimum) -> Optimum:
    """The first best value of the grid; with one valley it is one of those next to the optimum."""
    if float((data.logits.amax(1) - data.logits.amin(1)).max()) == 0:
        near = GRID[:1]  # all temperatures are equally good
    else:
        near = tuple(value for value in GRID if abs(value - optimum.value) < 0.1) or (
            GRID[0] if optimum.value < 1 else GRID[-1],
        )
    best = min(near, key=lambda value: data.nll(Temperature(data.num_classes, value)))
    return Optimum(best, best in (GRID[0], GRID[-1]))

"""The temperature of least negative log-likelihood: one search for metrics and for calibrators."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from macc.words import documented

LOWEST, HIGHEST = 0.01, 100.0
# At the bounds the logits of a typical row are at least this far apart, and at most this far.
_FAR, _NEAR = 100.0, 0.1
_TYPICAL_ROWS = 1000
# Newton's error is squared in each step, so a step this small was the last one needed.
_SMALL_STEP = 1e-6
_WARM_ELEMENTS = 2**19
_PATIENCE = 20
# 2 MB of float64: what follows on a block finds it in the cache.
_BLOCK_ELEMENTS = 2**18


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


@documented
def best_temperature(
    logits: Tensor, labels: Tensor, *, unseen: float = 0.0, start: float = 1.0, weights: Tensor | None = None
) -> Optimum:
    r"""The temperature of least NLL, by Newton's method on its logarithm within a bracket.

    Samples without an error ask for ever smaller temperatures, at which the first error to come
    costs any amount. ``unseen`` counts samples that were not seen, whose labels may be any class.
    Their loss is the mean over rows and classes, so that with ``m`` of them

    .. math:: T = \arg\min_T \sum_i \ell_i(y_i, T) + \frac{m}{N K} \sum_i \sum_j \ell_i(j, T),
        \qquad \ell_i(j, T) = -\log \operatorname{softmax}(z_i / T)_j

    This is Laplace's rule, and the same as labels that are smoothed by ``m / (N + m)``. Logits of
    twice the scale still get twice the temperature.

    Args:
        logits: Finite logits ``(N, K)``.
        unseen: Number of samples that were not seen.
        start: A first guess.
        weights: How often each row counts, ``(N,)``.
    """
    ends = _bounds(logits)
    log_t = min(max(math.log(start), math.log(ends[0])), math.log(ends[1]))
    # A part of the rows tells roughly where to begin, for a fraction of a pass.
    stride = logits.numel() // _WARM_ELEMENTS
    if stride >= 4:
        some = None if weights is None else weights[::stride]
        log_t = _newton(logits[::stride], labels[::stride], unseen / stride, log_t, ends, some)
    log_t = _newton(logits, labels, unseen, log_t, ends, weights)
    exact = {math.log(end): end for end in ends}
    return Optimum(exact.get(log_t, math.exp(log_t)), log_t in exact)


def tempered(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """``log softmax(z / T)``; the largest logit is taken off first, so that nothing overflows."""
    logits = (logits - logits.amax(1, keepdim=True)) / temperature
    return logits.log_softmax(1)


def blocks(rows: Tensor, *, elements: int = _BLOCK_ELEMENTS) -> Iterator[slice]:
    """Neighbouring rows of at most so many elements, or of as many as the cache holds."""
    step = max(1, elements // rows.shape[1])
    return (slice(start, start + step) for start in range(0, len(rows), step))


def float64_copy(rows: Tensor) -> Tensor:
    """Rows in float64 that may be overwritten."""
    return rows.clone() if rows.dtype == torch.float64 else rows.double()


def _bounds(logits: Tensor) -> tuple[float, float]:
    """The temperatures to search: 0.01 to 100, further apart for logits of an unusual scale."""
    some = logits[:: max(1, len(logits) // _TYPICAL_ROWS)].double()
    typical = float((some.amax(1) - some.amin(1)).median())
    return min(LOWEST, typical / _FAR) or LOWEST, max(HIGHEST, typical / _NEAR)


def _newton(
    logits: Tensor,
    labels: Tensor,
    unseen: float,
    log_t: float,
    ends: tuple[float, float],
    weights: Tensor | None,
) -> float:
    """The minimum over ``log T`` within the bounds, from a first guess.

    With ``u = log T``, ``L(u) = mean(logsumexp(z / T) - z_y / T)`` has one valley, so the sign of
    each slope moves one end of a bracket; a Newton step that leaves the bracket is replaced by its
    middle.
    """
    low, high = map(math.log, ends)
    bounds, seen_low, seen_high = (low, high), False, False
    for turn in range(200):
        slope, curvature = _derivatives(logits, labels, unseen, math.exp(-log_t), weights)
        if slope == 0 or (slope > 0 and log_t == bounds[0]) or (slope < 0 and log_t == bounds[1]):
            break
        if slope > 0:
            high, seen_high = log_t, True
        else:
            low, seen_low = log_t, True
        target = log_t - slope / curvature if curvature > 0 else math.nan
        bracketed = seen_low and seen_high
        # Where there is no error the slope dies away, and Newton's steps with it, long before the
        # bound.
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


def _derivatives(
    logits: Tensor, labels: Tensor, unseen: float, inverse: float, counted: Tensor | None
) -> tuple[float, float]:
    """First and second derivative of the mean NLL by ``log T`` at ``inverse = 1 / T``.

    With ``d = (z - max z) / T`` and ``p = softmax(d)``: slope ``d_y - E_p d``, curvature
    ``Var_p d - slope``, summed over the rows. A label that may be any class has the mean of ``d``
    for ``d_y``.
    """
    count = len(logits) if counted is None else float(counted.sum())
    each = unseen / count
    slope = variance = 0.0

    def summed(values: Tensor) -> float:
        return float(values.sum() if counted is None else values @ counted[part])

    for part in blocks(logits):
        rows = float64_copy(logits[part])
        rows -= rows.amax(1, keepdim=True)
        rows *= inverse
        weights = rows.exp()
        mass = weights.sum(1)
        own = rows.gather(1, labels[part, None])[:, 0]
        weights *= rows
        first = weights.sum(1) / mass
        second = torch.linalg.vecdot(weights, rows) / mass
        slope += summed(own - first)
        variance += summed(second - first.square())
        if unseen:
            slope += each * summed(rows.mean(1) - first)
    variance *= 1 + each
    return slope / count, (variance - slope) / count

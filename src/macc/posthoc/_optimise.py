"""One optimiser for smooth fits of more than one parameter."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from macc.posthoc._base import Floats


class Minimum(NamedTuple):
    """Where a search ended; ``notes`` says so when that was too early."""

    at: Floats
    notes: tuple[str, ...]


def minimise(
    objective: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    *,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
    steps: int = 1000,
    tolerance: float = 1e-8,
    memory: int = 20,
) -> Minimum:
    """Minimise a loss by L-BFGS in float64; what it returns is never worse than the start.

    Args:
        objective: Gives value and gradient.
        start: Where to begin.
        bounds: Of each parameter.
        steps: The most iterations.
        tolerance: The largest slope at which the search may end.
        memory: How many steps L-BFGS remembers.
    """
    # Importing the package should not wait for scipy.
    from scipy.optimize import minimize

    values: list[float] = []

    def noted(at: Floats) -> tuple[float, Floats]:
        value, slope = objective(at)
        values.append(value)
        return value, slope

    found = minimize(
        noted,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": steps, "maxfun": 2 * steps, "maxcor": memory, "ftol": 1e-13, "gtol": tolerance},
    )
    at = np.asarray(found.x, dtype=np.float64)
    if not (np.isfinite(at).all() and found.fun <= values[0]):
        return Minimum(start, ("the search found nothing better than its start",))
    early = found.status == 1
    return Minimum(at, (f"the search was stopped after {steps} steps, before its end",) if early else ())


def check_penalty(name: str, value: float) -> None:
    """Refuse a penalty that is not a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")

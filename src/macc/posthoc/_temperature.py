"""Temperature scaling: one number for all logits."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from macc.metrics.inputs import Array
from macc.metrics.temperature import Optimum, best_temperature, tempered
from macc.posthoc._base import Calibrator, Sample, accept, check_objective, sample
from macc.words import documented

GRID = tuple(i / 10 for i in range(1, 101))
_REACH = math.log(4)
_SMALL_STEP = 1e-5


@dataclass(frozen=True, eq=False)
class Temperature(Calibrator):
    r"""Divide all logits by one temperature; the predicted class stays.

    .. math:: \operatorname{softmax}(z / T), \qquad
        T = \arg\min_T -\frac1N \sum_i \log \operatorname{softmax}(z_i / T)_{y_i}

    Newton's method on :math:`\log T`, kept between the bounds of the search. The loss is convex in
    :math:`1 / T`, so what it finds is the only optimum.

    Args:
        temperature: The temperature T; above 1 it lowers confidence.
        at_bound: The search ended at its limit, 0.01 or 100 for logits of an ordinary scale (0.1 or
            10.0 on the grid): a validation set without errors asks for ever more confidence, one
            that contradicts the model for none.

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
    @documented
    def fit(
        cls,
        logits: Array,
        labels: Array,
        *,
        grid: bool = False,
        objective: str = "nll",
        weights: Array | None = None,
    ) -> "Temperature":
        """Find the temperature of the least negative log-likelihood, or of the least Brier score.

        Args:
            grid: Take the best of 0.1, 0.2, …, 10.0, the first of equally good ones, as the MACC
                paper and MDCA do.
            objective: ``"nll"`` or ``"brier"``.

        Returns:
            The fitted calibrator.
        """
        check_objective(objective)
        if grid and objective != "nll":
            raise ValueError("grid is of the objective 'nll'; leave one of the two out")
        data = sample(logits, labels, weights)
        found = best_temperature(data.logits, data.labels, weights=data.weights)
        if grid:
            found = _on_grid(data, found)
        elif objective == "brier":
            found = of_least(
                lambda value: data.brier(cls(data.num_classes, value)), found, tolerance=_SMALL_STEP
            )
        return accept(cls(data.num_classes, *found, notes=found.notes), data, objective=objective)

    def _check(self) -> None:
        check_temperature("Temperature", self.temperature)

    def _log_probs(self, logits: Tensor, *_: Tensor) -> Tensor:
        return tempered(logits, self.temperature)


def check_temperature(owner: str, temperature: float) -> None:
    """Refuse a temperature that no search gives."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"{owner}.temperature must be above 0 and finite, got {temperature:g}")


def of_least(
    loss: Callable[[float], float], near: Optimum, *, tolerance: float, reach: float = _REACH
) -> Optimum:
    """The temperature of least loss near one that is about right, by Brent's method.

    Args:
        loss: Of a temperature.
        near: The one that is about right.
        tolerance: How exact the logarithm has to be.
        reach: How far from that one to look, on the scale of the logarithm.
    """
    from scipy.optimize import minimize_scalar

    middle = math.log(near.value)
    found = minimize_scalar(
        lambda log_t: loss(math.exp(log_t)),
        bounds=(middle - reach, middle + reach),
        method="bounded",
        options={"xatol": tolerance},
    )
    # What is already known is a candidate too, so that a search that fails does no harm.
    return Optimum(math.exp(found.x), near.at_bound) if found.fun < loss(near.value) else near


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

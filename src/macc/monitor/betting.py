r"""An alarm that may be looked at after every row: a test martingale on correctness minus
confidence.

Row t has the confidence :math:`c_t` of its predicted class and, once its label is known,
:math:`y_t`: 1 if the prediction is right, else 0. The null hypothesis is that the confidence is
right on average, whatever was seen before:

.. math:: H_0: \quad l \le E[y_t - c_t \mid \text{past}] \le h

with l = -tolerance and h = tolerance, or the interval that a validation set shows. Nothing else is
supposed: rows need not be independent, and confidences may drift as they like as long as accuracy
drifts with them.

**Bets.** Somebody bets against the null with a fixed fraction :math:`λ \ge 0` of the money in play.
After row t the money is multiplied by

.. math:: f_t = 1 + λ x_t, \qquad x_t = l - (y_t - c_t) \quad\text{or}\quad x_t = (y_t - c_t) - h

for "less often right than it says" or "more often right than it says". As
:math:`|y_t - c_t| \le 1`, :math:`x_t` is never below :math:`-(1 - l)` or :math:`-(1 + h)`, so that
:math:`f_t > 0` for :math:`λ < 1 / (1 - l)` or :math:`1 / (1 + h)`. λ is fixed before the row is
seen and :math:`E[x_t \mid \text{past}] \le 0` under the null, so
:math:`E[f_t \mid \text{past}] \le 1`: the money of each bet is a nonnegative supermartingale.

**When to begin.** A bet that begins at row 1 has lost by the time a change comes. So each strategy
has money 1 of which it puts :math:`π_s = m(s - 1) - m(s)` into play before row s, where
:math:`m(s) = 1 / (1 + \log(1 + s / 1000))` is what is not in play yet. What is in play follows
:math:`R_t = f_t (R_{t-1} + π_t)`. The strategies are seven fractions λ in both directions, with a
fourteenth of the money each, so that the wealth

.. math:: E_t = m(t) + \frac{1}{14} \sum_λ R_t(λ)

begins at 1, is never negative and is a supermartingale: sums of supermartingales are, and so is
money that waits.

**The alarm** is raised when :math:`E_t \ge 1 / α`. By Ville's inequality (1939) the probability
that this *ever* happens under the null is at most α. There is nothing to correct for looking often,
for stopping or for going on.

**Several machines.** N streams each have a wealth of their own. Their sum over N is a
supermartingale if the null holds given the past of all of them. Streams that are not there count as
0, which can only make the wealth smaller.

**The change.** With the fraction that has most money, the start that explains the rows best is the
s that maximises :math:`π_s \prod_{i \ge s} f_i`; the product after s is that of all rows over that
before s, so the best s is found with one running maximum for each fraction.

The state is four numbers for each strategy and a few more.

Reference:
    Waudby-Smith and Ramdas, *Estimating Means of Bounded Random Variables by Betting*, JRSS B 2024;
    Shin, Ramdas and Rinaldo, *E-detectors*, 2023; Ville, *Étude critique de la notion de
    collectif*, 1939.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

OVER, UNDER = "less often right than it says", "more often right than it says"
_STEPS = 7
_LARGEST = 0.98
_PATIENCE = 1000.0
# Rows at a time: 14 numbers each.
_ROWS = 2**14


@dataclass(frozen=True)
class Alarm:
    """When and in which direction an alarm was raised, and where it began; rows count from 1."""

    row: int
    time: float
    direction: str
    change_row: int
    change_time: float


class Evidence:
    """The wealth of one stream of rows.

    Args:
        low: The least mean of correctness minus confidence under the null.
        high: The largest.

    Example:
        >>> evidence = Evidence(-0.01, 0.01)
        >>> right = np.arange(1000) % 10 < 8  # right in 80 % of rows
        >>> alarm = evidence.update(right - 0.9, np.arange(1000.0), limit=math.log(100))
        >>> alarm.direction, alarm.row, alarm.change_row
        ('less often right than it says', 300, 9)
    """

    def __init__(self, low: float, high: float):
        if not -1 < low <= high < 1:
            raise ValueError(
                f"the mean under the null must lie in an interval within (-1, 1), got {low} to {high}"
            )
        self.low, self.high = low, high
        self.rows = 0
        shape = 2 * _STEPS
        self.in_play = np.full(shape, -math.inf)
        self.product = np.zeros(shape)
        self.best = np.full(shape, -math.inf)
        self.best_row = np.zeros(shape)
        self.best_time = np.zeros(shape)

    def log_wealth(self) -> float:
        """The logarithm of the wealth; 0 before the first row."""
        return float(np.logaddexp(math.log(_waiting(self.rows)), _total(self.in_play)))

    def update(self, residuals: Floats, times: Floats, *, limit: float) -> Alarm | None:
        """Count rows in their order.

        Args:
            residuals: Correctness minus confidence ``(N,)``.
            times: When the rows happened, to say when the change was.
            limit: The logarithm of the wealth at which the alarm is raised.

        Returns:
            The first alarm among these rows, if there is one.
        """
        found = None
        for start in range(0, len(residuals), _ROWS):
            part = slice(start, start + _ROWS)
            alarm = self._some(residuals[part], times[part], limit)
            found = found or alarm
        return found

    def _some(self, residuals: Floats, times: Floats, limit: float) -> Alarm | None:
        count = len(residuals)
        fractions = _LARGEST * 0.5 ** np.arange(_STEPS)
        gains = np.concatenate(
            [
                np.outer(fractions / (1 - self.low), self.low - residuals),
                np.outer(fractions / (1 + self.high), residuals - self.high),
            ]
        )
        after = np.cumsum(np.log1p(gains), axis=1)
        before = np.concatenate([np.zeros((len(after), 1)), after[:, :-1]], axis=1)
        waiting = _waiting(self.rows + np.arange(count + 1))
        entering = np.log(waiting[:-1] - waiting[1:])
        starts = np.concatenate([self.in_play[:, None], entering - before], axis=1)
        played = after + np.logaddexp.accumulate(starts, axis=1)[:, 1:]
        wealth = np.logaddexp(np.log(waiting[1:]), _total(played))
        # The best start of all rows so far, for each fraction.
        value = entering - before - self.product[:, None]
        alarm = None
        crossed = np.flatnonzero(wealth >= limit)
        if len(crossed):
            at = int(crossed[0])
            self._remember(value[:, : at + 1], times)
            alarm = self._alarm(self.rows + at + 1, float(times[at]), played[:, at])
        self._remember(value, times)
        self.product += after[:, -1]
        self.in_play = played[:, -1]
        self.rows += count
        return alarm

    def now(self, time: float) -> Alarm:
        """What an alarm that is raised now, for whatever reason, has to say."""
        return self._alarm(self.rows, time, self.in_play)

    def _alarm(self, row: int, time: float, in_play: Floats) -> Alarm:
        richest = int(in_play.argmax())
        direction = OVER if richest < _STEPS else UNDER
        return Alarm(row, time, direction, int(self.best_row[richest]), float(self.best_time[richest]))

    def _remember(self, value: Floats, times: Floats) -> None:
        at = value.argmax(1)
        highest = value[np.arange(len(value)), at]
        better = highest > self.best
        self.best[better] = highest[better]
        self.best_row[better] = self.rows + at[better] + 1
        self.best_time[better] = times[at[better]]

    def to_dict(self) -> dict[str, Any]:
        """The state as what JSON can hold."""
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        finite = {
            name: [None if math.isinf(each) else each for each in values] for name, values in arrays.items()
        }
        return {"rows": self.rows, **finite}

    @classmethod
    def from_dict(cls, content: Any, low: float, high: float) -> "Evidence":
        """The evidence that :meth:`to_dict` described; refused where it cannot be one."""
        found = cls(low, high)
        rows = content.get("rows") if isinstance(content, dict) else None
        # As many as a float counts one by one.
        if not isinstance(rows, int) or isinstance(rows, bool) or not 0 <= rows <= 2**53:
            raise ValueError("its evidence has no number of rows")
        found.rows = rows
        for name in _ARRAYS:
            values = content.get(name)
            if not isinstance(values, list) or len(values) != 2 * _STEPS:
                raise ValueError(f"its evidence lacks {name!r}")
            try:
                array = np.array([-math.inf if each is None else float(each) for each in values])
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"{name!r} of its evidence must hold numbers") from None
            setattr(found, name, array)
        return found


_ARRAYS = ("in_play", "product", "best", "best_row", "best_time")


def interval_of_mean(residuals: Floats, error: float) -> tuple[float, float]:
    """Limits of the mean of any number of values in [-1, 1], which fail with ``error`` at most.

    They are the means against which no mixture of bets over all samples would have won
    ``2 / error``.

    Args:
        residuals: Independent numbers ``(N,)``.
        error: The probability with which either limit may be wrong.

    Example:
        >>> low, high = interval_of_mean(np.tile([0.1, -0.9, 0.1, 0.1, 0.1], 400), 0.05)
        >>> round(low, 3), round(high, 3)
        (-0.132, -0.071)
    """
    from scipy.optimize import brentq
    from scipy.special import logsumexp

    wanted = math.log(2 / error)
    # Bets of the size that would have been best for a mean a little off, and some around it.
    sizes = _LARGEST * 0.5 ** np.arange(10)

    def excess(mean: float, side: float) -> float:
        worst = 1 + side * mean
        growth = [np.log1p(size / worst * side * (residuals - mean)).sum() for size in sizes]
        return float(logsumexp(growth) - math.log(len(sizes)) - wanted)

    middle, edge = float(residuals.mean()), 1 - 1e-9
    # A mean below all that is plausible loses to bets on larger numbers.
    low = -edge if excess(-edge, 1) <= 0 else brentq(lambda mean: excess(mean, 1), -edge, middle)
    high = edge if excess(edge, -1) <= 0 else brentq(lambda mean: excess(mean, -1), middle, edge)
    return float(low), float(high)


def _waiting(rows: "int | npt.NDArray[np.int64]") -> Any:
    """The money that is not in play after so many rows."""
    return 1 / (1 + np.log1p(np.asarray(rows) / _PATIENCE))


def _total(in_play: Floats) -> Any:
    """The logarithm of the mean over strategies of the money in play."""
    highest = in_play.max(0)
    safe = np.where(np.isfinite(highest), highest, 0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.exp(in_play - safe).mean(0))

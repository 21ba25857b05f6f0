"""The alarm: nonnegative, fair, the same however rows are cut, rarely false and soon."""

import math

import numpy as np
import pytest

from macc.monitor import Evidence, interval_of_mean
from macc.monitor.betting import OVER, UNDER


def slow_wealth(residuals, low, high):
    """The wealth after each row, with the money of every start kept apart."""
    fractions = [0.98 * 0.5**j for j in range(7)]
    waiting = lambda rows: 1 / (1 + math.log1p(rows / 1000))  # noqa: E731
    bets = [(f / (1 - low), lambda d: low - d) for f in fractions]
    bets += [(f / (1 + high), lambda d: d - high) for f in fractions]
    pots = [[] for _ in bets]
    wealth = []
    for row, residual in enumerate(residuals, start=1):
        for pot, (size, gain) in zip(pots, bets, strict=True):
            pot.append(waiting(row - 1) - waiting(row))
            factor = 1 + size * gain(residual)
            assert factor > 0
            pot[:] = [money * factor for money in pot]
        wealth.append(waiting(row) + sum(map(sum, pots)) / len(bets))
    return wealth


def draw(rows, seed, drop=0.0):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(8, 1.2, rows)
    return (rng.random(rows) < confidence - drop) - confidence


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (-0.02, 0.05), (0.01, 0.03)])
def test_the_wealth_is_that_of_a_slow_loop(low, high):
    residuals = draw(120, 0)
    evidence = Evidence(low, high)
    found = []
    for residual in residuals:
        evidence.update(np.array([residual]), np.zeros(1), limit=math.inf)
        found.append(math.exp(evidence.log_wealth()))

    assert found == pytest.approx(slow_wealth(residuals, low, high), rel=1e-12)


def test_worst_rows_leave_something():
    """All money in play may be lost to the last cent, and never more."""
    for residual in (-1.0, 1.0):
        evidence = Evidence(0.0, 0.0)
        evidence.update(np.full(3000, residual), np.zeros(3000), limit=math.inf)
        assert math.isfinite(evidence.log_wealth())


def test_the_bets_are_fair():
    """The mean wealth after a fixed number of rows is 1, over all outcomes of five rows."""
    confidence = np.array([0.9, 0.6, 0.99, 0.5, 0.75])
    mean = 0.0
    for outcome in range(32):
        right = np.array([outcome >> i & 1 for i in range(5)])
        evidence = Evidence(0.0, 0.0)
        evidence.update(right - confidence, np.zeros(5), limit=math.inf)
        mean += np.where(right, confidence, 1 - confidence).prod() * math.exp(evidence.log_wealth())

    assert mean == pytest.approx(1, rel=1e-12)


def test_parts_give_what_the_whole_gives():
    residuals = np.concatenate([draw(20_000, 1), draw(20_000, 2, drop=0.08)])
    times = np.arange(40_000.0)
    whole, parts = Evidence(-0.01, 0.01), Evidence(-0.01, 0.01)
    expected = whole.update(residuals, times, limit=math.log(100))
    alarms = []
    for start in range(0, 40_000, 777):
        part = slice(start, start + 777)
        alarms.append(parts.update(residuals[part], times[part], limit=math.log(100)))
        parts = Evidence.from_dict(parts.to_dict(), -0.01, 0.01)

    assert next(alarm for alarm in alarms if alarm is not None) == expected
    assert parts.log_wealth() == pytest.approx(whole.log_wealth(), rel=1e-9)
    assert expected.direction == OVER
    assert expected.row > 20_000
    assert abs(expected.change_row - 20_000) < 500
    assert expected.change_time == expected.change_row - 1


def test_both_directions_are_seen():
    alarm = Evidence(-0.01, 0.01).update(draw(20_000, 3, drop=-0.06), np.zeros(20_000), limit=math.log(100))

    assert alarm.direction == UNDER


def test_false_alarms_are_rarer_than_promised():
    """60 lives of 4 000 calibrated rows at alpha = 0.2: 21 alarms or more have probability 0.002 at
    0.2 each.
    """
    raised = sum(
        Evidence(0.0, 0.0).update(draw(4000, life), np.zeros(4000), limit=math.log(5)) is not None
        for life in range(60)
    )

    assert raised <= 20


def test_limits_of_a_mean_contain_it_and_shrink():
    missed = 0
    for seed in range(100):
        low, high = interval_of_mean(draw(400, seed), 0.2)
        missed += not low < 0 < high
    # 100 draws of probability 0.2 exceed 33 with probability 0.001.
    assert missed <= 33
    low, high = interval_of_mean(draw(20_000, 0), 0.05)
    assert high - low < 0.03
    assert interval_of_mean(np.array([0.1]), 0.05)[0] < -0.9


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.0), (-1.0, 0.0), (0.0, math.nan)])
def test_a_null_that_cannot_be_is_refused(low, high):
    with pytest.raises(ValueError, match="interval within"):
        Evidence(low, high)

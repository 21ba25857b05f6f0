"""A monitor over time."""

import math
from typing import TYPE_CHECKING

from macc.monitor import Monitor
from macc.report.figures.style import BLUE, FAINT, INK, VERMILLION, grid, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def over_time(monitor: Monitor, *, level: float = 0.95) -> "Figure":
    """Draw confidence and accuracy of each window, the error below, and where the alarm was.

    Accuracy of rows with labels is drawn full, that estimated for rows without labels hollow.

    Args:
        monitor: The monitor.
        level: Level of the intervals.

    Returns:
        The figure.

    Example:
        >>> import numpy as np
        >>> monitor = Monitor(2, window="1d")
        >>> monitor.update(np.full(200, 0.8), np.arange(200) % 5 < 4, np.arange(200) * 3600.0, batch="a")
        >>> [ax.get_ylabel() for ax in over_time(monitor).axes]
        ['%', 'ECE, %']
    """
    settings = monitor.settings
    windows = monitor.windows()
    with style():
        when = [_date(start + settings.window / 2) for start in windows]
        figure, ((above,), (below,)) = grid(2, 1, (7.0, 2.4), sharex=True, height_ratios=(1.6, 1))
        shares = [100 * window.mean_confidence for window in windows.values()]
        above.plot(when, shares, color=BLUE, label="confidence")
        for label, face, found in (
            ("accuracy", INK, [window.accuracy(level) for window in windows.values()]),
            (
                "estimated, without labels",
                "white",
                [
                    window.estimated_accuracy(settings.low, settings.high, level)
                    for window in windows.values()
                ],
            ),
        ):
            there = [(at, each) for at, each in zip(when, found, strict=True) if not math.isnan(each.value)]
            if there:
                at, values = zip(*there, strict=True)
                middle = [100 * each.value for each in values]
                down = [100 * (each.value - each.low) for each in values]
                up = [100 * (each.high - each.value) for each in values]
                above.errorbar(
                    at,
                    middle,
                    [down, up],
                    fmt="o",
                    color=INK,
                    markerfacecolor=face,
                    markersize=4,
                    label=label,
                )
        errors = [window.ece(level) for window in windows.values()]
        below.plot(when, [100 * each.value for each in errors], color=INK, marker="o", markersize=3)
        below.fill_between(
            when,
            [100 * each.low for each in errors],
            [100 * each.high for each in errors],
            color=FAINT,
            alpha=0.3,
        )
        alarm = monitor.alarm
        if alarm is not None:
            for ax in (above, below):
                ax.axvline(_date(alarm.time), color=VERMILLION, label="alarm")
                ax.axvline(
                    _date(alarm.change_time),
                    color=VERMILLION,
                    linestyle=":",
                    label="change, estimated",
                )
        above.set_ylabel("%")
        below.set_ylabel("ECE, %")
        above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        below.xaxis_date()
        figure.autofmt_xdate()
    return figure


def _date(time: float) -> float:
    """A time as matplotlib counts it, in days since 1970."""
    return time / 86400

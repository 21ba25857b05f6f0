"""Accuracy against calibration."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from macc import metrics
from macc.metrics import Estimate
from macc.report.figures.style import BLUE, FAINT, INK, RULE, axis, figure_of, legend, panel, plain
from macc.words import documented

MOST_NAMED = 5
"""More names than this beside their points would overlap; they get numbers, and the names stand
beside the axes.
"""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names that nobody beats: no other is as accurate and as well calibrated, and better in
    one of both.

    Args:
        points: Accuracy and calibration error, by name.

    Example:
        >>> front({"a": (0.90, 0.010), "b": (0.92, 0.020), "c": (0.89, 0.015)})
        ['a', 'b']
    """
    kept = [
        name
        for name, (accuracy, error) in points.items()
        if not any(a >= accuracy and e <= error and (a > accuracy or e < error) for a, e in points.values())
    ]
    return sorted(kept, key=lambda name: points[name])


@documented
def pareto(points: Mapping[str, tuple[Estimate, Estimate]], *, ax: "Axes | None" = None) -> "Figure":
    """Draw accuracy against SCE with their intervals, and the front of those that no other beats in
    both.

    Args:
        points: Accuracy and SCE of each model, by its name, as :func:`macc.evaluate` gives them.

    Returns:
        The figure.

    Example:
        >>> import macc
        >>> report = macc.evaluate([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1], metrics=["accuracy", "sce"])
        >>> figure = pareto({"mine": (report["accuracy"], report["sce"])})
        >>> figure.axes[0].get_xlabel()
        'accuracy (%)'
    """
    best = front({name: (accuracy.value, error.value) for name, (accuracy, error) in points.items()})
    right, wrong = metrics.accuracy.unit.scale, metrics.sce.unit.scale
    with panel(ax) as ax:
        numbered = len(points) > MOST_NAMED
        for number, (name, (accuracy, error)) in enumerate(points.items(), start=1):
            x, y = right * accuracy.value, wrong * error.value
            colour = BLUE if name in best else FAINT
            ax.errorbar(
                [x],
                [y],
                xerr=_reach(x, right * accuracy.low, right * accuracy.high),
                yerr=_reach(y, wrong * error.low, wrong * error.high),
                fmt="o",
                color=colour,
                elinewidth=0.8,
                alpha=0.9,
                markersize=6,
                label=f"{number}  {plain(name)}" if numbered else None,
            )
            text = str(number) if numbered else plain(name)
            ax.annotate(text, (x, y), xytext=(6, 6), textcoords="offset points", fontsize=8.5, color=INK)
        x_front = [right * points[name][0].value for name in best]
        y_front = [wrong * points[name][1].value for name in best]
        ax.plot(
            x_front,
            y_front,
            color=BLUE,
            linewidth=1,
            linestyle="--",
            drawstyle="steps-post",
            marker="o",
            markersize=6,
            label="no other is better in both",
            zorder=1,
        )
        legend(ax)
        ax.margins(0.12)
        ax.set(xlabel=axis(metrics.accuracy), ylabel=axis(metrics.sce))
        ax.set_ylim(bottom=0)
        ax.grid(color=RULE)
    return figure_of(ax)


def _reach(value: float, low: float, high: float) -> list[list[float]]:
    """How far an interval reaches to both sides; nothing where there is none."""
    return [[max(0.0, value - low)], [max(0.0, high - value)]] if low <= high else [[0.0], [0.0]]

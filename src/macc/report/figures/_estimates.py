"""Values with intervals below each other: groups, or classes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from macc.metrics import Estimate
from macc.report.figures.style import BLUE, FAINT, INK, RULE, figure_of, panel, plain
from macc.tables import PERCENT, Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def estimates(
    named: Mapping[str, Estimate],
    *,
    label: str,
    unit: Unit = PERCENT,
    asked: float | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw values with their intervals on a line each, the first one on top.

    Args:
        named: The values by name. Where they have a noise floor, a grey mark shows it.
        label: What they are.
        unit: How they are written.
        asked: Where a dashed line shows what was asked for.
        ax: Axes to draw into; a new figure by default.

    Returns:
        The figure.

    Example:
        >>> figure = estimates({"west": Estimate(0.15, 0.11, 0.18, 0.03)}, label="ECE")
        >>> figure.axes[0].get_xlabel(), [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ('ECE (%)', ['west'])
    """
    known = list(named.values())
    places = list(range(len(known)))
    values = [unit.scale * each.value for each in known]
    reach = [
        [value - unit.scale * each.low for value, each in zip(values, known, strict=True)],
        [unit.scale * each.high - value for value, each in zip(values, known, strict=True)],
    ]
    with panel(ax, (6.4, 1.1 + 0.3 * len(known))) as ax:
        ax.errorbar(values, places, xerr=reach, fmt="o", color=BLUE, markersize=5, elinewidth=1.2)
        floors = [(each.noise_floor, at) for each, at in zip(known, places, strict=True)]
        there = [(unit.scale * floor, at) for floor, at in floors if floor is not None]
        if there:
            ax.plot(*zip(*there, strict=True), "|", color=FAINT, markersize=12, label="by chance")
        if asked is not None:
            ax.axvline(unit.scale * asked, color=INK, linestyle="--", linewidth=1, label="asked for")
        if there or asked is not None:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1))
        ax.set_yticks(places, [plain(name) for name in named])
        ax.set_ylim(len(known) - 0.5, -0.5)
        ax.set_xlabel(f"{label} ({unit.symbol})" if unit.symbol else label)
        ax.grid(axis="x", color=RULE)
    return figure_of(ax)

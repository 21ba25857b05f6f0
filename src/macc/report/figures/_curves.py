"""Lines: over epochs, over the severity of a shift, over the share of cases answered."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from macc.metrics import registry
from macc.metrics.correctness import claimed
from macc.metrics.inputs import Array, predictions
from macc.metrics.selective import answered
from macc.report.figures.style import axis, figure_of, legend, line_look, panel, plain
from macc.words import did_you_mean, documented

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 300
HANDED_OVER = 0.01
SHADED = 2
"""More ranges than this hide each other."""


@documented
def convergence(
    named: Mapping[str, Sequence[Mapping[int, float]]], metric: str, *, ax: "Axes | None" = None
) -> "Figure":
    """Draw a metric after every epoch, for several methods; with several seeds the mean and the
    range.

    Args:
        named: For each method its seeds: the metric by epoch, in plain units (an ECE of 2 % is
            0.02).
        metric: The name of a metric, for the axis.

    Returns:
        The figure.

    Example:
        >>> figure = convergence({"FL+MACC": [{1: 0.10, 2: 0.02}]}, "ece")
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [10.0, 2.0]
    """
    with panel(ax) as ax:
        for index, (name, seeds) in enumerate(named.items()):
            shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
            values = [[seed[epoch] for seed in seeds] for epoch in shared]
            _line(ax, index, name, shared, values, metric, shade=True)
        _finish(ax, metric, "epoch")
    return figure_of(ax)


@documented
def severity_curve(
    named: Mapping[str, Mapping[int, Sequence[float]]], metric: str, *, ax: "Axes | None" = None
) -> "Figure":
    """Draw a metric against the severity of a shift: the mean over kinds of shift.

    With one or two methods a shade shows their range.

    Args:
        named: For each method the values of all kinds of shift, by severity; 0 is the clean test
            set.
        metric: The name of a metric, for the axis.

    Returns:
        The figure.

    Example:
        >>> figure = severity_curve({"NLL": {0: [0.02], 1: [0.04, 0.08]}}, "ece")
        >>> figure.axes[0].lines[0].get_ydata().round(6).tolist()
        [2.0, 6.0]
    """
    with panel(ax) as ax:
        for index, (name, levels) in enumerate(named.items()):
            shared = sorted(levels)
            values = [levels[level] for level in shared]
            _line(ax, index, name, shared, values, metric, shade=len(named) <= SHADED)
        _finish(ax, metric, "severity (0: no shift)")
    return figure_of(ax)


@documented
def risk_coverage(
    named: Mapping[str, tuple[Array, Array]],
    *,
    from_logits: bool = False,
    answers: bool = False,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw the error rate on the most confident share of cases, when the others are handed to a
    person.

    Args:
        named: Probabilities and labels of each model, by its name.
        from_logits: They are logits.
        answers: The scores are the confidence ``(N,)`` of answers, and labels say which were right.

    Returns:
        The figure.

    Example:
        >>> figure = risk_coverage({"mine": ([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1])})
        >>> figure.axes[0].lines[0].get_ydata().round(1).tolist()
        [0.0, 0.0, 33.3]
    """
    with panel(ax) as ax:
        for index, (name, (probs, labels)) in enumerate(named.items()):
            given = predictions(probs, labels, from_logits=from_logits)
            curve, size = answered(claimed(given, answers=answers)), given.num_samples
            # The error of a handful of cases says nothing and makes the line jump.
            first = max(1, round(HANDED_OVER * size))
            points = min(size - first + 1, MOST_POINTS)
            at = sorted({first + round(i * (size - first) / max(1, points - 1)) for i in range(points)})
            x, y = [100 * k / size for k in at], 100 * curve.risks(curve.samples.new_tensor([at]))[0].cpu()
            label = f"{plain(name)}, AURC {float(curve.area):.4f}"
            ax.plot(x, y, label=label, **line_look(index, len(x)))
        legend(ax, "upper left")
        ax.set(xlim=(0, 100), xlabel="coverage: % of cases answered", ylabel="error rate among them (%)")
        ax.set_ylim(bottom=0)
        ax.grid(axis="y")
    return figure_of(ax)


@documented
def training_curve(
    named: Mapping[str, Sequence[Mapping[str, Any]]], key: str, *, ax: "Axes | None" = None
) -> "Figure":
    """Draw one column of the history of several runs: a loss term, or a validation metric.

    Args:
        named: The ``history`` of each run, by its name.
        key: ``"train/MACC"``, ``"val/ece"``, …; runs without it are left out.

    Returns:
        The figure.

    Example:
        >>> figure = training_curve({"a": [{"epoch": 1, "val/ece": 0.2}, {"epoch": 2, "val/ece": 0.1}]}, "val/ece")
        >>> figure.axes[0].get_title(), figure.axes[0].lines[0].get_ydata().tolist()
        ('validation', [20.0, 10.0])
    """
    split, _, name = key.partition("/")
    with panel(ax) as ax:
        for index, (run, rows) in enumerate(named.items()):
            there = [(row["epoch"], row[key]) for row in rows if row.get(key) is not None]
            if there:
                unit = registry()[name].unit.scale if split == "val" and name in registry() else 1.0
                x, y = [epoch for epoch, _ in there], [unit * value for _, value in there]
                ax.plot(x, y, label=plain(run), **line_look(index, len(x)))
        ax.set_title({"val": "validation", "train": "training"}.get(split, split))
        _whole_ticks(ax)
        label = axis(registry()[name]) if split == "val" and name in registry() else name
        ax.set(xlabel="epoch", ylabel="loss" if label == "loss" else plain(label))
        ax.grid(axis="y")
    return figure_of(ax)


def _line(
    ax: "Axes",
    index: int,
    name: str,
    x: Sequence[int],
    values: Sequence[Sequence[float]],
    metric: str,
    *,
    shade: bool,
) -> None:
    if metric not in registry():
        raise ValueError(f"no metric is called {metric!r}; {did_you_mean(metric, registry())}")
    unit = registry()[metric].unit.scale
    means = [unit * sum(each) / len(each) for each in values]
    shown = line_look(index, len(x))
    ax.plot(list(x), means, label=plain(name), zorder=3, **shown)
    if shade and any(len(each) > 1 for each in values):
        low, high = ([unit * end(each) for each in values] for end in (min, max))
        ax.fill_between(list(x), low, high, color=shown["color"], alpha=0.12, linewidth=0, zorder=2)


def _finish(ax: "Axes", metric: str, below: str) -> None:
    ax.set(xlabel=below, ylabel=axis(registry()[metric]))
    if registry()[metric].floored:
        ax.set_ylim(0, 1.05 * max(ax.dataLim.ymax, 1e-9))
    _whole_ticks(ax)
    ax.grid(axis="y")
    legend(ax)


def _whole_ticks(ax: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if ax.dataLim.width == 0:
        ax.set_xlim(ax.dataLim.x0 - 1, ax.dataLim.x0 + 1)

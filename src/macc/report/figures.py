"""Figures of calibration, drawn with matplotlib but without its global state."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from macc.metrics import Report

# Okabe and Ito's colours, told apart by every kind of colour vision.
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#6B6B6B"


def reliability_diagram(report: "Report", ax: "Axes | None" = None) -> "Figure":
    """Draw accuracy against confidence, the gap of each bin, and how many samples each holds.

    A bar is the accuracy of a bin with the interval its number of samples allows; the hatched part is
    its gap to the confidence claimed. Bins without samples have no bar.

    Args:
        report: The result of :func:`macc.evaluate`.
        ax: Axes to draw into; a new figure with a histogram of confidence below by default.

    Returns:
        The figure, to be saved with ``figure.savefig(path)``.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            f'figures need matplotlib ({error}); install it with: pip install "macc-torch[report]"'
        ) from error

    if ax is None:
        figure = Figure(figsize=(5.2, 6.2), layout="constrained")
        ax, counts = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        _draw_counts(report, counts)
    else:
        figure = ax.figure  # type: ignore[assignment]
        ax.set_xlabel("confidence")
    _draw_bins(report, ax)
    return figure


def _draw_bins(report: "Report", ax: "Axes") -> None:
    filled = [row for row in report.bins if row.samples]
    width = 1 / len(report.bins)
    middle = [(row.low + row.high) / 2 for row in filled]
    accuracy = [row.accuracy for row in filled]
    confidence = [row.confidence for row in filled]
    ax.plot([0, 1], [0, 1], color=_GREY, linewidth=1, linestyle="--", label="perfect calibration", zorder=3)
    ax.bar(middle, accuracy, width=0.94 * width, color=_BLUE, alpha=0.75, label="accuracy", zorder=1)
    ax.bar(
        middle,
        [c - a for a, c in zip(accuracy, confidence, strict=True)],
        bottom=accuracy,
        width=0.94 * width,
        facecolor="none",
        edgecolor=_ORANGE,
        hatch="////",
        linewidth=1,
        label="gap to confidence",
        zorder=2,
    )
    limits = [
        [row.accuracy - row.accuracy_low for row in filled],
        [row.accuracy_high - row.accuracy for row in filled],
    ]
    ax.errorbar(middle, accuracy, yerr=limits, fmt="none", ecolor="black", elinewidth=1, capsize=2, zorder=4)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    ax.legend(loc="upper left", frameon=False, fontsize="small")
    text = _annotation(report)
    if text:
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        ax.text(
            0.98,
            0.03,
            text,
            transform=ax.transAxes,
            ha="right",
            va="bottom",
            fontsize="small",
            bbox=box,
            zorder=5,
        )


def _annotation(report: "Report") -> str:
    if "ece" not in report.metrics:
        return ""
    ece = report["ece"]
    return (
        f"ECE {100 * ece.value:.1f} % ({100 * ece.low:.1f} – {100 * ece.high:.1f})\n"
        f"by chance alone {100 * (ece.noise_floor or 0):.1f} %"
    )


def _draw_counts(report: "Report", ax: "Axes") -> None:
    filled = [row for row in report.bins if row.samples]
    width = 1 / len(report.bins)
    shares = [100 * row.samples / report.num_samples for row in filled]
    middle = [(row.low + row.high) / 2 for row in filled]
    ax.bar(middle, shares, width=0.94 * width, color=_GREY, zorder=1)
    for x, share, row in zip(middle, shares, filled, strict=True):
        ax.annotate(
            _short(row.samples),
            (x, share),
            xytext=(0, 1),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=6,
        )
    for value, style, name in (
        (report.mean_accuracy, "-", "accuracy"),
        (report.mean_confidence, ":", "mean confidence"),
    ):
        ax.axvline(
            value, color="black", linestyle=style, linewidth=1, label=f"{name} {100 * value:.1f} %", zorder=2
        )
    ax.legend(loc="upper left", frameon=False, fontsize="x-small")
    ax.set(xlabel="confidence", ylabel="% of samples", ylim=(0, max(shares) * 1.25))


def _short(count: int) -> str:
    """A count in at most four characters."""
    if count < 1000:
        return str(count)
    power = min(3, int(math.log10(count)) // 3)
    return f"{count / 1000**power:.3g}{' kMG'[power]}"

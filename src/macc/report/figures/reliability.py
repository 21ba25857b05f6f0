"""Confidence against accuracy: reliability diagrams and histograms of confidence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from macc.metrics import Bin, Report
from macc.metrics.binning import bin_index
from macc.metrics.correctness import claimed
from macc.metrics.inputs import Array, check_bins, predictions
from macc.report.figures.style import (
    BLUE,
    FAINT,
    INK,
    VERMILLION,
    WIDE,
    figure_of,
    grid,
    look,
    panel,
    plain,
    style,
)
from macc.words import class_called, documented

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reliability_diagram(report: Report, ax: "Axes | None" = None) -> "Figure":
    """Draw accuracy against confidence, the gap of each bin, and how many samples each holds.

    A bar is the accuracy of a bin with the interval its number of samples allows; the hatched part
    is its gap to the confidence claimed. The wider the interval, the fainter the bar; bins without
    samples have none. With two classes, the share of the positive class is drawn against its
    probability.

    Args:
        report: The result of :func:`macc.evaluate`.
        ax: Axes to draw into; a new figure with a histogram of confidence below by default.

    Returns:
        The figure, to be saved with ``figure.savefig(path)``.

    Example:
        >>> import macc
        >>> report = macc.evaluate([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1], metrics=["ece"])
        >>> figure = reliability_diagram(report)
        >>> figure.axes[0].get_ylabel(), figure.axes[1].get_xlabel()
        ('share of class 1', 'P(class 1)')
    """
    if ax is not None:
        ax.set_xlabel(_Drawn.of(report).said)
        draw_bins(report, ax)
        ax.legend(loc="upper left")
        return figure_of(ax)
    return reliability_diagrams({"": report})


def reliability_diagrams(reports: Mapping[str, Report]) -> "Figure":
    """Draw the reliability diagrams of several models beside each other, in rows of at most four.

    Args:
        reports: Results of :func:`macc.evaluate`, by name.

    Returns:
        The figure.
    """
    columns = min(len(reports), WIDE)
    blocks = -(-len(reports) // columns)
    with style():
        size = (4.6, 2.8) if columns == 1 else (3.9, 2.6)
        figure, rows = grid(2 * blocks, columns, size, height_ratios=(4, 1.4) * blocks)
        for index in range(blocks * columns):
            top, below = (rows[2 * (index // columns) + k][index % columns] for k in (0, 1))
            if index >= len(reports):
                top.set_axis_off()
                below.set_axis_off()
                continue
            name, report = list(reports.items())[index]
            draw_bins(report, top)
            draw_counts(report, below)
            top.set_title("\n".join(filter(None, (plain(name), top.get_title()))))
            top.tick_params(labelbottom=False)
            below.set_xlabel(_Drawn.of(report).said)
            if index % columns:
                top.set_ylabel("")
                below.set_ylabel("")
        handles, names = rows[0][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2 if columns == 1 else 4)
    return figure


@documented
def confidence_histogram(
    probs: Array,
    labels: Array,
    *,
    bins: int = 15,
    from_logits: bool = False,
    answers: bool = False,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw how the confidence of the predictions is distributed, with its mean and the accuracy as
    lines.

    A solid line at the accuracy and a dotted one at the mean confidence: where the dotted one lies
    to the right, the model is over-confident.

    Args:
        answers: The scores are the confidence ``(N,)`` of answers, and labels say which were right.

    Returns:
        The figure.

    Example:
        >>> figure = confidence_histogram([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1])
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['accuracy 66.7 %', 'mean confidence 73.3 %']
    """
    check_bins(bins)
    confidence, correct = claimed(predictions(probs, labels, from_logits=from_logits), answers=answers)
    with panel(ax) as ax:
        counts = bin_index(confidence, bins).bincount(minlength=bins)
        filled = [i for i in range(bins) if counts[i]]
        heights = [100 * int(counts[i]) / len(confidence) for i in filled]
        ax.bar([(i + 0.5) / bins for i in filled], heights, width=0.94 / bins, color=BLUE, alpha=0.75)
        _lines(ax, float(correct.mean()), float(confidence.mean()))
        ax.legend(loc="upper left")
        ax.set(xlim=(0, 1), xlabel="confidence", ylabel="% of samples", ylim=(0, 1.3 * max(heights)))
    return figure_of(ax)


@documented
def wrong_confidence(
    named: Mapping[str, tuple[Array, Array]],
    *,
    bins: int = 15,
    from_logits: bool = False,
    answers: bool = False,
    ax: "Axes | None" = None,
) -> "Figure":
    """Draw how confident the wrong predictions of one or several models are.

    Each outline is the share of a model's *own* wrong predictions in each bin; the legend says how
    many there are and their mean confidence.

    Args:
        named: Probabilities and labels of each model, by its name.
        from_logits: They are logits.
        answers: The scores are the confidence ``(N,)`` of answers, and labels say which were right.

    Returns:
        The figure.

    Example:
        >>> figure = wrong_confidence({"mine": ([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]], [0, 1, 1])})
        >>> figure.axes[0].get_legend().get_texts()[0].get_text()
        'mine: 1 wrong of 3, mean confidence 60.0 %'
    """
    check_bins(bins)
    highest = 0.0
    with panel(ax) as ax:
        for index, (name, (probs, labels)) in enumerate(named.items()):
            confidence, correct = claimed(
                predictions(probs, labels, from_logits=from_logits), answers=answers
            )
            wrong = confidence[correct == 0]
            text = f"{plain(name)}: {len(wrong)} wrong of {len(correct)}"
            shares = [0.0] * bins
            if len(wrong):
                text += f", mean confidence {100 * float(wrong.mean()):.1f} %"
                counts = bin_index(wrong, bins).bincount(minlength=bins)
                shares = [100 * int(count) / len(wrong) for count in counts]
            highest = max(highest, *shares)
            edges = [i / bins for i in range(bins + 1)]
            colours = look(index)
            ax.stairs(shares, edges, label=text, linewidth=1.8, zorder=3, **colours)
            ax.stairs(shares, edges, fill=True, alpha=0.13, color=colours["color"], zorder=2)
        ax.legend(loc="upper left")
        top = (1.2 + 0.1 * len(named)) * (highest or 1)
        ax.set(xlim=(0, 1), ylim=(0, top), xlabel="confidence", ylabel="% of wrong predictions")
    return figure_of(ax)


@dataclass(frozen=True)
class _Drawn:
    """What a diagram is about: the predicted class, or of two classes the positive one."""

    bins: Sequence[Bin]
    metric: str
    said: str
    seen: str

    @classmethod
    def of(cls, report: Report, *, top_label: bool = False) -> "_Drawn":
        if report.positive is None or top_label:
            return cls(report.bins, "ece", "confidence", "accuracy")
        if report.answers:
            return cls(report.positive.bins, "positive_ece", "confidence", "share of right answers")
        name = plain(class_called(report.positive.name))
        return cls(report.positive.bins, "positive_ece", f"P({name})", f"share of {name}")


def draw_bins(report: Report, ax: "Axes", *, top_label: bool = False) -> None:
    """The bars of a reliability diagram; with ``top_label`` those of the predicted class."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    drawn = _Drawn.of(report, top_label=top_label)
    filled = [row for row in drawn.bins if row.samples]
    width = 1 / len(drawn.bins)
    # A bin of one sample says next to nothing, and must not look like one of a thousand.
    weights = [1 - (row.accuracy_high - row.accuracy_low) for row in filled]
    middle = [(row.low + row.high) / 2 for row in filled]
    accuracy = [row.accuracy for row in filled]
    confidence = [row.confidence for row in filled]
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=1, linestyle="--", label="perfect calibration", zorder=3)
    ax.bar(middle, accuracy, width=0.94 * width, color=[to_rgba(BLUE, 0.75 * w) for w in weights], zorder=1)
    ax.bar(
        middle,
        [c - a for a, c in zip(accuracy, confidence, strict=True)],
        bottom=accuracy,
        width=0.94 * width,
        facecolor="none",
        edgecolor=[to_rgba(VERMILLION, w) for w in weights],
        hatch="////",
        linewidth=1,
        zorder=2,
    )
    # The legend shows what a full bin looks like.
    for key in (
        Rectangle((0, 0), 0, 0, facecolor=to_rgba(BLUE, 0.75), label=drawn.seen),
        Rectangle(
            (0, 0), 0, 0, facecolor="none", edgecolor=VERMILLION, hatch="////", label=f"gap to {drawn.said}"
        ),
    ):
        ax.add_patch(key)
    limits = [
        # At 0 and 1 rounding may put a limit a hair on the wrong side.
        [max(0.0, row.accuracy - row.accuracy_low) for row in filled],
        [max(0.0, row.accuracy_high - row.accuracy) for row in filled],
    ]
    interval = ax.errorbar(
        middle, accuracy, yerr=limits, fmt="none", ecolor=INK, elinewidth=1, capsize=2, zorder=4
    )
    interval.set_label(f"{100 * report.confidence:g} % interval")
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel=drawn.seen)
    ax.set_title(_annotation(report, drawn.metric), fontsize=9)


def draw_counts(report: Report, ax: "Axes") -> None:
    """How many samples each bin holds, under a reliability diagram."""
    drawn = _Drawn.of(report)
    filled = [row for row in drawn.bins if row.samples]
    width = 1 / len(drawn.bins)
    total = sum(row.samples for row in filled)
    shares = [100 * row.samples / total for row in filled]
    middle = [(row.low + row.high) / 2 for row in filled]
    ax.bar(middle, shares, width=0.94 * width, color=FAINT, zorder=1)
    for x, share, row in zip(middle, shares, filled, strict=True):
        ax.annotate(
            _short(round(row.samples)),
            (x, share),
            xytext=(0, 1),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=6.5,
            zorder=3,
        )
    if report.positive is None or report.answers:
        _lines(ax, report.mean_accuracy, report.mean_confidence)
    else:
        _lines(ax, report.positive.frequency, report.positive.mean_probability, ("happens", "mean P"))
    # Above the panel: within it there is no place that the bars of every report leave free.
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, borderaxespad=0)
    ax.set(ylabel="% of samples", xlim=(0, 1), ylim=(0, max(shares) * 1.2))


def _lines(
    ax: "Axes",
    accuracy: float,
    confidence: float,
    names: tuple[str, str] = ("accuracy", "mean confidence"),
) -> None:
    for value, dashes, name in zip((accuracy, confidence), "-:", names, strict=True):
        text = f"{name} {100 * value:.1f} %"
        ax.axvline(value, color=INK, linestyle=dashes, linewidth=1.3, label=text, zorder=2)


def _annotation(report: Report, metric: str) -> str:
    if metric not in report.metrics:
        return ""
    ece = report[metric]
    value = f"{100 * ece.value:.1f} % ({100 * ece.low:.1f} – {100 * ece.high:.1f})"
    chance = f"by chance alone {100 * (ece.noise_floor or 0):.1f} %"
    if metric == "ece":
        return f"ECE {value}, {chance}"
    if report.answers:
        return f"ECE {value}\n{chance}"
    beside = f", top label {100 * report['ece'].value:.1f} %" if "ece" in report.metrics else ""
    return f"ECE of the positive class {value}\n{chance}{beside}"


def _short(count: int) -> str:
    """A count in at most four characters."""
    if count < 1000:
        return str(count)
    power = min(3, int(math.log10(count)) // 3)
    return f"{count / 1000**power:.3g}{' kMG'[power]}"

"""``macc plot``: every kind of figure, for run folders and prediction files.

A kind is one function of sources with a line of help; :data:`KINDS` finds it by its name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from macc import metrics
from macc.heads import LogitMoments
from macc.io.writing import write_whole
from macc.metrics import Report, headline, headline_errors
from macc.predictions import Loaded
from macc.report import figures
from macc.report.figures import Said
from macc.report.figures._certainty import group_count
from macc.report.figures._samples import contrast
from macc.report.figures.reliability import reliability_diagrams
from macc.report.figures.style import WIDE, check_format, grid, note, plain, save, style, width_for
from macc.report.sources import ReportSource, each_shift, open_sources, same_labels
from macc.training.runs import SPREAD
from macc.words import did_you_mean, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

SHOWN_SAMPLES = 4
MOST_OUTLINES = 3
"""More outlines than this in one panel hide each other."""


@dataclass(frozen=True)
class Wanted:
    """What to draw: sources, of which split, with data from where."""

    sources: list[ReportSource]
    split: str = "test"
    root: str | PathLike[str] | None = None

    def pairs(self) -> dict[str, tuple[Any, Any]]:
        """Probabilities and labels of every source, by name."""
        return {source.name: source.pair(self.split) for source in self.sources}

    @property
    def answers(self) -> bool:
        """Whether all sources, which are of one kind, are answers without classes."""
        found = {source.predictions(self.split).answers: source for source in self.sources}
        if len(found) == 2:
            raise ValueError(
                f"{shown(found[True].path)} has answers and {shown(found[False].path)} classes; draw them apart"
            )
        return True in found


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure."""

    draw: "Callable[[Wanted], Figure]"
    summary: str


KINDS: dict[str, FigureKind] = {}


def kind(name: str, summary: str) -> "Callable[[Callable[[Wanted], Figure]], Callable[[Wanted], Figure]]":
    """Register the function below as a kind of figure."""

    def register(draw: "Callable[[Wanted], Figure]") -> "Callable[[Wanted], Figure]":
        KINDS[name] = FigureKind(draw, summary)
        return draw

    return register


def plot(
    kind: str,
    paths: Sequence[str | PathLike[str]],
    *,
    split: str = "test",
    root: str | PathLike[str] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> "Figure":
    """Draw a kind of figure for run folders and prediction files.

    Args:
        kind: A name of :data:`KINDS`.
        paths: Run folders or prediction files.
        split: Which of a run's predictions.
        root: The folder with data files, for kinds that show images.
        reading: How to read prediction files: ``label_column``, ``class_columns``, ``ignore``,
            ``logits``, ``labels_are``, ``drop_missing``, ``labels`` of every ``.npy``, and the
            ``positive`` class of two.

    Returns:
        The figure.
    """
    if kind not in KINDS:
        raise ValueError(f"no figure is called {kind!r}; {did_you_mean(kind, KINDS)}")
    if not paths:
        raise ValueError(f"give a run folder or a prediction file to draw {kind} of")
    with style():
        return KINDS[kind].draw(Wanted(open_sources(paths, reading), split, root))


def write(
    kind: str,
    paths: Sequence[Path],
    output: Path,
    *,
    split: str = "test",
    root: Path | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Path:
    """Draw a kind of figure and write it as the ending of the file's name says; the file."""
    form = check_format(output)
    figure = plot(kind, paths, split=split, root=root, reading=reading)
    with write_whole(output) as file:
        save(figure, file, form)
    return output


def evaluated(
    found: Loaded, wanted: Sequence[str], resamples: int = 1000, positive: str | None = None
) -> Report:
    """Metrics of predictions, by the names asked for."""
    return metrics.evaluate(
        found.scores,
        found.labels,
        metrics=wanted,
        from_logits=found.from_logits,
        classes=found.classes,
        positive=positive,
        resamples=resamples,
        answers=found.answers,
    )


def measured(found: Loaded, metric: str) -> float:
    """One metric without its interval."""
    function = getattr(metrics, metric)
    return float(function(found.scores, found.labels, from_logits=found.from_logits))


def panels(
    count: int, size: tuple[float, float], *, wide: int = WIDE, **options: Any
) -> "tuple[Figure, list[Axes]]":
    """As many panels as there are things to draw, in rows of at most ``wide``."""
    columns = min(count, wide)
    figure, rows = grid(-(-count // columns), columns, size, **options)
    flat = [ax for row in rows for ax in row]
    for ax in flat[count:]:
        ax.set_axis_off()
    return figure, flat[:count]


def one_legend(figure: "Figure", axes: "Sequence[Axes]") -> None:
    """Name the lines of all panels once, above them, in the order in which they were drawn."""
    handles: dict[str, Line2D] = {}
    for ax in axes:
        for line in ax.lines:
            handles.setdefault(str(line.get_label()), line)
        if ax.get_legend() is not None:
            ax.get_legend().remove()  # type: ignore[union-attr]
    figure.legend(
        list(handles.values()), list(handles), loc="outside upper left", ncols=min(WIDE, len(handles))
    )


@kind("reliability", "accuracy against confidence, gaps, counts and intervals: a panel for each run")
def reliability(wanted: Wanted) -> "Figure":
    """Reliability diagrams side by side."""
    reports = {
        s.name: evaluated(s.predictions(wanted.split), ["ece"], positive=s.positive) for s in wanted.sources
    }
    return reliability_diagrams(reports)


@kind("confidence", "histogram of confidence with the lines of accuracy and mean confidence")
def confidence(wanted: Wanted) -> "Figure":
    """Histograms side by side."""
    figure, axes = panels(len(wanted.sources), (4.0, 3.0), sharey=True)
    for ax, (name, (probs, labels)) in zip(axes, wanted.pairs().items(), strict=True):
        figures.confidence_histogram(probs, labels, answers=wanted.answers, ax=ax)
        ax.set_title(plain(name))
        if ax is not axes[0]:
            ax.set_ylabel("")
    top = max(ax.get_ylim()[1] for ax in axes)
    axes[0].set_ylim(0, top)
    return figure


@kind(
    "mistakes",
    "confidence of the wrong predictions; more than three runs have a panel each, with the first run",
)
def mistakes(wanted: Wanted) -> "Figure":
    """One panel, or one for each run beside the first: few outlines can share one."""
    pairs = wanted.pairs()
    if len(pairs) <= MOST_OUTLINES:
        figure, (ax,) = panels(1, (5.6, 3.8))
        figures.wrong_confidence(pairs, answers=wanted.answers, ax=ax)
        return figure
    (first, of_first), *others = pairs.items()
    figure, axes = panels(len(others), (5.2, 3.2), wide=3, sharey=True)
    top = []
    for ax, (name, pair) in zip(axes, others, strict=True):
        figures.wrong_confidence({first: of_first, name: pair}, answers=wanted.answers, ax=ax)
        ax.set_title(plain(name))
        top.append(ax.get_ylim()[1])
        if ax.get_subplotspec().colspan.start:  # type: ignore[union-attr]
            ax.set_ylabel("")
    # Each panel left room for its legend above its own highest outline.
    axes[0].set_ylim(0, max(top))
    return figure


@kind("gap", "|certainty − confidence| in domain and, where there are shifted sets, out of it; needs moments")
def gap(wanted: Wanted) -> "Figure":
    """A row for each run."""
    found = [(source, gap_parts(source, wanted.split)) for source in wanted.sources]
    columns = max(len(parts) for _, parts in found)
    figure, rows = grid(len(found), columns, (4.2, 2.9), sharey=True)
    for row, (source, parts) in zip(rows, found, strict=True):
        for ax in row[len(parts) :]:
            ax.set_axis_off()
        for ax, (title, (moments, labels)) in zip(row, parts.items(), strict=False):
            figures.certainty_gap(moments, labels, ax=ax)
            ax.set_title(f"{plain(source.name)}, {plain(title)}")
            if ax is not row[0]:
                ax.set_ylabel("")
    note(
        figure, "Over all samples and classes, with 10 dropout masks at test; ECE and SCE of the mean logits."
    )
    return figure


def gap_parts(source: ReportSource, split: str) -> dict[str, tuple[LogitMoments, torch.Tensor]]:
    """Moments and labels of a split, and of each shifted set as a whole."""
    parts = {split: source.moments(split)}
    try:
        shifts = list(each_shift(source))
    except ValueError:
        return parts
    for dataset in dict.fromkeys(name for name, _, _ in shifts):
        cells = [source.moments(name) for own, _, name in shifts if own == dataset]
        mean, variance = (torch.cat([cell[0][k] for cell in cells]) for k in (0, 1))
        labels = torch.cat([cell[1] for cell in cells])
        parts[f"{dataset} under shift"] = (LogitMoments(mean, variance), labels)
    return parts


@kind("certainty", "SCE of groups of samples against their certainty, with correlation; needs moments")
def certainty(wanted: Wanted) -> "Figure":
    """A panel for each run."""
    figure, axes = panels(len(wanted.sources), (4.2, 3.4))
    rules = []
    for ax, source in zip(axes, wanted.sources, strict=True):
        moments, labels = source.moments(wanted.split)
        figures.sce_by_certainty(moments.mean, labels, moments.certainty, from_logits=True, ax=ax)
        ax.set_title(plain(source.name))
        rules.append(len(labels) // group_count(len(labels), None))
    note(figure, f"Samples ordered by mean certainty over classes, cut into groups of about {min(rules)}.")
    return figure


@kind(
    "convergence", "calibration errors of the test split after every epoch; needs predictions of every epoch"
)
def convergence(wanted: Wanted) -> "Figure":
    """A panel for each error; runs that differ in their seed alone are one line."""
    found: dict[str, dict[str, list[dict[int, float]]]] = {name: {} for name in headline_errors()}
    for source in wanted.sources:
        epochs = source.epochs(wanted.split)
        for metric, named in found.items():
            values = {epoch: measured(each, metric) for epoch, each in epochs}
            named.setdefault(source.name, []).append(values)
    return draw_convergence(found)


def draw_convergence(found: Mapping[str, Mapping[str, Sequence[Mapping[int, float]]]]) -> "Figure":
    """A panel for each metric."""
    figure, axes = panels(len(found), (4.6, 3.4))
    for ax, (metric, named) in zip(axes, found.items(), strict=True):
        figures.convergence(named, metric, ax=ax)
    one_legend(figure, axes)
    return figure


@kind(
    "severity",
    "calibration errors and accuracy against the severity of a shift; needs predictions under shift",
)
def severity(wanted: Wanted) -> "Figure":
    """A row for each shifted data set."""
    names = (*headline_errors(), "accuracy")
    found: dict[str, dict[str, dict[str, dict[int, list[float]]]]] = {}
    for source in wanted.sources:
        clean = source.predictions(wanted.split)
        start = {metric: measured(clean, metric) for metric in names}
        for dataset, level, name in each_shift(source):
            each = source.predictions(name)
            of_set = found.setdefault(dataset, {metric: {} for metric in names})
            for metric, named in of_set.items():
                levels = named.setdefault(source.name, {0: [start[metric]]})
                levels.setdefault(level, []).append(measured(each, metric))
    figure, rows = grid(len(found), len(names), (3.8, 3.1))
    for row, (dataset, by_metric) in zip(rows, found.items(), strict=True):
        for ax, (metric, named) in zip(row, by_metric.items(), strict=True):
            figures.severity_curve(named, metric, ax=ax)
        row[0].set_title(plain(dataset))
    one_legend(figure, [ax for row in rows for ax in row])
    note(figure, "A line is the mean over kinds of shift; with one or two runs the shade is their range.")
    return figure


@kind("samples", "images on which two runs differ most in confidence; needs the data they were trained on")
def samples(wanted: Wanted) -> "Figure":
    """Two rows: what both get right, and what both get wrong."""
    if len(wanted.sources) != 2:
        raise ValueError(
            f"samples shows what two runs say of the same images, got {len(wanted.sources)} runs"
        )
    figure, rows = grid(2, SHOWN_SAMPLES, (2.3, 2.8))
    figure.get_layout_engine().set(h_pad=0.15)  # type: ignore[union-attr, call-arg]
    draw_samples(wanted, rows)
    for row, words in zip(rows, ("both are right", "both are wrong"), strict=True):
        row[0].set_ylabel(words)
    note(figure, SAMPLES_RULE)
    return figure


SAMPLES_RULE = (
    "Above: of the test images that both models get right, those whose confidence the second raises most. "
    "Below: of those both get wrong, those whose confidence it lowers most."
)


def draw_samples(wanted: Wanted, rows: "list[list[Axes]]") -> None:
    """Fill two rows of panels with the images on which two runs differ most."""
    a, b = wanted.sources
    same_labels(wanted.sources, wanted.split)
    splits = a.data(wanted.root)
    if splits.kind != "image":
        raise ValueError(f"{splits.name} holds {splits.kind}, not images; samples needs images")
    if wanted.split not in splits.parts():
        raise ValueError(
            f"samples shows images of the test or val split, got {wanted.split!r}; write --split test"
        )
    part = splits.parts()[wanted.split]
    probs = [torch.from_numpy(source.predictions(wanted.split).probs()) for source in (a, b)]
    found = contrast(probs[0], probs[1], part.labels.cpu(), len(rows[0]))
    for row, chosen, empty in zip(
        rows, found, ("no image that both get right gains", "no image that both get wrong loses"), strict=True
    ):
        for ax in row[len(chosen) :]:
            ax.set_axis_off()
        if not chosen:
            row[0].text(0, 0.5, f"{empty} confidence", fontsize=8)
        for ax, index in zip(row, chosen, strict=False):
            said = {
                source.name: Said(splits.classes[int(each[index].argmax())], float(each[index].max()))
                for source, each in zip((a, b), probs, strict=True)
            }
            figures.sample_image(part.inputs[index], splits.classes[int(part.labels[index])], said, ax=ax)


@kind("pareto", "accuracy against SCE with intervals, and the front that no other beats in both")
def pareto(wanted: Wanted) -> "Figure":
    """One panel."""
    figure, (ax,) = panels(1, (width_for(len(wanted.sources), 5.4), 4.0))
    points = {}
    for source in wanted.sources:
        report = evaluated(source.predictions(wanted.split), ["accuracy", "sce"])
        points[source.name] = (report["accuracy"], report["sce"])
    figures.pareto(points, ax=ax)
    return figure


@kind("risk-coverage", "error rate when only the most confident cases are answered")
def risk_coverage(wanted: Wanted) -> "Figure":
    """One panel."""
    figure, (ax,) = panels(1, (width_for(len(wanted.sources), 5.4), 4.0))
    figures.risk_coverage(wanted.pairs(), answers=wanted.answers, ax=ax)
    return figure


@kind("training", "each loss term and the validation metrics over the epochs of training")
def training(wanted: Wanted) -> "Figure":
    """A panel for each term and metric."""
    return draw_training({source.name: source.history() for source in wanted.sources})


def draw_training(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """A panel for each column of the histories."""
    there = dict.fromkeys(key for rows in histories.values() for row in rows for key in row)
    spread = f"train/{SPREAD}"
    terms = [key for key in there if key.startswith("train/") and key != spread]
    # With one term the loss is that term.
    terms = [key for key in terms if key != "train/loss" or len(terms) > 2]
    terms += [spread] if spread in there else []
    keys = [*terms, *(f"val/{name}" for name in headline() if f"val/{name}" in there)]
    if not keys:
        raise ValueError(f"{', '.join(histories)}: no epoch was recorded; train it first")
    figure, axes = panels(len(keys), (3.5, 2.7))
    for ax, key in zip(axes, keys, strict=True):
        figures.training_curve(histories, key, ax=ax)
    if len(histories) > 1:
        one_legend(figure, axes)
    return figure

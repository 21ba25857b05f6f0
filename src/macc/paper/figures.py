"""The figures of the paper, drawn for the result of an experiment by a rule that is printed under
each.

An experiment file names one of them with ``figure:``. Methods stand in pairs there, a loss and the
same with MACC; where seeds differ, the first is shown, and curves are means over all.
"""

import textwrap
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from macc.experiments import Result
from macc.report import figures
from macc.report.figures.reliability import draw_bins
from macc.report.figures.style import grid, note, plain, style
from macc.report.kinds import Wanted, draw_samples, evaluated, gap_parts
from macc.report.sources import ReportSource
from macc.training.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Scene:
    """The runs behind a figure."""

    def __init__(self, result: Result, out: Path, root: str | PathLike[str] | None) -> None:
        self.result, self.out, self.root = result, out, root

    def source(self, dataset: str, method: str) -> ReportSource:
        """The first seed of a method."""
        for run in self.result.runs:
            if (run.dataset, run.method, run.seed) == (dataset, method, self.result.first_seed):
                path = self.out / run.folder
                return ReportSource(path, method, Run(path))
        raise ValueError(f"{self.result.name} has no finished run of {method} on {dataset}")

    @property
    def shown_seed(self) -> str:
        """Which seed is shown, where there are several."""
        return (
            f" Seed {self.result.first_seed} of {self.result.seeds} seeds." if self.result.seeds > 1 else ""
        )

    @property
    def averaged(self) -> str:
        """What a line stands for, where there are several seeds."""
        seeds = self.result.seeds
        return f" Lines are means over {seeds} seeds, shades their range." if seeds > 1 else ""

    def pairs(self, dataset: str) -> list[tuple[str, str]]:
        """Methods two by two, as far as a data set has both."""
        names, there = self._trained(), self._there(dataset)
        return [pair for pair in zip(names[::2], names[1::2], strict=False) if there.issuperset(pair)]

    def odd(self, dataset: str) -> str:
        """The method that is left when the others are paired, or else the first that has runs."""
        names, there = self._trained(), self._there(dataset)
        if len(names) % 2 and names[-1] in there:
            return names[-1]
        return next(name for name in names if name in there)

    def _trained(self) -> list[str]:
        """The methods except those made of others' predictions, which have values and no runs."""
        made = {cell.method for cell in self.result.cells} - {run.method for run in self.result.runs}
        return [name for name in self.result.methods if name not in made]

    def _there(self, dataset: str) -> set[str]:
        return {run.method for run in self.result.runs if run.dataset == dataset}

    @property
    def datasets(self) -> list[str]:
        """The data sets that have runs."""
        there = {run.dataset for run in self.result.runs}
        return [name for name in self.result.datasets if name in there]

    def curves(
        self, dataset: str, metric: str, methods: "tuple[str, ...]"
    ) -> dict[str, list[dict[int, float]]]:
        """A metric by epoch, for every seed of some methods."""
        found: dict[str, dict[int, dict[int, float]]] = {}
        for row in self.result.curves:
            if row["dataset"] == dataset and row["method"] in methods:
                seeds = found.setdefault(row["method"], {})
                seeds.setdefault(row["seed"], {})[row["epoch"]] = row[metric]
        return {method: list(found[method].values()) for method in methods if method in found}


def draw(result: Result, out: Path, root: str | PathLike[str] | None = None) -> "tuple[Figure, str]":
    """Draw the figure of an experiment.

    Args:
        result: What the experiment found.
        out: The folder of run folders.
        root: The folder with data files, for images.

    Returns:
        The figure, and the rule printed under it.
    """
    if result.figure not in FIGURES:
        raise ValueError(
            f"no figure of an experiment is called {result.figure!r}; there are {', '.join(FIGURES)}"
        )
    scene = _Scene(result, out, root)
    if not scene.datasets:
        raise ValueError(f"{result.name} has no finished run to draw")
    with style():
        figure, rule = FIGURES[result.figure](scene)
        if result.scale != "full":
            rule += f" Reduced scale ({result.scale}): not the paper's settings."
        note(figure, rule)
    return figure, rule


def _samples(scene: _Scene) -> "tuple[Figure, str]":
    """Figure 1: two images a data set, both models' confidences and reliability diagrams."""
    datasets = [name for name in scene.datasets if scene.pairs(name)]
    figure, rows = grid(len(datasets), 4, (2.9, 2.9))
    for row, dataset in zip(rows, datasets, strict=True):
        pair = [scene.source(dataset, name) for name in scene.pairs(dataset)[0]]
        try:
            draw_samples(Wanted(pair, root=scene.root), [row[:1], row[1:2]])
        except ValueError as error:
            for ax in row[:2]:
                ax.clear()
                ax.set_axis_off()
            row[0].text(0, 0.5, _wrapped(f"no images: {error}"), fontsize=7, va="center")
        for ax, source in zip(row[2:], pair, strict=True):
            draw_bins(evaluated(source.predictions(), ["ece"]), ax, top_label=True)
            ax.set_title(f"{plain(source.name)}, {plain(dataset)}\n{ax.get_title()}", fontsize=8)
            ax.set_xlabel("confidence")
    first, second = scene.pairs(datasets[0])[0]
    return figure, (
        f"Left: of the test images that {first} and {second} both get right, the one whose confidence {second} "
        "raises most; next to it, of those both get wrong, the one whose confidence it lowers most. Right: "
        "reliability of both in 15 bins, hatched the gap to the confidence claimed."
    ) + scene.shown_seed


def _certainty(scene: _Scene) -> "tuple[Figure, str]":
    """Figure 2: SCE against certainty, and the test SCE over epochs of each pair."""
    widest = max(len(scene.pairs(name)) for name in scene.datasets)
    figure, rows = grid(len(scene.datasets), 1 + widest, (4.1, 3.2))
    for row, dataset in zip(rows, scene.datasets, strict=True):
        source = scene.source(dataset, scene.odd(dataset))
        moments, labels = source.moments()
        figures.sce_by_certainty(moments.mean, labels, moments.certainty, from_logits=True, ax=row[0])
        row[0].set_title(f"{plain(dataset)}: {plain(source.name)}")
        _fill(row[1:], scene, dataset)
    return figure, (
        "Left: test samples ordered by their mean certainty over classes (10 dropout masks, everything else in "
        "evaluation mode) and cut into at most 15 groups of equal size, 500 or more where there are enough."
        f"{scene.shown_seed} Right: SCE of the test split after every epoch; nothing is selected by it.{scene.averaged}"
    )


def _fill(axes: "list[Axes]", scene: _Scene, dataset: str) -> None:
    pairs = scene.pairs(dataset)
    for ax in axes[len(pairs) :]:
        ax.set_axis_off()
    for ax, pair in zip(axes, pairs, strict=False):
        figures.convergence(scene.curves(dataset, "sce", pair), "sce", ax=ax)
        ax.set_title(" and ".join(plain(name) for name in pair))


def _gap(scene: _Scene) -> "tuple[Figure, str]":
    """Figure 3: |certainty − confidence| in and out of domain."""
    found = [
        (dataset, method, gap_parts(scene.source(dataset, method), "test"))
        for dataset in scene.datasets
        for pair in scene.pairs(dataset)
        for method in pair
    ]
    columns = max(len(parts) for _, _, parts in found)
    figure, rows = grid(len(found), columns, (4.4, 2.8), sharey=True)
    for row, (dataset, method, parts) in zip(rows, found, strict=True):
        for ax in row[len(parts) :]:
            ax.set_axis_off()
        for ax, (where, (moments, labels)) in zip(row, parts.items(), strict=False):
            figures.certainty_gap(moments, labels, ax=ax)
            ax.set_title(f"{plain(method)}, {plain(dataset if where == 'test' else where)}")
            if ax is not row[0]:
                ax.set_ylabel("")
    return figure, (
        "Over all samples and classes, with dropout on at test (10 masks); under shift all kinds and severities "
        "together. ECE and SCE are of the mean logits. Dotted: the mean."
    ) + scene.shown_seed


def _confidence(scene: _Scene) -> "tuple[Figure, str]":
    """Figure 4: an under- and an over-confident case, reliability above, confidence below."""
    gaps = {}
    for dataset in scene.datasets:
        if scene.pairs(dataset):
            source = scene.source(dataset, scene.pairs(dataset)[0][0])
            report = evaluated(source.predictions(), ["ece"], resamples=100)
            gaps[dataset] = report.mean_confidence - report.mean_accuracy
    chosen = list(
        dict.fromkeys((min(gaps, key=lambda name: gaps[name]), max(gaps, key=lambda name: gaps[name])))
    )
    figure, rows = grid(2, 2 * len(chosen), (3.4, 2.9))
    for block, dataset in enumerate(chosen):
        for side, method in enumerate(scene.pairs(dataset)[0]):
            top, below = (row[2 * block + side] for row in rows)
            found = scene.source(dataset, method).predictions()
            draw_bins(evaluated(found, ["ece"]), top, top_label=True)
            top.set_title(f"{plain(dataset)}, {plain(method)}\n{top.get_title()}", fontsize=8.5)
            figures.confidence_histogram(found.probs(), found.labels, ax=below)
    first, _ = scene.pairs(chosen[0])[0]
    points = {name: f"{100 * gaps[name]:+.1f}".replace("-", "−") for name in chosen}
    shown = ", ".join(f"{name} {text}" for name, text in points.items())
    alone = "" if len(chosen) > 1 else " (there is only one)"
    return figure, (
        f"The data sets on which {first} is least and most confident against its accuracy{alone}: mean confidence "
        f"minus accuracy, in points: {shown}. Solid: accuracy; dotted: mean confidence."
    ) + scene.shown_seed


def _mistakes(scene: _Scene) -> "tuple[Figure, str]":
    """Figure 5: confidence of wrong predictions, a panel for each data set and pair."""
    widest = max(len(scene.pairs(name)) for name in scene.datasets)
    figure, rows = grid(len(scene.datasets), widest, (4.8, 3.2))
    for row, dataset in zip(rows, scene.datasets, strict=True):
        pairs = scene.pairs(dataset)
        for ax in row[len(pairs) :]:
            ax.set_axis_off()
        for ax, pair in zip(row, pairs, strict=False):
            figures.wrong_confidence({name: scene.source(dataset, name).pair() for name in pair}, ax=ax)
            ax.set_title(f"{plain(dataset)}: {' and '.join(map(plain, pair))}")
    return figure, (
        "Wrong predictions of the test split alone, in 15 bins; heights are shares of each model's own mistakes."
    ) + scene.shown_seed


def _convergence(scene: _Scene) -> "tuple[Figure, str]":
    """Figure 6: test SCE and ECE over epochs."""
    figure, rows = grid(len(scene.datasets), 2, (4.6, 3.3))
    for row, dataset in zip(rows, scene.datasets, strict=True):
        for ax, metric in zip(row, ("sce", "ece"), strict=True):
            figures.convergence(scene.curves(dataset, metric, tuple(scene.result.methods)), metric, ax=ax)
            ax.set_title(plain(dataset))
    return figure, (
        "The test split after every epoch; nothing is selected by it. Where the learning rate falls in steps, the last "
        "is to 0.1 of it, with MACC to 0.02."
    ) + scene.averaged


FIGURES: "dict[str, Callable[[_Scene], tuple[Figure, str]]]" = {
    "samples": _samples,
    "certainty": _certainty,
    "gap": _gap,
    "confidence": _confidence,
    "mistakes": _mistakes,
    "convergence": _convergence,
}


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 44)[:8]).replace("$", r"\$")

"""What a page shows of runs and prediction files: every one measured, drawn and described."""

import hashlib
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING

import torch

from macc import metrics, words
from macc.data import Splits
from macc.metrics import Report
from macc.metrics.correctness import CLASSES
from macc.predictions import Loaded
from macc.report import figures, kinds
from macc.report._svg import data_uri, inline
from macc.report.figures.style import style
from macc.report.html import Detail, Group, Mistake, Page, Shown
from macc.report.kinds import Wanted
from macc.report.sources import ReportSource, environment_rows
from macc.report.tables import class_table
from macc.tables import PERCENT, number, thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT_LENGTH = 400
MISTAKES = 12
WORST = 5
MOST_DETAILS = 24
MOST_DRAWN = 12
"""More lines or panels than this in one figure cannot be read."""
TRAINING = (
    "Every term of the loss, and the validation split, after each epoch. "
    "u is the mean variance of the logits under dropout."
)


class Builder:
    """Measures and draws; what cannot be had is left out, and the page says so.

    Args:
        sources: What the page is about.
        split: Which of a run's predictions.
        root: The folder with data files, for class names and images.
        seed: Which seed the sources are of, where they stand for methods with several.
        on_progress: Called with the share of the work done.
    """

    def __init__(
        self,
        sources: Sequence[ReportSource],
        *,
        split: str = "test",
        root: str | PathLike[str] | None = None,
        seed: str = "",
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.sources, self.split, self.root, self.seed = list(sources), split, root, seed
        self.on_progress = on_progress or (lambda _: None)
        self.left_out: list[str] = []
        self.reports: dict[str, Report] = {}
        self.loaded: dict[str, Loaded] = {}
        self.data: dict[str, Splits | None] = {}
        self.drawn = 0
        self.steps = 2 * len(self.sources) + 2

    def measure(self) -> list[Group]:
        """Every source, in groups that can be compared."""
        for index, source in enumerate(self.sources):
            self._measure(source)
            self.on_progress((index + 1) / self.steps)
        found: dict[bytes, Group] = {}
        for source in self.sources:
            labels = self.loaded[source.name].labels.astype("int64")
            # Answers and classes have nothing to compare.
            key = hashlib.sha256(labels.tobytes()).digest() + bytes([self.loaded[source.name].answers])
            name = words.shown(source.path.name) if source.recipe is None else source.recipe.dataset
            title = f"{name}, {self.split} split: {thousands(len(labels))} samples"
            if self.seed:
                title += f", {self.seed} of each method"
            found.setdefault(key, Group(title, [])).sources.append(source)
        return list(found.values())

    def page(self, title: str, groups: list[Group]) -> Page:
        """The page's figures of groups and details of sources, without sentences and tables."""
        for group in groups:
            group.figures = self._figures(group)
        details = []
        for index, source in enumerate(self.sources[:MOST_DETAILS]):
            details.append(self._detail(index, source))
            self.on_progress((len(self.sources) + 2 + index) / self.steps)
        if len(self.sources) > MOST_DETAILS:
            self.left_out.append(
                f"Details of {len(self.sources) - MOST_DETAILS} more runs are left out; report on fewer to see them."
            )
        self.on_progress(1.0)
        return Page(title, groups, details, list(dict.fromkeys(self.left_out)))

    def _measure(self, source: ReportSource) -> None:
        found = source.predictions(self.split)
        self.loaded[source.name] = found
        self.reports[source.name] = metrics.evaluate(
            found.scores,
            found.labels,
            from_logits=found.from_logits,
            classes=self.class_names(source),
            positive=source.positive,
            answers=found.answers,
        )

    def class_names(self, source: ReportSource) -> list[str] | None:
        """The names of the classes of what was loaded, where they are known."""
        found, splits = self.loaded[source.name], self._splits(source)
        names = found.classes if splits is None else list(splits.classes)
        size = found.scores.shape[1] if found.scores.ndim == 2 else 2
        return names if names is not None and len(names) == size else None

    def _splits(self, source: ReportSource) -> Splits | None:
        """The data of a run, where they are here; loaded once for runs that share them."""
        if source.run is None or source.recipe is None:
            return None
        content = source.run.environment.get("data_sha256")
        key = f"{source.recipe.dataset} {source.recipe.subset.model_dump_json()} {content}"
        if key not in self.data:
            try:
                self.data[key] = source.data(self.root)
            except ValueError as error:
                self.left_out.append(
                    f"Class names and inputs of {source.recipe.dataset} are left out: {error}"
                )
                self.data[key] = None
        return self.data[key]

    def _figures(self, group: Group) -> list[Shown]:
        """Every figure that these runs have the files for."""
        wanted = Wanted(group.sources[:MOST_DRAWN], self.split, self.root)
        seed = f" Each method is shown by {self.seed} alone." if self.seed else ""
        which = seed + _not_drawn(group)
        found = []
        for kind, (title, caption, wide) in _FIGURES.items():
            panels = kind == "mistakes" and len(wanted.sources) > kinds.MOST_OUTLINES
            shown = self.draw(
                title,
                f"{caption}{which}",
                wide or panels,
                lambda kind=kind: kinds.KINDS[kind].draw(wanted),  # type: ignore[misc]
            )
            if shown is not None:
                found.append(shown)
        if len(wanted.sources) >= 2 and wanted.sources[0].run is not None:
            two = Wanted(wanted.sources[:2], self.split, self.root)
            names = " and ".join(source.name for source in two.sources)
            caption = kinds.SAMPLES_RULE
            if len(group.sources) > 2:
                caption += f" {names} are the first two rows of the table."
            shown = self.draw(
                f"Where {names} differ most",
                f"{caption}{seed}",
                True,
                lambda: kinds.KINDS["samples"].draw(two),
            )
            if shown is not None:
                found.append(shown)
        return found

    def draw(self, title: str, caption: str, wide: bool, draw: "Callable[[], Figure]") -> Shown | None:
        """A figure of the page, or none, and the reason why, where it cannot be drawn."""
        try:
            with style():
                figure = draw()
        except ValueError as error:
            self.left_out.append(f"{title}: {error}")
            return None
        figure.supxlabel("")  # the caption says it on the page
        self.drawn += 1
        return Shown(title, inline(figure, f"figure-{self.drawn}", f"{title}. {caption}"), caption, wide)

    def _detail(self, index: int, source: ReportSource) -> Detail:
        report, found = self.reports[source.name], self.loaded[source.name]
        splits = self._splits(source)
        key = f"run-{index}"
        shown = self.draw(
            "Reliability",
            "The height of a bar is the accuracy of a bin of confidence. The hatched part is the gap to the confidence. "
            "The fewer samples a bar rests on, the fainter it is. Below stands how many samples each bin holds. With two "
            "classes a bar is how often the positive class happens, against its probability.",
            False,
            lambda: figures.reliability_diagram(report),
        )
        drawn = [] if shown is None else [shown]
        if source.run is not None:
            history = {source.name: source.history()}
            shown = self.draw(
                "Training",
                TRAINING,
                True,
                lambda: kinds.draw_training(history),
            )
            drawn += [] if shown is None else [shown]
        mistakes, note = self._mistakes(found, report, splits)
        return Detail(
            key=key,
            name=source.name,
            path=words.shown(source.path, None),
            facts=_facts(source),
            verdict=report.verdict(),
            tests=report.tests(),
            worst=_worst(report),
            classes=class_table(report, _recalls(found, report.num_classes)) if report.classes else None,
            figures=drawn,
            mistakes=mistakes,
            mistakes_note=note,
            recipe="" if source.recipe is None else (source.path / "recipe.yaml").read_text("utf-8"),
            environment={} if source.run is None else environment_rows(source.run),
        )

    def _mistakes(self, found: Loaded, report: Report, splits: Splits | None) -> tuple[list[Mistake], str]:
        probs, labels = torch.from_numpy(found.probs()), torch.from_numpy(found.labels).long()
        if probs.ndim == 1:
            probs = torch.stack([1 - probs, probs], dim=1)
        confidence, predicted = probs.max(dim=1)
        names = [row.name for row in report.classes]
        if report.answers:
            confidence, predicted, names = probs[:, 1], torch.ones_like(labels), CLASSES
        wrong = (predicted != labels).nonzero()[:, 0]
        order = wrong[confidence[wrong].argsort(descending=True, stable=True)][:MISTAKES]
        part = None if splits is None else splits.parts().get(self.split)
        if part is not None and len(part) != len(labels):
            part = None

        def shown(i: int) -> tuple[str | None, str]:
            """The image or the text of a sample, where there is one."""
            if splits is None or part is None:
                return None, ""
            if splits.kind == "image":
                return data_uri(part.inputs[i]), ""
            return None, splits.text(part.inputs[i]) if splits.kind == "tokens" else ""

        rows = [
            Mistake(
                index=i,
                label=names[int(labels[i])],
                predicted=names[int(predicted[i])],
                confidence=float(confidence[i]),
                image=image,
                text=text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]}…",
            )
            for i, (image, text) in ((i, shown(i)) for i in order.tolist())
        ]
        what = "answer" if report.answers else "prediction"
        if not rows:
            return rows, f"There is no wrong {what}."
        return rows, f"{len(rows)} of {thousands(len(wrong))} wrong {what}s, the most confident first."


_FIGURES: dict[str, tuple[str, str, bool]] = {
    "reliability": (
        "Is the confidence right?",
        "The height of a bar is the accuracy of the predictions in one bin of confidence. The hatched part is the gap "
        "to their confidence. The fewer predictions a bar rests on, the fainter it is. Below stands how many each bin "
        "holds. With two classes a bar is how often the positive class happens, against its probability.",
        True,
    ),
    "mistakes": (
        "Confidence of wrong predictions",
        "Each outline is the share of a run's own mistakes in each bin of confidence. Further left is better.",
        False,
    ),
    "risk-coverage": (
        "Answering only the sure cases",
        "The error rate on the most confident share of cases, if a person decides the others. Lower is better.",
        False,
    ),
    "pareto": (
        "Accuracy and calibration",
        "Further right and lower is better. The dashed line joins the runs that no other run beats in both.",
        False,
    ),
    "confidence": (
        "Confidence of all predictions",
        "The solid line is the accuracy, the dotted line the mean confidence. A model whose dotted line lies to the right "
        "of the solid one is over-confident.",
        True,
    ),
    "severity": (
        "Under shift",
        "A line is the mean over kinds of shift. With one or two runs the shade is the range over these kinds.",
        True,
    ),
    "convergence": (
        "The test split during training",
        "Errors on the test split after every epoch. Nothing was selected by them.",
        True,
    ),
    "certainty": (
        "Calibration error against certainty",
        "Samples are ordered by their mean certainty over classes and cut into groups of equal size. Grey marks are what "
        "chance alone would give.",
        True,
    ),
    "gap": (
        "Certainty against confidence",
        "How far certainty and confidence lie apart, over all samples and classes, with 10 dropout masks at test.",
        True,
    ),
    "training": ("Training", TRAINING, True),
}


def take_lead(groups: Sequence[Group]) -> Shown | None:
    """The figure that shows whether confidence is right, taken from the others; or none."""
    for group in groups[:1]:
        for figure in group.figures:
            if figure.title == _FIGURES["reliability"][0]:
                group.figures.remove(figure)
                return figure
    return None


def _worst(report: Report) -> str:
    """The classes whose calibration error is significantly above chance, the worst first."""
    clear = sorted((row for row in report.classes if row.ece.low > 0), key=lambda row: -row.ece.value)
    if not clear:
        return "No class has a calibration error that is significantly above chance."
    words = []
    for row in clear[:WORST]:
        kind = "over" if row.mean_probability > row.frequency else "under"
        words.append(
            f"{row.name} ({number(row.ece.value, PERCENT, row.ece.high - row.ece.low, suffix=True)}, "
            f"{kind}-predicted)"
        )
    more = f" and {len(clear) - WORST} more" if len(clear) > WORST else ""
    return f"Worst calibrated classes: {', '.join(words)}{more}."


def _recalls(found: Loaded, num_classes: int) -> list[float]:
    probs = torch.from_numpy(found.probs())
    predicted = (probs > 0.5).long() if probs.ndim == 1 else probs.argmax(dim=1)
    labels = torch.from_numpy(found.labels).long()
    totals = torch.bincount(labels, minlength=num_classes).double()
    hits = torch.bincount(labels[predicted == labels], minlength=num_classes).double()
    return [float(value) for value in hits / totals]


def _not_drawn(group: Group) -> str:
    """Which runs the figures leave out, where there are too many."""
    if len(group.sources) <= MOST_DRAWN:
        return ""
    names = ", ".join(source.name for source in group.sources[MOST_DRAWN:])
    return (
        f" Shown are the first {MOST_DRAWN} of {len(group.sources)} rows of the table; "
        f"there was no room for {names}."
    )


def _facts(source: ReportSource) -> dict[str, str]:
    recipe = source.recipe
    if recipe is None or source.run is None:
        return {"file": words.shown(source.path, None)}
    found = {"data": recipe.dataset, "model": recipe.model, "loss": recipe.loss}
    if not isinstance(recipe.head, str):
        found["head"] = f"dropout {recipe.head.p:g}, {recipe.head.samples} masks, {recipe.head.estimator}"
    found |= {"epochs": str(recipe.epochs), "seed": str(recipe.seed), "scale": recipe.scale}
    seconds = sum(float(row.get("seconds", 0)) for row in source.history())
    found["training time"] = f"{seconds / 60:.1f} minutes" if seconds >= 90 else f"{seconds:.1f} seconds"
    found["folder"] = words.shown(source.path, None)
    return found

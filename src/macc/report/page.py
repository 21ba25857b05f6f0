"""The report: one HTML file that says and shows what runs found, and needs nothing outside itself."""

import base64
import hashlib
import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from macc import __version__, metrics, words
from macc.data import Splits
from macc.io.writing import write_whole
from macc.metrics import Report
from macc.predictions import Loaded
from macc.report import figures, kinds
from macc.report import tables as of_reports
from macc.report._svg import data_uri, inline
from macc.report.figures.style import style
from macc.report.kinds import Wanted
from macc.report.sources import Source, environment_rows, open_sources
from macc.tables import PERCENT, Table, html_name, html_prose, kept_together, number, thousands

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT_LENGTH = 400
MISTAKES = 12
WORST = 5
MOST_DETAILS = 24
MOST_COMPARED = 12
MOST_DRAWN = 12
"""More lines or panels than this in one figure cannot be read."""
MOST_REPAIRED = 3
LEVEL = 0.05
VALIDATION = "VAL.npz"
TRAINING = (
    "Every term of the loss, and the validation split, after each epoch. "
    "u is the mean variance of the logits under dropout."
)


@dataclass(frozen=True)
class Shown:
    """A figure on the page."""

    title: str
    svg: str
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction that the model was sure of."""

    index: int
    label: str
    predicted: str
    confidence: float
    image: str | None
    text: str


@dataclass
class Detail:
    """Everything about one run."""

    key: str
    name: str
    path: str
    facts: dict[str, str]
    verdict: str
    worst: str
    classes: Table | None
    figures: list[Shown]
    mistakes: list[Mistake]
    mistakes_note: str
    recipe: str
    environment: dict[str, str]


@dataclass
class Group:
    """Runs that were tested on the same samples, and so can be compared."""

    title: str
    sources: list[Source]
    table: Table | None = None
    figures: list[Shown] = field(default_factory=list)


@dataclass
class Page:
    """What the template shows."""

    title: str
    notes: list[str]
    findings: list[str]
    tables: list[Table]
    groups: list[Group]
    details: list[Detail]
    left_out: list[str]
    figures: list[Shown] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    version: str = __version__


def write(
    paths: Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    *,
    split: str = "test",
    root: str | PathLike[str] | None = None,
    title: str | None = None,
    on_progress: Callable[[float], None] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of run folders and prediction files.

    Args:
        paths: Run folders or prediction files; the first is what the others are compared with.
        output: The ``.html`` file.
        split: Which of a run's predictions.
        root: The folder with data files, for class names and images.
        title: The heading; the data sets by default.
        on_progress: Called with the share of the work done.
        reading: How to read prediction files, as in :func:`macc.report.kinds.plot`.

    Returns:
        The file written.
    """
    if not paths:
        raise ValueError("give at least one run folder, prediction file or experiment to report on")
    return write_page(
        output,
        open_sources(paths, reading),
        split=split,
        root=root,
        title=title,
        on_progress=on_progress,
    )


def write_page(
    output: str | PathLike[str],
    sources: Sequence[Source],
    *,
    split: str = "test",
    root: str | PathLike[str] | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
    findings: Sequence[str] = (),
    tables: Sequence[Table] = (),
    extra: Sequence[Shown] = (),
    left_out: Sequence[str] = (),
    of_experiment: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Path:
    """Write the report of sources, with what an experiment adds to it."""
    path = Path(output)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path}: the report is an .html file; end its name so")
    _jinja()  # before the work, not after it
    builder = _Builder(sources, split, root, on_progress or (lambda _: None), of_experiment=of_experiment)
    page = builder.page(title, extra)
    page.left_out = [*left_out, *page.left_out]
    page.notes = list(dict.fromkeys([*notes, *([] if of_experiment else page.notes)]))
    page.findings = [*findings, *page.findings]
    page.tables = list(tables)
    text = render(page)
    with write_whole(path) as file:
        # Sentences may hold names of files, and those need not be text.
        file.write(text.encode(errors="backslashreplace"))
    return path


def render(page: Page) -> str:
    """The page as HTML."""
    jinja2 = _jinja()
    folder = resources.files("macc") / "report" / "templates"
    texts = {name: (folder / name).read_text("utf-8") for name in ("report.html", "report.css", "report.js")}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(texts),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_kept_together,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    from markupsafe import Markup

    environment.filters |= {
        "prose": lambda text: Markup(html_prose(text)),  # noqa: S704 - escaped there
        "name": lambda text: Markup(html_name(text)),  # noqa: S704
        "sortable": lambda table, key: Markup(table.sortable(key)),  # noqa: S704
    }
    script = texts["report.js"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text: str = environment.get_template("report.html").render(
        page=page, script=script, css=texts["report.css"], script_hash=digest
    )
    return text


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ValueError(
            f'the report needs Jinja2 ({error}); install it with: pip install "macc-torch[report]"'
        ) from error
    return jinja2


def _kept_together(value: object) -> object:
    plain = isinstance(value, str) and not hasattr(value, "__html__")
    return kept_together(str(value)) if plain else value


class _Builder:
    """Measures and draws; what cannot be had is left out, and the page says so."""

    def __init__(
        self,
        sources: Sequence[Source],
        split: str,
        root: str | PathLike[str] | None,
        on_progress: Callable[[float], None],
        *,
        of_experiment: bool,
    ) -> None:
        self.of_experiment = of_experiment
        self.sources = list(sources)
        self.split, self.root, self.on_progress = split, root, on_progress
        self.left_out: list[str] = []
        self.reports: dict[str, Report] = {}
        self.loaded: dict[str, Loaded] = {}
        self.data: dict[str, Splits | None] = {}
        self.drawn = 0

    def page(self, title: str | None, extra: Sequence[Shown]) -> Page:
        """Everything of the page."""
        names = self._data_names()
        steps = 2 * len(self.sources) + 2
        for index, source in enumerate(self.sources):
            self._measure(source)
            self.on_progress((index + 1) / steps)
        groups = self._groups()
        # An experiment has sentences of its own, about all seeds.
        findings: list[str] = []
        if not self.of_experiment:
            findings = [f"{source.name}: {self.reports[source.name].verdict()}" for source in self.sources]
        for group in groups:
            reports = {source.name: self.reports[source.name] for source in group.sources}
            if not self.of_experiment:  # whose own tables show all of its methods, over all seeds
                group.table = of_reports.comparison(group.title, reports)
                findings += self._compared(group)
            group.figures = self._figures(group)
        details = []
        for index, source in enumerate(self.sources[:MOST_DETAILS]):
            details.append(self._detail(index, source))
            self.on_progress((len(self.sources) + 2 + index) / steps)
        if len(self.sources) > MOST_DETAILS:
            self.left_out.append(
                f"Details of {len(self.sources) - MOST_DETAILS} more runs are left out; report on fewer to see them."
            )
        scales = dict.fromkeys(s.recipe.scale for s in self.sources if s.recipe is not None)
        reduced = [scale for scale in scales if scale != "full"]
        notes = []
        if reduced:
            notes.append(f"These runs have a reduced scale ({', '.join(reduced)}), not the paper's settings.")
        self.on_progress(1.0)
        return Page(
            title=title or f"Calibration: {', '.join(names)}",
            notes=notes,
            findings=findings,
            tables=[],
            groups=groups,
            details=details,
            left_out=list(dict.fromkeys(self.left_out)),
            next_steps=[] if self.of_experiment else self._next_steps(),
            figures=list(extra),
        )

    def _data_names(self) -> list[str]:
        names = [words.shown(s.path.name) if s.recipe is None else s.recipe.label for s in self.sources]
        return list(dict.fromkeys(names))[:4]

    def _measure(self, source: Source) -> None:
        found = source.predictions(self.split)
        self.loaded[source.name] = found
        self.reports[source.name] = metrics.evaluate(
            found.scores,
            found.labels,
            from_logits=found.from_logits,
            classes=self._names(source),
            positive=source.positive,
        )

    def _names(self, source: Source) -> list[str] | None:
        """The names of the classes of what was loaded, where they are known."""
        found, splits = self.loaded[source.name], self._splits(source)
        names = found.classes if splits is None else list(splits.classes)
        size = found.scores.shape[1] if found.scores.ndim == 2 else 2
        return names if names is not None and len(names) == size else None

    def _splits(self, source: Source) -> Splits | None:
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

    def _groups(self) -> list[Group]:
        found: dict[bytes, Group] = {}
        for source in self.sources:
            labels = self.loaded[source.name].labels.astype("int64")
            key = hashlib.sha256(labels.tobytes()).digest()
            name = words.shown(source.path.name) if source.recipe is None else source.recipe.dataset
            title = f"{name}, {self.split} split: {thousands(len(labels))} samples"
            if self.of_experiment:
                title += f", {_seed(source)} of each method"
            found.setdefault(key, Group(title, [])).sources.append(source)
        return list(found.values())

    def _compared(self, group: Group) -> list[str]:
        """A sentence for each run against the first: is it better calibrated, and is it more than chance?"""
        first, *others = group.sources
        if len(others) > MOST_COMPARED:
            self.left_out.append(
                f"{first.name} is compared with the {MOST_COMPARED} runs that follow it; "
                f"report on fewer runs to compare the other {len(others) - MOST_COMPARED}."
            )
        others = others[:MOST_COMPARED]
        found = []
        for other in others:
            pair = (self.loaded[other.name], self.loaded[first.name])
            if pair[0].probs().shape != pair[1].probs().shape:
                continue
            result = metrics.compare(
                pair[0].probs(),
                pair[1].probs(),
                pair[0].labels,
                metrics=["accuracy", "ece"],
                classes=self._names(first),
                positive=first.positive,
            )
            found.append((other.name, result))
        corrected = metrics.holm([result[_headline(result.differences)].p for _, result in found])
        return [
            _sentence(name, first.name, result, p) for (name, result), p in zip(found, corrected, strict=True)
        ]

    def _next_steps(self) -> list[str]:
        """What to do with what was found: repair the confidence, then decide which predictions to accept."""
        measured = {source.name: self.reports[source.name].metrics for source in self.sources}
        wrong = [s for s in self.sources if measured[s.name][_headline(measured[s.name])].low > 0]
        steps = []
        if not wrong:
            steps.append(
                "No calibration error here is significantly above chance, so there is nothing to repair. "
                "More test samples would show smaller errors."
            )
        for source in wrong[:MOST_REPAIRED]:
            steps.append(
                f"Repair the confidence of {source.name} without training it again: "
                f"`macc calibrate --fit {_validation(source)} --apply {_predictions(source, self.split)}`"
            )
        first = (wrong or self.sources)[0]
        steps.append(
            "Find the confidence from which on predictions can be accepted: "
            f"`macc threshold {_validation(first)} --check {_predictions(first, self.split)}`"
        )
        if any(VALIDATION in step for step in steps):
            steps.append(
                f"`{VALIDATION}` stands for predictions of the model on other samples, not its training samples."
            )
        return steps

    def _figures(self, group: Group) -> list[Shown]:
        """Every figure that these runs have the files for."""
        wanted = Wanted(group.sources[:MOST_DRAWN], self.split, self.root)
        seed = f" Each method is shown by {_seed(group.sources[0])} alone." if self.of_experiment else ""
        which = seed + _not_drawn(group)
        found = []
        for kind, (title, caption, wide) in _FIGURES.items():
            panels = kind == "mistakes" and len(wanted.sources) > kinds.MOST_OUTLINES
            shown = self._draw(
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
            shown = self._draw(
                f"Where {names} differ most",
                f"{caption}{seed}",
                True,
                lambda: kinds.KINDS["samples"].draw(two),
            )
            if shown is not None:
                found.append(shown)
        return found

    def _draw(self, title: str, caption: str, wide: bool, draw: "Callable[[], Figure]") -> Shown | None:
        try:
            with style():
                figure = draw()
        except ValueError as error:
            self.left_out.append(f"{title}: {error}")
            return None
        figure.supxlabel("")  # the caption says it on the page
        self.drawn += 1
        return Shown(title, inline(figure, f"figure-{self.drawn}", f"{title}. {caption}"), caption, wide)

    def _detail(self, index: int, source: Source) -> Detail:
        report, found = self.reports[source.name], self.loaded[source.name]
        splits = self._splits(source)
        key = f"run-{index}"
        shown = self._draw(
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
            shown = self._draw(
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
            worst=_worst(report),
            classes=of_reports.classes(report, _recalls(found, report.num_classes)),
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
        wrong = (predicted != labels).nonzero()[:, 0]
        order = wrong[confidence[wrong].argsort(descending=True, stable=True)][:MISTAKES]
        part = None if splits is None else splits.parts().get(self.split)
        if part is not None and len(part) != len(labels):
            part = None
        names = [row.name for row in report.classes]

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
        if not rows:
            return rows, "There is no wrong prediction."
        return rows, f"{len(rows)} of {thousands(len(wrong))} wrong predictions, the most confident first."


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


def _headline(measured: Container[str]) -> str:
    """The metric by which a model is called calibrated: of the predicted class, or of two classes the positive one."""
    return "positive_ece" if "positive_ece" in measured else "ece"


def _sentence(name: str, first: str, result: metrics.Comparison, p: float) -> str:
    metric = _headline(result.differences)
    ece, accuracy = result[metric], result["accuracy"]
    error = "ECE of the positive class" if metric == "positive_ece" else "ECE"
    ends = " to ".join(number(end, PERCENT, ece.high - ece.low, sign=True) for end in (ece.low, ece.high))
    if p < LEVEL:
        verdict = f"is significantly {'better' if ece.value < 0 else 'worse'} calibrated than {first}"
    else:
        verdict = f"is neither significantly better nor significantly worse calibrated than {first}"
    shown = "< 0.001" if p < 0.001 else f"= {p:.3f}"
    return (
        f"{name} {verdict}. Its {error} is {_points(ece)} ({100 * result.confidence:g} % interval of the difference "
        f"{ends}, p {shown} after Holm's correction) and its accuracy is {_points(accuracy)}."
    )


def _points(difference: metrics.Difference) -> str:
    """How far one model lies from another, in words."""
    text = number(abs(difference.value), PERCENT, difference.high - difference.low)
    if not float(text):
        return "the same"
    return f"{text} points {'lower' if difference.value < 0 else 'higher'}"


def _predictions(source: Source, split: str) -> str:
    """The file with the predictions of a split, as it is written in a shell."""
    path = source.path if source.run is None else source.path / "predictions" / f"{split}.npz"
    return shlex.quote(str(path))


def _validation(source: Source) -> str:
    """The file to fit a repair to, as it is written in a shell; only a run has one."""
    return VALIDATION if source.run is None else _predictions(source, "val")


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


def _seed(source: Source) -> str:
    """The seed of a run, in words."""
    return "one seed" if source.recipe is None else f"seed {source.recipe.seed}"


def _facts(source: Source) -> dict[str, str]:
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


def how_to_open(path: Path) -> str:
    """The last line of a command that wrote a report."""
    return f"report: {path}\n  open it in a browser: {path.absolute().as_uri()}"

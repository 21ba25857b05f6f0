"""The report of runs and prediction files: which is calibrated, which better, what next."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from macc import metrics, words
from macc.report.answers import answers
from macc.report.building import Builder, take_lead
from macc.report.html import Group, check_output, write_page
from macc.report.operation import Operation, sections
from macc.report.sources import ReportSource, open_sources
from macc.report.tables import comparison_table
from macc.tables import PERCENT, number

MOST_COMPARED = 12
MOST_REPAIRED = 3
LEVEL = 0.05


def write(
    paths: Sequence[str | PathLike[str]],
    output: str | PathLike[str],
    *,
    split: str = "test",
    root: str | PathLike[str] | None = None,
    title: str | None = None,
    on_progress: Callable[[float], None] | None = None,
    reading: Mapping[str, Any] | None = None,
    operation: Operation | None = None,
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
        operation: Groups, sets of classes and times to show too.

    Returns:
        The file written.
    """
    asked = operation or Operation()
    if not paths and not asked.monitors:
        raise ValueError("give at least one run folder, prediction file or experiment to report on")
    sources = open_sources(paths, {**(reading or {}), **asked.reading})
    asked.check(sources)
    path = check_output(output)
    builder = Builder(sources, split=split, root=root, on_progress=on_progress)
    groups = builder.measure()
    findings = [f"{source.name}: {builder.reports[source.name].verdict()}" for source in sources]
    shown = sections(builder, asked)
    parts = [part for section in shown for part in section.parts]
    findings += [f"{part.title}: {part.finding}" for part in parts]
    compared = [sentence for group in groups for sentence in _compared(builder, group)]
    findings += compared
    page = builder.page(title or _title(sources, asked), groups)
    page.answers, page.lead = answers(builder, compared), take_lead(groups)
    page.sections, page.findings, page.notes = shown, findings, _notes(sources)
    page.next_steps = _next_steps(builder, [part.next_step for part in parts if part.next_step])
    page.tables = [
        comparison_table(group.title, {source.name: builder.reports[source.name] for source in group.sources})
        for group in groups
    ]
    return write_page(page, path)


def _title(sources: Sequence[ReportSource], asked: Operation) -> str:
    """The first few data sets, or states where there are none."""
    names = [words.shown(s.path.name) if s.recipe is None else s.recipe.label for s in sources]
    names = names or [words.shown(path.name) for path in asked.monitors]
    return f"Calibration: {', '.join(list(dict.fromkeys(names))[:4])}"


def _notes(sources: Sequence[ReportSource]) -> list[str]:
    scales = dict.fromkeys(s.recipe.scale for s in sources if s.recipe is not None)
    reduced = [scale for scale in scales if scale != "full"]
    if not reduced:
        return []
    return [f"These runs have a reduced scale ({', '.join(reduced)}), not the paper's settings."]


def _compared(builder: Builder, group: Group) -> list[str]:
    """A sentence for each run against the first: is it better, and more than by chance?"""
    first, *others = group.sources
    if len(others) > MOST_COMPARED:
        builder.left_out.append(
            f"{first.name} is compared with the {MOST_COMPARED} runs that follow it; "
            f"report on fewer runs to compare the other {len(others) - MOST_COMPARED}."
        )
    others = others[:MOST_COMPARED]
    found = []
    for other in others:
        pair = (builder.loaded[other.name], builder.loaded[first.name])
        if pair[0].probs().shape != pair[1].probs().shape:
            continue
        result = metrics.compare(
            pair[0].probs(),
            pair[1].probs(),
            pair[0].labels,
            metrics=["positive_ece"] if pair[0].answers else ["accuracy", "ece"],
            classes=builder.class_names(first),
            positive=first.positive,
        )
        found.append((other.name, result))
    corrected = metrics.holm([result[metrics.headline_error(result.differences)].p for _, result in found])
    return [
        _sentence(name, first.name, result, p) for (name, result), p in zip(found, corrected, strict=True)
    ]


def _next_steps(builder: Builder, others: Sequence[str]) -> list[str]:
    """What to do: repair the confidence, then decide which predictions to accept."""
    if not builder.sources:
        return []
    measured = {source.name: builder.reports[source.name].metrics for source in builder.sources}
    wrong = [s for s in builder.sources if measured[s.name][metrics.headline_error(measured[s.name])].low > 0]
    steps = []
    if not wrong:
        steps.append(
            "No calibration error here is significantly above chance, so there is nothing to repair. "
            "More test samples would show smaller errors."
        )
    for source in wrong[:MOST_REPAIRED]:
        steps.append(
            f"Repair the confidence of {source.name} without training it again: "
            f"`macc calibrate --fit {source.validation()} --apply {source.file(builder.split)}{source.options()}`"
        )
    first = (wrong or builder.sources)[0]
    steps.append(
        "Find the confidence from which on predictions can be accepted: "
        f"`macc threshold {first.validation()} --check {first.file(builder.split)}{first.options()}`"
    )
    steps += others
    stands = dict.fromkeys(source.validation() for source in builder.sources if source.run is None)
    named = [f"`{name}`" for name in stands if any(name in step for step in steps)]
    if named:
        steps.append(
            f"{' or '.join(named)} stands for predictions of the model on other samples, not its training samples."
        )
    return steps


def _sentence(name: str, first: str, result: metrics.Comparison, p: float) -> str:
    metric = metrics.headline_error(result.differences)
    ece = result[metric]
    error = metrics.registry()[metric].phrase
    ends = " to ".join(number(end, PERCENT, ece.high - ece.low, sign=True) for end in (ece.low, ece.high))
    if p < LEVEL:
        verdict = f"is significantly {'better' if ece.value < 0 else 'worse'} calibrated than {first}"
    else:
        verdict = f"is neither significantly better nor significantly worse calibrated than {first}"
    accuracy = ""
    if "accuracy" in result.differences:
        accuracy = f" and its accuracy is {_points(result['accuracy'])}"
    shown = "< 0.001" if p < 0.001 else f"= {p:.3f}"
    return (
        f"{name} {verdict}. Its {error} is {_points(ece)} ({100 * result.confidence:g} % interval of the difference "
        f"{ends}, p {shown} after Holm's correction){accuracy}."
    )


def _points(difference: metrics.Difference) -> str:
    """How far one model lies from another, in words."""
    text = number(abs(difference.value), PERCENT, difference.high - difference.low)
    if not float(text):
        return "the same"
    return f"{text} points {'lower' if difference.value < 0 else 'higher'}"


def how_to_open(path: Path) -> str:
    """The last line of a command that wrote a report."""
    return f"report: {path}\n  open it in a browser: {path.absolute().as_uri()}"

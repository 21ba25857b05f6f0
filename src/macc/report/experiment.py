"""The report of an experiment: tables over seeds, findings, figure, runs in detail."""

import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from macc.experiments import Result, load_result
from macc.experiments.brief import AFTER, JUDGED, best_in_short, best_rows, macc_in_short, verdict_in_short
from macc.experiments.findings import Wording, named
from macc.experiments.loading import safe_name
from macc.experiments.result import PairedTest
from macc.experiments.spec import RULE_TEXT
from macc.experiments.tables import block_table, marked, tables
from macc.io.writing import write_whole
from macc.metrics import Estimate
from macc.report import figures
from macc.report._svg import inline
from macc.report.building import Builder, take_lead
from macc.report.figures.style import save
from macc.report.html import Answer, Shown, check_output, write_page
from macc.report.sources import ReportSource
from macc.tables import Table
from macc.training.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "report.html"
MOST_ERRORS = 16
"""More lines than this do not fit beside the answers."""
Draw = Callable[[Result, Path, "str | PathLike[str] | None"], "tuple[Figure, str]"]
"""Draws the figure of a result, given the folder of run folders and the one of data; gives the rule
under it too.
"""


def find(path: str | PathLike[str], out: Path = Path("runs")) -> Path | None:
    """The folder of an experiment by its folder, ``result.json`` or name; nothing if none.

    Of several scales under one name, the one that was run last.
    """
    given = Path(path)
    if given.name == "result.json" and given.is_file():
        return given.parent
    if (given / "result.json").is_file():
        return given
    if given.exists() or len(given.parts) != 1:
        return None
    name = safe_name(given.name)
    there = (out / "experiments").glob(f"{name}-*/result.json")
    matching = [file for file in there if file.parent.name.rpartition("-")[0] == name]
    return max(matching, key=lambda file: file.stat().st_mtime).parent if matching else None


def write(
    folder: Path,
    output: str | PathLike[str] | None = None,
    *,
    root: str | PathLike[str] | None = None,
    title: str | None = None,
    draw: Draw | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[Path]:
    """Write the report of a finished experiment, and its figure where it is one of a figure.

    Args:
        folder: The experiment's folder, with its ``result.json``; the runs lie two folders above.
        output: The ``.html`` file; ``report.html`` in the folder by default.
        root: The folder with data files, for class names and images.
        title: The heading; the experiment's own by default.
        draw: Draws the figure that the experiment names, if it names one, as
            :func:`macc.paper.draw` does.
        on_progress: Called with the share of the work done.

    Returns:
        The report, then the files of the figure.
    """
    path = check_output(folder / REPORT if output is None else output)
    result = load_result(folder)
    sources = first_runs(result, folder)
    written: list[Path] = []
    extra: list[Shown] = []
    left_out = list(result.left_out)
    heading = title or result.title or result.name
    if result.figure is not None and draw is not None:
        try:
            figure, rule = draw(result, runs_folder(folder), root)
        except ValueError as error:
            left_out.append(f"The figure is left out: {error}")
        else:
            for form in ("svg", "png"):
                drawn = folder / f"figure.{form}"
                with write_whole(drawn) as file:
                    save(figure, file, form)
                written.append(drawn)
            figure.supxlabel("")  # the caption says it on the page
            extra.append(
                Shown(heading, inline(figure, "figure-experiment", f"{heading}. {rule}"), rule, True)
            )
    builder = Builder(sources, root=root, seed=f"seed {result.first_seed}", on_progress=on_progress)
    groups = builder.measure()
    page = builder.page(heading, groups)
    page.answers = _answers(result, folder)
    page.lead = (_errors(result, builder) if page.answers else None) or take_lead(groups)
    page.notes = list(dict.fromkeys(result.notes))
    page.findings = result.findings or ["This experiment measures and shows; it tests nothing."]
    page.tables, page.figures, page.left_out = _tables(result), extra, [*left_out, *page.left_out]
    write_page(page, path)
    return [path, *written]


def runs_folder(folder: Path) -> Path:
    """Where the runs of an experiment's folder are."""
    return folder.parent.parent


def first_runs(result: Result, folder: Path) -> list[ReportSource]:
    """The first seed of every method on every data set, as the first rule selects it."""
    found = []
    for dataset in result.datasets:
        for run in result.runs:
            first = run.seed == result.first_seed and run.rule == result.rules(dataset)[0]
            if run.dataset == dataset and first:
                path = runs_folder(folder) / run.folder
                name = run.method if len(result.datasets) == 1 else f"{dataset}, {run.method}"
                found.append(ReportSource(path, name, Run(path)))
    missing = [source.path for source in found if not (source.path / "metrics.json").is_file()]
    if missing:
        raise ValueError(
            f"{missing[0]} is missing or not finished; an experiment's report needs its run folders"
        )
    return found


def _answers(result: Result, folder: Path) -> list[Answer]:
    """The best calibrated method, how MACC stands, and which model to take, each in a sentence;
    none where the experiment compares nothing.
    """
    raw, calibrated = result.stages
    best = best_in_short(result, raw, JUDGED)
    if not best:
        return []
    stages = ((calibrated, AFTER), (raw, AFTER), (raw, JUDGED))
    rows, metric = next((rows, name) for names, name in stages if (rows := best_rows(result, names, name)))
    first = rows[0]
    words = Wording(result, first.dataset, first.test, first.rule, metric)
    stage = " after calibration" if first.a in result.calibrated else ""
    what = f"lowest {words.noun}{stage} ({words.value(first.a)}): {verdict_in_short(rows)}"
    return [
        Answer("How calibrated is the best?", best),
        Answer("Is MACC better?", macc_in_short(result) or "No method here was trained with MACC."),
        Answer(
            "What to do next?",
            f"Take {named(first.a)}, which has the {what}{_shipped(result, folder, first)}",
        ),
    ]


def _shipped(result: Result, folder: Path, best: PairedTest) -> str:
    """The command that makes one file of the first seed of a method; none for what is no run."""
    wanted = (best.dataset, result.calibrated.get(best.a, best.a), best.rule, result.first_seed)
    for run in result.runs:
        if (run.dataset, run.method, run.rule, run.seed) == wanted:
            path = shlex.quote(str(runs_folder(folder) / run.folder))
            return f". To ship it: `macc export {path} -o model.safetensors`"
    return "."


def _errors(result: Result, builder: Builder) -> Shown | None:
    """The calibration errors of the methods in the first table, the smallest on top."""
    dataset, test, rule = block = next(result.blocks())
    cells = [result.cell(dataset, test, name, JUDGED, rule) for name in result.methods]
    known = sorted((c for c in cells if c is not None and math.isfinite(c.mean)), key=lambda c: c.mean)
    if not known:
        return None
    named_values = {
        cell.method: Estimate(
            cell.mean,
            cell.mean if cell.low is None else cell.low,
            cell.mean if cell.high is None else cell.high,
            cell.floor,
        )
        for cell in known[:MOST_ERRORS]
    }
    words = Wording(result, *block, JUDGED)
    over = f"means over {result.seeds} seeds" if result.seeds > 1 else "one seed"
    most = f" The {MOST_ERRORS} methods with the smallest error." if len(known) > MOST_ERRORS else ""
    return builder.draw(
        "Whose confidence is right?",
        f"Calibration errors on {words.place}, {over}, with 95 % intervals. The grey mark is what chance "
        f"alone gives a perfectly calibrated model.{most}",
        False,
        lambda: figures.estimates(named_values, label=words.noun, unit=words.unit),
    )


def _tables(result: Result) -> list[Table]:
    """Its tables, with what they are of and what their marks mean."""
    found = []
    for dataset, test, rule in result.blocks():
        table = block_table(result, dataset, test, rule)
        where = dataset if test == "test" else f"{dataset}, {test}"
        seeds = f"mean over {result.seeds} seeds and its 95 % interval" if result.seeds > 1 else "one seed"
        chosen = f", selected by {RULE_TEXT[rule]}" if len(result.rules(dataset)) > 1 else ""
        notes = tuple(filter(None, [marked(result, "Best", "Second")]))
        found.append(replace(table, caption=f"{where}: {seeds}{chosen}", notes=notes))
    others = [] if result.kind == "table" else tables(result)
    return [*(table for table in found if table.rows), *others]

"""The report of an experiment: tables over seeds, findings, figure, runs in detail."""

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from macc.experiments import Result, load_result
from macc.experiments.loading import safe_name
from macc.experiments.spec import RULE_TEXT
from macc.experiments.tables import block_table, marked, tables
from macc.io.writing import write_whole
from macc.report._svg import inline
from macc.report.building import Builder, take_lead
from macc.report.figures.style import save
from macc.report.html import Shown, check_output, write_page
from macc.report.sources import ReportSource
from macc.tables import Table
from macc.training.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "report.html"
Draw = Callable[[Result, Path, "str | PathLike[str] | None"], "tuple[Figure, str]"]
"""Draws the figure of a result, given the folder of run folders and the one of data; gives the rule
under it too.
"""


def find(path: str | PathLike[str], out: Path = Path("runs")) -> Path | None:
    """The folder of an experiment by its folder, its ``result.json`` or its name; nothing if it is
    none.

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
    page.lead = take_lead(groups)
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

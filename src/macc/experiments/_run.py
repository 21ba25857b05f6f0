"""``run``: an experiment from its file to its tables."""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

import torch

from macc.data import MissingFilesError
from macc.experiments import _file, _tables
from macc.experiments._curves import curves
from macc.experiments._file import Experiment
from macc.experiments._gather import gather
from macc.experiments._progress import Progress, duration
from macc.experiments._result import Result
from macc.experiments._runs import Plan
from macc.experiments._study import hidden
from macc.experiments._timing import seconds_of_epoch, timings
from macc.experiments._work import execute
from macc.io.writing import full_disk_explained, write_bytes

MAX_WORKERS = 8


def run(
    experiment: Experiment | str | Path,
    *,
    scale: str = "full",
    seeds: int | None = None,
    datasets: Sequence[str] = (),
    workers: int | None = None,
    storage: str | None = None,
    out: str | PathLike[str] = "runs",
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    show: bool = False,
) -> Result:
    """Train what an experiment needs and is not there yet, and measure it.

    Started again after whatever happened, it goes on; runs are shared by all experiments with the same ``out``.

    Args:
        experiment: An experiment, or the name or path of one.
        scale: ``"smoke"``, ``"cpu"`` or ``"full"``, of an experiment by name or path.
        seeds: In place of the file's, of an experiment by name or path.
        datasets: Only these of its data sets, of an experiment by name or path.
        workers: Processes that train; as many as cores and trainings where not given, one on an accelerator.
        storage: Address of a database for the grids; an SQLite file in the experiment's folder by default.
        out: The folder of run folders; results go to ``<out>/experiments/<name>-<scale>``.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
        show: Tell on standard error how far it is.

    Returns:
        What it found, also written as ``result.json``; where every training fails, the first reason is raised.

    Example:
        >>> import tempfile
        >>> from macc import experiments
        >>> mine = experiments.Experiment(name="mine", datasets="digits", seeds=2, scale="smoke",
        ...     set={"epochs": 1}, tests={"test": "test"}, methods=["CrossEntropy"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = experiments.run(mine, out=folder, workers=1)
        >>> len(result.cell("digits", "test", "CrossEntropy", "ece").values)
        2
    """
    if not isinstance(experiment, Experiment):
        experiment = _file.load(experiment, scale=scale, seeds=seeds, datasets=datasets)
    if workers is not None and workers < 1:
        raise ValueError(f"`--workers` must be at least 1, got {workers}")
    plan = Plan(experiment, Path(out), root, verify=verify)
    progress = Progress(plan, show=show)
    progress.say(f"{experiment.name}: looking for the data")
    plan.look()
    for text in plan.left_out:
        progress.say(text)
    folder = folder_of(experiment, out)
    if experiment.kind == "timing":
        result = gather(plan)
        result.timings, result.findings = timings(plan, progress.say)
    else:
        address = storage or f"sqlite:///{(folder / 'study.db').absolute()}"
        if storage is not None:
            progress.say(f"grids are shared through {hidden(storage)}")
        folder.mkdir(parents=True, exist_ok=True)
        wanted = workers if workers is not None else _workers(plan)
        with progress:
            execute(plan, folder, address, wanted, progress.tell)
        _check_any(plan)
        result = gather(plan)
        if experiment.kind == "convergence":
            result.curves = curves(plan)
        if len(experiment.search.objectives) > 1:
            result.fronts = _fronts(plan)
    write(result, folder)
    return result


def _check_any(plan: Plan) -> None:
    """Refuse to make tables of nothing."""
    if plan.failed and not any(plan.finished(case) for case in plan.cases):
        job, reason = next(iter(plan.failed.items()))
        raise ValueError(f"no training of {plan.experiment.name} finished; {job.text}: {reason}")


def folder_of(experiment: Experiment, out: str | PathLike[str]) -> Path:
    """The folder of an experiment's results."""
    name = _file.safe_name(experiment.name)
    return Path(out) / "experiments" / f"{name}-{experiment.scale}"


def write(result: Result, folder: Path) -> None:
    """Write a result: as JSON, and as tables to read, to paste and to compute with."""
    with full_disk_explained(folder):
        for form, name in (
            ("json", "result.json"),
            ("md", "table.md"),
            ("latex", "table.tex"),
            ("csv", "table.csv"),
        ):
            text = _tables.render(result, _tables.check_format(form))
            write_bytes(folder / name, f"{text}\n".encode())


def _workers(plan: Plan) -> int:
    if torch.accelerator.is_available():
        return 1
    return max(1, min(os.cpu_count() or 1, MAX_WORKERS, plan.experiment.trainings()))


def _fronts(plan: Plan) -> list[dict[str, object]]:
    """Of every grid the points that no other beats in both objectives, as far as they were tried."""
    names = plan.experiment.search.objectives
    found: list[dict[str, object]] = []
    for case in plan.cases:
        for method in plan.trained(case):
            if not plan.is_searched(method, case) or not plan.ready(case, method):
                continue
            rows = plan.tried(case, method)
            signs = [-1 if name == "accuracy" else 1 for name in names]
            costs = [
                [sign * scores[name] for name, sign in zip(names, signs, strict=True)] for _, scores in rows
            ]
            for (point, scores), own in zip(rows, costs, strict=True):
                if not any(_dominates(other, own) for other in costs):
                    row: dict[str, object] = {"dataset": case.name, "method": method.title, "point": point}
                    found.append(row | {name: scores[name] for name in names})
    return found


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)


def dry_run(
    experiment: Experiment,
    *,
    out: str | PathLike[str],
    root: str | PathLike[str] | None,
    verify: bool = True,
) -> str:
    """What an experiment would take: trainings, those that are done, and an estimate from a timed epoch.

    Of data sets that are missing it says how many trainings and training samples there would be, and no time.
    """
    plan = Plan(experiment, Path(out), root, verify=verify)
    with suppress(MissingFilesError):  # where every set is missing, there is still a plan
        plan.look()
    lines = [f"{experiment.name}, scale {experiment.scale}, {_many(experiment.seeds, 'seed')}"]
    missing = [row for row in experiment.datasets if row.name not in [case.name for case in plan.cases]]
    left_out = [f"  {text}" for text in plan.left_out]
    if plan.cases and not missing and not plan.is_open():
        done = sum(map(plan.finished, plan.cases))
        return "\n".join([*lines, *left_out, f"all is done: {_many(done, 'training')}"])
    total = 0.0
    count = done = 0
    for case in plan.cases:
        wanted = experiment.trainings([case.row])
        there = plan.finished(case)
        each = seconds_of_epoch(plan, case)
        recipe = plan.base_recipe(case)
        left = max(0, wanted - there) * each * recipe.epochs
        total, count, done = total + left, count + wanted, done + there
        lines.append(
            f"  {case.name}: at most {_many(wanted, 'training')} of {_many(recipe.epochs, 'epoch')}, {there} done; "
            f"an epoch takes about {_short(each)}, what is left about {duration(left)}"
        )
    for row in missing:
        wanted, (recipe, samples) = experiment.trainings([row]), plan.without_data(row)
        count += wanted
        size = "an unknown number of" if samples is None else f"{samples:,}".replace(",", " ")
        lines.append(
            f"  {row.name}: at most {_many(wanted, 'training')} of {_many(recipe.epochs, 'epoch')} of {size} "
            "training samples; how long is unknown, because its files are missing"
        )
    lines += left_out
    took = f"about {duration(total)} by one worker" if plan.cases else "how long is unknown without data"
    if plan.cases and missing:
        took += f" without {_many(len(missing), 'missing data set')}"
    how = (
        " (from an epoch of each recipe, timed; validation and tests make it longer, simpler losses shorter)"
    )
    lines.append(f"at most {_many(count, 'training')}, {done} done; {took}{how if plan.cases else ''}")
    return "\n".join(lines)


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def finished_text(folder: Path, seconds: float, made: Sequence[str], next_steps: Sequence[str]) -> str:
    """Where the files are, and what to do next."""
    lines = [
        f"{duration(seconds)}; files in {folder}",
        "  result.json   every value of every seed, tests and runs; `macc.experiments.load_result` reads it",
        "  table.md, table.tex, table.csv",
        *made,
    ]
    if next_steps:
        lines += ["", "Next", *(f"  {step}" for step in next_steps)]
    return "\n".join(lines)


def command(
    name: str,
    *,
    scale: str,
    seeds: int | None,
    datasets: Sequence[str],
    workers: int | None,
    storage: str | None,
    out: Path,
    root: Path | None,
    verify: bool,
    dry: bool,
    form: str,
    finish: Callable[[Result, Path], list[str]] | None = None,
) -> str:
    """What ``macc run`` prints on standard output; ``finish`` makes the report and says where it is."""
    chosen = _tables.check_format(form)
    if name == "list":
        return listing()
    experiment = _file.load(name, scale=scale, seeds=seeds, datasets=datasets)
    if dry:
        return dry_run(experiment, out=out, root=root, verify=verify)
    began = time.monotonic()
    result = run(
        experiment,
        workers=workers,
        storage=storage or os.environ.get("MACC_STORAGE"),
        out=out,
        root=root,
        verify=verify,
        show=True,
    )
    seconds = time.monotonic() - began
    folder = folder_of(experiment, out)
    lines = [] if finish is None else finish(result, folder)
    text = _tables.render(result, chosen)
    if chosen != "text":
        return text
    return f"{text}\n\n{finished_text(folder, seconds, lines, experiment.next)}"


def listing() -> str:
    """Every experiment that comes with macc on a line."""
    rows = []
    for name in _file.names():
        experiment = _file.load(name)
        rows.append((name, experiment.title, ", ".join(row.name for row in experiment.datasets)))
    width = max(len(row[0]) for row in rows)
    columns = shutil.get_terminal_size((120, 24)).columns
    lines = []
    for name, title, sets in rows:
        lines.append(f"{name.ljust(width)}  {title}")
        lines.append(f"{' ' * width}  {sets}"[:columns])
    return "\n".join([*lines, "", "or a YAML file of your own: docs/experiments.md"])

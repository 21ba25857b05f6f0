"""``run``: an experiment from its file to its tables."""

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch

from macc.experiments import loading, tables
from macc.experiments.gather import Published, gather, nothing_published
from macc.experiments.ledger import Ledger, open_ledger
from macc.experiments.listening import Listener
from macc.experiments.result import Result
from macc.experiments.search import hidden
from macc.experiments.spec import Experiment
from macc.experiments.workers import execute
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
    published: Published = nothing_published,
    listener: Listener | None = None,
) -> Result:
    """Train what an experiment needs and is not there yet, and measure it.

    After whatever happened, the same call resumes; runs are shared by all experiments with the
    same ``out``.

    Args:
        experiment: An experiment, or the name or path of one.
        scale: ``"smoke"``, ``"cpu"`` or ``"full"``, of an experiment by name or path.
        seeds: In place of the file's, of an experiment by name or path.
        datasets: Only these of its data sets, of an experiment by name or path.
        workers: Processes that train; as many as cores and trainings where not given, one on an
            accelerator.
        storage: Address of a database for the grids; an SQLite file in the experiment's folder by
            default.
        out: The folder of run folders; results go to ``<out>/experiments/<name>-<scale>``.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
        published: Gives the value that stands beside a cell; :func:`macc.paper.value` gives those
            of the paper.
        listener: Hears how far it is; `macc run` gives one that shows it.

    Returns:
        What it found, also written as ``result.json``; where every training fails, the first reason
        is raised.

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
        experiment = loading.load(experiment, scale=scale, seeds=seeds, datasets=datasets)
    if workers is not None and workers < 1:
        raise ValueError(f"`--workers` must be at least 1, got {workers}")
    if experiment.kind == "timing":
        raise ValueError(
            f"{experiment.origin}: kind: timing times epochs and compares no trained methods; "
            "`macc run` does that, and macc.paper.time_epochs in Python"
        )
    listener = listener or Listener()
    ledger = look(experiment, out, root, verify=verify, listener=listener)
    folder = folder_of(experiment, out)
    address = storage or f"sqlite:///{(folder / 'study.db').absolute()}"
    if storage is not None:
        listener.say(f"grids are shared through {hidden(storage)}")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = workers if workers is not None else _workers(experiment)
    with listener.of(ledger):
        execute(ledger, folder, address, wanted, listener.tell)
    _check_any(ledger)
    result = gather(ledger, published)
    write(result, folder)
    return result


def look(
    experiment: Experiment,
    out: str | PathLike[str],
    root: str | PathLike[str] | None,
    *,
    verify: bool,
    listener: Listener,
) -> Ledger:
    """The ledger of an experiment, telling what is looked for and what is not there."""
    listener.say(f"{experiment.name}: looking for the data")
    ledger = open_ledger(experiment, out, root, verify=verify)
    for text in ledger.catalog.left_out:
        listener.say(text)
    return ledger


def _check_any(ledger: Ledger) -> None:
    """Refuse to make tables of nothing."""
    if ledger.failed and not any(map(ledger.finished, ledger.catalog.datasets)):
        job, reason = next(iter(ledger.failed.items()))
        raise ValueError(f"no training of {ledger.experiment.name} finished; {job.text}: {reason}")


def folder_of(experiment: Experiment, out: str | PathLike[str]) -> Path:
    """The folder of an experiment's results."""
    name = loading.safe_name(experiment.name)
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
            text = tables.render(result, tables.check_format(form))
            write_bytes(folder / name, f"{text}\n".encode())


def _workers(experiment: Experiment) -> int:
    if torch.accelerator.is_available():
        return 1
    return max(1, min(os.cpu_count() or 1, MAX_WORKERS, experiment.trainings()))

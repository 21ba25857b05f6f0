"""``macc run``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from macc.experiments import Cost
    from macc.experiments.estimates import DataSetCost
from macc.cli.app import app, say
from macc.cli.options import DataFolder, Verify

SCREEN = 40
"""Lines that `macc run` prints at most, at 80 columns, without --verbose."""
WIDEST = 120


@app.command()
def run(
    name: Annotated[
        str,
        typer.Argument(
            help="An experiment of `macc run list`, a YAML file, or `list`; `demo` needs no data."
        ),
    ],
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this data set of the experiment. Give it again for more.")
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="smoke|cpu|full",
            help="How much to train: for seconds, for about an hour a data set, or as in the paper.",
        ),
    ] = "full",
    seeds: Annotated[int | None, typer.Option(help="Another number of seeds than the file's.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="The number of processes that train. If not given, one per core, at most 8; one on an accelerator."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The database for grids: postgresql://…; if not given $MACC_STORAGE, else an SQLite file.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="The folder in which run folders are made; experiments share them."
        ),
    ] = Path("runs"),
    data: DataFolder = None,
    verify: Verify = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing: say how many trainings it takes and how long.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="text|md|latex|csv|json", help="The form of what is printed.")
    ] = "text",
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every table and every finding.")] = False,
) -> None:
    """Compare methods on data sets, with paired tests.

    Example: macc run demo

    Writes: the runs below --out, and a folder with tables, all values and an
    HTML page. Prints one screen: two tables at most, three findings and where
    the rest is; with --verbose all of it. The same command again resumes.
    """
    import time
    from shutil import get_terminal_size

    from macc import experiments, paper, training
    from macc.cli import displays
    from macc.experiments.brief import HEIGHT, WIDTH, brief
    from macc.experiments.running import folder_of
    from macc.experiments.tables import check_format
    from macc.training.allocation import keep_freed_memory

    keep_freed_memory()
    chosen = check_format(form)
    if name == "list":
        say(_list_of_experiments())
        return
    experiment = experiments.load(name, scale=scale, seeds=seeds, datasets=dataset or [])
    if dry_run:
        say(_estimate_text(experiments.estimate(experiment, out=out, root=data, verify=verify)))
        return
    began = time.monotonic()
    try:
        if experiment.kind == "timing":
            result = paper.time_epochs(
                experiment, out=out, root=data, verify=verify, listener=displays.Trainings()
            )
        else:
            result = experiments.run(
                experiment,
                workers=workers,
                storage=storage or os.environ.get("MACC_STORAGE"),
                out=out,
                root=data,
                verify=verify,
                published=paper.value,
                listener=displays.Trainings(),
            )
    except training.Interrupted as stopped:
        typer.echo(f"macc: {stopped}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    seconds = time.monotonic() - began
    folder = folder_of(experiment, out)
    made = _reported(folder, data)
    if chosen != "text":
        say(experiments.render(result, chosen))
        return
    end = _end_of_experiment(folder, seconds, made, experiment.next)
    width = min(max(get_terminal_size((WIDTH, HEIGHT)).columns, WIDTH), WIDEST)
    room = SCREEN - 1 - sum(max(1, -(-len(line) // width)) for line in end.splitlines())
    text = experiments.render(result, "text") if verbose else brief(result, width=width, height=room)
    say(f"{text}\n\n{end}")


def _list_of_experiments() -> str:
    """Every experiment that comes with macc on two lines."""
    from shutil import get_terminal_size

    from macc import experiments

    rows = []
    for name in experiments.names():
        found = experiments.load(name)
        rows.append((name, found.title, ", ".join(dataset.name for dataset in found.datasets)))
    width = max(len(row[0]) for row in rows)
    columns = get_terminal_size((120, 24)).columns
    lines = []
    for name, title, sets in rows:
        lines.append(f"{name.ljust(width)}  {title}")
        lines.append(f"{' ' * width}  {sets}"[:columns])
    return "\n".join([*lines, "", "or a YAML file of your own: docs/experiments.md"])


def _estimate_text(found: "Cost") -> str:
    """What an experiment would take, data set by data set."""
    from macc.tables import duration

    experiment, here, missing = found.experiment, found.here, found.missing
    lines = [f"{experiment.name}, scale {experiment.scale}, {_many(experiment.seeds, 'seed')}"]
    left_out = [f"  {text}" for text in found.left_out]
    done = sum(share.done for share in here)
    if found.complete:
        return "\n".join([*lines, *left_out, f"all is done: {_many(done, 'training')}"])
    for share in (*here, *missing):
        lines.append(f"  {_share_text(share, missing=share in missing)}")
    lines += left_out
    timed = [share for share in (*here, *missing) if share.seconds is not None]
    took = "how long is unknown"
    if timed:
        took = f"about {duration(sum(share.seconds_left for share in timed))} by one worker"
        rest = len(here) + len(missing) - len(timed)
        took += f" without {_many(rest, 'data set')} whose time is unknown" if rest else ""
        took += " (from an epoch of each recipe, timed; validation and tests make it longer, simpler losses shorter)"
    count = sum(share.trainings for share in (*here, *missing))
    return "\n".join([*lines, f"at most {_many(count, 'training')}, {done} done; {took}"])


def _share_text(share: "DataSetCost", *, missing: bool) -> str:
    """What one data set takes."""
    from macc.tables import duration, thousands

    text = f"{share.dataset}: at most {_many(share.trainings, 'training')} of {_many(share.epochs, 'epoch')}"
    if missing:
        size = "an unknown number of" if share.samples is None else thousands(share.samples)
        text += f" of {size} training samples; its files are missing"
    else:
        text += f", {share.done} done"
    if share.seconds is None:
        return f"{text}; how long is unknown" if missing else text
    each = f"{share.seconds:.2g} s" if share.seconds < 10 else duration(share.seconds)
    timed = "an epoch, timed on noise of its shape, takes" if missing else "an epoch takes"
    return f"{text}; {timed} about {each}, what is left about {duration(share.seconds_left)}"


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _reported(folder: Path, root: Path | None) -> list[str]:
    """Write the report of an experiment and its figure; lines say where, or why there are none."""
    from macc import paper
    from macc.report import experiment, page

    try:
        report, *figure = experiment.write(folder, root=root, draw=paper.draw)
    except ValueError as error:
        return [f"no report: {error}"]
    lines = [f"  {' and '.join(path.name for path in figure)} (the figure)"] if figure else []
    return [*lines, page.how_to_open(report)]


def _end_of_experiment(folder: Path, seconds: float, made: list[str], next_steps: list[str]) -> str:
    """Where the files are, and what to do next."""
    from macc.tables import duration

    lines = [
        f"{duration(seconds)}; files in {folder}:",
        "  result.json (all values), table.md, table.tex, table.csv",
        *made,
    ]
    if next_steps:
        lines += ["Next", *(f"  {step}" for step in next_steps)]
    return "\n".join(lines)

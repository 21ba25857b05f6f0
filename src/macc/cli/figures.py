"""``macc plot`` and ``macc report``."""

from pathlib import Path
from typing import Annotated

import typer

from macc.cli.app import app, say
from macc.cli.options import (
    By,
    DataFolder,
    GroupsFile,
    LabelsOfAll,
    Positive,
    Reading,
    progress,
    reads_predictions,
)


@app.command()
@reads_predictions
def plot(
    reading: Reading,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A figure, or `list` to see all.")],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN", help="Run folders or prediction files.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file to write: .svg, .png or .pdf; KIND.svg if not given."),
    ] = None,
    split: Annotated[str, typer.Option(help="The split of a run whose predictions are shown.")] = "test",
    labels: LabelsOfAll = None,
    positive: Positive = None,
    data: DataFolder = None,
) -> None:
    """Draw a figure of runs or prediction files.

    Example: macc plot reliability predictions.npz -o reliability.svg

    Writes: one .svg, .png or .pdf. `macc plot list` names all figures.
    """
    from macc.io.writing import check_outputs
    from macc.report import kinds

    if kind == "list":
        width = max(map(len, kinds.KINDS))
        for name, each in kinds.KINDS.items():
            say(f"{name.ljust(width)}  {each.summary}")
        return
    path = Path(f"{kind}.svg") if output is None else output
    check_outputs({"-o": path}, [*(runs or []), *([labels] if labels else [])])
    reading |= {"labels": labels, "positive": positive}
    say(kinds.write(kind, runs or [], path, split=split, root=data, reading=reading))


@app.command()
@reads_predictions
def report(
    reading: Reading,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN|EXPERIMENT",
            help="Run folders or prediction files; the others are compared with the first. Or the folder of an experiment.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .html file to write.")] = Path(
        "report.html"
    ),
    split: Annotated[str, typer.Option(help="The split of a run whose predictions are shown.")] = "test",
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The heading of the page.", show_default=False)
    ] = None,
    labels: LabelsOfAll = None,
    positive: Positive = None,
    data: DataFolder = None,
    by: By = None,
    groups: GroupsFile = None,
    sets: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SETS.json",
            help="Also measure these fitted sets of classes. Give one for all runs, or one for each.",
            show_default=False,
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Also show the predictions over time: the column of times. Labels may be missing.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[str, typer.Option(metavar="LENGTH", help="The length of a window of --time.")] = "1d",
    monitor: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="STATE",
            help="Also show this state of `macc monitor`; needs no RUN.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write one HTML page about runs, predictions or an experiment.

    Example: macc report val.npz test.npz -o report.html

    Writes: one file that opens from disk and needs no network. Groups (--by),
    sets of classes (--sets) and times (--time) get sections of their own.
    """
    from macc import paper
    from macc.io.writing import check_outputs
    from macc.report import experiment, page
    from macc.report.operation import Operation

    runs = runs or []
    operation = Operation(by or (), groups, sets or (), time, window, monitor or ())
    beside = [file for file in (labels, groups, *operation.sets, *operation.monitors) if file is not None]
    check_outputs({"-o": output}, [*runs, *beside])
    reading |= {"labels": labels, "positive": positive}
    found = [folder for folder in map(experiment.find, runs) if folder is not None]
    if found and len(runs) > 1:
        raise ValueError(f"{found[0]} is an experiment, which is reported alone; leave out the others")
    if found and split != "test":
        raise ValueError(
            f"{found[0]} is an experiment, whose own tests are reported, got --split {split}; leave it out"
        )
    if found and operation != Operation():
        raise ValueError(
            f"{found[0]} is an experiment, which has no groups, sets or times; name its run folders instead"
        )
    with progress("measuring and drawing") as on_progress:
        if found:
            written, *_ = experiment.write(
                found[0], output, root=data, title=title, draw=paper.draw, on_progress=on_progress
            )
        else:
            written = page.write(
                runs,
                output,
                split=split,
                root=data,
                title=title,
                on_progress=on_progress,
                reading=reading,
                operation=operation,
            )
    say(page.how_to_open(written))

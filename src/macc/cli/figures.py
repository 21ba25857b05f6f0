"""``macc plot`` and ``macc report``."""

from pathlib import Path
from typing import Annotated

import typer

from macc.cli.app import app, say
from macc.cli.options import DataFolder, LabelsOfAll, Positive, Reading, progress, reads_predictions


@app.command()
@reads_predictions
def plot(
    reading: Reading,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A figure, or `list` to see all.")],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN…", help="Run folders or prediction files.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file: .svg, .png or .pdf; KIND.svg if not given."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which of a run's predictions.")] = "test",
    labels: LabelsOfAll = None,
    positive: Positive = None,
    data: DataFolder = None,
) -> None:
    """Draw a figure of runs or prediction files."""
    from macc.io.writing import check_outputs
    from macc.report import kinds

    if kind == "list":
        say(kinds.listing())
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
        list[Path],
        typer.Argument(
            metavar="RUN…|EXPERIMENT",
            help="Run folders or prediction files, the first to compare with; or the folder of an experiment.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .html file.")] = Path("report.html"),
    split: Annotated[str, typer.Option(help="Which of a run's predictions.")] = "test",
    title: Annotated[str | None, typer.Option(help="The heading.", show_default=False)] = None,
    labels: LabelsOfAll = None,
    positive: Positive = None,
    data: DataFolder = None,
) -> None:
    """Write one HTML page that says and shows what runs found; it opens from disk."""
    from macc import paper
    from macc.io.writing import check_outputs
    from macc.report import experiment, page

    check_outputs({"-o": output}, [*runs, *([labels] if labels else [])])
    reading |= {"labels": labels, "positive": positive}
    found = [folder for folder in map(experiment.find, runs) if folder is not None]
    if found and len(runs) > 1:
        raise ValueError(f"{found[0]} is an experiment, which is reported alone; leave out the others")
    if found and split != "test":
        raise ValueError(
            f"{found[0]} is an experiment, whose own tests are reported, got --split {split}; leave it out"
        )
    with progress("measuring and drawing") as on_progress:
        if found:
            written, *_ = experiment.write(
                found[0], output, root=data, title=title, draw=paper.draw, on_progress=on_progress
            )
        else:
            written = page.write(
                runs, output, split=split, root=data, title=title, on_progress=on_progress, reading=reading
            )
    say(page.how_to_open(written))

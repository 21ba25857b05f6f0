"""``macc auto``, ``export`` and ``card``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from macc.cli.app import app, say
from macc.cli.options import DataFolder, Verify
from macc.words import shown

Model = Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder, or a shipped model.")]


@app.command()
def export(
    run: Model,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="model.onnx, model.pt2 (torch.export) or model.safetensors (for macc.load).",
            show_default=False,
        ),
    ],
    risk: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="The largest share of accepted predictions that may be wrong; a shipped model keeps its own, "
            "a run has 0.05.",
            show_default=False,
        ),
    ] = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Answer with sets of classes too, that contain the right one this often; a shipped model keeps its "
            "own, a run has none.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="For --coverage: lac (the smallest sets), aps or raps (larger sets for harder samples)."
        ),
    ] = "lac",
    data: DataFolder = None,
) -> None:
    """Write a model as one file, for other programs.

    Example: macc export runs/digits-small_cnn-* -o model.onnx

    Writes: one file with normalisation, network, calibrator, certainty,
    threshold and, with --coverage, sets of classes.
    """
    from macc import ship
    from macc.ship import files

    trained = files.read(run)
    if risk is not None:
        trained = files.with_risk(trained, risk)
    if coverage is not None:
        trained = replace(trained, sets=files.sets_for(trained, coverage=coverage, method=method))
    elif method != "lac":
        raise ValueError(f"--method {shown(method)} is of sets; give --coverage too, 0.9 for instance")
    if output.suffix == files.SUFFIX:
        say(ship.ship(trained, output))
    else:
        say(ship.export(trained, output, root=data))
    say(trained.rule)
    if trained.sets is not None:
        say(trained.sets)


@app.command()
def auto(
    data: Annotated[str, typer.Argument(help="A set of `macc data list`, arrays:PATH or folder:PATH.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The model to write: .safetensors, .onnx or .pt2."
        ),
    ] = Path("model.safetensors"),
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long to train: 90s, 30m, 2h. The first training is always finished."
        ),
    ] = "30m",
    risk: Annotated[
        float,
        typer.Option(metavar="SHARE", help="The largest share of accepted predictions that may be wrong."),
    ] = 0.05,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder in which run folders are made.")
    ] = Path("runs"),
    root: DataFolder = None,
    verify: Verify = True,
) -> None:
    """Train a short list of methods, and ship the best.

    Example: macc auto arrays:embeddings.npz --budget 30m -o model.safetensors

    Writes: the model, its runs below --out, and a report of the comparison. The
    same command again resumes.
    """
    from macc import ship, training
    from macc.cli import displays
    from macc.experiments import auto as automatic
    from macc.report import experiment, page
    from macc.ship import files

    ship.check_name(output)
    try:
        found = automatic.auto(
            data,
            budget=automatic.seconds(budget),
            out=out,
            root=root,
            verify=verify,
            listener=displays.Trainings(),
        )
    except training.Interrupted as stopped:
        typer.echo(f"macc: {stopped}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    say(automatic.summary(found))
    say(f"its run is {shown(found.run.path)}; `macc card {shown(found.run.path)}` writes a model card")
    trained = files.with_risk(files.read(found.run.path), risk)
    say(trained.rule)
    if output.suffix == files.SUFFIX:
        say(f"the model is {ship.ship(trained, output)}; macc.load reads it")
    else:
        say(ship.export(trained, output, root=root))
    try:
        report, *_ = experiment.write(found.folder, root=root)
    except ValueError as error:
        say(f"no report: {error}")
    else:
        say(page.how_to_open(report))


@app.command()
def card(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder; `macc auto` names it.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The Markdown file to write.")
    ] = Path("README.md"),
) -> None:
    """Write a model card.

    Example: macc card runs/digits-small_cnn-* -o README.md

    Writes: a Markdown file with data, method, calibrated metrics, classes,
    thresholds and limits, and its reliability diagram.
    """
    from macc import ship

    say("\n".join(map(str, ship.card(run, output))))

"""``macc export`` and ``card``."""

from pathlib import Path
from typing import Annotated

import typer

from macc.cli.app import app, say
from macc.cli.options import DataFolder

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
        float, typer.Option(help="The largest share of accepted predictions that may be wrong.")
    ] = 0.05,
    data: DataFolder = None,
) -> None:
    """Write a model as one file: normalisation, network, calibrator, certainty and threshold inside."""
    from macc import ship
    from macc.ship import files

    trained = files.with_risk(files.read(run), risk)
    if output.suffix == files.SUFFIX:
        say(ship.ship(trained, output))
    else:
        say(ship.export(trained, output, root=data))
    say(trained.rule)

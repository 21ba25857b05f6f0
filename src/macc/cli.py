"""The command line: every command is a few lines that call the library.

Nothing heavy is imported here: ``macc --help`` answers without torch.
"""

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import macc

app = typer.Typer(
    name="macc",
    help="Train, measure and repair classifiers so that their confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(macc.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="The experiment to run; `demo` needs no data.")],
    seeds: Annotated[int, typer.Option(help="How many seeds to train each method with.")] = 5,
) -> None:
    """Run an experiment and print its comparison."""
    if name != "demo":
        raise ValueError(f"no experiment is called {name!r}; the one there is: demo")
    from macc.experiments import demo

    demo.run(seeds=seeds)


data_app = typer.Typer(
    name="data", help="Data sets: what there is, getting it, looking at it.", no_args_is_help=True
)
app.add_typer(data_app)

DataName = Annotated[
    str, typer.Argument(metavar="NAME", help="A set of `macc data list`, arrays:PATH or folder:PATH.")
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where data files are; $MACC_DATA if not given."),
]
Verify = Annotated[
    bool, typer.Option(help="Compare files with their published checksums before opening them.")
]
ImageSize = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="For folder:PATH: bring images to this height and width.")
]


@data_app.command("list")
def data_list(data: DataFolder = None) -> None:
    """Every data set: classes, sizes, whether it is here or how to get it, licence."""
    from macc.data import _show

    _show.terminal().print(_show.listing(data))


@data_app.command("prepare")
def data_prepare(
    name: DataName, data: DataFolder = None, verify: Verify = True, size: ImageSize = None
) -> None:
    """Download, check and unpack a set, or decode a folder of images, so that later starts are instant."""
    from macc.data import _show

    splits = _show.read(name, root=data, verify=verify, size=size)
    typer.echo(_show.ready(name, splits, root=data, verify=verify))


@data_app.command("show")
def data_show(
    name: DataName = "digits",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PNG", help="The contact sheet; SET-sheet.png if not given."),
    ] = None,
    data: DataFolder = None,
    verify: Verify = True,
    size: ImageSize = None,
    subset: Annotated[int | None, typer.Option(metavar="N", help="Only N training samples.")] = None,
    imbalance: Annotated[
        float | None, typer.Option(metavar="FACTOR", help="Thin out the training classes to this imbalance.")
    ] = None,
    label_noise: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Make this share of the training labels wrong.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the three options above.")] = 0,
) -> None:
    """Print class counts and the imbalance factor, and draw a contact sheet of the images."""
    from macc.data import _show

    splits = _show.read(name, root=data, verify=verify, size=size)
    splits = splits if subset is None else splits.subset(train=subset, seed=seed)
    splits = splits if imbalance is None else splits.make_imbalanced(imbalance, seed=seed)
    splits = splits if label_noise is None else splits.with_label_noise(label_noise, seed=seed)
    _show.terminal().print(_show.description(splits))
    typer.echo(_show.sheet(splits, output))


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"macc: warning: {message}", err=True)


def main() -> None:
    """Run the command line; a user's error is one line on standard error and exit code 2."""
    warnings.showwarning = _print_warning
    try:
        app()
    except ValueError as error:
        typer.echo(f"macc: {error}", err=True)
        sys.exit(2)

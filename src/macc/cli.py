"""The command line: every command is a few lines that call the library.

Nothing heavy is imported here: ``macc --help`` answers without torch.
"""

import sys
import warnings
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

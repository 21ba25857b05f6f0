"""The command ``macc`` itself and its groups, and how results are printed."""

from typing import Annotated

import typer

import macc
from macc.words import shown

app = typer.Typer(
    name="macc",
    help="Train, measure and repair classifiers so that their confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
recipe_app = typer.Typer(name="recipe", help="The recipes that come with macc.", no_args_is_help=True)
data_app = typer.Typer(
    name="data", help="Data sets: what there is, getting it, looking at it.", no_args_is_help=True
)
app.add_typer(recipe_app)
app.add_typer(data_app)


def say(text: object) -> None:
    """Print a result; whatever names of files it holds, a terminal shows them and does not obey them."""
    typer.echo("\n".join(shown(line, None) for line in str(text).split("\n")))


def _version(wanted: bool) -> None:
    if wanted:
        say(macc.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass

"""The command ``macc`` itself and its groups, and how results are printed."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import macc
from macc.words import shown


class Monitored(TyperGroup):
    """``macc monitor LOG`` is ``macc monitor log LOG``, unless LOG names another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command where none was named."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["log", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="macc",
    help="Train, measure, repair, ship and watch classifiers whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
recipe_app = typer.Typer(
    name="recipe", help="Recipes of trainings: list and show them.", no_args_is_help=True
)
data_app = typer.Typer(name="data", help="Data sets: list, get and look at them.", no_args_is_help=True)
monitor_app = typer.Typer(
    name="monitor",
    cls=Monitored,
    help="Watch a classifier in operation.",
    no_args_is_help=True,
)
app.add_typer(monitor_app)
app.add_typer(recipe_app)
app.add_typer(data_app)


def say(text: object) -> None:
    """Print a result; a terminal shows the names of files in it and does not obey them."""
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

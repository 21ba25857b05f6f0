"""The command ``macc`` itself and its groups, and how results are printed."""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import macc
from macc.words import shown

KINDS = {
    "<path>": "FILE",
    "<int>": "N",
    "<int range>": "N",
    "<float>": "X",
    "<str>": "NAME",
    "<list[str]>": "NAME",
    "<bool>": "",
}
"""What stands beside an option in the help, where the option says nothing better."""


def _plain(parameters: list[Any], ctx: Any) -> list[Any]:
    """Parameters whose help names no types of Python."""
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.metavar or parameter.name.upper()
            vars(parameter)["display_type_rich"] = lambda **_: ""
        elif parameter.metavar is None and hasattr(parameter, "display_type"):
            parameter.metavar = KINDS.get(parameter.display_type(ctx), "X")
    return parameters


class Command(TyperCommand):
    """A command whose help names no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as the help shows them."""
        return _plain(super().get_params(ctx), ctx)


class CommandGroup(TyperGroup):
    """A group of commands whose help names no types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as the help shows them."""
        return _plain(super().get_params(ctx), ctx)


class Monitored(CommandGroup):
    """``macc monitor LOG`` is ``macc monitor log LOG``, unless LOG names another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command where none was named."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["log", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="macc",
    cls=CommandGroup,
    help="Train, measure, repair, ship and watch classifiers whose confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
recipe_app = typer.Typer(
    name="recipe", cls=CommandGroup, help="Recipes of trainings: list and show them.", no_args_is_help=True
)
data_app = typer.Typer(
    name="data", cls=CommandGroup, help="Data sets: list, get and look at them.", no_args_is_help=True
)
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

"""The command line: a file for each group of commands, and every text that they print.

Nothing heavy is imported here: ``macc --help`` answers without torch.
"""

# ruff: noqa: I001 - the order means something

import io
import os
import sys
import warnings
from typing import NoReturn

import typer
from typer.core import TyperCommand

from macc.cli.app import Command, data_app, monitor_app, recipe_app
from macc.cli.app import app as app

# The commands register themselves, in the order of ``macc --help``.
from macc.cli import measure as measure
from macc.cli import repair as repair
from macc.cli import operation as operation
from macc.cli import monitor as monitor
from macc.cli import training as training
from macc.cli import ship as ship
from macc.cli import experiments as experiments
from macc.cli import figures as figures
from macc.cli import data as data
from macc.words import shown

for _group in (app, data_app, monitor_app, recipe_app):
    for _command in _group.registered_commands:
        if not issubclass(_command.cls or TyperCommand, Command):
            _command.cls = Command

# Longer errors and warnings are cut: a file may hold anything, and messages repeat parts of it.
_LONGEST = 2000


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"macc: warning: {shown(message, _LONGEST)}", err=True)


def main() -> None:
    """Run the command line; a user's error is one line on standard error and exit code 2."""
    warnings.showwarning = _print_warning
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character should show the rest.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except ValueError as error:
        _refuse(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        # "File exists" is what the system says of a folder that cannot be made.
        reason = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
        _refuse(f"{error.filename} cannot be written or read: {reason}")
    except SystemExit as end:
        _end(end.code)


def _refuse(reason: str) -> NoReturn:
    rank = os.environ.get("RANK", "0")
    reason = shown(reason, _LONGEST)
    typer.echo(f"macc: {reason}" if rank == "0" else f"macc: process {rank}: {reason}", err=True)
    _end(2)


def _end(code: str | int | None) -> NoReturn:
    if isinstance(code, int | None) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from macc.training.engine import end_process

        end_process(code or 0)
    sys.exit(code)

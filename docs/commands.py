"""The page of all commands, written from the command line itself when the documents are built."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from macc.cli import app

WIDTH = 80


def names(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something."""
    command = get_command(app) if command is None else command
    children = getattr(command, "commands", None)
    if children is None:
        yield words
    for name, child in (children or {}).items():
        yield from names(child, (*words, name))


def shown(words: tuple[str, ...]) -> str:
    """What ``--help`` prints in a terminal of 80 columns."""
    os.environ["COLUMNS"] = os.environ["TERMINAL_WIDTH"] = str(WIDTH)
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="macc")
    if result.exit_code != 0:
        raise RuntimeError(f"macc {' '.join(words)} --help failed: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.strip("\n").splitlines())


def write(path: Path) -> None:
    """Write the page, unless it is there already as it would be written."""
    parts = ["# Commands", "", "What `--help` says, command by command.", ""]
    for words in names():
        parts += [f"## macc {' '.join(words)}", "", "```text", shown(words), "```", ""]
    text = "\n".join(parts)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)

"""The command line is quick to answer and kind to mistakes."""

import json
import re
import subprocess
import sys
import warnings

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from macc.cli import app, main


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "macc", *args], capture_output=True, text=True, timeout=120)


def commands(command, words=()):
    """The words of every command that does something, and the command."""
    children = getattr(command, "commands", None)
    if children is None:
        return [(words, command)]
    return [each for name, child in children.items() for each in commands(child, (*words, name))]


COMMANDS = commands(get_command(app))


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_help_says_what_it_does_shows_an_example_and_fits_80_columns(words, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = CliRunner().invoke(app, [*words, "--help"]).output.splitlines()

    assert max(map(len, shown)) <= 80
    said = [line.strip() for line in command.help.splitlines() if line.strip()]
    assert len(said[0]) <= 66  # one line in the list of commands
    assert f"Example: macc {' '.join(words).removesuffix(' log')} "[:-1] in command.help
    assert "Writes: " in command.help
    # Kinds of values are words of this command line, not types of Python.
    assert not re.search(r"<\w+[\[\]\w ]*>", "".join(shown))
    assert re.search(
        r"Usage: \S+ [a-z ]*\[OPTIONS\]( [{\[][A-Z|]+(\.npy)?[}\]](\.\.\.)?)*$", shown[1].strip()
    )
    # No line is broken once more.
    assert set(said) <= {line.strip() for line in shown}


def test_help_loads_nothing_heavy():
    code = (
        "import json, sys\n"
        "from typer.testing import CliRunner\n"
        "from macc.cli import app\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "assert result.exit_code == 0 and 'run' in result.output, result.output\n"
        "print(json.dumps(sorted(m for m in sys.modules if '.' not in m)))\n"
    )
    loaded = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )

    assert not {"torch", "sklearn", "matplotlib", "transformers", "numpy"} & set(loaded)


def test_version():
    import macc

    assert run("--version").stdout.strip() == macc.__version__


def test_a_users_error_is_one_line_and_exit_code_2(monkeypatch, capsys):
    from macc import experiments

    monkeypatch.setattr(sys, "argv", ["macc", "run", "nothing-of-the-kind"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "macc: no experiment is called 'nothing-of-the-kind'; there are "
        f"{', '.join(experiments.names())} (a file of your own ends in .yaml)"
    ]

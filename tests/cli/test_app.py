"""The command line is quick to answer and kind to mistakes."""

import json
import subprocess
import sys


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "macc", *args], capture_output=True, text=True, timeout=120)


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


def test_a_users_error_is_one_line_and_exit_code_2():
    from macc import experiments

    result = run("run", "nothing-of-the-kind")

    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "macc: no experiment is called 'nothing-of-the-kind'; there are "
        f"{', '.join(experiments.names())} (a file of your own ends in .yaml)"
    ]

"""A test whose library is not installed is skipped with the reason, wherever it finds out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.extras import lacking, libraries

ROOT = Path(__file__).parents[1]
# A library that Python does not find, as one that is not installed.
HIDDEN = """\
import os
from importlib.machinery import PathFinder

found, hidden = PathFinder.find_spec, set(os.environ["HIDDEN"].split(","))


def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else found(name, path, target)


PathFinder.find_spec = classmethod(find_spec)
"""
TESTS = """\
import subprocess, sys
import pytest

def test_that_imports():
    from pyarrow import parquet

def test_that_asks():
    pytest.importorskip("PIL.Image")

def test_that_uses():
    raise ValueError("columns need narwhals; install it with: pip install 'macc-torch[frames]'")

def test_of_a_command():
    assert not subprocess.run([sys.executable, "-c", "import lightning"], capture_output=True, text=True).stderr

def test_that_fails():
    assert "pyarrow" == "PIL"

def test_that_passes():
    import numpy
"""


def pytest_without(libraries, folder, *words):
    """What pytest prints where these libraries are not installed."""
    (folder / "sitecustomize.py").write_text(HIDDEN)
    path = os.pathsep.join([str(folder), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "HIDDEN": ",".join(libraries),
        "PYTHONPATH": path,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-ra", *words]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    return ended.stdout + ended.stderr


def test_tests_that_lack_a_library_are_skipped_and_others_fail(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_file.py").write_text("import torchmetrics\n\ndef test_of_it():\n    pass\n")
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    out = pytest_without(
        ["pyarrow", "PIL", "narwhals", "lightning", "torchmetrics"],
        tmp_path,
        "-q",
        "--rootdir",
        tmp_path,
        tmp_path,
    )

    assert "1 failed, 1 passed, 5 skipped" in out, out
    for extra, library in {
        "parquet": "pyarrow", "data": "PIL", "frames": "narwhals", "lightning": "lightning",
        "torchmetrics": "torchmetrics",
    }.items():  # fmt: skip
        assert f"{library} is not installed: pip install 'macc-torch[{extra}]'" in out, out


def test_what_is_installed_is_no_reason():
    assert lacking("ModuleNotFoundError: No module named 'numpy'") is None
    assert "pip install --group dev" in libraries()["pandas"]


@pytest.mark.parametrize(
    "text", ["macc-torch[parquet]", "No module named 'pyarrow.parquet'", "import of pyarrow halted"]
)
def test_what_says_that_a_library_is_missing(text, monkeypatch):
    assert lacking(text) is None
    monkeypatch.setattr("helpers.extras.find_spec", lambda name: None)

    assert lacking(text) == "pyarrow is not installed: pip install 'macc-torch[parquet]'"

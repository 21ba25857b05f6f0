"""Libraries that need not be installed: what a test lacks, and what installs it."""

import re
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
# Names of packages that are imported under another.
_IMPORTED = {"pillow": "PIL", "MAPIE": "mapie"}
# Of the group for development, what tests themselves do not import.
_TOOLS = {"macc-torch", "mypy", "pytest", "pytest-xdist", "ruff", "types-PyYAML"}
# What Python, pytest and macc write where something is not there; what a command wrote is quoted.
_MISSING = re.compile(
    r"No module named \\?'(?P<module>\w+)|could not import '(?P<wanted>\w+)|import of (?P<halted>\w+)\S* halted"
    r"|macc-torch\[(?P<extra>\w+)\]"
)


@cache
def libraries() -> dict[str, str]:
    """What installs each library that a test may lack, by the name that is imported."""
    project = tomllib.loads(PROJECT.read_text())
    found = {}
    for each in project["dependency-groups"]["dev"]:
        found[_imported(each)] = "pip install --group dev"
    for extra in _extras():
        for each in project["project"]["optional-dependencies"][extra]:
            found[_imported(each)] = f"pip install 'macc-torch[{extra}]'"
    return {library: cure for library, cure in found.items() if library not in _TOOLS}


@cache
def _extras() -> tuple[str, ...]:
    """The extras; one that brings little comes later, so that a library is named by it."""
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    return tuple(sorted((name for name in extras if name != "all"), key=lambda name: -len(extras[name])))


def _imported(requirement: str) -> str:
    name = Requirement(requirement).name
    return _IMPORTED.get(name, name)


def absent(library: str) -> bool:
    """Whether a library is not installed."""
    return find_spec(library) is None


def lacking(text: str) -> str | None:
    """The library that a failure is about, where it is not installed, and what installs it.

    Where everything is installed there is none, so that no failure passes for a skipped test.
    """
    for match in _MISSING.finditer(text):
        if match["extra"]:
            asked = [name for name, cure in libraries().items() if f"[{match['extra']}]" in cure]
        else:
            asked = [match["module"] or match["wanted"] or match["halted"]]
        for library in asked:
            if library in libraries() and absent(library):
                return f"{library} is not installed: {libraries()[library]}"
    return None

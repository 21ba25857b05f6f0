"""How the package is put together: what imports what, and what may be broken around it."""

import ast
import importlib
import itertools
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import macc
from macc.words import ARGUMENTS

ROOT = Path(__file__).parents[1]
SOURCE = Path(macc.__file__).parent

# Each part, and the parts of macc it may import. Paper and cli may import all; nothing imports
# them, and no other part imports ship.
FOUNDATION = {"io", "tables", "words"}  # files, tables and words, for every part; they know no part
ALLOWED = {
    "words": set(),
    **{part: {"words"} for part in FOUNDATION - {"words"}},
    "heads": set(),
    "losses": {"heads"},
    "metrics": {"heads"},
    "predictions": {"metrics"},
    "posthoc": {"heads", "metrics", "predictions"},
    "models": {"heads"},
    "data": {"heads"},
    "training": {"heads", "losses", "metrics", "predictions", "posthoc", "models", "data"},
    "experiments": {"heads", "losses", "metrics", "posthoc", "models", "data", "training"},
    "monitor": {"metrics", "predictions"},
    "report": {
        "heads",
        "losses",
        "metrics",
        "monitor",
        "predictions",
        "posthoc",
        "data",
        "training",
        "experiments",
    },
    "ship": {"heads", "metrics", "posthoc", "models", "data", "training", "report"},
    "integrations": {"heads", "losses", "metrics", "predictions", "posthoc", "models"},
}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def modules_of(path: Path) -> set[str]:
    """The modules and names of macc that a file imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            assert "macc" not in names or part_of(path) in ("cli", "__main__"), (
                f"{path}: name the part you import"
            )
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name for name in names if name.startswith("macc.")}
    return found


def imports_of(path: Path) -> set[str]:
    """The parts of macc that a file imports."""
    found = {name.split(".")[1] for name in modules_of(path)}
    return {macc._HOME.get(name, f"macc.{name}").split(".")[1] for name in found}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    part = part_of(path)
    if part in ("cli", "__main__", "__init__"):
        return
    if part == "paper":
        assert "cli" not in imports_of(path)
        return
    assert part in ALLOWED, f"say in this test what {part} may import"
    common = set() if part in FOUNDATION else FOUNDATION
    assert imports_of(path) - {part, "__version__"} <= ALLOWED[part] | common


def private_imports(path: Path) -> set[str]:
    """The private modules and names of other parts that a file imports."""
    return {
        re.match(r"[\w.]*?\._\w+", name)[0]
        for name in modules_of(path)
        if re.search(r"\._(?!_)", name) and name.split(".")[1] != part_of(path)
    }


def test_no_part_imports_what_another_keeps_private():
    found = {str(path.relative_to(SOURCE)): private_imports(path) for path in sorted(SOURCE.rglob("*.py"))}

    assert {path: private for path, private in found.items() if private} == {}


def test_public_names_resolve():
    for name in macc.__all__:
        assert getattr(macc, name) is not None
    assert set(macc.__all__) <= set(dir(macc))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        macc.nothing  # noqa: B018


def test_the_stub_names_what_the_package_has():
    tree = ast.parse((SOURCE / "__init__.pyi").read_text())
    typed = {
        alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }

    assert typed | {"__version__"} == set(macc.__all__)


def test_importing_the_package_loads_nothing_heavy():
    code = "import macc, sys; print([m for m in ('torch', 'numpy', 'sklearn', 'typer') if m in sys.modules])"

    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_broken_torchvision_breaks_nothing(tmp_path):
    """A torchvision built for another torch raises as soon as it is imported."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    modules = [
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(SOURCE.rglob("*.py"))
        if path.stem != "__main__" and "integrations" not in path.parts
    ]
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"import importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "import torch, macc\n"
        "model = macc.attach(macc.models.build('small_cnn', num_classes=3, in_channels=1))\n"
        "criterion = macc.losses.parse('Focal + 10*MACC')\n"
        "criterion(model(torch.rand(4, 1, 8, 8)), torch.tensor([0, 1, 2, 0])).backward()\n"
        "try:\n    import torchvision\nexcept RuntimeError: print('broken, and no harm done')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert result.stdout.strip() == "broken, and no harm done", result.stderr


def test_only_the_command_line_shows_text():
    """Libraries return values and tell listeners; a bar while files are downloaded is the
    exception.
    """
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            shows = called in ("print", "sys.stdout.write", "sys.stderr.write")
            if shows or any(name.split(".")[0] in ("rich", "typer") for name in names):
                found.add(str(path.relative_to(SOURCE)))

    assert {name for name in found if not name.startswith("cli/")} == {"data/_progress.py"}


def test_no_two_classes_share_a_name():
    places = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))

    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def arguments_without_meaning(tree: ast.Module):
    """Arguments that neither a docstring nor the glossary describes, with their lines."""
    for node in ast.walk(tree):
        text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
        if text is None or "\nArgs:\n" not in text:
            continue
        decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
        described = set(re.findall(r"^ {4}\*{0,2}(\w+): ", text, re.MULTILINE))
        described |= set(ARGUMENTS) if decorators & {"documented", "metric", "reads_inputs"} else set()
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for each in given:
            if each.arg not in {*described, "self", "cls"} and not each.arg.startswith("_"):
                yield each.lineno, f"{node.name}({each.arg})"


def test_a_docstring_that_describes_arguments_describes_all():
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {name}"
        for path in SOURCE.rglob("*.py")
        for line, name in arguments_without_meaning(ast.parse(path.read_text()))
    ]
    assert found == []


# Tests of what several modules do together; all others have the name of the module they test.
TOGETHER = {
    "cli": {"answers", "groups", "maps", "weights"},
    "experiments": {"calibrated"},
    "losses": {"contract", "values"},
    "metrics": {"weights"},
    "models": {"contract"},
    "posthoc": {"contract", "weights"},
    "recipes": {"recipes"},
    "report": {"page_in_a_browser"},
    "ship": {"sets"},
    "training": {"compile", "processes", "resume", "stages"},
}


def test_tests_mirror_the_source():
    found = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    of_parts = {path for path in found if (SOURCE / path.parts[0]).is_dir()}
    strange = set()
    for path in of_parts:
        folder, name = SOURCE / path.parent, path.stem.removeprefix("test_")
        there = {each.stem.removeprefix("_") for each in folder.iterdir()}
        if name not in there | TOGETHER.get(path.parts[0], set()):
            strange.add(str(path))

    assert strange == set(), "name it for the module it tests"
    assert len(of_parts) > 100
    for part, names in TOGETHER.items():
        assert all((ROOT / "tests" / part / f"test_{name}.py").is_file() for name in names), part


def test_files_of_tests_are_short_enough_to_read():
    long = [path.name for path in (ROOT / "tests").rglob("*.py") if len(path.read_text().splitlines()) > 500]
    assert long == []


def short_docstrings(tree: ast.Module):
    """The docstrings of attributes and properties, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, after in itertools.pairwise(node.body):
                assigned = isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr)
                if assigned and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                    yield after.lineno, after.value.value
        elif isinstance(node, ast.FunctionDef):
            text = ast.get_docstring(node)
            if text and any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
                yield node.lineno, text


def reads_as_a_type(docstring: str) -> bool:
    """Whether Sphinx's napoleon takes what stands before a colon in the first line for a type."""
    first = re.sub(r":[\w.+:-]+:`.+?`|``.+?``", "code", docstring.strip().splitlines()[0])
    return re.search(r"(?<!:):(?!:)\s*\S", first) is not None


def test_no_docstring_of_an_attribute_reads_as_a_type():
    assert reads_as_a_type("With ``kind: timing``: rows.")
    assert not reads_as_a_type("Rows of ``kind: timing``, see :func:`run`.")
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in short_docstrings(ast.parse(path.read_text()))
        if reads_as_a_type(text)
    ]

    assert found == [], "say it without a colon in the first line"


def test_what_the_architecture_page_names_is_there():
    page = SOURCE.parents[1] / "docs" / "architecture.md"
    if not page.is_file():
        pytest.skip("the documents are not beside an installed package")
    names = re.findall(r"`((?:cli|data|metrics|predictions|training)\.\w[\w.]*(?<!json))`", page.read_text())

    assert len(names) >= 10
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = importlib.import_module(f"macc.{module}")
        assert hasattr(found, attribute), name
    parts = re.findall(r"^  (\w+)(?:/|\.py) ", page.read_text(), re.MULTILINE)
    there = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if not path.name.startswith("_")}
    assert set(parts) == there - {"py.typed", "__pycache__"}


def what_make_installs():
    """Every package that ``make test`` installs, with its version: those of the project, of the
    group for development, and all that they need in turn.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    wanted = [each for each in groups["dev"] if isinstance(each, str)]
    for each in groups["dev"]:
        wanted += groups[each["include-group"]] if isinstance(each, dict) else []
    left, found = [Requirement(each) for each in [*wanted, *project["project"]["dependencies"]]], {}
    while left:
        needed = left.pop()
        key = canonicalize_name(needed.name), frozenset(needed.extras)
        if key in found or not applies(needed.marker, {""}):
            continue
        package = distribution(needed.name)
        found[key] = package.version
        requires = map(Requirement, package.requires or ())
        left += [each for each in requires if applies(each.marker, {"", *needed.extras})]
    return {name: version for (name, _), version in found.items() if name != "macc-torch"}


def test_no_extra_may_bring_another_torch():
    """A torchvision belongs to one torch, and timm needs torchvision."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        canonicalize_name(Requirement(each).name)
        for extra in project["optional-dependencies"].values()
        for each in extra
    }

    assert not named & {"torch", "torchvision", "torchaudio", "timm"}


def test_the_documents_name_the_licence_of_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    named = {Requirement(each).name.lower() for each in [*project["dependencies"], *extras]}
    page = (ROOT / "docs" / "reliability.md").read_text().lower()
    rows = [row for row in page.splitlines() if row.startswith("|")]

    assert [name for name in named - {"macc-torch"} if not any(name in row for row in rows)] == []


def applies(marker, extras):
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


@pytest.mark.skipif(not (Path(sys.prefix) / ".ready").exists(), reason="make did not install this")
def test_the_constraints_name_exactly_what_is_installed():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        canonicalize_name(name): pin for name, equal, pin in (line.partition("==") for line in lines) if equal
    }
    installed = what_make_installs()

    assert len(installed) > 50
    # A build for this machine, as 2.13.0+cpu is one of 2.13.0, is the same version.
    assert {name: version.split("+")[0] for name, version in installed.items()} == {
        name: pinned.get(name, "missing from constraints.txt").split("+")[0] for name in installed
    }

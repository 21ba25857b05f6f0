"""What the documents show is run: README and docs, Python and shell blocks alike."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import evidence

import macc

ROOT = Path(__file__).parents[1]
WRITTEN_BY_THE_BUILD = ROOT / "docs" / "commands.md"
DOCUMENTS = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {WRITTEN_BY_THE_BUILD})]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p, "python")], ids=lambda path: path.name)
def test_python_blocks_run_in_order(path, tmp_path):
    script = tmp_path / "blocks.py"
    script.write_text("import torch\ntorch.manual_seed(0)\n" + "\n".join(blocks(path, "python")))
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)

    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p, "bash")], ids=lambda path: path.name)
def test_shell_blocks_run_in_order(path, tmp_path):
    """All but the two make commands, with this environment's `macc` first on the path."""
    lines = [line for block in blocks(path, "bash") for line in block.splitlines()]
    script = "\n".join(line for line in lines if not re.match(r"make (demo|test)\b", line))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_block_escapes(path):
    """What is shown is Python or bash and runs, or says that it is text."""
    languages = re.findall(r"^```(\S*)\n.*?^```$", path.read_text(), re.MULTILINE | re.DOTALL)

    assert set(languages) <= {"python", "bash", "text", "yaml", "{toctree}", "{include}"}


def test_the_readme_names_the_commands_that_ci_runs():
    assert blocks(ROOT / "README.md", "bash")[0].splitlines()[:2] == ["make demo", "make test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_citation_names_the_version():
    assert f"version: {macc.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_table_that_explains_the_numbers_is_printed_by_its_example():
    path = ROOT / "docs" / "numbers.md"
    shown = re.findall(r"^```text\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)[0].splitlines()
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks(path, "python"))], capture_output=True, text=True, check=True
    )

    assert set(shown) <= set(result.stdout.splitlines())


def test_links_between_documents_lead_somewhere():
    for path in DOCUMENTS:
        # Tutorials become pages of the gallery when the documents are built.
        for target in re.findall(r"\]\((?!http|gallery/)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_tables_of_the_evidence_are_those_of_its_runs():
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_evidence", "--from", "results/first_evidence.json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )

    assert result.stdout.strip() in (ROOT / "docs" / "first-evidence-tables.md").read_text()


def test_the_pages_of_results_are_written_from_the_committed_runs():
    assert evidence.TABLES.read_text() == evidence.tables_page()
    for page in evidence.PAGES:
        assert page.read_text() == evidence.filled(page.read_text()), page.name

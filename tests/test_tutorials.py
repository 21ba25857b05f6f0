"""The tutorials: all are code that can be read; the quick ones run as ``make docs`` runs them."""

import ast
import runpy
import tempfile
from pathlib import Path

import pytest

from macc import metrics

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.py"))


def test_the_first_ten_minutes_come_first():
    assert [path.stem for path in TUTORIALS] == [
        "first_ten_minutes",
        "image_classifier",
        "predictions_in_a_file",
        "transformers_trainer",
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_each_has_a_title_and_shows_what_it_finds(path):
    tree = ast.parse(path.read_text())

    title, rule = ast.get_docstring(tree).splitlines()[:2]
    assert rule == "=" * len(title)
    # Sphinx-gallery shows the last expression of a part, and figures that have a name.
    assert any(isinstance(each, ast.Expr) for each in tree.body[1:])
    assert "figure = report.plot()" in path.read_text()
    ast.parse(path.read_text(), feature_version=(3, 11))


def test_the_one_of_a_file_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")

    found = runpy.run_path(str(TUTORIALS[2]))

    assert found["file"].is_relative_to(tmp_path)
    assert "west" in found["fitted"].slopes  # the hospital that needs a map of its own has one
    shown = found["report"]._repr_html_()
    assert "<table>" in shown
    assert found["figure"]._repr_png_().startswith(b"\x89PNG")


def test_the_first_ten_minutes_show_a_repair_that_helps(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pytest.importorskip("matplotlib")

    found = runpy.run_path(str(TUTORIALS[0]))

    assert found["file"].is_relative_to(tmp_path)
    repaired = metrics.ece(found["probs"][found["test"]], found["y"][found["test"]])
    assert found["report"]["ece"].low > 0
    assert repaired < found["report"]["ece"].value / 2
    assert found["rule"].threshold > 0

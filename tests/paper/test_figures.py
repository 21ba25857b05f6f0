"""The paper's figures, drawn for the result of an experiment."""

import dataclasses
from pathlib import Path
from typing import get_args

import pytest

from helpers.finished_experiment import finished_experiment, run_of
from helpers.report_runs import HOSTILE
from macc import experiments, metrics, paper
from macc.experiments import spec
from macc.experiments.result import Cell, Member, Result
from macc.paper.figures import FIGURES, _Scene
from macc.report.experiment import first_runs

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture
def done():
    return finished_experiment()


def drawn(done, figure):
    folder, result = done
    found, rule = paper.draw(dataclasses.replace(result, figure=figure), folder.parent.parent)
    assert " ".join(found.get_supxlabel().split()) == rule
    assert rule.endswith("Reduced scale (smoke): not the paper's settings.")
    return found


def test_every_figure_an_experiment_may_name_is_drawn(done):
    assert set(get_args(spec.Figure)) == set(FIGURES)
    for name in FIGURES:
        assert drawn(done, name).axes


def test_one_seed_is_shown_whatever_its_number(done):
    folder, result = done
    later = dataclasses.replace(result, runs=[dataclasses.replace(r, seed=r.seed + 5) for r in result.runs])
    assert later.first_seed == 5
    assert [s.name for s in first_runs(later, folder)] == [s.name for s in first_runs(result, folder)]
    found, _ = paper.draw(dataclasses.replace(later, figure="mistakes"), folder.parent.parent)
    assert found.axes


def test_methods_are_paired_as_they_are_written_whatever_failed():
    methods = ["NLL", "NLL+MACC", "FL", "FL+MACC", "NLL+dropout"]
    runs = [Member("d", name, "val_accuracy", 0, name, {}, 1.0) for name in methods if name != "NLL+MACC"]
    result = Result("x", "", "table", "full", "0", 1, ["ece"], {}, ["d"], methods, {"d": ["test"]}, runs=runs)
    scene = _Scene(result, Path("runs"), None)

    assert scene.pairs("d") == [("FL", "FL+MACC")]
    assert scene.odd("d") == "NLL+dropout"


def test_methods_made_of_others_are_in_no_pair():
    methods = ["NLL", "NLL+TS", "NLL+MACC"]
    runs = [Member("d", name, "val_accuracy", 0, name, {}, 1.0) for name in ("NLL", "NLL+MACC")]
    cells = [Cell("d", "test", name, "val_accuracy", "ece", (0.1,), None, None, None) for name in methods]
    result = Result(
        "x", "", "table", "full", "0", 1, ["ece"], {}, ["d"], methods, {"d": ["test"]}, cells=cells, runs=runs
    )
    scene = _Scene(result, Path("runs"), None)

    assert scene.pairs("d") == [("NLL", "NLL+MACC")]
    assert scene.odd("d") == "NLL"


def test_figure_2_has_certainty_and_the_curves_of_each_pair(done):
    left, right = drawn(done, "certainty").axes

    assert left.get_title() == "digits: CrossEntropy"
    wanted = [
        1000
        * sum(
            metrics.sce(*run_of(HOSTILE, seed).predictions(f"epochs/test-{epoch}"), from_logits=True)
            for seed in (0, 1)
        )
        / 2
        for epoch in (1, 2)
    ]
    assert right.lines[1].get_ydata() == pytest.approx(wanted)


def test_figure_3_has_both_models_in_and_out_of_domain(done):
    titles = [ax.get_title() for ax in drawn(done, "gap").axes]

    assert titles[:2] == ["CrossEntropy, digits", "CrossEntropy, digits under shift"]
    assert len(titles) == 4


def test_figure_4_takes_the_extremes_of_confidence(done):
    figure = drawn(done, "confidence")
    logits, labels = run_of("CrossEntropy").predictions("test")
    gap = float(logits.softmax(1).amax(1).mean()) - metrics.accuracy(logits, labels, from_logits=True)

    assert f"digits {100 * gap:+.1f}".replace("-", "−") in figure.get_supxlabel()


@pytest.mark.parametrize("name", [f"fig{k}" for k in range(1, 7)])
def test_the_figures_of_the_paper_are_experiments(name):
    for scale in ("smoke", "cpu", "full"):
        found = experiments.load(name, scale=scale)
        assert found.figure in FIGURES
        assert found.title.startswith(f"Figure {name[3]}, ")
    assert (found.kind == "convergence") == (name in ("fig2", "fig6"))
    assert found.moments == (name in ("fig2", "fig3"))

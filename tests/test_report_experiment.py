"""Figures and the report of an experiment: its numbers, its rule, its files, and what is missing."""

import dataclasses
import math
import re
import sys
from pathlib import Path
from typing import get_args

import pytest

from command import run
from macc import experiments, metrics, training
from macc.experiments import _file
from macc.experiments._result import Cell, Member, Result
from macc.experiments._run import folder_of
from macc.report import experiment, paper
from macc.report.experiment import first_runs
from report_runs import HOSTILE

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """An experiment with two seeds, epochs, moments and a shifted set; its folder and result."""
    out = tmp_path_factory.mktemp("experiment")
    mine = experiments.Experiment(
        name="mine",
        title=f"Mine {HOSTILE}",
        figure="certainty",
        kind="convergence",
        moments=True,
        datasets=["digits"],
        seeds=2,
        scale="smoke",
        set={"epochs": 2, "head.p": 0.2},
        tests={"test": "test", "shifted": "own/noise-1"},
        methods=["CrossEntropy", {"name": HOSTILE, "loss": "CrossEntropy + 5*MACC(warmup=10)"}],
    )
    result = experiments.run(mine, out=out, workers=1)
    return folder_of(mine, out), result


def drawn(done, figure):
    folder, result = done
    found, rule = paper.draw(dataclasses.replace(result, figure=figure), folder.parent.parent)
    assert " ".join(found.get_supxlabel().split()) == rule
    assert rule.endswith("Reduced scale (smoke): not the paper's settings.")
    return found


def run_of(done, method, seed=0):
    folder, result = done
    member = next(run for run in result.runs if (run.method, run.seed) == (method, seed))
    return training.open_run(folder.parent.parent / member.folder)


def test_every_figure_an_experiment_may_name_is_drawn(done):
    assert set(get_args(_file.Figure)) == set(paper.FIGURES)
    for name in paper.FIGURES:
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
    scene = paper._Scene(result, Path("runs"), None)

    assert scene.pairs("d") == [("FL", "FL+MACC")]
    assert scene.odd("d") == "NLL+dropout"


def test_methods_made_of_others_are_in_no_pair():
    methods = ["NLL", "NLL+TS", "NLL+MACC"]
    runs = [Member("d", name, "val_accuracy", 0, name, {}, 1.0) for name in ("NLL", "NLL+MACC")]
    cells = [Cell("d", "test", name, "val_accuracy", "ece", (0.1,), None, None, None) for name in methods]
    result = Result(
        "x", "", "table", "full", "0", 1, ["ece"], {}, ["d"], methods, {"d": ["test"]}, cells=cells, runs=runs
    )
    scene = paper._Scene(result, Path("runs"), None)

    assert scene.pairs("d") == [("NLL", "NLL+MACC")]
    assert scene.odd("d") == "NLL"


def test_figure_2_has_certainty_and_the_curves_of_each_pair(done):
    left, right = drawn(done, "certainty").axes

    assert left.get_title() == "digits: CrossEntropy"
    wanted = [
        1000
        * sum(
            metrics.sce(*run_of(done, HOSTILE, seed).predictions(f"epochs/test-{epoch}"), from_logits=True)
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
    logits, labels = run_of(done, "CrossEntropy").predictions("test")
    gap = float(logits.softmax(1).amax(1).mean()) - metrics.accuracy(logits, labels, from_logits=True)

    assert f"digits {100 * gap:+.1f}".replace("-", "−") in figure.get_supxlabel()


def test_the_page_has_the_cells_of_the_result(done):
    folder, result = done
    page, *files = experiment.write(folder)
    text = page.read_text()

    assert [file.name for file in files] == ["figure.svg", "figure.png"]
    assert page == folder / "report.html"
    index = list(result.blocks()).index(("digits", "shifted", "val_accuracy"))
    table = re.search(rf'<table class="sortable" id="table-{index}">.*?</table>', text, re.DOTALL)[0]
    values = [float(value) for value in re.findall(r'data-value="([^"]*)"', table)]
    wanted = [
        result.cell("digits", "shifted", method, metric).mean
        for method in result.methods
        for metric in result.metrics("digits")
    ]
    assert values == pytest.approx(wanted)
    assert "mean over 2 seeds and its 95 % interval" in text.replace("\u00a0", " ")
    assert (
        "the first seed of each method" not in text
    )  # a second table, without what is made of other methods
    assert HOSTILE not in text
    assert text.count("<script>") == 1
    assert len(text) < 5e6
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text.partition('id="runs"')[0], re.DOTALL)
    assert "Seed 0 of 2 seeds." in captions[0]
    assert "Lines are means over 2 seeds, shades their range." in captions[0]
    assert len(captions) > 5
    assert all("Each method is shown by seed 0 alone." in caption for caption in captions[1:])


def test_a_value_that_is_not_defined_is_a_dash(done):
    _, result = done
    cell = dataclasses.replace(result.cells[0], values=(math.nan, 0.5))
    shown = dataclasses.replace(result, cells=[cell, *result.cells[1:]])
    table = experiment._table(0, shown, cell.dataset, cell.test, cell.rule)
    column = 1 + shown.metrics(cell.dataset).index(cell.metric)

    assert [row[column].text == "–" for row in table.rows] == [name == cell.method for name in result.methods]
    assert not table.rows[result.methods.index(cell.method)][column].best


def test_an_experiment_is_found_by_folder_file_and_name(done, monkeypatch):
    folder, _ = done
    out = folder.parent.parent
    assert experiment.find(folder) == folder
    assert experiment.find(folder / "result.json") == folder
    assert experiment.find("mine", out) == folder
    assert experiment.find(" MINE", out) == folder  # the folder is called by the safe form of a name
    assert experiment.find("min", out) is None
    monkeypatch.chdir(out)
    assert experiment.find(folder.parent) is None
    with pytest.raises(ValueError, match="is an experiment, which is reported alone"):
        experiment.report_command(
            [folder, folder], folder / "a.html", split="test", root=None, title=None, on_progress=print
        )


def test_the_title_is_the_users_and_a_split_is_refused(done, monkeypatch):
    folder, _ = done
    titles = []

    def write_page(output, sources, *, title, **options):
        titles.append(title)
        return output

    def report(split):
        options = {"split": split, "root": None, "title": "Of my own", "on_progress": print}
        return experiment.report_command([folder], folder / "page.html", **options)

    monkeypatch.setattr(experiment.page, "write_page", write_page)
    with pytest.raises(
        ValueError, match="an experiment, whose own tests are reported, got --split val; leave"
    ):
        report("val")
    report("test")
    assert titles == ["Of my own"]


def test_what_stops_a_report_does_not_stop_the_experiment(done, monkeypatch):
    folder, result = done
    monkeypatch.setitem(sys.modules, "jinja2", None)

    (line,) = experiment.finish(result, folder)
    assert line.startswith("no report: the report needs Jinja2")


def test_a_figure_without_its_predictions_is_left_out_and_said(done, tmp_path):
    folder, _ = done
    copy = tmp_path / "experiments" / "mine-smoke"
    copy.mkdir(parents=True)
    result = (folder / "result.json").read_text()
    (copy / "result.json").write_text(result)
    with pytest.raises(ValueError, match="is missing or not finished; an experiment's report needs its run"):
        experiment.write(copy)
    (copy / "result.json").write_text(result.replace('"figure": "certainty"', '"figure": "nothing"'))
    for trained in folder.parent.parent.glob("digits-*"):
        (tmp_path / trained.name).symlink_to(trained)

    page, *files = experiment.write(copy)
    assert files == []
    assert "no figure of an experiment is called" in page.read_text()


@pytest.mark.parametrize("name", [f"fig{k}" for k in range(1, 7)])
def test_the_figures_of_the_paper_are_experiments(name):
    for scale in ("smoke", "cpu", "full"):
        found = experiments.load(name, scale=scale)
        assert found.figure in paper.FIGURES
        assert found.title.startswith(f"Figure {name[3]}, ")
    assert (found.kind == "convergence") == (name in ("fig2", "fig6"))
    assert found.moments == (name in ("fig2", "fig3"))


def test_an_experiment_ends_by_saying_how_to_open_its_report(tmp_path, monkeypatch):
    file = tmp_path / "tiny.yaml"
    file.write_text(
        "datasets: digits\nmethods: [CrossEntropy]\nseeds: 1\nset: {epochs: 1}\ntests: {test: test}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    result = run("run", file, "--scale", "smoke", "--workers", "1")

    assert result.code == 0, result.err
    page = tmp_path / "runs" / "experiments" / "tiny-smoke" / "report.html"
    assert f"open it in a browser: {page.as_uri()}" in result.out
    assert page.is_file()

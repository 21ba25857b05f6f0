"""The report of an experiment: its numbers, its figure, its files, and what is missing."""

import dataclasses
import math
import re
import sys

import pytest

from helpers.command import run
from helpers.finished_experiment import finished_experiment
from helpers.report_runs import HOSTILE
from macc import paper
from macc.experiments.brief import best_rows
from macc.experiments.findings import named
from macc.experiments.tables import block_table
from macc.report import experiment
from macc.tables import html_prose

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture
def done():
    return finished_experiment()


def test_the_page_has_the_cells_of_the_result(done):
    folder, result = done
    page, *files = experiment.write(folder, draw=paper.draw)
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
    assert "means over 2 seeds, with 95 % intervals" in captions[0].replace("\u00a0", " ")
    assert "Seed 0 of 2 seeds." in captions[1]
    assert "Lines are means over 2 seeds, shades their range." in captions[1]
    assert len(captions) > 5
    assert all("Each method is shown by seed 0 alone." in caption for caption in captions[2:])


def test_the_first_screen_says_which_is_best_how_macc_stands_and_what_to_do(done):
    folder, result = done
    page = folder / "report.html"
    text = (page if page.is_file() else experiment.write(folder)[0]).read_text()
    said = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text.partition("<details>")[0]))

    assert list(said) == ["How calibrated is the best?", "Is MACC better?", "What to do next?"]
    rows = best_rows(result, result.stages[1], "nll")
    assert html_prose(f"Take {named(rows[0].a)}, which has the lowest NLL") in said["What to do next?"]
    (run,) = {
        run.folder
        for run in result.runs
        if run.method == result.calibrated[rows[0].a]
        and (run.dataset, run.rule, run.seed) == (rows[0].dataset, rows[0].rule, 0)
    }
    assert f"{folder.parent.parent / run} -o model.safetensors</code>" in said["What to do next?"]


def test_a_value_that_is_not_defined_is_a_dash(done):
    _, result = done
    cell = dataclasses.replace(result.cells[0], values=(math.nan, 0.5))
    shown = dataclasses.replace(result, cells=[cell, *result.cells[1:]])
    table = block_table(shown, cell.dataset, cell.test, cell.rule)
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


def test_an_experiment_is_reported_alone_by_its_own_tests_under_the_users_title(done, tmp_path):
    folder, _ = done
    page = tmp_path / "page.html"
    two = run("report", folder, folder, "-o", page)
    split = run("report", folder, "-o", page, "--split", "val")

    assert (two.code, split.code) == (2, 2)
    assert "is an experiment, which is reported alone; leave out the others" in two.err
    assert "an experiment, whose own tests are reported, got --split val; leave it out" in split.err
    assert not page.exists()
    ended = run("report", folder, "-o", page, "--title", "Of my own")
    assert page.as_uri() in ended.out
    assert "<title>Of my own" in page.read_text()
    assert "SCE of the test split after every epoch" in " ".join(page.read_text().split())


def test_what_stops_a_report_does_not_stop_the_experiment(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    (tmp_path / "tiny.yaml").write_text(
        "datasets: digits\nmethods: [CrossEntropy]\nseeds: 1\nset: {epochs: 1}\ntests: {test: test}\n"
    )
    monkeypatch.chdir(tmp_path)
    ended = run("run", "tiny.yaml", "--scale", "smoke", "--workers", "1")

    assert ended.code == 0, ended.err
    assert "no report: the report needs Jinja2" in ended.out


def test_without_something_that_draws_there_is_no_figure(done, tmp_path):
    folder, _ = done
    assert experiment.write(folder, tmp_path / "page.html") == [tmp_path / "page.html"]


def test_a_figure_without_its_predictions_is_left_out_and_said(done, tmp_path):
    folder, _ = done
    copy = tmp_path / "experiments" / "mine-smoke"
    copy.mkdir(parents=True)
    result = (folder / "result.json").read_text()
    (copy / "result.json").write_text(result)
    with pytest.raises(ValueError, match="is missing or not finished; an experiment's report needs its run"):
        experiment.write(copy, draw=paper.draw)
    (copy / "result.json").write_text(result.replace('"figure": "certainty"', '"figure": "nothing"'))
    for trained in folder.parent.parent.glob("digits-*"):
        (tmp_path / trained.name).symlink_to(trained)

    page, *files = experiment.write(copy, draw=paper.draw)
    assert files == []
    assert "no figure of an experiment is called" in page.read_text()


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
    assert "<dt>How calibrated" not in page.read_text()  # of one method there is nothing to compare

"""A model card that the hub can read, with the numbers of the run."""

import re
import shutil

import pytest
import torch

from helpers.command import run
from macc import ship
from macc.training.runs import Run

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def card(digits_run, tmp_path_factory):
    place = tmp_path_factory.mktemp("card") / "README.md"
    return ship.card(digits_run.path, place, resamples=100)


def test_the_hub_reads_its_metadata(card, digits_run):
    hub = pytest.importorskip("huggingface_hub")
    content = card[0].read_text()
    found = hub.ModelCard(content)

    assert found.data.pipeline_tag == "image-classification"
    assert found.data.library_name == "macc"
    results = {each.metric_type: each for each in found.data.eval_results}
    expected = digits_run.metrics["calibrated"]["test"]
    for name in ("accuracy", "nll", "ece", "sce"):
        assert results[name].metric_value == pytest.approx(expected[name]["value"], abs=1e-6)
        assert results[name].dataset_name == "digits"
    assert (
        hub.ModelCardData(**found.data.to_dict()).to_dict()["model-index"]
        == found.data.to_dict()["model-index"]
    )


def test_it_has_every_section_and_the_picture(card):
    readme, picture = card
    text = readme.read_text()

    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Use", "Data", "Method", "Quality", "Classes", "Which predictions to accept", "Limits",
    ]  # fmt: skip
    assert "1 295 train, 143 val, 359 test. Licence of the data: CC BY 4.0." in text.replace("\u202f", " ")
    assert text.count("\n| ") >= 6 + 10 + 4
    assert f"]({picture.name})" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_mistake_there_is_no_auroc(digits_run, tmp_path):
    folder = shutil.copytree(digits_run.path, tmp_path / "run")
    run_ = Run(folder)
    _, labels = run_.predictions("test")
    run_.write_predictions("test", logits=8 * torch.eye(10)[labels], labels=labels)
    text = ship.card(folder, tmp_path / "README.md", resamples=100)[0].read_text()

    assert re.search(r"^\| failure AUROC[^|]*\| – +\| – +\|$", text, re.MULTILINE)
    assert "nan" not in text


def test_it_says_what_the_threshold_rests_on(card):
    assert (
        "The 95 % of the threshold do not allow for what else its validation samples did"
        in card[0].read_text()
    )


def test_names_of_users_are_escaped(digits_run, tmp_path):
    folder = shutil.copytree(digits_run.path, tmp_path / "run")
    content = (folder / "inputs.json").read_text()
    (folder / "inputs.json").write_text(content.replace('"dataset": "digits"', '"dataset": "a|b<script>"'))
    text = ship.card(folder, tmp_path / "README.md", resamples=100)[0].read_text().split("---\n")[2]

    assert "<script>" not in text


def test_mistakes_leave_nothing(digits_run, tmp_path):
    for words, reason in (
        ([digits_run.path, "-o", tmp_path / "card.txt"], "a model card is a Markdown file"),
        ([digits_run.path, "-o", tmp_path / "no" / "README.md"], "does not exist; create it first"),
        ([tmp_path, "-o", tmp_path / "README.md"], "is no run folder"),
    ):
        ended = run("card", *words)
        assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
        assert reason in ended.err
    assert list(tmp_path.iterdir()) == []

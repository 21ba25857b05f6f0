"""``macc auto``: a data set in, a model out; within its budget, and where it was stopped when
started again.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import macc
from helpers.command import run
from macc import metrics, posthoc
from macc.experiments import auto as automatic

METHODS = [
    {"name": "CE", "loss": "CrossEntropy"},
    {"name": "LS", "loss": "LabelSmoothing(alpha=0.05)"},
]


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    """A small file of features; two methods, two seeds and three epochs in place of the whole
    list.
    """
    generator = np.random.default_rng(0)
    labels = np.arange(400) % 3
    features = generator.normal(size=(400, 6)) + 2 * np.eye(6)[labels]
    np.savez(tmp_path / "mine.npz", features=features.astype(np.float32), labels=labels)
    known = automatic._known()
    known["recipes"]["features"]["epochs"] = 3
    monkeypatch.setattr(automatic, "_known", lambda: {**known, "methods": METHODS, "seeds": 2})
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.npz"


def test_a_data_set_becomes_a_model(arrays, tmp_path):
    ended = run("auto", f"arrays:{arrays}", "-o", "model.safetensors", "--budget", "5m")

    assert ended.code == 0, ended.err
    assert "2 seeds each" in ended.out
    assert "cross-entropy with temperature scaling" in ended.out.lower()
    assert "left out" not in ended.out
    (report,) = (tmp_path / "runs" / "experiments").glob("auto-mine-*/report.html")
    assert report.stat().st_size > 10_000
    predictor = macc.load(tmp_path / "model.safetensors")
    features = np.load(arrays)["features"]
    right = predictor(features).labels == torch.from_numpy(np.load(arrays)["labels"])
    assert right.float().mean() > 0.6
    assert type(predictor.calibrator).__name__ == "Temperature"


def test_a_short_budget_is_kept_to_and_the_next_start_resumes(arrays, monkeypatch):
    data = f"arrays:{arrays}"
    trained = []
    real = automatic.fit
    monkeypatch.setattr(
        automatic, "fit", lambda *given, **more: trained.append(given[1]) or real(*given, **more)
    )
    first = automatic.auto(data, budget=0.01)

    assert [(job.method, job.seed) for job in trained] == [("CE", 0)]
    assert (first.winner, first.seeds, len(first.left_out)) == ("CE", 1, 3)
    assert first.left_out[0].endswith(": LS, seed 0: no time")
    assert "left out: 3 trainings" in automatic.summary(first)
    assert first.verdict.startswith("Only cross-entropy with temperature scaling was trained, so nothing was")
    assert "a larger `--budget`" in first.verdict

    second = automatic.auto(data, budget=300)
    assert len(trained) == 4
    assert second.left_out == []
    assert set(second.refinement) == {"CE", "LS"}
    assert second.winner == min(second.refinement, key=second.refinement.get)
    own = second.run.metrics["val"]["refinement"]["value"]
    assert own <= second.refinement[second.winner]


def test_cross_entropy_that_failed_is_said(arrays, monkeypatch):
    real = automatic.fit

    def failing(ledger, job, **more):
        if job.method == "CE":
            raise ValueError("it diverged")
        return real(ledger, job, **more)

    monkeypatch.setattr(automatic, "fit", failing)
    found = automatic.auto(f"arrays:{arrays}", budget=300)

    assert found.winner == "LS"
    assert found.verdict == (
        "LS is selected; it was not compared with cross-entropy with temperature scaling, whose training failed."
    )


class TestVerdict:
    """Of a winner whose test logits are made up, over three seeds on the same samples."""

    @pytest.fixture
    def verdict(self, tmp_path):
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(3, (300,), generator=generator)
        posthoc.Temperature(3, 2.0).save(tmp_path / "calibrator.json")

        def run_with(strength):
            logits = torch.randn(300, 3, generator=generator) + strength * torch.eye(3)[labels]
            return SimpleNamespace(path=tmp_path, predictions=lambda _: (logits, labels))

        def verdict(*strengths):
            runs = {"X": [run_with(each) for each in strengths], "CE": [run_with(2.0) for _ in strengths]}
            self.differences = [
                metrics.nll(*self.calibrated(mine)) - metrics.nll(*self.calibrated(other))
                for mine, other in zip(runs["X"], runs["CE"], strict=True)
            ]
            return automatic._verdict("X", runs)

        return verdict

    def calibrated(self, one):
        logits, labels = one.predictions("test")
        return (logits.double() / 2).softmax(1), labels

    @pytest.mark.parametrize(
        ("strengths", "said"),
        [
            ([4.0, 4.0, 4.0], "X is really better than cross-entropy"),
            ([0.5, 0.5, 0.5], "X is worse than cross-entropy with temperature scaling on the test set"),
            ([2.0, 2.0, 2.0], "X is not significantly better than cross-entropy"),
            # One lucky seed does not decide.
            ([4.0, 0.5, 0.5], "X is worse than cross-entropy with temperature scaling on the test set"),
        ],
    )
    def test_every_seed_counts(self, verdict, strengths, said):
        text = verdict(*strengths)

        assert text.startswith(said)
        assert f"both calibrated, 3 seeds: {np.mean(self.differences):+.4f} (" in text


def test_the_whole_list_can_be_trained():
    known = automatic._known()
    for name, recipe in known["recipes"].items():
        values = {"dataset": "x", "loss": "CrossEntropy", **recipe, **known["common"]}
        assert macc.training.Recipe(**values).calibrate == "temperature", name
    experiment = automatic._experiment("auto-x", automatic.Path("r.yaml"), known["methods"], known["seeds"])
    assert experiment.trainings() == 21
    assert experiment.methods[0].title == automatic.BASELINE


@pytest.mark.parametrize("text", ["", "m", "-3m", "soon", "0", "inf", "nan"])
def test_budgets_that_are_none(text):
    with pytest.raises(ValueError, match="a budget is written as 90s, 30m or 2h, got "):
        automatic.seconds(text)


def test_mistakes_are_one_line_before_anything_is_trained(tmp_path):
    for words, reason in (
        (["nothing"], "no data set is called 'nothing'"),
        (["digits", "-o", tmp_path / "model.zip"], "shipped as .safetensors, got "),
        (["digits", "-o", tmp_path / "no" / "model.onnx"], "does not exist; create it first"),
        (["digits", "--budget", "soon"], "a budget is written as"),
    ):
        ended = run("auto", *words, "--out", tmp_path / "runs")
        assert (ended.code, ended.err.strip().splitlines()[-1].count(reason)) == (2, 1), ended.err
    assert not (tmp_path / "runs").exists()

"""``macc auto``: a data set in, a model out; within its budget, and where it was stopped when
started again.
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import macc
from helpers.command import run
from macc import metrics, posthoc
from macc.experiments import auto as automatic
from macc.experiments.listening import Listener
from macc.training.runs import Run

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
    (named,) = re.findall(r"^its run is (\S+); `macc card \1` writes a model card$", ended.out, re.MULTILINE)
    assert Run(Path(named)).recipe.selection == "val_refinement"
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
    assert first.left_out == ["LS, seed 0: no time", "CE, seed 1: no time", "LS, seed 1: no time"]
    assert "left out, no time: 3 trainings (LS, seed 0; CE, seed 1; LS, seed 1)" in automatic.summary(first)
    assert first.verdict.startswith("Only cross-entropy with temperature scaling was trained, so nothing was")
    assert "a larger `--budget` goes on with the other methods" in first.verdict

    second = automatic.auto(data, budget=300)
    assert len(trained) == 4
    assert second.left_out == []
    assert set(second.refinement) == {"CE", "LS"}
    assert second.winner == min(second.refinement, key=second.refinement.get)
    own = second.run.metrics["val"]["refinement"]["value"]
    assert own <= second.refinement[second.winner]
    recipe = second.run.recipe
    assert (recipe.selection, recipe.calibrate) == ("val_refinement", "temperature")
    # Nothing but what was asked for: no run for another rule of selection.
    assert len(list(Path("runs").glob("*/history.jsonl"))) == 4


class Said(Listener):
    """Keeps what is said, and how many epochs are heard of each training."""

    def __init__(self):
        self.lines, self.epochs = [], []

    def say(self, text):
        self.lines.append(text)

    def tell(self, event):
        if event[0] == "epoch":
            self.epochs.append(event[1])


class TestEpochs:
    """How many there are is chosen once, by the first budget."""

    @pytest.fixture(autouse=True)
    def slow(self, arrays, monkeypatch):
        """Thirty epochs, of 400 seconds each as far as the estimate knows."""
        known = automatic._known()
        known["recipes"]["features"]["epochs"] = 30
        monkeypatch.setattr(automatic, "_known", lambda: known)
        monkeypatch.setattr(automatic, "seconds_of_epoch", lambda *_: 400.0)
        self.data = f"arrays:{arrays}"

    def test_killed_while_an_epoch_is_timed(self, monkeypatch):
        class Killed(BaseException):
            """Nothing is put in order by what catches errors."""

        def kill(*_):
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(automatic, "seconds_of_epoch", kill)
            with pytest.raises(Killed):
                automatic.auto(self.data, budget=5500)
        assert not list(Path("runs").rglob("recipe.yaml"))

        listener = Said()
        found = automatic.auto(self.data, budget=5500, listener=listener)
        assert found.run.recipe.epochs == 5
        assert "5 epochs in place of 30, for every method to have its turn" in listener.lines

    def test_a_larger_budget_says_that_it_keeps_them(self):
        listener = Said()
        automatic.auto(self.data, budget=0.01, listener=listener)
        assert (
            "3 epochs in place of 30, which is the least; the budget is too short for all 2 methods"
            in listener.lines
        )

        again = Said()
        found = automatic.auto(self.data, budget=1e6, listener=again)
        runs = [Run(path.parent) for path in Path("runs").glob("*/history.jsonl")]
        assert [run.recipe.epochs for run in runs] == [3] * 4
        assert found.left_out == []
        assert (
            "3 epochs in place of 30, as the first budget allowed; with another --out it is chosen anew"
            in again.lines
        )


class TestClock:
    """A budget against a clock that only epochs move."""

    @pytest.fixture
    def start(self, arrays, monkeypatch):
        clock = [0.0]
        monkeypatch.setattr(automatic, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        monkeypatch.setattr(automatic, "seconds_of_epoch", lambda *_: 0.1)

        class Ticking(Said):
            def tell(self, event):
                super().tell(event)
                if event[0] == "epoch":
                    clock[0] += 30 if event[1][0].startswith("LS") else 10

        def start(budget):
            listener = Ticking()
            return automatic.auto(f"arrays:{arrays}", budget=budget, listener=listener), listener

        return start

    def test_a_training_stops_at_the_end_of_the_budget_and_resumes(self, start):
        found, _ = start(70)  # CE takes 30; LS, which takes 90, seems to have its time
        assert found.left_out == [
            "LS, seed 0: no time after 2 of 3 epochs",
            "CE, seed 1: no time",
            "LS, seed 1: no time",
        ]

        found, heard = start(1000)
        assert [epoch for name, epoch, _ in heard.epochs if name == "LS, seed 0"] == [3]
        assert found.left_out == []

    def test_the_first_training_is_ended_whatever_it_takes(self, start):
        found, heard = start(5)

        assert heard.epochs == [("CE, seed 0", epoch, 3) for epoch in (1, 2, 3)]
        assert found.run.finished

    def test_what_finished_trainings_took_is_known_when_it_resumes(self, start):
        found, _ = start(5)
        history = found.run.path / "history.jsonl"
        rows = [json.loads(line) | {"seconds": 100.0} for line in history.read_text().splitlines()]
        history.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

        assert start(300)[1].epochs == []  # three epochs of 100 seconds and their validation
        assert len(start(400)[1].epochs) > 0


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
        assert text.endswith("The interval is over test samples, not over seeds.")

    def test_one_seed_is_not_more_than_one(self, verdict):
        assert verdict(4.0).endswith("The interval is over test samples; one seed says nothing of others.")


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

"""A metric is one declaration and one line in the namespace; everything else finds it there."""

import json
import pickle

import numpy as np
import pytest

import macc
from helpers.command import run
from macc import metrics
from macc.metrics._metric import PERCENT, registry


@metrics.metric("made-up error", PERCENT, "lower", lambda d: d.top.ece, streams=True, prominence=1)
def made_up(probs, labels, *, bins=15, from_logits=False, normalise=False):
    """The ECE under another name."""
    return metrics.ece(probs, labels, bins=bins, from_logits=from_logits, normalise=normalise)


@pytest.fixture
def declared(monkeypatch):
    monkeypatch.setattr(metrics, "made_up", made_up, raising=False)


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(400, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([rng.choice(3, p=row) for row in probs])
    np.savez(tmp_path / "p.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "q.npz", logits=3 * logits, labels=labels)
    return tmp_path


def test_the_order_is_that_of_the_namespace():
    assert list(registry())[:3] == ["accuracy", "nll", "refinement"]
    assert list(registry()) == [name for name in vars(metrics) if name in registry()]


def test_a_metric_is_called_and_read_as_its_function():
    assert metrics.ece([[0.9, 0.1]], [0]) == pytest.approx(0.1)
    assert metrics.ece.__doc__.startswith("Expected calibration error")
    assert pickle.loads(pickle.dumps(metrics.ece)) is metrics.ece


@pytest.mark.usefixtures("declared")
class TestAMetricThatSomebodyAdds:
    def test_is_measured_compared_and_limited(self, file, monkeypatch):
        monkeypatch.chdir(file)
        code, out, err = run("evaluate", "p.npz", "--json", "p.json")
        assert code == 0, err
        assert "made-up error" in out
        found = json.loads((file / "p.json").read_text())
        assert found["made_up"] == found["ece"]
        assert "made-up error" in run("compare", "p.npz", "q.npz")[1]
        assert run("check", "q.npz", "--max-made-up", "0.01")[0] == 1
        assert run("check", "p.npz", "--max-made-up", "0.5")[0] == 0

    def test_is_streamed(self, file, monkeypatch):
        monkeypatch.chdir(file)
        code, out, err = run("evaluate", "p.npz", "--state", "p.state")
        assert code == 0, err
        assert "made-up error" in out

    def test_is_in_a_report(self, file):
        from macc.report import page

        path = page.write([file / "p.npz", file / "q.npz"], file / "report.html")
        assert "made-up error" in path.read_text()

    def test_is_in_a_history_and_in_the_table_of_a_run(self, tmp_path):
        from macc import training

        recipe = training.load("digits", scale="smoke", loss="CrossEntropy")
        ended = training.fit(recipe, out=tmp_path, resamples=100)
        assert "val/made_up" in ended.history[0]
        assert "made_up" in ended.metrics["test"]

    def test_is_in_the_report_of_python(self):
        report = macc.evaluate([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]], [0, 1], resamples=100)
        assert report["made_up"].value == report["ece"].value

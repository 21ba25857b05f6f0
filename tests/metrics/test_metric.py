"""A metric is one declaration and one line in the namespace; everything else finds it there."""

import json
import pickle

import numpy as np
import pytest

import macc
from helpers.command import run
from macc import metrics
from macc.metrics import registry
from macc.tables import PERCENT


@metrics.metric(
    "made-up error",
    PERCENT,
    "lower",
    lambda d: d.top.ece,
    streamed=metrics.ece.streamed,
    prominence=0,
    floored=True,
)
def made_up(probs, labels, *, bins=15, from_logits=False, normalise=False):
    """The ECE under another name."""
    return metrics.ece(probs, labels, bins=bins, from_logits=from_logits, normalise=normalise)


@metrics.metric(
    "mean chance",
    PERCENT,
    "higher",
    lambda d: d.mean(d.sample.log_likelihood.exp(), 0, 1),
    of_labels=True,
)
def mean_chance(probs, labels, *, from_logits=False):
    """The mean probability of the right class, which no other metric computes."""
    probs = np.exp(probs) / np.exp(probs).sum(1, keepdims=True) if from_logits else np.asarray(probs)
    return float(probs[np.arange(len(labels)), labels].mean())


@pytest.fixture
def declared(monkeypatch):
    monkeypatch.setattr(metrics, "made_up", made_up, raising=False)
    monkeypatch.setattr(metrics, "mean_chance", mean_chance, raising=False)


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


def test_an_option_that_a_metric_has_not_is_refused_by_its_name():
    with pytest.raises(
        TypeError, match=r"^nll\(\) has no option 'bins'; there are from_logits, normalise, weights$"
    ):
        metrics.nll([[0.9, 0.1]], [0], bins=3)
    with pytest.raises(TypeError, match=r"^ece\(\) has no option 'bin'; did you mean 'bins'\?$"):
        metrics.ece([[0.9, 0.1]], [0], bin=3)


def test_a_metric_says_whether_chance_alone_makes_it_positive():
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet([1, 1], 200), rng.integers(0, 2, 200)
    report = macc.evaluate(probs, labels, variance=rng.random((200, 2)), resamples=100)

    assert list(report.metrics) == list(registry())
    for name, estimate in report.metrics.items():
        assert registry()[name].floored == (estimate.noise_floor is not None), name


def test_a_part_is_named_with_its_whole_where_it_stands_alone():
    assert metrics.over_confidence.noun == "ECE, over-confidence"
    assert metrics.tace.heading == "adaptive SCE, above 1 % probability 1e-3"


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

    def test_is_in_the_table_and_the_page_of_an_experiment(self, tmp_path):
        from macc import experiments
        from macc.report import experiment as report

        file = tmp_path / "mine.yaml"
        file.write_text("datasets: digits\nmethods: [CrossEntropy, Focal]\nseeds: 2\n")
        result = experiments.run(experiments.load(file, scale="smoke"), out=tmp_path)
        folder = next((tmp_path / "experiments").iterdir())
        page, *_ = report.write(folder)

        assert result.columns[:5] == ["accuracy", "ece", "sce", "made_up", "nll"]
        for method in ("CrossEntropy", "Focal"):
            cells = [result.cell("digits", "test", method, name) for name in ("made_up", "ece")]
            assert cells[0].values == cells[1].values
            assert cells[0].floor == cells[1].floor > 0
        for form in ("text", "md", "latex"):
            assert "made-up error" in experiments.render(result, form)
        assert any("best made-up error" in sentence for sentence in result.findings)
        assert "made-up error" in page.read_text().partition('id="comparison"')[2].partition("</table>")[0]

    def test_is_in_the_report_of_python(self):
        report = macc.evaluate([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]], [0, 1], resamples=100)
        assert report["made_up"].value == report["ece"].value

    def test_is_in_the_table_of_groups(self):
        rng = np.random.default_rng(0)
        probs, labels = rng.dirichlet([1, 1, 1], 200), rng.integers(0, 3, 200)
        report = metrics.evaluate_groups(probs, labels, np.arange(200) % 2, resamples=100)
        assert "made-up error" in str(report)

    def test_may_have_a_formula_of_its_own(self, file):
        given = np.load(file / "p.npz")
        asked = {"metrics": ["mean_chance"], "from_logits": True, "resamples": 500}
        found = macc.evaluate(given["logits"], given["labels"], **asked)["mean_chance"]
        assert found.value == pytest.approx(mean_chance(given["logits"], given["labels"], from_logits=True))
        width = 2 * 1.96 * np.std(np.exp(-nll_of_each(given))) / np.sqrt(len(given["labels"]))
        assert found.high - found.low == pytest.approx(width, rel=0.15)
        result = metrics.compare(given["logits"], 3 * given["logits"], given["labels"], **asked)
        assert result["mean_chance"].p < 0.05

    def test_may_be_measured_of_each_label(self):
        rng = np.random.default_rng(0)
        probs = rng.random((100, 2))
        labels = (rng.random((100, 2)) < probs).astype(int)
        report = metrics.evaluate_labels(probs, labels, resamples=100)
        expected = np.where(labels == 1, probs, 1 - probs).mean(0)
        assert [row.metrics["mean_chance"].value for row in report.labels] == pytest.approx(expected)
        assert "mean chance" in str(report)


def nll_of_each(given):
    logits = given["logits"] - np.log(np.exp(given["logits"]).sum(1, keepdims=True))
    return -logits[np.arange(len(logits)), given["labels"]]

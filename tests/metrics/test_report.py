"""A report holds every metric as the functions give it, with an interval, and prints readably."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import macc
from helpers.predictions import sample
from macc import metrics
from macc.metrics import metrics_of
from macc.metrics._resampling import Resampling
from macc.metrics._resampling.ranks import auroc_influence
from macc.metrics._scores import class_aurocs


@pytest.fixture(scope="module")
def report():
    return macc.evaluate(*sample(800, 4, 2.5), resamples=200, classes=["ant", "bee", "<cat>", "dog"])


def expected(name, data):
    if name.startswith("brier_"):
        return getattr(metrics.brier_decomposition(*data), name.removeprefix("brier_"))
    if name == "rmsce_debiased":
        return metrics.rmsce(*data, debiased=True)
    return getattr(metrics, name)(*data)


@pytest.mark.parametrize("name", metrics_of(4))
def test_values_are_those_of_the_functions(report, name):
    estimate = report[name]

    assert estimate.value == pytest.approx(expected(name, sample(800, 4, 2.5)), rel=1e-9, abs=1e-12)
    assert estimate.low <= estimate.value <= estimate.high


def test_every_metric_is_in_the_report(report):
    assert list(report.metrics) == list(metrics_of(4))


def test_to_dict_and_to_json(report):
    rows = report.to_dict()

    assert set(rows) == {*metrics_of(4), "classwise_ece"}
    assert set(rows["accuracy"]) == {"value", "low", "high"}
    assert set(rows["ece"]) == {"value", "low", "high", "noise_floor"}
    assert np.mean(rows["classwise_ece"]["value"]) == pytest.approx(rows["sce"]["value"])
    assert json.loads(report.to_json())["ece"] == rows["ece"]


def test_an_infinite_value_is_null_in_json_and_keeps_its_finite_end():
    probs = np.array([[1.0, 0.0]] + [[0.6, 0.4]] * 99)
    labels = np.array([1] + [0] * 99)
    report = macc.evaluate(probs, labels, metrics=["nll", "accuracy"], resamples=200)

    assert report["nll"].value == math.inf
    assert report["nll"].low < math.inf
    assert json.loads(report.to_json())["nll"]["value"] is None
    assert "∞" in str(report)


def test_print_shows_every_metric_every_class_and_a_verdict(report):
    text = str(report)

    for word in ("800 samples, 4 classes", "accuracy", "ECE", "95 % interval", "noise floor", "bee", "<cat>"):
        assert word in text
    assert "calibrated model would show" in text.splitlines()[-1]
    assert all(len(line) <= 110 for line in text.splitlines()[:-1])


def test_html_is_escaped(report):
    page = report._repr_html_()

    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page


def test_classes_and_bins_add_up(report):
    _, labels = sample(800, 4, 2.5)

    assert [row.samples for row in report.classes] == np.bincount(labels, minlength=4).tolist()
    assert sum(row.mean_probability for row in report.classes) == pytest.approx(1)
    assert sum(b.samples for b in report.bins) == 800
    assert sum(
        b.samples / 800 * abs(b.accuracy - b.confidence) for b in report.bins if b.samples
    ) == pytest.approx(report["ece"].value)
    assert all(math.isnan(b.accuracy) for b in report.bins if b.samples == 0)
    assert all(b.accuracy_low <= b.accuracy <= b.accuracy_high for b in report.bins if b.samples)


def test_verdicts_name_the_direction():
    probs, labels = sample(2000, 3, 2.0)
    cold, hot = (np.exp(np.log(probs) * s) for s in (3, 0.4))

    def verdict(values):
        return macc.evaluate(values, labels, metrics=["ece"], resamples=200, normalise=True).verdict()

    assert "the model is over-confident (" in verdict(cold)
    assert "the model is under-confident (" in verdict(hot)
    assert "is not significantly different from" in verdict(probs)


def test_many_classes_print_the_worst():
    text = str(macc.evaluate(*sample(300, 12), resamples=100))

    assert "The 10 classes with the largest calibration error" in text


def test_the_same_seed_gives_the_same_report():
    data = sample(200, 3)

    first, again, other = (macc.evaluate(*data, resamples=100, seed=seed).to_dict() for seed in (0, 0, 1))

    assert first == again
    assert first != other


def test_one_sample_and_one_class_have_defined_values():
    report = macc.evaluate([[0.8, 0.2]], [0], resamples=100)

    assert report["ece"].value == pytest.approx(0.2)
    assert math.isnan(report["auroc"].value)
    assert "\N{EN DASH}" in str(report)


@pytest.mark.parametrize("names", [None, ["ece"], ["sce", "auroc"]])
def test_progress_goes_from_zero_to_one(names):
    seen = []
    macc.evaluate(*sample(50, 3), resamples=100, metrics=names, on_progress=seen.append)

    assert seen == [i / (len(seen) - 1) for i in range(len(seen))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["ecc"]}, "no metric is called 'ecc'; did you mean 'ece'"),
        ({"confidence": 95}, "write 0.95 for 95 %"),
        ({"resamples": 10}, "at least 100"),
        ({"resamples": 10**9}, "resamples must be at most 10000, got 1000000000; 1000 is usual"),
        ({"classes": ["a"]}, "classes names 1 classes, and probs has 3"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        macc.evaluate(*sample(20, 3), **options)


def test_linear_auroc_resamples_agree_with_exact_ones(monkeypatch):
    from macc.metrics._resampling import ranks

    data = sample(3000, 5)
    exact = macc.evaluate(*data, metrics=["auroc"])["auroc"]
    monkeypatch.setattr(ranks, "_RANKED_ELEMENTS", 0)
    linear = macc.evaluate(*data, metrics=["auroc"])["auroc"]

    assert exact.value == linear.value
    assert linear.high - linear.low == pytest.approx(exact.high - exact.low, rel=0.05)


def test_the_influence_of_a_sample_is_what_counting_it_once_more_changes():
    probs, labels = map(torch.from_numpy, sample(60, 3))
    areas = class_aurocs(probs, labels)
    influence = auroc_influence(probs, labels, areas)

    for i in (0, 17, 42):
        heavier = class_aurocs(
            torch.cat([probs] * 500 + [probs[i : i + 1]]), torch.cat([labels] * 500 + [labels[i : i + 1]])
        )
        change = (heavier.mean() - areas.mean()).item() * (60 * 500 + 1)
        assert change == pytest.approx(influence[i].item(), rel=0.02, abs=1e-3)


def test_random_groups_give_the_intervals_of_samples(monkeypatch):
    from macc.metrics._resampling import samples

    data = sample(6000, 5)
    alone = macc.evaluate(*data, metrics=["sce"])["sce"]
    monkeypatch.setattr(samples, "_UNGROUPED_SAMPLES", 100)
    monkeypatch.setattr(samples, "GROUPS", 1500)
    grouped = macc.evaluate(*data, metrics=["sce"])["sce"]

    assert grouped.value == pytest.approx(alone.value)
    assert grouped.high == pytest.approx(alone.high, rel=0.05)


def test_fine_cells_give_the_intervals_of_samples(monkeypatch):
    """Ends within the noise of resampling, values exactly; some confidences are equal."""
    from macc.metrics._resampling import samples

    names = [name for name in metrics_of(3) if name not in ("auroc", "ace", "tace")]
    probs, labels = sample(9000, 3)
    probs[:4000] = np.round(probs[:4000], 1)
    probs /= probs.sum(1, keepdims=True)
    alone = macc.evaluate(probs, labels, metrics=names)
    monkeypatch.setattr(samples, "_UNGROUPED_SAMPLES", 100)
    monkeypatch.setattr(samples, "GROUPS", 1500)
    monkeypatch.setattr(samples, "_NULL_LABELS", 100)
    grouped = macc.evaluate(probs, labels, metrics=names)

    for name in names:
        one, two = alone[name], grouped[name]
        width = one.high - one.low
        assert two.value == pytest.approx(one.value, abs=1e-12), name
        assert two.low == pytest.approx(one.low, abs=0.15 * width), name
        assert two.high == pytest.approx(one.high, abs=0.15 * width), name
        if one.noise_floor is not None:
            assert two.noise_floor == pytest.approx(one.noise_floor, rel=0.05, abs=1e-4), name


def test_many_samples_fit_into_little_memory():
    """The address space beyond what the imports take is limited, so the allocator's habits count
    too.
    """
    code = """
import resource
import torch, macc
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
logits = 2 * torch.randn(60_000, 3, generator=generator)
labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
macc.evaluate(logits[:200], labels[:200], from_logits=True)
used = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (used + 600 * 2**20, resource.getrlimit(resource.RLIMIT_AS)[1]))
macc.evaluate(logits, labels, from_logits=True)
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc to know how much memory a process has")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("bins", [15, 10_000])
def test_many_classes_or_bins_take_no_more_memory(bins):
    """Resamples of every bin of every class are never held together."""
    from macc.metrics._resampling.classes import ClassDraws

    draws = ClassDraws(torch.zeros(2), bins, Resampling(2, 1000, 0), torch.zeros(2, 1))
    assert draws.most_classes * 1000 * bins <= 10_000_000
    probs = np.full((2, 3000), 1 / 3000)
    report = macc.evaluate(probs, np.array([0, 2999]), metrics=["sce"], resamples=100)
    assert len(report.classes) == 3000
    assert report["sce"].value == pytest.approx(metrics.sce(probs, np.array([0, 2999])))


def test_resampled_selective_metrics_are_those_of_the_repeated_samples():
    from macc.metrics._resampling.cells import TopCells
    from macc.metrics._resampling.ranks import selective
    from macc.metrics.binning import top_labels
    from macc.metrics.inputs import predictions

    probs = np.round(sample(60, 3)[0], 1)
    probs /= probs.sum(1, keepdims=True)
    labels = sample(60, 3)[1]
    resampling = Resampling(60, 5, 0)
    counts = next(resampling.counts())
    top = top_labels(predictions(probs, labels).blocks())
    found = selective(top, TopCells(top, 15, resampling), resampling)._asdict()
    largest = found.pop("coverage_at_risk")
    resampled = {name: score.resampled for name, score in found.items()}
    resampled["coverage_at_risk"] = largest.value - largest.deviation().least

    for r, row in enumerate(counts.long().numpy()):
        repeated = np.repeat(probs, row, axis=0), np.repeat(labels, row)
        for name, values in resampled.items():
            assert values[r].item() == pytest.approx(getattr(metrics, name)(*repeated), abs=1e-12), name


def test_smooth_errors_from_a_table_are_those_of_bisection():
    from macc.metrics._formulas import smooth_error
    from macc.metrics._resampling.gaps import _smooth_errors

    rows = torch.randn(50, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows *= torch.logspace(-5, -2.5, 50, dtype=torch.float64)[:, None]

    np.testing.assert_allclose(_smooth_errors(rows), smooth_error(rows), rtol=2e-3)


class Frame:
    """As much of pandas as is called."""

    @classmethod
    def from_dict(cls, rows, orient):
        assert orient == "index"
        frame = cls()
        frame.rows = rows
        return frame

    def rename_axis(self, name):
        self.name = name
        return self


def test_reports_and_comparisons_become_data_frames(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame))
    data = sample(100, 3)
    frames = report.to_pandas(), metrics.compare(data[0], *data, metrics=["nll"], resamples=100).to_pandas()

    assert list(frames[0].rows) == list(report.metrics)
    assert frames[0].rows["ece"] == report.to_dict()["ece"]
    assert list(frames[1].rows["nll"]) == ["a", "b", "value", "low", "high", "p", "p_holm"]
    assert frames[0].name == "metric"


def test_without_pandas_the_error_says_what_to_install(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="a data frame needs pandas .* install it with: pip install pandas"):
        report.to_pandas()

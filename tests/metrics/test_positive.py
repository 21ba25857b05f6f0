"""Of two classes the positive one is judged, drawn and checked: the top label hides errors that
cancel.
"""

import json

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as tm
from sklearn.metrics import brier_score_loss

import macc
import reference_metrics as reference
from helpers.command import run
from helpers.predictions import sample
from macc import metrics
from macc.metrics import metrics_of, registry, states
from macc.metrics.streaming import check_streamed


def too_high(n=4000, by=0.1, seed=0):
    """P(class 1) is too high everywhere, by as much above one half as below it."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0.05, 0.95 - 2 * by, size=n)
    return truth + by, (rng.uniform(size=n) < truth).astype(int)


def both(p):
    return np.stack([1 - p, p], axis=1)


@pytest.mark.parametrize("bins", [1, 7, 15])
@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_errors_equal_the_loops(bins, positive, dtype):
    probs, labels = sample(300, 2, 3.0, dtype=dtype)

    for name in ("positive_ece", "positive_mce"):
        seen = getattr(metrics, name)(probs, labels, bins=bins, positive=positive)
        assert seen == pytest.approx(getattr(reference, name)(probs, labels, bins, positive), rel=1e-12), name


@pytest.mark.parametrize("positive", [0, 1])
def test_the_error_is_that_of_the_class_and_of_torchmetrics(positive):
    p, labels = too_high()
    probs = both(p)
    seen = metrics.positive_ece(probs, labels, positive=positive)
    target = torch.from_numpy((labels == positive).astype(int))
    theirs = tm.binary_calibration_error(
        torch.from_numpy(probs[:, positive].copy()), target, n_bins=15, norm="l1"
    )

    assert seen == pytest.approx(float(theirs), rel=1e-6)
    assert seen == pytest.approx(metrics.classwise_ece(probs, labels)[positive], rel=1e-12)
    assert seen == pytest.approx(0.1, abs=0.02)
    assert metrics.ece(probs, labels) < 0.03


def test_the_brier_score_is_the_usual_one():
    p, labels = too_high()

    assert metrics.positive_brier(p, labels) == pytest.approx(brier_score_loss(labels, p), rel=1e-12)
    assert metrics.positive_brier(p, labels) == pytest.approx(metrics.brier(p, labels) / 2, rel=1e-12)


def test_the_smooth_error_is_that_of_the_top_label_where_class_1_is_always_predicted():
    p, labels = too_high()
    p = 0.5 + p / 2

    assert metrics.positive_smooth_ece(p, labels) == pytest.approx(metrics.smooth_ece(p, labels), rel=1e-9)


@pytest.mark.parametrize("name", metrics_of(2))
def test_reports_hold_what_the_functions_give(name):
    p, labels = too_high(400)
    report = macc.evaluate(p, labels, metrics=[name], resamples=100, positive=0)
    if registry()[name].of == "two classes":
        assert report[name].value == pytest.approx(getattr(metrics, name)(p, labels, positive=0), rel=1e-9)
    assert report[name].low <= report[name].value <= report[name].high


def test_the_verdict_and_the_bins_are_of_the_positive_class():
    p, labels = too_high()
    report = macc.evaluate(p, labels, metrics=["ece"], classes=["no", "yes"], resamples=200)

    said, happened = 100 * p.mean(), 100 * labels.mean()
    assert report.verdict().startswith(
        f"P(class 'yes') is too high: {said:.1f} % on average, and {happened:.1f} % happen. "
        "ECE of the positive class "
    )
    assert "(ECE of the top label " in report.verdict()
    assert report["ece"].low == 0 < report["positive_ece"].low
    filled = [b for b in report.positive.bins if b.samples]
    gaps = sum(b.samples * abs(b.accuracy - b.confidence) for b in filled) / len(labels)
    assert gaps == pytest.approx(report["positive_ece"].value)
    assert report.positive.mean_probability == pytest.approx(p.mean())
    assert report.positive.frequency == pytest.approx(labels.mean())
    assert report.mean_confidence == pytest.approx(np.maximum(p, 1 - p).mean())
    assert "ECE, positive class" in str(report)
    assert "ECE, top label" in str(report)
    other = macc.evaluate(p, labels, metrics=["ece"], classes=["no", "yes"], positive="no", resamples=200)
    assert other.verdict().startswith("P(class 'no') is too low: ")
    assert (
        other.verdict()
        == macc.evaluate(
            p, labels, metrics=["ece"], classes=["no", "yes"], positive=0, resamples=200
        ).verdict()
    )


def test_verdicts_of_two_classes_name_the_kind():
    probs, labels = sample(4000, 2, 2.0)

    def verdict(values):
        return macc.evaluate(values, labels, metrics=["ece"], resamples=200, normalise=True).verdict()

    assert "P(class 1) is too close to 0 and 1: " in verdict(probs**3)
    assert "P(class 1) is too close to one half: " in verdict(probs**0.4)
    assert "is not significantly different from" in verdict(probs)
    waves = probs[:, 1] + 0.15 * np.sin(4 * np.pi * probs[:, 1]) * (probs[:, 1] > 0.5)
    assert "P(class 1) is too high in some bins and too low in others: " in verdict(both(waves))


def test_more_than_two_classes_have_no_positive_one():
    probs, labels = sample(50, 3)

    assert macc.evaluate(probs, labels, metrics=["ece"], resamples=100).positive is None
    for call in (
        lambda: macc.evaluate(probs, labels, positive=1),
        lambda: metrics.compare(probs, probs, labels, positive="1"),
    ):
        with pytest.raises(ValueError, match="picks one of two classes, and there are 3; leave it out"):
            call()
    with pytest.raises(ValueError, match="positive_ece is a metric of two classes, and there are 3"):
        macc.evaluate(probs, labels, metrics=["positive_ece"])
    with pytest.raises(ValueError, match="exists among two classes, and probs has 3; classwise_ece has"):
        metrics.positive_ece(probs, labels)


@pytest.mark.parametrize("positive", [2, -1, True, 0.5])
def test_a_class_that_is_not_there_is_refused(positive):
    p, labels = too_high(50)

    with pytest.raises(ValueError, match="positive must be 0 or 1"):
        metrics.positive_ece(p, labels, positive=positive)
    with pytest.raises(ValueError, match="positive must be 0 or 1"):
        macc.evaluate(p, labels, positive=positive)
    with pytest.raises(ValueError, match="no class is called 'maybe'; the classes are 'no' and 'yes'"):
        macc.evaluate(p, labels, classes=["no", "yes"], positive="maybe")


def test_comparisons_have_the_positive_class():
    p, labels = too_high(2000)
    result = metrics.compare(p, p - 0.1, labels, classes=["no", "yes"], resamples=300)
    runs = metrics.compare([p, p], [p - 0.1, p - 0.09], labels)

    assert tuple(result.differences) == tuple(runs.differences) == tuple(metrics_of(2))
    assert result["positive_ece"].low > 0
    assert result["positive_ece"].a == pytest.approx(metrics.positive_ece(p, labels))
    assert runs["positive_ece"].a == pytest.approx(metrics.positive_ece(p, labels))
    assert "the positive one is class 'yes'" in str(result)
    mirrored = metrics.compare(p, p - 0.1, labels, positive=0, metrics=["positive_ece"], resamples=100)
    assert mirrored["positive_ece"].a == pytest.approx(metrics.positive_ece(p, labels, positive=0))


@pytest.mark.parametrize("positive", [0, 1])
def test_streamed_reports_have_the_positive_class(positive, tmp_path):
    p, labels = too_high(20_000, by=0.05)
    parts = [metrics.Calibration(2, positive=positive, intervals=True) for _ in range(3)]
    for state, rows in zip(parts, np.array_split(np.arange(20_000), 3), strict=True):
        state.update(p[rows], labels[rows])
        states.save(state, tmp_path / f"state{len(list(tmp_path.iterdir()))}")
    merged = states.merged(sorted(tmp_path.iterdir()))
    streamed, exact = (
        merged.report(),
        macc.evaluate(p, labels, metrics=check_streamed(None, 2), positive=positive),
    )

    for name in [
        name for name, metric in registry().items() if metric.of == "two classes" and metric.streams
    ]:
        one, two = streamed[name], exact[name]
        width = two.high - two.low
        assert one.value == pytest.approx(two.value, abs=1e-9), name
        assert one.low == pytest.approx(two.low, abs=0.15 * width), name
        assert one.high == pytest.approx(two.high, abs=0.15 * width), name
    for one, two in zip(streamed.positive.bins, exact.positive.bins, strict=True):
        assert (one.samples, one.low) == (two.samples, two.low)
        assert one.confidence == pytest.approx(two.confidence, nan_ok=True)
        assert one.accuracy == pytest.approx(two.accuracy, nan_ok=True)
    assert streamed.verdict().split(":")[0] == exact.verdict().split(":")[0]


def test_states_of_other_positive_classes_do_not_merge():
    one, two = (
        metrics.Calibration(2, positive=0, intervals=True),
        metrics.Calibration(2, positive=1, intervals=True),
    )

    with pytest.raises(ValueError, match="cannot merge states of other positive classes: 0 and 1"):
        one.merge(two)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    p, labels = too_high()
    np.savez("two.npz", probs=both(p), labels=labels)
    rows = [f"{1 - a},{a},{('no', 'yes')[b]}" for a, b in zip(p, labels, strict=True)]
    (tmp_path / "two.csv").write_text("\n".join(["no,yes,label", *rows]) + "\n")
    return tmp_path


@pytest.mark.parametrize("rows", [10**6, 100])
def test_check_does_not_pass_where_the_positive_class_is_miscalibrated(folder, rows):
    code, out, _ = run("check", "two.csv", "--max-ece", 0.05, "--max-rows-in-memory", rows)
    assert code == 1
    assert out.startswith("ECE of the positive class 'yes' ")
    assert "is above the limit of 5 %" in out
    code, out, _ = run(
        "check", "two.csv", "--max-mce", 0.06, "--positive", "no", "--max-rows-in-memory", rows
    )
    assert code == 1
    assert out.startswith("MCE of the positive class 'no' ")
    code, out, _ = run("check", "two.csv", "--max-top-label-ece", 0.05, "--max-rows-in-memory", rows)
    assert code == 0
    assert out.startswith("ECE, top label ")


def test_check_smooth_ece_is_of_the_positive_class(folder):
    code, out, _ = run("check", "two.npz", "--max-smooth-ece", 0.05)

    assert code == 1
    assert out.startswith("smooth ECE of the positive class 1 ")


def test_of_many_classes_the_top_label_is_checked_either_way(folder):
    probs, labels = sample(2000, 4)
    np.savez("four.npz", probs=probs, labels=labels)

    for option in ("--max-ece", "--max-top-label-ece"):
        assert run("check", "four.npz", option, 0.2)[1].startswith("ECE ")
    assert run("check", "four.npz", "--max-ece", 0.2, "--max-top-label-ece", 0.001)[0] == 1


def test_commands_take_the_name_of_the_positive_class(folder):
    code, out, _ = run("evaluate", "two.csv", "--positive", "no", "--json", "out.json", "--plot", "out.svg")
    assert code == 0
    assert "P(class 'no') is too low: " in out
    assert "positive_ece" in json.loads((folder / "out.json").read_text())
    code, out, _ = run("evaluate", "two.csv", "--positive", "no", "--state", "state")
    assert code == 0
    assert "P(class 'no') is too low: " in out
    assert "P(class 'no') is too low: " in run("merge", "state")[1]
    for option in ((), ("--max-rows-in-memory", 100)):
        assert (
            "the positive one is class 'no'"
            in run("compare", "two.csv", "two.csv", "--positive", "no", *option)[1]
        )
        assert run("compare", "two.csv", "two.csv", "--positive", "maybe", *option)[::2] == (
            2,
            "macc: no class is called 'maybe'; the classes are 'no' and 'yes'\n",
        )
    code, out, _ = run(
        "calibrate", "--fit", "two.csv", "--apply", "two.csv", "--positive", "no", "-o", "o.npz"
    )
    assert code == 0
    assert "the positive one is class 'no'" in out
    assert "ECE, positive class" in out

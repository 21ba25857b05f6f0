"""Differences come with paired intervals that cover, p-values that agree with them, and Holm's
correction.
"""

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch

from helpers.predictions import sample
from helpers.synthetic import Population, draw
from macc import metrics
from macc.metrics import metrics_of


@pytest.fixture(scope="module")
def comparison():
    probs, labels = sample(1500, 4, 2.0)
    sharp = probs**2.5 / (probs**2.5).sum(1, keepdims=True)
    return metrics.compare(sharp, probs, labels, resamples=300)


def test_every_metric_is_compared_on_the_same_samples(comparison):
    probs, labels = sample(1500, 4, 2.0)
    sharp = probs**2.5 / (probs**2.5).sum(1, keepdims=True)

    assert tuple(comparison.differences) == tuple(metrics_of(4))
    row = comparison["ece"]
    assert row.a == pytest.approx(metrics.ece(sharp, labels))
    assert row.b == pytest.approx(metrics.ece(probs, labels))
    assert row.value == pytest.approx(row.a - row.b)


def test_intervals_contain_the_difference_and_agree_with_p(comparison):
    for name, row in comparison.differences.items():
        if math.isnan(row.low):
            assert name == "mce"
            continue
        assert row.low <= row.value <= row.high, name
        assert row.p <= row.p_holm <= 1, name
        if abs(row.p - 0.05) > 0.02:
            assert (row.low > 0 or row.high < 0) == (row.p < 0.05), name


def test_sharpening_changes_calibration_but_not_ranks(comparison):
    assert comparison["accuracy"].value == 0
    assert comparison["accuracy"].p == 1
    for name in ("ece", "sce", "nll", "brier", "over_confidence", "smooth_ece", "ks_error"):
        assert comparison[name].low > 0
        assert comparison[name].p_holm < 0.001


def test_a_model_does_not_differ_from_itself():
    probs, labels = sample(300, 3)
    result = metrics.compare(probs, probs, labels, resamples=200)

    for name, row in result.differences.items():
        assert row.value == 0, name
        assert name == "mce" or row.p == 1, name


def test_swapping_the_models_mirrors_the_result():
    probs, labels = sample(400, 3)
    other, _ = sample(400, 3, seed=1)
    one = metrics.compare(probs, other, labels, resamples=200, metrics=["ece", "accuracy", "sce"])
    two = metrics.compare(other, probs, labels, resamples=200, metrics=["ece", "accuracy", "sce"])

    for name, row in one.differences.items():
        assert two[name].value == pytest.approx(-row.value)
        assert two[name].low == pytest.approx(-row.high)
        assert two[name].p == pytest.approx(row.p)


@pytest.mark.parametrize(("sharp_a", "sharp_b", "k"), [(1.0, 1.3, 10), (1.5, 1.5, 2)])
def test_paired_intervals_cover_the_populations_difference(sharp_a, sharp_b, k):
    """Two noisy views of one problem; the truth is that of each view's own population."""
    names = ["ece", "sce", "accuracy"]
    populations = [Population(k, s) for s in (sharp_a, sharp_b)]
    truth = {name: populations[0].values[name] - populations[1].values[name] for name in names}
    repeats, hits = 40, dict.fromkeys(names, 0)
    for seed in range(repeats):
        generator = torch.Generator().manual_seed(seed)
        _, chance, labels = draw(500, k, 1.0, generator)
        a, b = (chance.log().mul(s).softmax(1) for s in (sharp_a, sharp_b))
        result = metrics.compare(a, b, labels, metrics=names, resamples=100, seed=seed)
        for name in names:
            hits[name] += result[name].low <= truth[name] <= result[name].high

    assert all(count >= 0.88 * repeats for count in hits.values()), hits


def test_equal_biases_of_two_errors_are_not_held_against_each_other():
    """Errors of 6 and 12 %: intervals that allow for any biases contain 0 nearly always."""
    low = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        _, chance, labels = draw(500, 3, 1.0, generator)
        a, b = (chance.log().mul(s).softmax(1) for s in (1.4, 1.8))
        row = metrics.compare(b, a, labels, metrics=["ece"], resamples=100, seed=seed)["ece"]
        assert (row.low >= 0) == (row.p < 0.05)
        low.append(row.low)

    assert sum(end >= 0 for end in low) >= 3
    assert sum(end > 0 for end in low) <= 2


def test_runs_are_compared_by_a_paired_t_test():
    runs = [sample(200, 3, seed=s) for s in range(5)]
    sharp = [p**2 / (p**2).sum(1, keepdims=True) for p, _ in runs]
    labels = [y for _, y in runs]
    result = metrics.compare(sharp, [p for p, _ in runs], labels, metrics=["ece", "nll", "rmsce_debiased"])

    for name, function in (("ece", metrics.ece), ("nll", metrics.nll)):
        a = [function(p, y) for p, y in zip(sharp, labels, strict=True)]
        b = [function(p, y) for p, y in runs]
        expected = scipy.stats.ttest_rel(a, b)
        low, high = expected.confidence_interval(0.95)
        row = result[name]
        assert (row.value, row.p) == (pytest.approx(np.mean(a) - np.mean(b)), pytest.approx(expected.pvalue))
        assert (row.low, row.high) == (pytest.approx(low), pytest.approx(high))
    assert result.num_runs == 5
    assert "5 pairs of runs, paired t-test" in str(result)


def test_runs_that_all_differ_by_the_same_are_not_tested():
    labels = np.zeros(10, dtype=int)
    right = np.tile([0.9, 0.1], (10, 1))
    wrong = right.copy()
    wrong[0] = wrong[0, ::-1]
    result = metrics.compare([right] * 3, [wrong] * 3, labels, metrics=["accuracy"])
    same = metrics.compare([right] * 3, [right] * 3, labels, metrics=["accuracy"])

    row = result["accuracy"]
    assert row.value == pytest.approx(0.1)
    assert np.isnan([row.low, row.high, row.p, row.p_holm]).all()
    assert "differs by the same amount in all runs" in str(result)
    assert "A better" not in str(result)
    assert (same["accuracy"].low, same["accuracy"].high, same["accuracy"].p) == (0, 0, 1)
    assert "differs by the same amount" not in str(same)


def test_runs_have_every_metric():
    runs = [sample(60, 3, seed=s)[0] for s in range(2)]
    labels = sample(60, 3)[1]

    assert tuple(metrics.compare(runs, runs[::-1], labels).differences) == tuple(metrics_of(3))


@pytest.mark.parametrize(
    ("a", "b", "labels", "message"),
    [
        ([np.eye(2)], [np.eye(2)], [0, 1], "one pair of runs says nothing"),
        ([np.eye(2)] * 2, [np.eye(2)], [0, 1], "must pair up"),
        ([np.eye(2)] * 2, np.eye(2), [0, 1], "must pair up"),
        ([np.eye(2)] * 2, [np.eye(2)] * 2, [np.array([0, 1])] * 3, "2 pairs of runs and 3 arrays of labels"),
        (np.eye(2), np.eye(3)[:2], [0, 1], "A has 2 classes and B has 3"),
        (np.eye(2), np.eye(2)[:1], [0, 1], "1 samples and labels has 2"),
    ],
)
def test_what_does_not_pair_up_is_refused(a, b, labels, message):
    with pytest.raises(ValueError, match=message):
        metrics.compare(a, b, labels)


def test_holm_equals_its_definition_and_keeps_order():
    assert metrics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert metrics.holm([0.5, 0.6]) == [1.0, 1.0]
    assert metrics.holm([]) == []
    corrected = metrics.holm([0.02, math.nan, 0.03])
    assert corrected[0] == pytest.approx(0.04)
    assert math.isnan(corrected[1])


def test_the_table_names_the_better_model(comparison):
    text = str(comparison)

    assert "1 500 samples, the same for both" in text
    line = next(line for line in text.splitlines() if line.startswith("ECE"))
    assert line.endswith("B better")
    assert "A better" not in text
    assert json.loads(comparison.to_json())["mce"]["low"] is None
    assert "<table>" in comparison._repr_html_()

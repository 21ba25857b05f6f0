"""Tests of perfect calibration: their size, their power, and the distributions they come from."""

import json
import math

import numpy as np
import pytest
from scipy.stats import kstest

import macc
from helpers.command import run
from macc import metrics
from macc.metrics._significance import distance_exceeds, range_exceeds


def draw(rows, seed, sharpness=1.0, classes=3):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(rows, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    exp = np.exp(sharpness * logits)
    return exp / exp.sum(1, keepdims=True), labels


def test_the_distributions_are_those_of_a_random_walk():
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.choice([-1.0, 1.0], size=(2000, 2500)), axis=1) / 50
    high, low = walks.max(1).clip(min=0), walks.min(1).clip(max=0)
    for x in (0.8, 1.2, 1.8, 2.5):
        # Steps hide a little of what happens between them.
        assert distance_exceeds(x) == pytest.approx((np.maximum(high, -low) > x).mean(), abs=0.04)
        assert range_exceeds(x) == pytest.approx((high - low > x).mean(), abs=0.05)
    assert distance_exceeds(0.0) == range_exceeds(0.0) == 1
    # Far out both are sums of four or two tails of a normal number.
    assert distance_exceeds(6.0) == pytest.approx(2 * math.erfc(6 / math.sqrt(2)), rel=1e-3)
    assert 0 < range_exceeds(8.0) < 1e-13
    grid = np.linspace(0.1, 7, 300)
    for tail in (distance_exceeds, range_exceeds):
        assert (np.diff([tail(x) for x in grid]) <= 1e-12).all()


@pytest.mark.parametrize("classes", [2, 3])
def test_calibrated_models_are_rejected_as_rarely_as_promised(classes):
    """Of 400 samples of 500, about 5 % have a p-value below 0.05; Spiegelhalter's are uniform."""
    found = [metrics.calibration_tests(*draw(500, seed, classes=classes)) for seed in range(400)]
    for name in found[0]:
        values = np.array([each[name] for each in found])
        # 400 draws of probability 0.05 exceed 34 with probability 0.001.
        assert (values < 0.05).sum() <= 34
        assert (values < 0.05).sum() >= 4
    assert kstest([each["spiegelhalter"] for each in found], "uniform").pvalue > 0.001


def test_miscalibrated_models_are_rejected():
    found = metrics.calibration_tests(*draw(2000, 0, sharpness=1.5))

    assert all(p < 0.001 for p in found.values())


def test_each_sees_what_it_is_made_for():
    """Too low, too high and too low again: the sums go up, down and up, which their range shows
    best.
    """
    rng = np.random.default_rng(2)
    probs = np.repeat([0.3, 0.5, 0.7], 1000)
    labels = (rng.random(3000) < np.repeat([0.35, 0.4, 0.75], 1000)).astype(int)
    found = metrics.calibration_tests(probs, labels)

    assert found["kuiper"] < 0.01 < found["kolmogorov_smirnov"]
    assert found["spiegelhalter"] > 0.05


def test_the_order_of_the_file_does_not_matter():
    rng = np.random.default_rng(0)
    probs, labels = rng.choice([0.2, 0.5, 0.9], 300), rng.integers(0, 2, 300)
    order = rng.permutation(300)

    assert metrics.calibration_tests(probs, labels) == pytest.approx(
        metrics.calibration_tests(probs[order], labels[order])
    )


def test_what_cannot_be_told():
    sure = metrics.calibration_tests([0.0, 1.0], [0, 1])
    half = metrics.calibration_tests([0.5] * 10, [0, 1] * 5)

    assert all(map(math.isnan, sure.values()))
    assert math.isnan(half["spiegelhalter"])
    assert half["kuiper"] == 1
    assert set(metrics.calibration_tests([0.0, 0.5], [1, 1]).values()) == {0.0}


def test_evaluate_prints_them_where_everything_is_asked_for(tmp_path):
    probs, labels = draw(300, 0)
    np.savez(tmp_path / "p.npz", probs=probs, labels=labels)
    ended = run("evaluate", tmp_path / "p.npz", "--resamples", 100, "--json", tmp_path / "n.json")
    report = macc.evaluate(probs, labels, resamples=100)

    assert report.p_values == metrics.calibration_tests(probs, labels)
    assert "Tests of perfect calibration, p-values: Spiegelhalter 0." in ended.out
    written = json.loads((tmp_path / "n.json").read_text())
    assert written["p_kuiper"] == {"value": report.p_values["kuiper"]}
    assert macc.evaluate(probs, labels, metrics=["ece"], resamples=100).p_values == {}

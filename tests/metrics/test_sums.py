"""Sums of groups of samples: the values of all samples at once, and intervals like theirs."""

import math

import numpy as np
import pytest

import macc
from helpers.predictions import sharpened as sample
from macc import metrics
from macc.metrics.fine_cells import fine_cells, num_cells
from macc.metrics.streaming import check_streamed


def test_intervals_are_those_in_memory():
    """From sums by group as from resampled samples, within the noise of resampling."""
    probs, labels = sample(20_000)
    state = metrics.Calibration(3, intervals=True)
    for part in np.array_split(np.arange(20_000), 7):
        state.update(probs[part], labels[part])
    streamed, exact = state.report(), macc.evaluate(probs, labels, metrics=check_streamed(None, 3))
    for name in check_streamed(None, 3):
        one, two = streamed[name], exact[name]
        width = two.high - two.low
        wide = 2.0 if name == "auroc" else 1.0  # the most that classes can vary together
        assert one.low == pytest.approx(two.low, abs=0.15 * width * wide + 1e-5), name
        assert one.high == pytest.approx(two.high, abs=0.15 * width * wide + 1e-5), name
        if two.noise_floor is not None:
            assert one.noise_floor == pytest.approx(two.noise_floor, rel=0.1), name
    for one, two in zip(streamed.classes, exact.classes, strict=True):
        assert (one.name, one.samples, one.frequency) == (two.name, two.samples, two.frequency)
        assert one.mean_probability == pytest.approx(two.mean_probability)
    for one, two in zip(streamed.bins, exact.bins, strict=True):
        assert one.samples == two.samples
        assert one.accuracy_low == pytest.approx(two.accuracy_low, nan_ok=True)


def test_intervals_do_not_mind_the_order_of_the_file():
    """A file sorted by label and confidence: groups are drawn sample by sample, so nothing
    changes.
    """
    probs, labels = sample(30_000)
    widths = []
    for order in (np.arange(30_000), np.lexsort([probs.max(1), labels])):
        state = metrics.Calibration(3, intervals=True)
        state.update(probs[order], labels[order])
        ece = state.report()["accuracy"]
        widths.append(ece.high - ece.low)
    assert widths[1] == pytest.approx(widths[0], rel=0.15)
    assert widths[0] == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 30_000), rel=0.25)


@pytest.mark.parametrize("per_octave", [64, 8, 1])
def test_fine_cells_rise_with_the_probability(per_octave):
    probs = np.sort(np.concatenate([np.random.default_rng(0).random(5000), 2.0 ** -np.arange(40.0), [0, 1]]))
    both = np.concatenate([probs, 1 - 2.0 ** -np.arange(1.0, 30)])
    both.sort()
    cells = fine_cells(both[:, None].copy(), per_octave)[:, 0]

    assert (np.diff(cells) >= 0).all()
    assert cells.min() == 0
    assert cells.max() == num_cells(per_octave) - 1
    # 64 an octave: a cell is at most 1.6 % wide, relative to the distance from the nearer end.
    same = np.diff(cells) == 0
    near = np.minimum(both, 1 - both)[:-1] > 2.0**-23
    assert (
        np.diff(both)[same & near] <= np.minimum(both, 1 - both)[:-1][same & near] * 1.05 / per_octave
    ).all()


def test_sums_of_many_classes_stay_small():
    probs = np.random.default_rng(0).dirichlet(np.full(15_000, 0.01), size=3)
    labels = np.array([0, 7, probs[2].argmax()])
    state = metrics.Calibration(15_000, intervals=True)
    state.update(probs, labels)
    exact = metrics.auroc(probs, labels)

    assert sum(part.nbytes for part in state.sums().parts.values()) < 3 * 2**27
    area = state.report(metrics=["auroc"], resamples=100)["auroc"]
    assert area.low <= exact <= area.high


def test_too_many_classes_for_sums_are_refused_before_they_take_memory():
    with pytest.raises(ValueError, match="100 000 classes in 15 bins are too many to measure in batches"):
        metrics.Calibration(100_000, intervals=True)


def test_the_error_of_the_area_is_within_its_bound():
    probs, labels = sample(5000)
    probs = probs.round(3)
    probs /= probs.sum(1, keepdims=True)
    state = metrics.Calibration(3, intervals=True)
    state.update(probs, labels)
    area = state.draws().auroc

    assert abs(area.value - metrics.auroc(probs, labels)) <= area.error
    assert area.error < 0.01


def test_a_label_of_probability_0_is_infinitely_unlikely():
    state = metrics.Calibration(2, intervals=True)
    state.update(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 0]))
    assert state.report()["nll"].value == math.inf
    assert state.report().to_json()


def test_many_classes_have_fewer_groups():
    assert metrics.Calibration(10, intervals=True).sums().parts["class_gaps"].shape[0] == 1024
    assert metrics.Calibration(1000, intervals=True).sums().parts["class_gaps"].nbytes < 2**26
    with pytest.raises(ValueError, match="probs has 3 classes, and this Calibration was made for 2"):
        metrics.Calibration(2, intervals=True).update(*sample(10))
    with pytest.raises(ValueError, match="no samples were seen"):
        metrics.Calibration(2, intervals=True).report()


def test_few_samples_and_one_class_in_a_stream():
    rng = np.random.default_rng(1)
    few, same = metrics.Calibration(2, intervals=True), metrics.Calibration(3, intervals=True)
    few.update(rng.dirichlet([1, 1], size=6), rng.integers(0, 2, 6))
    same.update(rng.dirichlet([1, 1, 1], size=100), np.zeros(100, dtype=int))
    ece, auroc = few.report()["ece"], same.report()["auroc"]

    assert ece.low < ece.value < ece.high
    assert np.isnan([auroc.value, auroc.low, auroc.high]).all()


@pytest.mark.parametrize("num_classes", [2, 3])
def test_one_group_and_many_give_the_values_of_every_metric_that_streams(num_classes):
    """What compute() has is what the registry says streams, and the report has the same values."""
    probs, labels = sample(700, num_classes)
    one, many = (metrics.Calibration(num_classes, 10, intervals=each) for each in (False, True))
    for part in np.array_split(np.arange(700), 3):
        one.update(probs[part], labels[part])
        many.update(probs[part], labels[part])
    plain, grouped, report = one.compute(), many.compute(), many.report()
    streaming = check_streamed(None, num_classes)

    assert set(plain) == {*streaming, "classwise_ece", "count"} - {"auroc"}
    assert set(grouped) == {*plain, "auroc"}
    assert set(report.metrics) == set(streaming)
    for name, metric in streaming.items():
        expected = metric.value(probs, labels, bins=10)
        assert grouped[name] == pytest.approx(expected, abs=1e-3 if name == "auroc" else 1e-12), name
        assert report[name].value == pytest.approx(grouped[name], abs=1e-14), name
        if name != "auroc":
            assert plain[name] == pytest.approx(expected, abs=1e-12), name


def test_one_group_has_no_intervals():
    calibration = metrics.Calibration(3)
    calibration.update(*sample(10))

    with pytest.raises(ValueError, match="make the Calibration with intervals=True"):
        calibration.report()
    with pytest.raises(ValueError, match="cannot merge states of other intervals: False and True"):
        calibration.merge(metrics.Calibration(3, intervals=True))

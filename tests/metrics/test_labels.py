"""Independent labels: values of each and of the mean, and intervals of resampled rows."""

import json

import numpy as np
import pytest
import torch

import macc
from macc import metrics
from macc.metrics._resampling import Resampling

RNG = np.random.default_rng(0)
PROBS = RNG.uniform(0.02, 0.98, (400, 3))
LABELS = (RNG.random((400, 3)) < PROBS * [1.0, 0.6, 1.0]).astype(int)
REPORT = metrics.evaluate_labels(PROBS, LABELS, names=["a", "b", "c"])


def test_each_label_is_what_evaluate_says_of_it_alone():
    for j, row in enumerate(REPORT.labels):
        alone = macc.evaluate(PROBS[:, j], LABELS[:, j], metrics=list(row.metrics))
        assert row.metrics == {name: alone[name] for name in row.metrics}
        assert row.frequency == pytest.approx(LABELS[:, j].mean())
        assert row.mean_probability == pytest.approx(PROBS[:, j].mean())


def test_values_by_hand():
    probs, labels = np.array([[0.8, 0.1], [0.6, 0.1]]), np.array([[1, 0], [0, 1]])
    report = metrics.evaluate_labels(probs, labels, bins=1)
    gaps = abs(0.5 - 0.7), abs(0.5 - 0.1)
    squares = (0.2**2 + 0.6**2) / 2, (0.1**2 + 0.9**2) / 2

    assert [row.metrics["positive_ece"].value for row in report.labels] == pytest.approx(gaps)
    assert [row.metrics["positive_brier"].value for row in report.labels] == pytest.approx(squares)
    assert report["positive_ece"].value == pytest.approx(np.mean(gaps))
    assert report["positive_brier"].value == pytest.approx(np.mean(squares))
    assert report["nll"].value == pytest.approx(-np.log([0.8, 0.4, 0.9, 0.1]).mean())


def test_the_interval_of_the_mean_is_that_of_resampled_rows():
    of_rows = (-np.log(np.where(LABELS == 1, PROBS, 1 - PROBS))).mean(1)
    draws = Resampling(400, 1000, 0).means(torch.from_numpy(of_rows)[:, None])[:, 0]
    low, high = np.quantile(draws.numpy(), [0.025, 0.975])

    assert REPORT["nll"].low == pytest.approx(low, rel=0.01)
    assert REPORT["nll"].high == pytest.approx(high, rel=0.02)


def test_labels_that_go_together_are_no_more_evidence_than_one():
    same = metrics.evaluate_labels(np.repeat(PROBS[:, 1:2], 4, 1), np.repeat(LABELS[:, 1:2], 4, 1))
    for name, estimate in same.metrics.items():
        one = REPORT.labels[1].metrics[name]
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((one.value, one.low, one.high))
    apart = RNG.uniform(size=(400, 4))
    other = metrics.evaluate_labels(apart, RNG.random((400, 4)) < apart, metrics="nll")
    widths = [row.metrics["nll"].high - row.metrics["nll"].low for row in other.labels]
    assert other["nll"].high - other["nll"].low < 0.7 * np.mean(widths)


def test_every_form_gives_the_same():
    logits = torch.from_numpy(np.log(PROBS / (1 - PROBS)))
    again = metrics.evaluate_labels(
        logits, torch.from_numpy(LABELS).double(), names=["a", "b", "c"], from_logits=True
    )
    for name, estimate in again.metrics.items():
        assert estimate.value == pytest.approx(REPORT[name].value)
    one = metrics.evaluate_labels(PROBS[:, 0], LABELS[:, 0].astype(bool))
    assert one["positive_ece"] == metrics.evaluate_labels(PROBS[:, :1], LABELS[:, :1])["positive_ece"]


def test_what_is_shown():
    assert "400 samples, 3 labels" in str(REPORT)
    assert "mean over labels" in str(REPORT)
    assert "<table" in REPORT._repr_html_()
    assert json.loads(REPORT.to_json())["labels"]["b"]["positive_ece"]["low"] > 0
    many = metrics.evaluate_labels(
        np.tile(PROBS, 8), np.tile(LABELS, 8), metrics=["positive_ece"], resamples=100
    )
    assert "The 20 labels with the largest ECE" in str(many)
    with pytest.raises(KeyError, match="no metric 'ece' in this report"):
        REPORT["ece"]


@pytest.mark.parametrize(
    ("probs", "labels", "knobs", "message"),
    [
        (PROBS, LABELS[:, 0], {}, r"same shape \(N, K\).*\(400, 3\) and \(400, 1\).*use macc.evaluate"),
        (
            PROBS + 1,
            LABELS,
            {},
            r"probs\[0, 0\] must be in \[0, 1\], got 1.*; pass from_logits=True if these are logits",
        ),
        (PROBS, LABELS * 2, {}, r"labels\[\d+, \d+\] must be 0 or 1, got 2"),
        (PROBS, LABELS * 0.5, {}, "must be 0 or 1, got 0.5"),
        (PROBS * np.nan, LABELS, {"from_logits": True}, r"logits\[0, 0\] must be finite, got nan"),
        (LABELS, LABELS, {}, "probs must be floating-point, got int64"),
        (PROBS[:0], LABELS[:0], {}, "same shape"),
        (PROBS, LABELS.astype(str), {}, "labels must be 0 or 1, got values of type"),
        (PROBS, LABELS, {"names": ["a", "b"]}, "names has 2 labels and there are 3"),
        (PROBS, LABELS, {"names": ["a", "b", "a"]}, "'a' twice"),
        (PROBS, LABELS, {"metrics": ["positive_ec"]}, "did you mean 'positive_ece'"),
        (PROBS, LABELS, {"metrics": []}, "metrics is empty"),
    ],
)
def test_what_is_refused(probs, labels, knobs, message):
    with pytest.raises(ValueError, match=message):
        metrics.evaluate_labels(probs, labels, **knobs)

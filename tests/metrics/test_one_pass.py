"""Softmax and top label are computed once for all metrics of a report."""

import numpy as np
import pytest

import macc
from helpers.predictions import sample
from macc import metrics
from macc.metrics._one_pass import OnePass
from macc.metrics.blocks import Rows
from macc.metrics.inputs import Predictions, predictions


@pytest.fixture
def counted(monkeypatch):
    """How often the probabilities of logits, and their top labels, were computed."""
    found = {"softmax": 0, "top label": 0}
    blocks, predicted = Predictions.blocks, Rows.predicted.func

    def counting_blocks(given):
        found["softmax"] += given.from_logits
        return blocks(given)

    def counting_predicted(rows):
        found["top label"] += 1
        return predicted(rows)

    monkeypatch.setattr(Predictions, "blocks", counting_blocks)
    monkeypatch.setattr(Rows, "predicted", property(counting_predicted))
    return found


@pytest.mark.parametrize("num_classes", [2, 4])
def test_a_report_reads_logits_once(counted, num_classes):
    probs, labels = sample(300, num_classes)
    macc.evaluate(np.log(probs), labels, variance=np.ones_like(probs), from_logits=True, resamples=100)

    assert counted == {"softmax": 1, "top label": 1}


@pytest.mark.parametrize("name", metrics.metrics_of(2, certainty=True))
def test_a_report_of_some_metrics_reads_logits_once(counted, name):
    probs, labels = sample(60, 2)
    macc.evaluate(
        np.log(probs),
        labels,
        metrics=["accuracy", name],
        variance=np.ones_like(probs),
        from_logits=True,
        resamples=100,
    )

    assert counted == {"softmax": 1, "top label": 1}


def test_a_comparison_reads_the_logits_of_each_model_once(counted):
    probs, labels = sample(300, 3)
    for names in (None, ["accuracy", "sce"]):
        counted.update(dict.fromkeys(counted, 0))
        metrics.compare(
            np.log(probs), 2 * np.log(probs), labels, metrics=names, from_logits=True, resamples=100
        )

        assert counted == {"softmax": 2, "top label": 2}


@pytest.mark.parametrize("whole", [False, True])
def test_probabilities_are_the_same_kept_or_computed_anew(whole):
    probs, labels = sample(50, 3)
    given = predictions(np.log(probs), labels, from_logits=True)
    one = OnePass(given, whole=whole)
    first = one.sample.top.confidence

    np.testing.assert_array_equal(one.probabilities.scores, given.matrix())
    np.testing.assert_array_equal(one.probabilities.scores.amax(1), first)
    np.testing.assert_allclose(one.sample.totals, probs.sum(0))
    np.testing.assert_allclose(one.sample.positive.confidence, probs[:, 1])


def test_values_with_and_without_intervals_are_the_same():
    probs, labels = sample(400, 3)
    report = macc.evaluate(probs, labels, resamples=100)

    for name, estimate in report.metrics.items():
        assert estimate.value == pytest.approx(metrics.registry()[name](probs, labels), abs=1e-13), name
    for name in ("ece", "mce", "over_confidence", "under_confidence", "rmsce", "rmsce_debiased"):
        assert report[name].value == metrics.registry()[name](probs, labels), name

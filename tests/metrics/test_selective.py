"""How well certainty ranks right above wrong predictions is said beside confidence, where the
variance is known.
"""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import macc
from helpers.command import run
from helpers.predictions import sample
from macc.metrics import metrics_of, registry

NAME = "failure_auroc_by_certainty"


def moments(n=600):
    """The variance of a logit grows with the logit, as that of trained networks does."""
    probs, labels = sample(n, 4, 2.0)
    logits = np.log(probs) - np.log(probs).mean(1, keepdims=True)
    return logits, 0.02 * logits**2, labels


def test_it_is_the_area_of_the_predicted_class_by_its_certainty():
    logits, variance, labels = moments()
    report = macc.evaluate(logits, labels, variance=variance, from_logits=True, resamples=200)
    predicted = logits.argmax(1)
    certainty = 1 - np.tanh(variance[np.arange(len(labels)), predicted])

    assert tuple(report.metrics) == tuple(metrics_of(4, certainty=True))
    assert report[NAME].value == pytest.approx(roc_auc_score(predicted == labels, certainty), rel=1e-12)
    assert report[NAME].low <= report[NAME].value <= report[NAME].high < 0.5
    assert "Certainty ranks right and wrong predictions backwards (failure AUROC " in str(report)
    assert "by certainty" in str(report)


def test_nothing_is_said_where_certainty_ranks_as_well():
    logits, _, labels = moments()
    top = np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)
    report = macc.evaluate(
        logits, labels, variance=np.log(top) + 0 * logits, metrics=["failure_auroc", NAME], from_logits=True
    )

    assert report[NAME].value == pytest.approx(report["failure_auroc"].value)
    assert report.notes == ()


def test_without_a_variance_there_is_no_certainty():
    logits, variance, labels = moments(60)

    assert NAME in registry()
    assert NAME not in macc.evaluate(logits, labels, from_logits=True, resamples=100).metrics
    with pytest.raises(
        ValueError, match="needs the variance of the logits; pass it to evaluate as variance="
    ):
        macc.evaluate(logits, labels, metrics=[NAME], from_logits=True)
    with pytest.raises(ValueError, match=r"shape of the scores, \(60, 4\), got \(59, 4\)"):
        macc.evaluate(logits, labels, variance=variance[1:], from_logits=True)
    for bad in (-1.0, np.nan):
        with pytest.raises(ValueError, match="variance must be finite and at least 0"):
            macc.evaluate(logits, labels, variance=variance * bad, from_logits=True)


def test_files_of_moments_are_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logits, variance, labels = moments()
    np.savez("m.npz", logits=logits, mean=logits, variance=variance, labels=labels)
    np.savez("short.npz", logits=logits, mean=logits, variance=variance[1:], labels=labels)
    np.savez("words.npz", logits=logits, mean=logits, variance=np.array(["a"]), labels=labels)
    np.savez("other.npz", logits=logits, variance=np.array(["a"]), labels=labels)

    code, out, _ = run("evaluate", "m.npz")
    assert code == 0
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("failure AUROC"))
    assert lines[first + 1].startswith("  by certainty")
    assert lines[-1].startswith("Certainty ranks right and wrong predictions backwards")
    assert run("evaluate", "other.npz")[0] == 0
    assert "macc: variance must have the shape of the scores" in run("evaluate", "short.npz")[2]
    assert run("evaluate", "words.npz")[::2] == (
        2,
        "macc: words.npz: variance holds values of type <U1, not floating-point numbers\n",
    )

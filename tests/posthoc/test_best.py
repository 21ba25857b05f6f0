"""The best of several calibrators, by held-out samples."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch

from helpers.calibrators import data, drawn
from macc import posthoc


def test_best_finds_the_family_that_made_the_data():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 3)) * 2
    shifted = drawn(0.5 * logits + [1.0, 0.0, -1.0], rng)
    chosen = posthoc.best(logits, shifted, ["identity", "temperature", "vector-scaling", "histogram"])

    assert chosen.scores[0].name == "VectorScaling"
    assert chosen.scores[-1].name == "Identity"
    assert isinstance(chosen.calibrator, posthoc.VectorScaling)
    assert chosen.calibrator.to_dict() == posthoc.VectorScaling.fit(logits, shifted).to_dict()
    assert chosen.scores[0].behind == 0
    assert chosen.scores[-1].behind > 10 * chosen.scores[-1].error
    assert "VectorScaling" in str(chosen)


def test_best_takes_the_least_nll_and_says_who_is_near():
    """Labels of tempered logits: more parameters than one can only look better by chance."""
    names = ["matrix-scaling", "vector-scaling", "temperature", "identity"]
    sentences = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        logits = 2 * rng.normal(size=(300, 3))
        chosen = posthoc.best(2 * logits, drawn(logits, rng), names)
        scores = {score.name: score for score in chosen.scores}
        near = sum(score.behind <= score.error for score in chosen.scores) - 1

        assert chosen.chosen == min(scores.values(), key=lambda score: score.nll).name
        assert type(chosen.calibrator).__name__ == chosen.chosen
        expected = {
            0: "by more than one",
            1: "another candidate is within",
            2: "2 other candidates are within",
        }
        assert expected[near] in chosen.why
        sentences.add(near)
        assert [scores[name].num_parameters for name in ("Identity", "Temperature", "VectorScaling")] == [
            0,
            1,
            6,
        ]
        assert scores["MatrixScaling"].num_parameters == 12
        for text in (repr(chosen), str(chosen), chosen._repr_html_()):
            assert chosen.why in text
            assert "MatrixScaling" in text
    assert len(sentences) >= 2


def test_best_scores_are_those_of_held_out_samples():
    """Against a plain loop over the same folds."""
    from macc.metrics.folds import dealt

    logits, labels = data(200)
    chosen = posthoc.best(logits, labels, [posthoc.Histogram], folds=4)
    folds = dealt(torch.as_tensor(labels), 4).numpy()
    losses = []
    for fold in range(4):
        fitted = posthoc.Histogram.fit(logits[folds != fold], labels[folds != fold])
        probs = fitted(logits[folds == fold])
        losses.append(-np.log(probs[np.arange(len(probs)), labels[folds == fold]]))

    assert chosen.scores[0].nll == pytest.approx(np.concatenate(losses).mean())
    for j in range(4):  # each class is dealt evenly
        counts = np.bincount(folds[labels == j], minlength=4)
        assert counts.max() - counts.min() <= 1


def test_best_says_who_was_refused_and_takes_functions():
    logits, labels = data()
    chosen = posthoc.best(
        logits, labels, [posthoc.Temperature, "platt", partial(posthoc.MatrixScaling.fit, off_diagonal=1e3)]
    )

    assert {score.name for score in chosen.scores} == {
        "Temperature",
        "Platt",
        "MatrixScaling(off_diagonal=1000.0)",
    }
    assert chosen.scores[-1].reason.startswith("Platt is for two classes")
    assert "two classes" in str(chosen)
    with pytest.raises(ValueError, match="no candidate could be fitted; Platt: Platt is for two"):
        posthoc.best(logits, labels, ["platt"])
    with pytest.raises(ValueError, match="no calibrator is called 'magic'; there are .*vector-scaling"):
        posthoc.best(logits, labels, ["magic"])
    with pytest.raises(ValueError, match="no calibrator is called 'temprature'; did you mean 'temperature'"):
        posthoc.best(logits, labels, ["temprature"])
    with pytest.raises(ValueError, match="folds must be"):
        posthoc.best(logits, labels, folds=1)
    with pytest.raises(ValueError, match="too few for 5 folds"):
        posthoc.best(logits[:8], labels[:8])
    with pytest.raises(ValueError, match="candidates is empty"):
        posthoc.best(logits, labels, [])


def test_best_of_all():
    shares = []
    logits, labels = data(300, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        chosen = posthoc.best(logits, labels, on_progress=shares.append)

    assert {"Platt", "Identity", "Dirichlet"} <= {score.name for score in chosen.scores}
    assert "MetaCal" not in {score.name for score in chosen.scores}
    assert shares == sorted(shares)
    assert shares[-1] == 1

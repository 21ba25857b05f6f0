"""Weights: whole ones are repeated samples, for every metric of the registry."""

import inspect

import numpy as np
import pytest
import torch

from macc import metrics

NO_WEIGHTS = {"refinement"}
TAKING = [name for name in metrics.registry() if name not in NO_WEIGHTS]


def drawn(num_classes, rounded, seed=0):
    """Probabilities, labels and whole weights, of which some are 0; rounded ones have ties."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(200, num_classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    if rounded:
        logits = logits.round()
    probs = np.exp(2 * logits)
    return probs / probs.sum(1, keepdims=True), labels, rng.integers(0, 5, 200)


def options(name, size, repeats=None):
    """What a metric needs beyond probabilities and labels."""
    if metrics.registry()[name].of != "certainty":
        return {}
    certainty = np.random.default_rng(1).random(size).round(1)
    return {"certainty": certainty if repeats is None else certainty.repeat(repeats)}


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", TAKING)
def test_whole_weights_are_repeated_samples(name, rounded):
    metric = metrics.registry()[name]
    probs, labels, weights = drawn(2 if metric.of == "two classes" else 4, rounded)
    more = options(name, 200)
    repeated = metric(probs.repeat(weights, 0), labels.repeat(weights), **options(name, 200, weights))
    assert metric(probs, labels, weights=weights, **more) == pytest.approx(repeated, rel=1e-11, abs=1e-13)
    once = metric(probs, labels, weights=np.ones(200), **more)
    assert once == pytest.approx(metric(probs, labels, **more), rel=1e-11, abs=1e-13)
    assert metric(probs, labels, weights=weights * 0.37, **more) >= 0


@pytest.mark.parametrize("name", ["classwise_ece", "brier_decomposition"])
def test_whole_weights_of_what_is_no_single_number(name):
    probs, labels, weights = drawn(4, rounded=True)
    function = getattr(metrics, name)
    expected = function(probs.repeat(weights, 0), labels.repeat(weights))
    np.testing.assert_allclose(function(probs, labels, weights=weights), expected, rtol=1e-11)


@pytest.mark.parametrize("options", [{"top_label": True}, {"bins": 7}])
def test_other_forms_of_the_adaptive_error(options):
    probs, labels, weights = drawn(4, rounded=True)
    repeated = metrics.ace(probs.repeat(weights, 0), labels.repeat(weights), **options)
    assert metrics.ace(probs, labels, weights=weights, **options) == pytest.approx(repeated, rel=1e-11)


def test_a_mean_of_any_weights_is_that_of_numpy():
    probs, labels, _ = drawn(3, rounded=False)
    weights = np.random.default_rng(2).exponential(size=200)
    right = probs.argmax(1) == labels
    assert metrics.accuracy(probs, labels, weights=weights) == pytest.approx(
        np.average(right, weights=weights)
    )
    losses = -np.log(probs[np.arange(200), labels])
    assert metrics.nll(
        torch.tensor(probs), torch.tensor(labels), weights=torch.tensor(weights)
    ) == pytest.approx(np.average(losses, weights=weights))


def test_area_of_any_weights_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    probs, labels, _ = drawn(2, rounded=True)
    weights = np.random.default_rng(3).exponential(size=200)
    areas = [roc_auc_score(labels == j, probs[:, j], sample_weight=weights) for j in (0, 1)]
    expected = np.mean(areas)
    assert metrics.auroc(probs, labels, weights=weights) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, -1.0], r"weights\[1\] is -1, and a weight is a finite number of at least 0"),
        ([float("nan"), 1.0], r"weights\[0\] is nan"),
        ([float("inf"), 1.0], r"weights\[0\] is inf"),
        ([0.0, 0.0], "all weights are 0"),
        ([1.0], r"one number for each of 2 samples, got shape \(1,\)"),
    ],
)
def test_bad_weights(weights, said):
    with pytest.raises(ValueError, match=said):
        metrics.ece([[0.9, 0.1], [0.2, 0.8]], [0, 1], weights=weights)


def test_a_row_of_weight_0_is_refused_under_its_own_number():
    with pytest.raises(ValueError, match=r"probs\[2"):
        metrics.ece([[0.9, 0.1], [0.2, 0.8], [0.2, 0.9]], [0, 1, 1], weights=[0, 1, 1])


def test_what_takes_no_weights_says_so():
    for name in NO_WEIGHTS:
        with pytest.raises(ValueError, match="takes no weights.*repeat samples"):
            metrics.registry()[name]([[0.9, 0.1], [0.2, 0.8]], [0, 1], weights=[1, 2])
    for name in TAKING:
        assert "weights" in inspect.signature(metrics.registry()[name].function).parameters

"""Linear maps of logits against independent optimisers and known parameters."""

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from helpers.calibrators import data, drawn, fit, slow_minimum
from macc import posthoc


def nll(log_probs, labels):
    return -log_probs[np.arange(len(labels)), labels].mean()


def test_platt_is_the_penalised_maximum():
    logits, labels = data(500, 2)
    temperature = fit("Temperature", logits, labels).temperature
    margin = logits[:, 1] - logits[:, 0]

    def objective(at):
        scores = at[0] * margin / temperature + at[1]
        loss = np.logaddexp(0, np.where(labels == 1, -scores, scores)).sum()
        return (loss + ((at - [1, 0]) ** 2).sum() / 2) / len(labels)

    slope, intercept = slow_minimum(objective, [1.0, 0.0])
    fitted = posthoc.Platt.fit(logits, labels)

    assert fitted.slope == pytest.approx(slope / temperature, abs=1e-5)
    assert fitted.intercept == pytest.approx(intercept, abs=1e-5)


def test_platt_recovers_a_curve_and_agrees_with_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    margin = rng.normal(size=40_000) * 3
    labels = (rng.random(40_000) < expit(0.5 * margin - 1)).astype(int)
    fitted = posthoc.Platt.fit(margin, labels)
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(margin[:, None], labels)

    assert fitted.slope == pytest.approx(0.5, abs=0.02)
    assert fitted.intercept == pytest.approx(-1, abs=0.04)
    np.testing.assert_allclose(fitted(margin), theirs.predict_proba(margin[:, None])[:, 1], atol=1e-4)


def test_platt_is_for_two_classes():
    with pytest.raises(ValueError, match="Platt is for two classes, and logits has 4; use"):
        posthoc.Platt.fit(*data())


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling", "Dirichlet"])
def test_linear_maps_are_the_penalised_maximum(name):
    logits, labels = data(300, 3)
    temperature = fit("Temperature", logits, labels).temperature
    features = log_softmax(logits, axis=1) if name == "Dirichlet" else logits - logits.mean(1, keepdims=True)
    features = features / temperature
    start = np.ones(3) if name == "VectorScaling" else np.eye(3)
    off = 10.0 * 3

    def objective(at):
        weight, bias = at[:-3].reshape(start.shape), at[-3:]
        scores = features * weight + bias if start.ndim == 1 else features @ weight.T + bias
        cost = 1.0 if start.ndim == 1 else np.where(np.eye(3) == 1, 1.0, off)
        penalty = (cost * (weight - start) ** 2).sum() / 2 + (bias**2).sum() / 2
        return nll(log_softmax(scores, axis=1), labels) + penalty / len(labels)

    at = slow_minimum(objective, np.concatenate([start.ravel(), np.zeros(3)]))
    fitted = getattr(posthoc, name).fit(logits, labels)

    np.testing.assert_allclose(fitted.weight.ravel() * temperature, at[:-3], atol=2e-4)
    np.testing.assert_allclose(fitted.bias, at[-3:], atol=2e-4)
    found = np.concatenate([fitted.weight.ravel() * temperature, fitted.bias])
    assert objective(found) <= objective(at) + 1e-9


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling"])
def test_linear_maps_recover_known_parameters(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60_000, 3)) * 2
    logits -= logits.mean(1, keepdims=True)
    weight = np.diag([0.5, 1.0, 1.5])
    if name == "MatrixScaling":
        weight = weight + np.array([[0, 0.3, 0], [0, 0, -0.3], [0, 0, 0]])
    bias = np.array([0.5, 0.0, -0.5])
    fitted = getattr(posthoc, name).fit(logits, drawn(logits @ weight.T + bias, rng))

    np.testing.assert_allclose(fitted(logits), softmax(logits @ weight.T + bias, axis=1), atol=0.02)
    np.testing.assert_allclose(fitted.bias - fitted.bias.mean(), bias, atol=0.06)
    if name == "VectorScaling":
        np.testing.assert_allclose(fitted.weight, [0.5, 1.0, 1.5], atol=0.06)


def test_dirichlet_recovers_known_parameters():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60_000, 3)) * 2
    weight = np.array([[0.6, 0.2, 0], [0, 0.8, 0], [0, 0, 1.0]])
    truth = log_softmax(logits, axis=1) @ weight.T + [0.3, -0.3, 0.0]
    fitted = posthoc.Dirichlet.fit(logits, drawn(truth, rng))

    np.testing.assert_allclose(fitted(logits), softmax(truth, axis=1), atol=0.02)


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling", "Dirichlet"])
def test_penalties_lead_back_to_temperature_scaling(name):
    logits, labels = data()
    options = {"penalty": 1e9} if name == "VectorScaling" else {"off_diagonal": 1e9, "bias": 1e9}
    fitted = getattr(posthoc, name).fit(logits, labels, **options)

    np.testing.assert_allclose(fitted(logits), posthoc.Temperature.fit(logits, labels)(logits), atol=1e-5)
    for key in options:
        with pytest.raises(ValueError, match=f"{key} must be a number of at least 0"):
            getattr(posthoc, name).fit(logits, labels, **{key: -1.0})


def test_a_class_without_samples_is_only_tempered():
    logits, labels = data(800)
    logits, labels = logits[labels != 2], labels[labels != 2]
    temperature = posthoc.Temperature.fit(logits, labels).temperature
    with pytest.warns(
        UserWarning, match="class 2 has no samples in the validation set; its probability is only tempered"
    ):
        fitted = posthoc.MatrixScaling.fit(logits, labels)

    np.testing.assert_allclose(fitted.weight[2], np.eye(4)[2] / temperature, rtol=1e-12)
    assert fitted.bias[2] == 0
    assert abs(fitted.bias[1]) > 1e-4

"""Linear maps of logits against independent optimisers and known parameters."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from helpers.calibrators import data, drawn, fit, slow_minimum
from macc import metrics, posthoc


def nll(log_probs, labels):
    return -log_probs[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling", "Dirichlet"])
def test_linear_maps_are_the_penalised_maximum(name):
    """Against a slow search: d on the class's own feature, M on centred logits, b, each with its
    penalty.
    """
    logits, labels = data(300, 3)
    temperature = fit("Temperature", logits, labels).temperature
    tempered = logits / temperature
    centred = tempered - tempered.mean(1, keepdims=True)
    own = tempered - tempered.max(1, keepdims=True)
    if name == "Dirichlet":
        own = log_softmax(logits, axis=1) / temperature
    mixes = name != "VectorScaling"
    off = np.eye(3) == 0

    def parts(at):
        other = np.zeros((3, 3))
        if mixes:
            other[off] = at[6:]
        return at[:3], at[3:6], other

    def objective(at):
        change, bias, other = parts(at)
        scores = own * (1 + change) + centred @ other.T + bias
        penalty = (2 * change**2).sum() + (2 * bias**2).sum() + (30 * other**2).sum()
        return nll(log_softmax(scores, axis=1), labels) + penalty / 2 / len(labels)

    change, bias, other = parts(slow_minimum(objective, np.zeros(12 if mixes else 6)))
    options = {"off_diagonal": 30, "diagonal": 2, "bias": 2} if mixes else {"penalty": 2}
    fitted = getattr(posthoc, name).fit(logits, labels, **options)

    weight = 1 + change if not mixes else np.diag(1 + change) + other - other.mean(1, keepdims=True)
    np.testing.assert_allclose(fitted.weight * temperature, weight, atol=5e-4)
    np.testing.assert_allclose(fitted.bias, bias, atol=5e-4)
    expected = softmax(own * (1 + change) + centred @ other.T + bias, axis=1)
    np.testing.assert_allclose(fitted(logits), expected, atol=2e-4)


@pytest.mark.parametrize("rows", [300, 3000])
def test_a_long_search_finds_hardly_more(rows):
    """Of 420 numbers, in nats of all samples together: the fit stops a thousandth of a standard
    error from the optimum.
    """
    from scipy.optimize import minimize

    logits, labels = data(rows, 20)
    temperature = fit("Temperature", logits, labels).temperature
    tempered = logits / temperature
    own = tempered - tempered.max(1, keepdims=True)
    centred = tempered - tempered.mean(1, keepdims=True)
    eye, hits = np.eye(20), np.eye(20)[labels]
    costs = np.hstack([30 + (3 - 30) * eye, np.full((20, 1), 2.0)])

    def objective(at):
        at = at.reshape(20, 21)
        scores = own * (1 + np.diag(at)) + centred @ (at[:, :-1] * (1 - eye)).T + at[:, -1]
        residual = softmax(scores, axis=1) - hits
        slope = np.hstack([residual.T @ centred, residual.sum(0)[:, None]])
        np.fill_diagonal(slope, (residual * own).sum(0))
        loss = -log_softmax(scores, axis=1)[hits == 1].sum() + (costs * at**2).sum() / 2
        return loss, (slope + costs * at).ravel()

    best = minimize(objective, np.zeros(420), jac=True, method="L-BFGS-B", options={"gtol": 1e-7, "ftol": 0})
    fitted = posthoc.MatrixScaling.fit(logits, labels, off_diagonal=30, diagonal=3, bias=2)
    found = fitted.weight * temperature
    # What was taken off a row so that its other entries sum to 0 went off the diagonal too.
    factors = found.sum(1)
    other = found + (factors - np.diag(found))[:, None]
    numbers = np.where(eye == 1, np.diag(factors - 1), other)
    assert objective(np.hstack([numbers, fitted.bias[:, None]]).ravel())[0] < best.fun + 1e-3


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling"])
def test_linear_maps_recover_known_parameters(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60_000, 3)) * 2
    weight = np.diag([0.5, 1.0, 1.5])
    if name == "MatrixScaling":
        weight = weight + np.array([[0, 0.3, -0.3], [0.2, 0, -0.2], [0, 0, 0]])
    bias = np.array([0.5, 0.0, -0.5])
    truth = (logits - logits.max(1, keepdims=True)) @ weight.T + bias
    fitted = getattr(posthoc, name).fit(logits, drawn(truth, rng))

    away = np.abs(fitted(logits) - softmax(truth, axis=1))
    assert away.mean() < 0.004
    assert away.max() < 0.05
    np.testing.assert_allclose(fitted.bias - fitted.bias.mean(), bias, atol=0.06)
    if name == "VectorScaling":
        np.testing.assert_allclose(fitted.weight, [0.5, 1.0, 1.5], atol=0.06)


def test_penalties_are_the_inverse_variance_of_what_made_the_data():
    """Offsets of a known spread, and factors that do not differ: the first penalty is high, the
    second right.
    """
    rng = np.random.default_rng(0)
    found = []
    for _ in range(5):
        offsets = 0.5 * rng.normal(size=20)
        logits = 2 * rng.normal(size=(4000, 20))
        found.append(posthoc.VectorScaling.fit(logits, drawn(logits + offsets, rng)).penalties)

    factors, offsets = np.median(found, axis=0)
    assert 2 < offsets < 8
    assert factors > 100


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling", "Dirichlet"])
@pytest.mark.parametrize(("rows", "classes"), [(100, 10), (500, 50), (1000, 5)])
def test_no_worse_than_the_temperature_where_that_is_the_truth(name, rows, classes):
    """Few samples, many parameters: what chance offers is not taken."""
    rng = np.random.default_rng(rows)
    logits = 2 * rng.normal(size=(rows + 2000, classes))
    labels = drawn(logits / 2, rng)
    fresh, answers = logits[rows:], labels[rows:]
    fitted, plain = (fit(kind, logits[:rows], labels[:rows]) for kind in (name, "Temperature"))

    assert metrics.nll(fitted(fresh), answers) < metrics.nll(plain(fresh), answers) + 0.02


def test_many_classes_are_fitted_by_the_diagonals_of_their_curvature(monkeypatch):
    """Another preconditioner, the same minimum."""
    from macc.posthoc import _evidence

    logits, labels = data(400, 4)
    options = {"off_diagonal": 30, "diagonal": 2, "bias": 2}
    whole = posthoc.MatrixScaling.fit(logits, labels, **options)
    monkeypatch.setattr(_evidence, "_MOST_BLOCKS", 3)
    np.testing.assert_allclose(
        posthoc.MatrixScaling.fit(logits, labels, **options)(logits), whole(logits), atol=1e-4
    )


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
    options = (
        {"penalty": 1e9} if name == "VectorScaling" else {"off_diagonal": 1e9, "diagonal": 1e9, "bias": 1e9}
    )
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


def test_vector_scaling_of_least_brier_score():
    """Against a slow search with the same penalties, which count against Brier scores as against
    likelihoods.
    """
    logits, labels = data(300, 3)
    temperature = fit("Temperature", logits, labels).temperature
    own = (logits - logits.max(1, keepdims=True)) / temperature
    hits = np.eye(3)[labels]
    start = softmax(own, axis=1)
    scale = -np.log(start[np.arange(300), labels]).sum() / ((start - hits) ** 2).sum()

    def objective(at):
        probs = softmax(own * (1 + at[:3]) + at[3:], axis=1)
        return (scale * ((probs - hits) ** 2).sum() + (2 * at**2).sum() / 2) / 300

    at = slow_minimum(objective, np.zeros(6))
    fitted = posthoc.VectorScaling.fit(logits, labels, penalty=2, objective="brier")

    np.testing.assert_allclose(fitted.weight * temperature - 1, at[:3], atol=1e-3)
    np.testing.assert_allclose(fitted.bias, at[3:], atol=1e-3)

"""Temperature scaling against independent optimisers, and the paper's grid against a loop over
it.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from helpers.calibrators import data
from macc import metrics, posthoc


def nll(logits, labels, temperature):
    rows = log_softmax(np.asarray(logits, dtype=np.float64) / temperature, axis=1)
    return -rows[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("scale", [0.05, 1, 30])
def test_at_the_optimum(scale, classes, dtype):
    logits, labels = data(3000, classes, scale=scale, dtype=dtype)
    fitted = posthoc.Temperature.fit(logits, labels)
    best = minimize_scalar(
        lambda u: nll(logits, labels, np.exp(u)),
        bounds=(np.log(0.01), np.log(100)),
        method="bounded",
        options={"xatol": 1e-12},
    )

    assert not fitted.at_bound
    assert fitted.temperature == pytest.approx(np.exp(best.x), rel=1e-6)
    # Labels were drawn at temperature 1.
    assert fitted.temperature == pytest.approx(scale, rel=0.1)


def test_many_rows_start_from_a_part_of_them():
    logits, labels = data(40_000, 100, scale=4)
    fitted = posthoc.Temperature.fit(logits, labels)
    best = minimize_scalar(lambda u: nll(logits, labels, np.exp(u)), bounds=(0, 3), method="bounded",
                           options={"xatol": 1e-10})  # fmt: skip

    assert fitted.temperature == pytest.approx(np.exp(best.x), rel=1e-6)


def test_agrees_with_scikit_learn():
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Logits(ClassifierMixin, BaseEstimator):
        def fit(self, x, y):
            self.classes_ = np.unique(y)
            return self

        def decision_function(self, x):
            return x

        def predict(self, x):
            return self.classes_[x.argmax(1)]

    logits, labels = data(2000, 5, scale=4)
    theirs = CalibratedClassifierCV(FrozenEstimator(Logits().fit(logits, labels)), method="temperature")
    theirs.fit(logits, labels)

    np.testing.assert_allclose(
        posthoc.Temperature.fit(logits, labels)(logits), theirs.predict_proba(logits), atol=1e-3
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_grid_of_the_paper(seed):
    """The first minimum of a plain loop over 0.1, 0.2, ..., 10.0."""
    scale = np.exp(np.random.default_rng(seed).uniform(np.log(0.15), np.log(9)))
    logits, labels = data(200, 3, scale=scale, seed=seed)
    grid = [round(0.1 * i, 1) for i in range(1, 101)]
    values = [nll(logits, labels, temperature) for temperature in grid]
    fitted = posthoc.Temperature.fit(logits, labels, grid=True)

    assert fitted.temperature == grid[int(np.argmin(values))]
    assert not fitted.at_bound


@pytest.mark.parametrize(("scale", "expected"), [(0.03, 0.1), (60, 10.0)])
def test_the_grid_ends(scale, expected):
    logits, labels = data(scale=scale)
    with pytest.warns(UserWarning, match=f"reached its bound {expected:g}"):
        fitted = posthoc.Temperature.fit(logits, labels, grid=True)

    assert fitted.temperature == expected
    assert fitted.at_bound


def test_equal_logits_on_the_grid_take_its_first_value():
    with pytest.warns(UserWarning, match="bound"):
        fitted = posthoc.Temperature.fit(np.zeros((4, 3)), [0, 1, 2, 0], grid=True)
    assert fitted.temperature == 0.1


def test_no_errors_reach_the_lower_bound():
    logits, _ = data()
    with pytest.warns(UserWarning, match="Temperature: the temperature reached its bound 0.01: .* no errors"):
        fitted = posthoc.Temperature.fit(logits, logits.argmax(1))

    assert fitted.temperature == 0.01
    assert fitted.at_bound
    assert "bound" in fitted.notes[0]


def test_contradicted_logits_reach_the_upper_bound():
    logits, _ = data()
    with pytest.warns(UserWarning, match="reached its bound 100: the logits say nothing"):
        fitted = posthoc.Temperature.fit(logits, logits.argmin(1))

    assert fitted.temperature == 100
    assert fitted.at_bound


def test_equal_logits_change_nothing():
    assert posthoc.Temperature.fit(torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])).temperature == 1


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 1, 500, 1e6])
def test_logits_of_any_scale_find_their_temperature(scale):
    generator = torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(2000, 10, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(truth.softmax(1), 1, generator=generator)[:, 0]
    once, scaled = (posthoc.Temperature.fit(factor * truth, labels) for factor in (1, scale))

    assert scaled.temperature == pytest.approx(scale * once.temperature, rel=1e-5)
    assert not scaled.at_bound


@pytest.mark.parametrize("kind", ["LocalTemperature", "Beta", "VectorScaling", "MatrixScaling", "Dirichlet"])
def test_a_temperature_at_its_bound_is_told_by_all_that_begin_with_one(kind):
    logits = 10 * torch.eye(3, dtype=torch.float64).repeat(40, 1)
    with pytest.warns(UserWarning, match="the temperature reached its bound 0.01: .* no errors"):
        fitted = getattr(posthoc, kind).fit(logits, torch.arange(120) % 3)

    assert "bound" in fitted.notes[0]


def test_temperature_of_least_brier_score():
    """No temperature nearby is better, and it is another one than that of least NLL."""
    rng = np.random.default_rng(0)
    logits, labels = data(1000, 4)
    labels = np.where(rng.random(1000) < 0.1, rng.integers(0, 4, 1000), labels)
    fitted = posthoc.Temperature.fit(logits, labels, objective="brier")

    def brier(temperature):
        return metrics.brier(posthoc.Temperature(4, temperature)(logits), labels)

    least = brier(fitted.temperature)
    for factor in (0.3, 0.8, 0.999, 1.001, 1.2, 3):
        assert least < brier(factor * fitted.temperature)
    assert least < brier(posthoc.Temperature.fit(logits, labels).temperature) - 1e-5
    with pytest.raises(ValueError, match="objective must be 'nll' or 'brier', got 'ece'"):
        posthoc.Temperature.fit(logits, labels, objective="ece")
    with pytest.raises(ValueError, match="grid is of the objective 'nll'"):
        posthoc.Temperature.fit(logits, labels, objective="brier", grid=True)


def test_a_fit_that_changes_nothing_says_so():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(50_000, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    once = posthoc.Temperature.fit(2 * logits, labels)
    again = posthoc.Temperature.fit(2 * logits / once.temperature, labels)

    assert once.notes == ()
    assert again.temperature == pytest.approx(1)
    assert "leaves the probabilities as they are" in again.notes[0]

"""The mixture of ensemble temperature scaling."""

import numpy as np
import pytest
from scipy.special import softmax

from helpers.calibrators import data, drawn
from macc import metrics, posthoc


def test_mixture_weights_are_optimal():
    """At the optimum no opinion promises more than the mixture: the mean share of each is at
    most 1.
    """
    rng = np.random.default_rng(0)
    logits, labels = data(3000, 5)
    labels = np.where(rng.random(3000) < 0.2, rng.integers(0, 5, 3000), labels)  # wrong labels call for 1 / K
    fitted = posthoc.EnsembleTemperature.fit(logits, labels)
    own = np.arange(3000), labels
    opinions = np.stack(
        [softmax(logits / fitted.temperature, axis=1)[own], softmax(logits, axis=1)[own], np.full(3000, 0.2)],
        1,
    )
    shares = (opinions / (opinions @ fitted.weights)[:, None]).mean(0)

    assert shares.max() < 1 + 1e-6
    assert fitted.weights[2] > 0.05
    np.testing.assert_allclose(fitted(logits)[own], opinions @ fitted.weights, atol=1e-12)


@pytest.mark.parametrize("objective", ["nll", "brier"])
def test_recovers_the_mixture_that_made_the_data(objective):
    """Seven of ten labels are drawn at temperature 3, two at 1 and one at random."""
    rng = np.random.default_rng(0)
    logits = 6 * rng.normal(size=(30_000, 5))
    kind = rng.choice(3, size=30_000, p=[0.7, 0.2, 0.1])
    labels = np.select(
        [kind == 0, kind == 1], [drawn(logits / 3, rng), drawn(logits, rng)], rng.integers(0, 5, 30_000)
    )
    fitted = posthoc.EnsembleTemperature.fit(logits, labels, objective=objective)
    truth = 0.7 * softmax(logits / 3, axis=1) + 0.2 * softmax(logits, axis=1) + 0.1 / 5

    np.testing.assert_allclose(fitted.weights, [0.7, 0.2, 0.1], atol=0.07)
    assert fitted.temperature == pytest.approx(3, rel=0.15)
    assert np.abs(fitted(logits) - truth).mean() < 0.01
    plain = posthoc.Temperature.fit(logits, labels, objective=objective)
    score = getattr(metrics, objective)
    assert score(fitted(logits), labels) < score(plain(logits), labels) - 0.002


def test_says_that_one_temperature_is_enough():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(5000, 4))
    labels = (logits + 0.3 * rng.gumbel(size=logits.shape)).argmax(1)
    fitted = posthoc.EnsembleTemperature.fit(logits, labels)

    assert "the fit ends at the one of Temperature" in fitted.notes[0]

"""The mixture of ensemble temperature scaling."""

import numpy as np
from scipy.special import softmax

from helpers.calibrators import data
from macc import posthoc


def test_mixture_weights_are_optimal():
    """At the optimum no opinion promises more than the mixture: the mean share of each is at most 1."""
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

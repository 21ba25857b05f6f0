"""What calibrators are fitted on in tests, and an optimiser to check them with."""

import warnings

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax

from macc import posthoc


def data(rows: int = 400, classes: int = 4, *, scale: float = 3.0, seed: int = 0, dtype=np.float64):
    """Over-confident logits and labels, every class present."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 1.5
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((rows, 1))).argmax(1)
    labels[:classes] = range(classes)
    return (scale * logits).astype(dtype), labels


def fit(name: str, logits, labels, **options):
    """Fit without minding the notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return getattr(posthoc, name).fit(logits, labels, **options)


def drawn(scores, rng):
    """Labels drawn from the probabilities of scores."""
    return (softmax(scores, axis=1).cumsum(1) > rng.random((len(scores), 1))).argmax(1)


def slow_minimum(objective, start, **options):
    """A derivative-free gradient and another algorithm than the library's."""
    found = minimize(objective, start, method="SLSQP", options={"ftol": 1e-15, "maxiter": 2000}, **options)
    return found.x

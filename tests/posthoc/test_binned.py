"""Isotonic and histogram calibration against scikit-learn and loops."""

import numpy as np
import pytest
from scipy.special import softmax

from helpers.calibrators import data, fit
from macc import posthoc


def test_isotonic_agrees_with_scikit_learn():
    """Before smoothing and normalising, each curve is scikit-learn's at every validation sample."""
    from sklearn.isotonic import IsotonicRegression

    logits, labels = data(500, 3)
    logits = logits.round(1)  # with ties
    probs = softmax(logits, axis=1)
    curves = [IsotonicRegression().fit_transform(probs[:, j], (labels == j).astype(float)) for j in range(3)]
    expected = (len(labels) * np.stack(curves, axis=1) + 1 / 3) / (len(labels) + 1)
    fitted = posthoc.Isotonic.fit(logits, labels)

    np.testing.assert_allclose(fitted(logits), expected / expected.sum(1, keepdims=True), atol=1e-9)


def test_histogram_against_a_loop():
    logits, labels = data(500, 3)
    fitted = posthoc.Histogram.fit(logits, labels, bins=4)
    probs = softmax(logits, axis=1)
    expected = np.empty_like(probs)
    for j in range(3):
        order = probs[:, j].argsort()
        for part in np.array_split(order, 4):
            expected[part, j] = ((labels[part] == j).sum() + 1 / 3) / (len(part) + 1)

    np.testing.assert_allclose(fitted(logits), expected / expected.sum(1, keepdims=True), atol=1e-12)
    with pytest.raises(ValueError, match="bins must be a positive integer"):
        posthoc.Histogram.fit(logits, labels, bins=0)


@pytest.mark.parametrize("name", ["Histogram", "Isotonic"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_no_class_gets_probability_0(name, scale):
    logits, _ = data(dtype=np.float32)
    fitted = fit(name, logits * scale, logits.argmax(1))

    assert fitted(logits * scale).min() > 0
    assert fitted(1e5 * logits * scale).min() > 0


def test_histogram_shares_ties():
    logits = np.repeat([-3.0, 3.0], [100, 200])
    labels = np.concatenate([np.zeros(100), np.tile([1, 1, 1, 0], 50)]).astype(int)
    fitted = posthoc.Histogram.fit(logits, labels, bins=2)

    np.testing.assert_allclose(fitted([-3.0, 3.0]), [0.5 / 101, 150.5 / 201], atol=1e-3)

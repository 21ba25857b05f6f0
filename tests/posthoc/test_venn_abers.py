"""Venn-Abers calibration against its definition."""

import numpy as np
from sklearn.isotonic import IsotonicRegression

from helpers.calibrators import data, fit
from macc import posthoc


def by_definition(scores, hits, at):
    """Two isotonic regressions with the new sample among the others."""
    low, high = (
        IsotonicRegression().fit(np.append(scores, at), np.append(hits, label)).predict([at])[0]
        for label in (0.0, 1.0)
    )
    return high / (1 - low + high)


def test_two_classes_by_definition():
    logits, labels = data(60, 2)
    margins = (logits[:, 1] - logits[:, 0]).round(0)  # with ties
    fitted = fit("VennAbers", margins, labels)
    fresh = np.concatenate([margins[:10], np.random.default_rng(1).normal(size=20) * 6])

    expected = [by_definition(margins, labels, at) for at in fresh]
    np.testing.assert_allclose(fitted(fresh), expected, atol=1e-12)


def test_more_classes_are_pairs():
    logits, labels = data(90, 3)
    fitted = posthoc.VennAbers.fit(logits, labels)
    row = data(3, 3, seed=5)[0][0]
    answers = np.ones((3, 3))
    for i in range(3):
        for j in range(3):
            if i != j:
                some = np.isin(labels, (i, j))
                answers[i, j] = by_definition(
                    logits[some, i] - logits[some, j], labels[some] == i, row[i] - row[j]
                )
    shares = np.array([1 / (sum(1 / answers[i, j] for j in range(3) if j != i) - 1) for i in range(3)])

    np.testing.assert_allclose(fitted(row[None])[0], shares / shares.sum(), atol=1e-9)

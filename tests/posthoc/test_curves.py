"""Curves of two classes against independent optimisers and known shapes."""

import numpy as np
import pytest
import torch
from scipy.special import expit

from helpers.calibrators import data, fit, slow_minimum
from macc import metrics, posthoc


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


def test_quadratic_is_right_for_normal_margins_of_different_spread():
    """Two normal distributions have log-odds that are a parabola."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 20_000)
    margins = np.where(labels == 1, 1 + 2 * rng.normal(size=20_000), rng.normal(size=20_000))
    truth = expit(-np.log(2) + margins**2 / 2 - (margins - 1) ** 2 / 8)
    fitted = posthoc.Quadratic.fit(margins, labels)

    assert np.abs(fitted(margins) - truth).mean() < 0.01
    straight = posthoc.Platt.fit(margins, labels)
    assert metrics.nll(fitted(margins), labels) < metrics.nll(straight(margins), labels) - 0.05
    # Beyond what was seen only the straight part goes on.
    far = torch.tensor([[0.0, 2.0], [0.0, 3.0]], dtype=torch.float64) * margins.max()
    scores = fitted._scores(far)[:, 1]
    assert float(scores.diff()) == pytest.approx(fitted.slope * margins.max())


def test_spline_follows_a_curve_that_is_neither():
    rng = np.random.default_rng(0)
    margins = 3 * rng.normal(size=20_000)
    truth = 0.1 + 0.8 * expit(2 * margins)
    labels = (rng.random(20_000) < truth).astype(int)
    fitted = posthoc.Spline.fit(margins, labels)

    assert np.abs(fitted(margins) - truth).mean() < 0.02
    assert (
        metrics.nll(fitted(margins), labels)
        < metrics.nll(posthoc.Platt.fit(margins, labels)(margins), labels) - 0.02
    )


@pytest.mark.parametrize("name", ["Quadratic", "Spline"])
def test_stays_straight_where_the_truth_is(name):
    """Fifty samples say nothing of a bend."""
    rng = np.random.default_rng(0)
    worse = []
    for _ in range(20):
        margins = 3 * rng.normal(size=3050)
        labels = (rng.random(3050) < expit(margins / 2)).astype(int)
        bent, straight = (fit(kind, margins[:50], labels[:50]) for kind in (name, "Platt"))
        worse.append(
            metrics.nll(bent(margins[50:]), labels[50:]) - metrics.nll(straight(margins[50:]), labels[50:])
        )
    assert np.mean(worse) < 0.02


def test_spline_is_smooth_and_straight_at_its_ends():
    margins, labels = data(2000, 2)
    fitted = fit("Spline", margins, labels)
    at = np.linspace(1.01, 3, 50) * fitted.knots[-1]
    scores = np.log(fitted(at) / (1 - fitted(at)))
    inside = np.linspace(fitted.knots[0], fitted.knots[-1], 4001)
    curve = np.log(fitted(inside) / (1 - fitted(inside)))

    assert np.abs(np.diff(scores, 2)).max() < 1e-6
    assert np.abs(np.diff(curve, 2)).max() < 1e-3

"""95 % intervals contain the truth in 90 % of samples and more, and the noise floor is what chance gives.

A part of the grid; ``benchmarks/coverage.py`` runs all of it.
"""

import numpy as np
import pytest
import torch

import macc
from macc import metrics
from synthetic import Population, draw

NAMES = ["ece", "sce", "mce", "rmsce"]


@pytest.mark.parametrize(
    ("n", "k", "sharpness"),
    [(500, 2, 1.0), (500, 10, 1.2), (500, 100, 1.0), (2000, 10, 1.0)],
)
def test_intervals_cover_the_population(n, k, sharpness):
    population = Population(k, sharpness)
    repeats, hits = 200, dict.fromkeys(NAMES, 0)
    for seed in range(repeats):
        probs, _, labels = draw(n, k, sharpness, torch.Generator().manual_seed(seed))
        report = macc.evaluate(probs, labels, metrics=NAMES, resamples=100, seed=seed)
        filled = torch.tensor([row.samples > 0 for row in report.bins])
        truth = {**population.values, "mce": population.largest_gap(filled)}
        for name in NAMES:
            estimate = report[name]
            assert estimate.low <= estimate.value <= estimate.high
            hits[name] += estimate.low <= truth[name] <= estimate.high

    assert all(count >= 0.9 * repeats for count in hits.values()), hits


def test_a_percentile_bootstrap_would_never_cover():
    """Why the construction is needed: resampled errors of a calibrated model all exceed 0."""
    probs, _, labels = draw(1000, 10, 1.0, torch.Generator().manual_seed(0))
    rng = np.random.default_rng(0)
    resampled = [metrics.ece(probs[rows], labels[rows]) for rows in rng.integers(0, 1000, size=(200, 1000))]

    assert np.quantile(resampled, 0.025) > 0.01
    assert macc.evaluate(probs, labels, metrics=["ece"])["ece"].low == 0


@pytest.mark.parametrize(("n", "k"), [(300, 2), (1000, 10), (300, 100)])
def test_the_noise_floor_is_the_mean_error_of_calibrated_models(n, k):
    """Fixed probabilities; labels drawn from them again and again."""
    generator = torch.Generator().manual_seed(0)
    probs, _, labels = draw(n, k, 1.0, generator)
    names = ["ece", "mce", "sce", "rmsce", "over_confidence", "ace", "tace", "smooth_ece", "ks_error"]
    report = macc.evaluate(probs, labels, metrics=names)
    drawn = [torch.multinomial(probs, 1, generator=generator)[:, 0] for _ in range(200)]

    for name in names:
        values = np.array([getattr(metrics, name)(probs, y) for y in drawn])
        error = 4 * values.std() * np.sqrt(1 / 200 + 1 / 1000)
        assert report[name].noise_floor == pytest.approx(values.mean(), abs=error), name


def test_scores_have_no_noise_floor():
    probs, _, labels = draw(100, 3, 1.0, torch.Generator().manual_seed(0))
    report = macc.evaluate(probs, labels, resamples=100)

    assert {name for name, estimate in report.metrics.items() if estimate.noise_floor is None} == {
        *("accuracy", "nll", "brier", "brier_refinement", "auroc"),
        *("failure_auroc", "aurc", "eaurc", "risk_at_coverage", "coverage_at_risk"),
    }


def test_a_higher_level_gives_a_wider_interval():
    probs, _, labels = draw(500, 5, 1.5, torch.Generator().manual_seed(0))
    narrow, wide = (macc.evaluate(probs, labels, confidence=level) for level in (0.8, 0.99))

    for name in narrow.metrics:
        assert wide[name].low <= narrow[name].low, name
        assert wide[name].high >= narrow[name].high, name


def test_the_calibration_part_of_the_brier_score_may_exceed_one():
    rng = np.random.default_rng(0)
    confidence = rng.normal(0.97, 0.01, 2000).clip(0.9, 0.999)
    labels = (rng.random(2000) < 0.8).astype(int)
    found = metrics.evaluate(
        np.stack([confidence, 1 - confidence], 1), labels, metrics=["brier_calibration"], resamples=200
    )["brier_calibration"]

    assert 1 < found.low < found.value < found.high < 2

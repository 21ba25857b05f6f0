"""95 % intervals contain the truth in 90 % of samples and more, and the noise floor is what chance
gives.

A part of the grid; ``benchmarks/coverage.py`` runs all of it.
"""

import numpy as np
import pytest
import torch
from scipy.stats import binom, binomtest

import macc
from helpers.synthetic import Constant, Population, draw
from macc import metrics
from macc.metrics.limits import broken_limits

NAMES = ["ece", "sce", "mce", "rmsce", "refinement"]


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
        *("accuracy", "nll", "refinement", "brier", "brier_refinement", "auroc"),
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


# Confidence, accuracy, samples: errors are rare or not seen at all, or one bin carries all the
# noise.
CONSTANT = [
    *((0.999, 0.99, 60), (0.999, 0.98, 143), (0.9999, 0.995, 200), (0.9999, 0.995, 1000)),
    *((0.7, 0.7, 200), (0.7, 0.65, 200), (0.5, 0.53, 200)),
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("stated", "accuracy", "n"), CONSTANT)
def test_intervals_of_a_constant_model_cover_the_population(stated, accuracy, n, streamed):
    """All that varies is the number of right predictions, so coverage is a sum over its
    distribution.
    """
    truth = Constant(2, stated, accuracy).values
    names = ["accuracy", "nll", "brier", *("ece", "over_confidence", "under_confidence", "rmsce", "sce")]
    names += [] if streamed else ["brier_calibration", "brier_refinement", "smooth_ece", "ks_error", "aurc"]
    chance = binom.pmf(np.arange(n + 1), n, accuracy)
    right = np.flatnonzero(chance > 0.004)[:: 3 if stated < 0.9 else 1]
    covered = dict.fromkeys(names, 0.0)
    for k in right.tolist():
        report = _constant(stated, k, n, names, streamed=streamed)
        for name in names:
            inside = report[name].low - 1e-9 <= truth[name] <= report[name].high + 1e-9
            covered[name] += inside * chance[k] / chance[right].sum()

    assert all(share >= 0.93 for share in covered.values()), covered


def test_check_does_not_pass_models_for_want_of_samples():
    """A model whose ECE of 0.49 % is above the limit, from 200 samples."""
    chance = binom.pmf(np.arange(201), 200, 0.995)
    passed = [
        k for k in range(190, 201) if not broken_limits(_constant(0.9999, k, 200, ["ece"]), {"ece": 0.0045})
    ]

    assert chance[passed].sum() <= 0.05


def test_limits_of_the_accuracy_are_exact():
    for right, n in ((0, 7), (60, 60), (59, 60), (140, 200)):
        found = _constant(0.7, right, n, ["accuracy"])["accuracy"]
        exact = binomtest(right, n).proportion_ci(0.95, method="exact")
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high))

    # All of n right: the least accuracy that gives this with a chance of 2.5 %.
    assert _constant(0.7, 60, 60, ["accuracy"])["accuracy"].low == pytest.approx(0.025 ** (1 / 60))


def test_an_error_that_was_not_seen_has_the_exact_limit_of_its_share():
    """None of 60 wrong: the share of errors may be 1 - 0.025^(1/60) = 6 %, and each costs what it
    costs.
    """
    limit = 1 - 0.025 ** (1 / 60)
    found = _constant(0.999, 60, 60, ["nll", "brier", "ece", "aurc"])

    assert found["ece"].high == pytest.approx(0.001 + 0.999 * limit, rel=0.01)
    assert found["aurc"].high == pytest.approx(limit, rel=0.01)
    assert found["nll"].high == pytest.approx((1 - limit) * -np.log(0.999) + limit * -np.log(0.001), rel=0.01)
    assert found["brier"].high == pytest.approx(limit * 2 * 0.999**2, rel=0.01)


def test_a_gap_that_carries_all_the_noise_gets_the_limits_of_its_accuracy():
    found = _constant(0.7, 140, 200, ["accuracy", "ece", "sce", "rmsce"])
    half = (found["accuracy"].high - found["accuracy"].low) / 2

    for name in ("ece", "sce", "rmsce"):
        assert found[name].high == pytest.approx(half, rel=0.15), name


def test_two_models_without_an_error_may_differ():
    labels = np.zeros(60, dtype=int)
    one, two = (np.tile([p, 1 - p], (60, 1)) for p in (0.999, 0.998))
    found = metrics.compare(one, two, labels, metrics=["accuracy", "nll", "brier", "ece"], resamples=200)

    for name, difference in found.differences.items():
        assert difference.low < -0.03, name
        assert difference.high > 0.03, name


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("stated", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("streamed", [False, True])
def test_intervals_contain_the_value_and_stay_in_range(n, right, stated, streamed):
    found = _constant(stated, round(right * n), n, None, streamed=streamed).metrics

    for name, estimate in found.items():
        largest = {
            "nll": np.inf,
            "refinement": np.inf,
            "brier": 2,
            "brier_calibration": 2,
            "brier_refinement": 2,
        }.get(name, 1)
        if not np.isnan(estimate.value):
            assert 0 <= estimate.low <= estimate.value <= estimate.high <= largest, (name, estimate)


def _constant(stated, right, n, names, *, streamed=False):
    """A report of a model that states the same for all samples, so many of which it gets right."""
    probs, labels = np.tile([stated, 1 - stated], (n, 1)), (np.arange(n) >= right).astype(int)
    if not streamed:
        return macc.evaluate(probs, labels, metrics=names, resamples=200, seed=right)
    state = metrics.Calibration(2, seed=right, intervals=True)
    state.update(probs, labels)
    return state.report(metrics=names)

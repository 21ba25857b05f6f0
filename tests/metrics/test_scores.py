"""Adaptive, smooth, ranking and selective metrics equal slow loops and independent packages."""

import numpy as np
import pytest
import sklearn.metrics
import torch
import torchmetrics.functional.classification as tm

import reference_metrics as reference
from helpers.predictions import sample
from macc import metrics

ALL = [
    ("over_confidence", {}),
    ("over_confidence", {"bins": 4}),
    ("under_confidence", {}),
    ("rmsce", {}),
    ("ace", {}),
    ("ace", {"bins": 3}),
    ("ace", {"top_label": True}),
    ("tace", {}),
    ("tace", {"bins": 4, "threshold": 0.3}),
    ("ks_error", {}),
    ("auroc", {}),
    ("failure_auroc", {}),
    ("aurc", {}),
    ("eaurc", {}),
    ("risk_at_coverage", {}),
    ("risk_at_coverage", {"coverage": 0.07}),
    ("risk_at_coverage", {"coverage": 1.0}),
    ("coverage_at_risk", {}),
    ("coverage_at_risk", {"risk": 0.3}),
    ("brier_decomposition", {}),
    ("brier_decomposition", {"bins": 3}),
]


def rounded(n=150, k=4, seed=3):
    """Probabilities in tenths: every value is shared by many samples."""
    rng = np.random.default_rng(seed)
    counts = np.stack([rng.multinomial(10, rng.dirichlet(np.ones(k))) for _ in range(n)])
    return counts / 10, rng.integers(0, k, size=n)


@pytest.mark.parametrize(("name", "options"), ALL)
@pytest.mark.parametrize("data", [sample(100, 5), sample(80, 2, 4.0), rounded(), sample(1, 3)])
def test_metrics_equal_the_loops(name, options, data):
    np.testing.assert_allclose(
        getattr(metrics, name)(*data, **options),
        getattr(reference, name)(*data, **options),
        rtol=1e-10,
        atol=1e-14,
    )


def test_grouping_classes_does_not_change_the_value(monkeypatch):
    import macc.metrics.binning as binning

    data = sample(60, 7)
    names = ["ace", "tace", "auroc"]
    whole = [getattr(metrics, name)(*data) for name in names]
    monkeypatch.setattr(binning, "_COLUMN_ELEMENTS", 60 * 2)

    np.testing.assert_allclose([getattr(metrics, name)(*data) for name in names], whole, rtol=1e-13)


@pytest.mark.parametrize("data", [sample(12, 3), sample(10, 2, 4.0, seed=5)])
def test_smooth_ece_equals_sums_over_mirror_images(data):
    assert metrics.smooth_ece(*data) == pytest.approx(reference.smooth_ece(*data, points=300), abs=4e-4)


def test_smooth_ece_of_one_confident_mistake_is_its_fixed_point():
    """All residual is -1 at confidence 1; smoothing spreads it over [0, 1] without loss, so sigma
    is 1.
    """
    assert metrics.smooth_ece([[1.0, 0.0]], [1]) == pytest.approx(1.0, abs=1e-6)
    assert metrics.smooth_ece([[1.0, 0.0]], [0]) == pytest.approx(0.0, abs=1e-6)


def test_auroc_equals_scikit_learn():
    probs, labels = sample(800, 6)

    expected = sklearn.metrics.roc_auc_score(labels, probs, multi_class="ovr", average="macro")

    assert metrics.auroc(probs, labels) == pytest.approx(expected, rel=1e-12)
    correct = probs.argmax(1) == labels
    expected = sklearn.metrics.roc_auc_score(correct, probs.max(1))
    assert metrics.failure_auroc(probs, labels) == pytest.approx(expected, rel=1e-12)


def test_proper_scores_equal_scikit_learn():
    probs, labels = sample(800, 2)

    assert metrics.nll(probs, labels) == pytest.approx(sklearn.metrics.log_loss(labels, probs), rel=1e-12)
    assert metrics.brier(probs, labels) == pytest.approx(
        2 * sklearn.metrics.brier_score_loss(labels, probs[:, 1]), rel=1e-12
    )


def test_auroc_skips_classes_without_positives_and_is_nan_without_any():
    probs, labels = sample(100, 4)
    labels = np.minimum(labels, 2)

    expected = np.mean([sklearn.metrics.roc_auc_score(labels == j, probs[:, j]) for j in range(3)])

    assert metrics.auroc(probs, labels) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(metrics.auroc(probs, np.zeros(100, int)))
    assert np.isnan(metrics.failure_auroc([[0.9, 0.1]], [0]))


@pytest.mark.parametrize("debiased", [False, True])
def test_rmsce_equals_torchmetrics(debiased):
    from torchmetrics.functional.classification.calibration_error import _ce_compute

    probs, labels = map(torch.from_numpy, sample(3000, 4))
    confidence, predicted = probs.max(1)
    expected = _ce_compute(
        confidence,
        (predicted == labels).double(),
        torch.linspace(0, 1, 16, dtype=torch.float64),
        "l2",
        debiased,
    )

    assert metrics.rmsce(probs, labels, debiased=debiased) == pytest.approx(expected.item(), rel=1e-6)
    if not debiased:
        theirs = tm.multiclass_calibration_error(probs, labels, num_classes=4, n_bins=15, norm="l2")
        assert metrics.rmsce(probs, labels) == pytest.approx(theirs.item(), rel=1e-6)


def test_debiasing_removes_the_bias_of_a_calibrated_model():
    """Averages of the squared error over repeats: chance alone gives the plain form about bins /
    n.
    """
    plain, debiased = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        p = rng.uniform(0.5, 1, size=300)
        labels = (rng.uniform(size=300) < p).astype(int)
        plain.append(metrics.rmsce(p, labels, bins=10) ** 2)
        debiased.append(metrics.rmsce(p, labels, bins=10, debiased=True) ** 2)

    assert np.mean(plain) > 0.002
    # Cutting negative sums off at 0 leaves less than half of the bias.
    assert np.mean(debiased) < 0.4 * np.mean(plain)


def test_over_and_under_confidence_add_up_to_ece():
    data = sample(500, 5)

    assert metrics.over_confidence(*data) + metrics.under_confidence(*data) == pytest.approx(
        metrics.ece(*data)
    )


def test_brier_parts_add_up_to_the_score():
    data = sample(500, 5)

    assert sum(metrics.brier_decomposition(*data)) == pytest.approx(metrics.brier(*data), rel=1e-12)


def test_tace_without_a_threshold_is_ace():
    data = sample(200, 4)

    assert metrics.tace(*data, threshold=0.0) == pytest.approx(metrics.ace(*data), rel=1e-12)
    assert metrics.tace(*data, threshold=0.99999) == 0.0


def test_many_ties_leave_bins_empty_and_nothing_else():
    """All confidences equal: one bin holds everything whatever their number."""
    p, labels = np.full(10, 0.8), np.array([1] * 6 + [0] * 4)

    for bins in (1, 3, 15):
        assert metrics.ace(p, labels, bins=bins) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tace", {"threshold": 1.0}, r"threshold must lie in \[0, 1\), got 1.0"),
        ("risk_at_coverage", {"coverage": 0.0}, r"coverage must lie in \(0, 1\], got 0.0"),
        ("risk_at_coverage", {"coverage": 90}, r"coverage must lie in \(0, 1\], got 90"),
        ("coverage_at_risk", {"risk": -0.1}, r"risk must lie in \[0, 1\], got -0.1"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(metrics, name)(*sample(10, 3), **options)

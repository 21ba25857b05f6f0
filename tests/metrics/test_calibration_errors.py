"""Calibration errors equal slow loops, independent packages and hand-made values."""

import netcal.metrics
import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as tm

import reference_metrics as reference
from helpers.predictions import sample
from macc import metrics

BINNED = ["ece", "mce", "sce", "classwise_ece"]
SCORES = ["accuracy", "nll", "brier"]


@pytest.mark.parametrize("name", BINNED)
@pytest.mark.parametrize("bins", [1, 2, 7, 15])
@pytest.mark.parametrize(("n", "k", "scale"), [(400, 5, 2.0), (300, 2, 3.0), (60, 40, 0.3), (1, 3, 1.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binned_errors_equal_the_loops(name, bins, n, k, scale, dtype):
    probs, labels = sample(n, k, scale, dtype=dtype)

    np.testing.assert_allclose(
        getattr(metrics, name)(probs, labels, bins=bins),
        getattr(reference, name)(probs, labels, bins=bins),
        rtol=1e-12,
        atol=1e-15,
    )


@pytest.mark.parametrize("name", BINNED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_on_bin_edges_equal_the_loops(name, dtype):
    rng = np.random.default_rng(1)
    cuts = np.sort(rng.integers(0, 16, size=(500, 2)), axis=1)
    probs = (np.stack([cuts[:, 0], cuts[:, 1] - cuts[:, 0], 15 - cuts[:, 1]], 1) / 15).astype(dtype)
    labels = rng.integers(0, 3, size=500)

    for bins in (3, 5, 15):
        np.testing.assert_allclose(
            getattr(metrics, name)(probs, labels, bins=bins),
            getattr(reference, name)(probs, labels, bins=bins),
            rtol=1e-12,
            atol=1e-15,
        )


def test_a_value_on_an_edge_belongs_to_the_lower_bin_as_given():
    """One half ends the first of two bins; float32's 0.2 is above one fifth, float64's is not."""
    assert metrics.mce([[0.5, 0.5], [0.4, 0.6]], [0, 1], bins=2) == pytest.approx(0.5)
    for dtype, expected in ((np.float64, 2), (np.float32, 3)):
        from macc.metrics.binning import bin_index

        assert bin_index(torch.from_numpy(np.array([0.2], dtype)), 15).item() == expected


@pytest.mark.parametrize("bins", [1, 2, 3, 7, 15, 20, 49, 100, 1000, 4095])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bins_at_every_edge_are_those_of_a_search(bins, dtype):
    from macc.metrics.binning import bin_index, inner_edges

    edges = (np.arange(bins + 1) / bins).astype(dtype)
    values = torch.from_numpy(
        np.clip(np.concatenate([edges, np.nextafter(edges, dtype(2)), np.nextafter(edges, dtype(-1))]), 0, 1)
    )

    expected = torch.bucketize(values.double(), inner_edges(bins))
    assert torch.equal(bin_index(values, bins), expected)


def test_blocks_do_not_change_the_value(monkeypatch):
    from macc.metrics import blocks

    probs, labels = sample(500, 30)
    whole = {name: getattr(metrics, name)(probs, labels) for name in BINNED + SCORES}
    monkeypatch.setattr(blocks, "_ELEMENTS", 30 * 7)

    for name, value in whole.items():
        np.testing.assert_allclose(getattr(metrics, name)(probs, labels), value, rtol=1e-13)


@pytest.mark.parametrize("name", SCORES)
def test_scores_equal_the_loops(name):
    probs, labels = sample(200, 4)

    assert getattr(metrics, name)(probs, labels) == pytest.approx(
        getattr(reference, name)(probs, labels), rel=1e-12
    )


def test_ece_and_mce_equal_netcal():
    probs, labels = sample(5000, 10)

    assert metrics.ece(probs, labels) == pytest.approx(
        netcal.metrics.ECE(15).measure(probs, labels), rel=1e-9
    )
    assert metrics.mce(probs, labels) == pytest.approx(
        netcal.metrics.MCE(15).measure(probs, labels), rel=1e-9
    )


def test_ece_equals_torchmetrics_away_from_confidence_1():
    probs, labels = map(torch.from_numpy, sample(5000, 10))
    assert probs.max() < 1

    theirs = tm.multiclass_calibration_error(probs, labels, num_classes=10, n_bins=15)

    assert metrics.ece(probs, labels) == pytest.approx(theirs.item(), rel=1e-6)


def test_confidence_exactly_1_falls_in_the_last_bin():
    """Two samples, confidences 0.95 and 1, one wrong, share the last bin: |0.5 - 0.975|."""
    probs = np.array([[1.0, 0.0], [0.95, 0.05]])

    assert metrics.ece(probs, [1, 0]) == pytest.approx(0.475)
    assert metrics.mce(probs, [1, 0]) == pytest.approx(0.475)


def test_probability_exactly_0_falls_in_the_first_bin():
    """A label given probability 0 counts in full; a bin (0, hi] would lose it."""
    assert metrics.classwise_ece([[1.0, 0.0]], [1]) == pytest.approx([1.0, 1.0])
    assert metrics.sce([[1.0, 0.0]], [1]) == 1.0


def test_classwise_errors_average_to_sce_exactly():
    probs, labels = sample(3000, 10)

    tensors = torch.from_numpy(probs), torch.from_numpy(labels)

    assert metrics.classwise_ece(*tensors).mean().item() == metrics.sce(*tensors)


def test_ten_classwise_values_in_percent_add_up_to_sce_in_thousandths():
    """The unit identity of the paper's table 4, e.g. 3.05 (sum) against 3.04 for FL+MACC on
    CIFAR10.
    """
    printed = {
        3.04: [0.33, 0.34, 0.31, 0.45, 0.30, 0.33, 0.25, 0.28, 0.23, 0.23],
        3.44: [0.33, 0.32, 0.42, 0.72, 0.21, 0.39, 0.30, 0.21, 0.21, 0.33],
        4.63: [0.24, 0.51, 0.33, 0.68, 0.44, 0.51, 0.48, 0.57, 0.46, 0.41],
        1.50: [0.12, 0.16, 0.14, 0.20, 0.14, 0.14, 0.10, 0.16, 0.19, 0.14],
    }
    for sce, values in printed.items():
        assert sum(values) == pytest.approx(sce, abs=0.0151)

    probs, labels = sample(3000, 10)
    percent = np.round(100 * metrics.classwise_ece(probs, labels), 2)

    assert percent.sum() == pytest.approx(1000 * metrics.sce(probs, labels), abs=0.051)


def test_absent_last_classes_still_count():
    probs, _ = sample(100, 6)
    labels = np.zeros(100, int)

    assert metrics.classwise_ece(probs, labels).shape == (6,)
    assert metrics.sce(probs, labels) == pytest.approx(reference.sce(probs, labels))


def test_nll_of_logits_does_not_underflow():
    assert metrics.nll([[0.0, -2000.0]], [1], from_logits=True) == 2000.0
    assert metrics.nll([[1.0, 0.0]], [1]) == float("inf")

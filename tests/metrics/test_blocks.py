"""Few classes are turned, many are not, and nobody can tell."""

import numpy as np
import pytest
import torch

from helpers.predictions import sample
from macc import metrics
from macc.metrics import blocks
from macc.metrics.blocks import Rows
from macc.metrics.inputs import predictions

VALUES = ("ece", "mce", "sce", "accuracy", "nll", "brier", "classwise_ece", "ace")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, np.arange(1, 301) / 7])
@pytest.mark.parametrize("options", [{}, {"normalise": True}, {"from_logits": True}])
def test_turned_rows_give_the_same_values(monkeypatch, dtype, weights, options):
    probs, labels = sample(300, 5)
    given = (np.log(probs) if "from_logits" in options else probs).astype(dtype)

    def values():
        return [getattr(metrics, name)(given, labels, weights=weights, **options) for name in VALUES]

    turned = values()
    monkeypatch.setattr(blocks, "_FEW_CLASSES", 1)

    for one, other in zip(turned, values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("num_classes", [3, 60])
def test_of_equal_probabilities_the_first_class_is_predicted(num_classes):
    probs = torch.zeros(3, num_classes)
    probs[:, 1:3] = 0.5
    rows = Rows.of_scores(probs)
    labels = np.array([1, 2, 0])

    assert rows.turned == (num_classes == 3)
    np.testing.assert_array_equal(rows.right(labels, rows.of(labels)), [True, False, False])
    assert metrics.accuracy(probs, torch.from_numpy(labels)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("num_classes", [4, 40])
def test_entries_above_a_threshold_are_those_of_a_comparison(num_classes):
    probs, _ = sample(50, num_classes)
    probs[7, 2] = 0.25  # not above
    found = Rows.of_scores(torch.from_numpy(probs)).above(0.25)
    rows, classes = np.nonzero(probs > 0.25)
    order = np.lexsort((found.classes, found.rows))

    np.testing.assert_array_equal(found.rows[order], rows)
    np.testing.assert_array_equal(found.classes[order], classes)
    np.testing.assert_array_equal(found.values[order], probs[rows, classes])


def test_a_probability_a_little_above_one_counts_as_one():
    probs = torch.tensor([[1.00005, 0.0], [0.5, 0.5]], dtype=torch.float64)
    block = next(iter(predictions(probs, torch.tensor([0, 1])).blocks()))

    np.testing.assert_array_equal(block.probs, [[1, 0], [0.5, 0.5]])

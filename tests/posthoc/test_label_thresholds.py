"""Thresholds of independent labels: the largest F1, and a risk for all labels at once."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from macc import posthoc

RNG = np.random.default_rng(0)
PROBS = RNG.uniform(size=(600, 3))
LABELS = (RNG.random((600, 3)) < PROBS).astype(int)


def test_f1_is_the_largest_there_is():
    probs = PROBS.round(2)  # with ties
    found = posthoc.label_thresholds(probs, LABELS)
    for j, row in enumerate(found.labels):
        every = [f1_score(LABELS[:, j], probs[:, j] >= t) for t in np.unique(probs[:, j])]
        assert row.f1 == pytest.approx(max(every))
        assert row.f1 == pytest.approx(f1_score(LABELS[:, j], found(probs)[:, j]))
        assert row.given == found(probs)[:, j].sum()
        assert row.precision == pytest.approx(LABELS[:, j][found(probs)[:, j]].mean())


def test_a_risk_is_that_of_answers_with_the_error_shared_among_labels():
    found = posthoc.label_thresholds(PROBS, LABELS, risk=0.3, confidence=0.9)
    for j, row in enumerate(found.labels):
        alone = posthoc.threshold(PROBS[:, j], LABELS[:, j], risk=0.3, confidence=1 - 0.1 / 3, answers=True)
        assert (row.threshold, row.given, row.wrong) == (alone.threshold, alone.accepted, alone.wrong)
        assert row.wrong / row.given <= row.bound <= 0.3


def test_the_risk_holds_for_all_labels_at_once():
    broken = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        probs = rng.uniform(size=(300, 3))
        found = posthoc.label_thresholds(probs, rng.random((300, 3)) < probs, risk=0.25, confidence=0.8)
        # Calibrated and uniform: above t the share of wrong ones is (1 - t) / 2.
        broken += any((1 - t) / 2 > 0.25 for t in found.thresholds if t < math.inf)
    assert broken / 60 < 0.2


def test_labels_without_a_threshold_are_never_given():
    never = LABELS.copy()
    never[:, 1] = 0
    for found in (posthoc.label_thresholds(PROBS, never), posthoc.label_thresholds(PROBS, never, risk=0.3)):
        assert found.labels[1].threshold is None
        assert not found(PROBS)[:, 1].any()
        assert math.isnan(found.labels[1].f1)
        assert "none" in str(found)


def test_forms():
    found = posthoc.label_thresholds(PROBS, LABELS)
    logits = torch.from_numpy(np.log(PROBS / (1 - PROBS)))
    again = posthoc.label_thresholds(logits, torch.from_numpy(LABELS), from_logits=True)
    single = torch.from_numpy(PROBS).float()
    of_single = posthoc.label_thresholds(single, LABELS)

    assert [row.given for row in again.labels] == [row.given for row in found.labels]
    assert of_single(single).sum(0).tolist() == [row.given for row in of_single.labels]
    assert found(torch.from_numpy(PROBS)).dtype == torch.bool
    assert found.to_dict()["labels"][0]["f1"] == found.labels[0].f1
    assert "largest F1" in str(found)
    assert "at most 30.0 %" in str(posthoc.label_thresholds(PROBS, LABELS, risk=0.3))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"risk must lie in \(0, 1\), got 2"):
        posthoc.label_thresholds(PROBS, LABELS, risk=2)
    with pytest.raises(ValueError, match="same shape"):
        posthoc.label_thresholds(PROBS, LABELS[:, 0])
    with pytest.raises(ValueError, match=r"shape \(N, 3\).*got \(600, 2\)"):
        posthoc.label_thresholds(PROBS, LABELS)(PROBS[:, :2])

"""``macc.evaluate`` of maps ``(N, K, H, W)``: read a few images at a time, intervals by images."""

import numpy as np
import pytest
import torch

import macc
from macc import metrics
from macc.metrics import dense

IGNORED = 255


def maps(count=12, classes=3, side=6, seed=0):
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(count, classes, side, side))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(1)
    labels[:, 0] = IGNORED
    return logits, labels


def probs_of(logits):
    return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_maps_are_the_pixels_with_a_label(monkeypatch):
    monkeypatch.setattr(dense, "_ELEMENTS", 3 * 36 * 5)  # five maps at a time
    logits, labels = maps()
    shares = []
    report = macc.evaluate(
        logits,
        labels,
        from_logits=True,
        ignore_index=IGNORED,
        classes=["a", "b", "c"],
        on_progress=shares.append,
    )
    kept = labels != IGNORED
    rows = macc.evaluate(np.moveaxis(probs_of(logits), 1, -1)[kept], labels[kept])

    assert report.num_samples == kept.sum()
    assert shares[-1] == 1
    assert len(shares) == 3
    for name in ("accuracy", "nll", "brier", "ece", "sce", "rmsce"):
        assert report[name].value == pytest.approx(rows[name].value), name
        assert report[name].low <= report[name].value <= report[name].high
    assert [row.name for row in report.classes] == ["a", "b", "c"]
    assert any("resampling 12 whole images" in note for note in report.notes)
    assert any(
        "no interval by images: " in note and "auroc" in note and "aurc" in note for note in report.notes
    )


@pytest.mark.parametrize("form", [torch.as_tensor, lambda values: values[::-1], np.asfortranarray])
def test_every_kind_of_array(form):
    logits, labels = maps()
    found = macc.evaluate(form(logits), form(labels), from_logits=True, ignore_index=IGNORED, metrics=["nll"])
    expected = macc.evaluate(logits, labels, from_logits=True, ignore_index=IGNORED, metrics=["nll"])

    assert found["nll"].value == pytest.approx(expected["nll"].value)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_every_kind_of_labels(kind):
    logits, labels = maps(count=4)
    report = macc.evaluate(
        logits, labels.astype(kind), from_logits=True, ignore_index=IGNORED, metrics="accuracy"
    )

    assert 0 < report["accuracy"].value < 1


def test_intervals_by_images_are_wider_than_those_by_pixels():
    random = np.random.default_rng(0)
    rates = random.beta(2.8, 1.2, size=(60, 1, 1))
    labels = (random.random((60, 8, 8)) < rates).astype(int)
    probs = np.stack([np.full(labels.shape, 0.3), np.full(labels.shape, 0.7)], axis=1)
    by_images = macc.evaluate(probs, labels, metrics=["accuracy"])["accuracy"]
    rows = np.moveaxis(probs, 1, -1).reshape(-1, 2)
    by_pixels = macc.evaluate(rows, labels.ravel(), metrics=["accuracy"])["accuracy"]

    # Each image has 64 pixels of a rate whose variance is 0.21 / 5: a standard error of 0.027 and
    # not of 0.0074.
    assert (by_images.high - by_images.low) / (2 * 1.96) == pytest.approx(0.027, rel=0.25)
    assert (by_pixels.high - by_pixels.low) / (2 * 1.96) == pytest.approx(0.0074, rel=0.25)


def test_samples_of_rows_are_left_out_by_their_label_too():
    probs, labels = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, -100])
    report = macc.evaluate(probs, labels, ignore_index=-100, metrics=["accuracy"])

    assert report.num_samples == 2
    assert report["accuracy"].value == 1


def test_errors_name_the_pixel(monkeypatch):
    monkeypatch.setattr(dense, "_ELEMENTS", 3 * 36 * 5)
    logits, labels = maps()
    with pytest.raises(
        ValueError, match=r"labels\[0, 0, 0\] is 255, .* ignore_index=255 leaves such pixels out"
    ):
        macc.evaluate(logits, labels, from_logits=True)
    labels[labels == IGNORED] = 0
    labels[7, 2, 3] = 4
    with pytest.raises(ValueError, match=r"labels\[7, 2, 3\] is 4, and labels of 3 classes lie in \[0, 2\]"):
        macc.evaluate(logits, labels, from_logits=True)
    labels[7, 2, 3] = 0
    logits[11, 1, 4, 5] = np.nan
    with pytest.raises(ValueError, match=r"logits\[11, 1, 4, 5\] is nan"):
        macc.evaluate(logits, labels, from_logits=True)
    probs = probs_of(maps()[0])
    probs[6, 2, 0, 1] += 0.5
    with pytest.raises(ValueError, match=r"probs\[6, :, 0, 1\] sums to 1.5"):
        macc.evaluate(probs, labels)


def test_refusals():
    logits, labels = maps(count=3)
    with pytest.raises(ValueError, match="3 maps and labels has 2; they must pair up"):
        macc.evaluate(logits, labels[:2], from_logits=True)
    with pytest.raises(ValueError, match=r"must have shape \(3, 6, 6\), got \(3, 6, 5\)"):
        macc.evaluate(logits, labels[..., :5], from_logits=True)
    with pytest.raises(ValueError, match="aurc has no interval by images; leave it out"):
        macc.evaluate(logits, labels, metrics=["aurc"], from_logits=True)
    with pytest.raises(ValueError, match="variance=, answers= and weights= are for rows"):
        macc.evaluate(logits, labels, variance=logits, from_logits=True)
    with pytest.raises(ValueError, match="no samples were seen"):
        macc.evaluate(logits, np.full_like(labels, 9), ignore_index=9, from_logits=True)
    with pytest.raises(ValueError, match="maps are for macc.evaluate and metrics.Calibration"):
        metrics.ece(probs_of(logits), labels)

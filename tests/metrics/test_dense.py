"""Maps of predictions: pixels are samples, and whole images are resampled."""

import numpy as np
import pytest
import torch

from macc import metrics

IGNORED = 255


def maps(count=6, classes=4, side=5, seed=0):
    random = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(count, classes, side, side, generator=random, dtype=torch.float64)).softmax(1)
    labels = torch.randint(0, classes, (count, side, side), generator=random)
    labels[:, 0] = IGNORED
    return probs, labels


def rows(probs, labels):
    """The pixels with a label, by hand."""
    kept = [(n, y, x) for n, y, x in np.ndindex(*labels.shape) if labels[n, y, x] != IGNORED]
    return torch.stack([probs[n, :, y, x] for n, y, x in kept]), torch.tensor([labels[at] for at in kept])


@pytest.mark.parametrize("intervals", [False, True])
@pytest.mark.parametrize("form", [torch.as_tensor, np.asarray])
def test_values_are_those_of_the_labelled_pixels(form, intervals):
    probs, labels = maps()
    ours, theirs = metrics.Calibration(4, intervals=intervals), metrics.Calibration(4, intervals=intervals)
    ours.update(form(probs[:2]), form(labels[:2]), ignore_index=IGNORED)
    ours.update(form(probs[2:]), form(labels[2:]), ignore_index=IGNORED)
    theirs.update(*rows(probs, labels))

    found, expected = ours.compute(), theirs.compute()
    assert found["count"] == 6 * 20
    for name, value in expected.items():
        torch.testing.assert_close(torch.as_tensor(found[name]), torch.as_tensor(value))


def test_an_image_falls_into_one_group():
    calibration = metrics.Calibration(4, intervals=True)
    calibration.update(*maps(count=6), ignore_index=IGNORED)
    sizes = calibration.sums().parts["scores"][:, 0]

    assert (sizes % 20 == 0).all()
    assert (sizes > 0).sum() > 3


def drawn(random, images, true):
    """Predictions of 70 % whose rate of right ones varies from image to image around ``true``."""
    rates = random.beta(4 * true, 4 * (1 - true), size=(images, 1, 1))
    right = random.random((images, 8, 8)) < rates
    probs = np.stack([np.full(right.shape, 0.3), np.full(right.shape, 0.7)], axis=1)
    return probs, right.astype(int)


@pytest.mark.parametrize("true", [0.7, 0.55])
def test_intervals_of_images_cover_and_those_of_pixels_do_not(true):
    random, tries = np.random.default_rng(0), 30
    inside = {(kind, name): 0 for kind in ("images", "pixels") for name in ("accuracy", "ece")}
    truth = {"accuracy": true, "ece": abs(0.7 - true)}
    for _ in range(tries):
        probs, labels = drawn(random, 80, true)
        as_rows = np.moveaxis(probs, 1, -1).reshape(-1, 2), labels.ravel()
        for kind, given in {"images": (probs, labels), "pixels": as_rows}.items():
            calibration = metrics.Calibration(2, intervals=True)
            calibration.update(*given)
            report = calibration.report(metrics=["accuracy", "ece"], resamples=200)
            for name, value in truth.items():
                estimate = report[name]
                inside[kind, name] += estimate.low - 1e-9 <= value <= estimate.high + 1e-9

    assert all(inside["images", name] >= 0.88 * tries for name in truth), inside
    assert all(inside["pixels", name] <= 0.6 * tries for name in truth), inside


def test_what_needs_independent_samples_is_left_out():
    calibration = metrics.Calibration(4, intervals=True)
    calibration.update(*maps(count=30), ignore_index=IGNORED)
    report = calibration.report()

    assert "mce" not in report.metrics
    assert "auroc" not in report.metrics
    assert any("resampling 30 whole images" in note for note in report.notes)
    assert any("mce" in note for note in report.notes)
    with pytest.raises(ValueError, match="mce has no interval by images"):
        calibration.report(metrics=["mce"])


def test_merging_and_refusals():
    probs, labels = maps()
    one, two, plain = (metrics.Calibration(4, intervals=True) for _ in range(3))
    two.update(probs, labels, ignore_index=IGNORED)
    one.merge(two)
    plain.update(*rows(probs, labels))

    assert one.report(metrics=["accuracy"]).notes
    with pytest.raises(ValueError, match="of images and of rows"):
        one.merge(plain)
    with pytest.raises(ValueError, match=r"takes maps \(N, K, H, W\) or rows"):
        one.update(*rows(probs, labels))
    with pytest.raises(ValueError, match=r"must have shape \(6, 5, 5\), got \(6, 5\)"):
        one.update(probs, labels[:, 0])
    with pytest.raises(ValueError, match="is 255"):
        metrics.Calibration(4).update(probs, labels)

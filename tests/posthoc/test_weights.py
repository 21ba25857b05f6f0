"""Calibrators that take weights: whole ones are repeated samples."""

from functools import partial

import numpy as np
import pytest
from scipy.stats import beta

from macc import posthoc
from macc.posthoc._base import methods

FITS = {name: kind.fit for name, kind in methods().items()} | {
    "grid": partial(posthoc.Temperature.fit, grid=True),
    "brier": partial(posthoc.Temperature.fit, objective="brier"),
    "mixed brier": partial(posthoc.EnsembleTemperature.fit, objective="brier"),
    "vector brier": partial(posthoc.VectorScaling.fit, objective="brier"),
}
TWO = {name for name, kind in methods().items() if kind.two_classes} | {"VennAbers"}
WHOLE_ONLY = {"VennAbers", "MetaCal"}


def drawn(num_classes=3, seed=0):
    """Logits of a model that is too sure where the weights are large, labels and whole weights."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(400, num_classes))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    weights = rng.integers(0, 5, 400)
    return truth * np.where(weights > 2, 3.0, 1.0)[:, None], labels, weights


@pytest.mark.parametrize("name", FITS)
def test_whole_weights_are_repeated_samples(name):
    logits, labels, weights = drawn(2 if name in TWO else 3)
    found = FITS[name](logits, labels, weights=weights)
    repeated = FITS[name](logits.repeat(weights, 0), labels.repeat(weights))
    np.testing.assert_array_equal(found(logits), repeated(logits))
    if name != "Identity":
        assert not np.allclose(found(logits), FITS[name](logits, labels)(logits), rtol=1e-2)


@pytest.mark.parametrize("name", sorted(FITS.keys() - WHOLE_ONLY))
def test_relative_weights_that_are_equal_change_nothing(name):
    """One half for each sample, by the weighted sums of a fit and not by repeated samples."""
    logits, labels, _ = drawn(2 if name in TWO else 3)
    found = FITS[name](logits, labels, weights=np.full(400, 0.5))
    plain = FITS[name](logits, labels)
    np.testing.assert_allclose(found(logits), plain(logits), rtol=1e-6)


@pytest.mark.parametrize("name", sorted(FITS.keys() - WHOLE_ONLY - {"Identity", "grid"}))
def test_relative_weights_count(name):
    """Nearly whole ones are nearly repeated samples of a weaker penalty: the fit follows the
    samples that count.
    """
    logits, labels, weights = drawn(2 if name in TWO else 3)
    found = FITS[name](logits, labels, weights=weights + 0.001)
    repeated, plain = (
        FITS[name](logits.repeat(weights, 0), labels.repeat(weights)),
        FITS[name](logits, labels),
    )
    near, far = (np.abs(found(logits) - other(logits)).mean() for other in (repeated, plain))
    assert near < 0.5 * far


@pytest.mark.parametrize("name", sorted(WHOLE_ONLY))
def test_what_promises_something_takes_whole_weights_only(name):
    logits, labels, weights = drawn(2)
    with pytest.raises(ValueError, match=f"{name} takes whole weights only, which are repeated samples"):
        FITS[name](logits, labels, weights=weights + 0.5)


@pytest.mark.parametrize("name", FITS)
def test_bad_weights(name):
    logits, labels, weights = drawn(2 if name in TWO else 3)
    with pytest.raises(ValueError, match=r"weights\[0\] is -1"):
        FITS[name](logits, labels, weights=[-1, *weights[1:]])


def test_features_of_local_temperatures_go_along():
    logits, labels, weights = drawn()
    features = np.random.default_rng(1).normal(size=(400, 2))
    fit = posthoc.LocalTemperature.fit
    found = fit(logits, labels, features=features, weights=weights)
    repeated = fit(logits.repeat(weights, 0), labels.repeat(weights), features=features.repeat(weights, 0))
    np.testing.assert_array_equal(found(logits, features), repeated(logits, features))


def test_the_best_of_several():
    logits, labels, weights = drawn()
    names = ["identity", "temperature", "vector-scaling"]
    found = posthoc.best(logits, labels, names, weights=weights)
    assert str(found) == str(posthoc.best(logits.repeat(weights, 0), labels.repeat(weights), names))
    half = posthoc.best(logits, labels, names, weights=np.full(400, 0.5))
    plain = posthoc.best(logits, labels, names)
    for one, two in zip(half.scores, plain.scores, strict=True):
        assert (one.name, one.nll, one.behind) == (
            two.name,
            pytest.approx(two.nll),
            pytest.approx(two.behind),
        )
        assert one.nll_error == pytest.approx(two.nll_error, rel=0.01)
    relative = posthoc.best(
        logits, labels, [*names, "meta-cal", lambda z, y: posthoc.Identity.fit(z, y)], weights=weights + 0.5
    )
    reasons = [score.reason for score in relative.scores if score.reason]
    assert "MetaCal takes whole weights only" in reasons[0]
    assert reasons[1] == "takes no weights"


def test_maps_of_groups():
    logits, labels, weights = drawn()
    groups = np.array(["a", "b"] * 200)
    found = posthoc.Grouped.fit(logits, labels, groups, weights=weights)
    repeated = posthoc.Grouped.fit(logits.repeat(weights, 0), labels.repeat(weights), groups.repeat(weights))
    assert found.to_dict() == repeated.to_dict()
    with pytest.raises(ValueError, match="Grouped takes whole weights only"):
        posthoc.Grouped.fit(logits, labels, groups, weights=weights + 0.5)


def test_sets():
    logits, labels, weights = drawn()
    found = posthoc.Sets.fit(logits, labels, from_logits=True, weights=weights)
    many, truth = logits.repeat(weights, 0), labels.repeat(weights)
    assert found.to_dict() == posthoc.Sets.fit(many, truth, from_logits=True).to_dict()
    seen = found.measure(logits, labels, from_logits=True, weights=weights)
    assert seen.to_dict() == found.measure(many, truth, from_logits=True).to_dict()
    with pytest.raises(ValueError, match="Sets takes whole weights only"):
        posthoc.Sets.fit(logits, labels, from_logits=True, weights=weights + 0.5)


def confident(size, rng):
    """Predictions of which the confident ones are right, labels, and weights that follow the
    confidence.
    """
    logits = 4 * rng.normal(size=(size, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    return logits, labels


def test_thresholds_of_whole_weights():
    rng = np.random.default_rng(0)
    logits, labels = confident(1500, rng)
    weights = rng.integers(0, 4, 1500)
    many, truth = logits.repeat(weights, 0), labels.repeat(weights)
    found = posthoc.threshold(logits, labels, risk=0.05, from_logits=True, weights=weights)
    assert found == posthoc.threshold(many, truth, risk=0.05, from_logits=True)
    assert found.threshold is not None
    seen = posthoc.check(found, logits, labels, from_logits=True, weights=weights)
    assert seen == posthoc.check(found, many, truth, from_logits=True)
    nearly_equal = 0.5 + 1e-9 * rng.random(1500)
    half = posthoc.threshold(logits, labels, risk=0.05, from_logits=True, weights=nearly_equal)
    plain = posthoc.threshold(logits, labels, risk=0.05, from_logits=True)
    assert half.threshold == plain.threshold
    assert (half.accepted, half.wrong, half.bound) == pytest.approx(
        (plain.accepted, plain.wrong, plain.bound)
    )
    assert "1 500 samples say as much as 1 500 of equal weights" in str(half)
    labels_found = posthoc.label_thresholds([[0.9], [0.2], [0.6]], [[1], [0], [0]], weights=[2, 1, 3])
    assert labels_found == posthoc.label_thresholds(
        [[0.9]] * 2 + [[0.2]] + [[0.6]] * 3, [[1]] * 2 + [[0]] * 4
    )
    with pytest.raises(ValueError, match="label_thresholds takes whole weights only"):
        posthoc.label_thresholds([[0.9], [0.2]], [[1], [0]], weights=[0.5, 1])


def test_limits_of_relative_weights_by_hand():
    rng = np.random.default_rng(2)
    logits, labels = confident(800, rng)
    probs = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    wrong = probs.argmax(1) != labels
    weights = rng.exponential(size=800) * np.where(wrong, 3, 1)
    found = posthoc.threshold(probs, labels, risk=0.3, weights=weights)
    seen = posthoc.check(found, probs, labels, weights=weights)
    above = probs.max(1) >= found.threshold
    each, errors = weights[above], wrong[above]
    share = np.average(errors, weights=each)
    size = share * (1 - share) * each.sum() ** 2 / (each**2 * (errors - share) ** 2).sum()
    assert size < each.sum() ** 2 / (each**2).sum()
    low, high = beta.ppf([0.025, 0.975], size * share + [0, 1], size * (1 - share) + [1, 0])
    assert (seen.low, seen.high) == pytest.approx((low, high))
    assert found.coverage == pytest.approx(each.sum() / weights.sum())
    assert (seen.samples, seen.accepted, seen.wrong) == pytest.approx(
        (found.samples, found.accepted, found.wrong)
    )
    # The limit of the threshold is missed less often, because one of several sequences found it.
    assert high < found.bound <= 0.3


def test_thresholds_of_relative_weights_keep_the_risk():
    """Wrong predictions were drawn half as often as right ones, so that they count twice."""
    rng = np.random.default_rng(1)
    logits, labels = confident(200_000, rng)
    confidence = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).max(1)
    wrong = logits.argmax(1) != labels
    drawn_as = np.where(wrong, 0.5, 1.0)
    broken, blind, seen = 0, 0, 0
    for _ in range(100):
        rows = rng.integers(200_000, size=1500)
        rows = rows[rng.random(1500) < drawn_as[rows]]
        weights = 0.7 / drawn_as[rows]
        given = logits[rows], labels[rows]
        found = posthoc.threshold(*given, risk=0.05, confidence=0.9, from_logits=True, weights=weights)
        plain = posthoc.threshold(*given, risk=0.05, confidence=0.9, from_logits=True)
        blind += wrong[confidence >= plain.threshold].mean() > 0.05
        if found.threshold is not None:
            seen += 1
            broken += wrong[confidence >= found.threshold].mean() > 0.05
    assert seen > 90
    # 10 % and three standard errors.
    assert broken <= 19
    assert blind > 50

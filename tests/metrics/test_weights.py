"""Weights: whole ones are repeated samples, for every metric of the registry."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm

import macc
from macc import metrics
from macc.metrics import states
from macc.metrics._resampling import Resampling, TopCells
from macc.metrics._resampling.classes import ClassDraws
from macc.metrics._significance import distance_exceeds
from macc.metrics.binning import TopLabels, width_cells
from macc.metrics.groups import equal_calibration

TAKING = list(metrics.registry())


def drawn(num_classes, rounded, seed=0):
    """Probabilities, labels and whole weights, of which some are 0; rounded ones have ties."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(200, num_classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    if rounded:
        logits = logits.round()
    probs = np.exp(2 * logits)
    return probs / probs.sum(1, keepdims=True), labels, rng.integers(0, 5, 200)


def options(name, size, repeats=None):
    """What a metric needs beyond probabilities and labels."""
    if metrics.registry()[name].of != "certainty":
        return {}
    certainty = np.random.default_rng(1).random(size).round(1)
    return {"certainty": certainty if repeats is None else certainty.repeat(repeats)}


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("name", TAKING)
def test_whole_weights_are_repeated_samples(name, rounded):
    metric = metrics.registry()[name]
    probs, labels, weights = drawn(2 if metric.of == "two classes" else 4, rounded)
    more = options(name, 200)
    repeated = metric(probs.repeat(weights, 0), labels.repeat(weights), **options(name, 200, weights))
    assert metric(probs, labels, weights=weights, **more) == pytest.approx(repeated, rel=1e-11, abs=1e-13)
    once = metric(probs, labels, weights=np.ones(200), **more)
    assert once == pytest.approx(metric(probs, labels, **more), rel=1e-11, abs=1e-13)
    assert metric(probs, labels, weights=weights * 0.37, **more) >= 0


@pytest.mark.parametrize("name", ["classwise_ece", "brier_decomposition"])
def test_whole_weights_of_what_is_no_single_number(name):
    probs, labels, weights = drawn(4, rounded=True)
    function = getattr(metrics, name)
    expected = function(probs.repeat(weights, 0), labels.repeat(weights))
    np.testing.assert_allclose(function(probs, labels, weights=weights), expected, rtol=1e-11)


@pytest.mark.parametrize("options", [{"top_label": True}, {"bins": 7}])
def test_other_forms_of_the_adaptive_error(options):
    probs, labels, weights = drawn(4, rounded=True)
    repeated = metrics.ace(probs.repeat(weights, 0), labels.repeat(weights), **options)
    assert metrics.ace(probs, labels, weights=weights, **options) == pytest.approx(repeated, rel=1e-11)


def test_a_mean_of_any_weights_is_that_of_numpy():
    probs, labels, _ = drawn(3, rounded=False)
    weights = np.random.default_rng(2).exponential(size=200)
    right = probs.argmax(1) == labels
    assert metrics.accuracy(probs, labels, weights=weights) == pytest.approx(
        np.average(right, weights=weights)
    )
    losses = -np.log(probs[np.arange(200), labels])
    assert metrics.nll(
        torch.tensor(probs), torch.tensor(labels), weights=torch.tensor(weights)
    ) == pytest.approx(np.average(losses, weights=weights))


def test_area_of_any_weights_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    probs, labels, _ = drawn(2, rounded=True)
    weights = np.random.default_rng(3).exponential(size=200)
    areas = [roc_auc_score(labels == j, probs[:, j], sample_weight=weights) for j in (0, 1)]
    expected = np.mean(areas)
    assert metrics.auroc(probs, labels, weights=weights) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0, -1.0], r"weights\[1\] is -1, and a weight is a finite number of at least 0"),
        ([float("nan"), 1.0], r"weights\[0\] is nan"),
        ([float("inf"), 1.0], r"weights\[0\] is inf"),
        ([0.0, 0.0], "all weights are 0"),
        ([1.0], r"one number for each of 2 samples, got shape \(1,\)"),
    ],
)
def test_bad_weights(weights, said):
    with pytest.raises(ValueError, match=said):
        metrics.ece([[0.9, 0.1], [0.2, 0.8]], [0, 1], weights=weights)


def test_a_row_of_weight_0_is_refused_under_its_own_number():
    with pytest.raises(ValueError, match=r"probs\[2"):
        metrics.ece([[0.9, 0.1], [0.2, 0.8], [0.2, 0.9]], [0, 1, 1], weights=[0, 1, 1])


def overconfident(size, num_classes, seed):
    """Probabilities that are too sure, labels, and generator."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(size, num_classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    probs = np.exp(1.5 * logits)
    return probs / probs.sum(1, keepdims=True), labels, rng


@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_report_of_whole_weights_is_that_of_repeated_samples(num_classes):
    probs, labels, rng = overconfident(120, num_classes, 0)
    variance, weights = rng.random((120, num_classes)), rng.integers(0, 4, 120)
    options = {"resamples": 100}
    found = macc.evaluate(probs, labels, weights=weights, variance=variance, **options)
    repeated = macc.evaluate(
        probs.repeat(weights, 0), labels.repeat(weights), variance=variance.repeat(weights, 0), **options
    )
    assert found == repeated
    tests = metrics.calibration_tests(probs, labels, weights=weights)
    assert tests == found.p_values


@pytest.mark.parametrize(("size", "num_classes"), [(150, 2), (150, 3), (10_100, 2)])
def test_equal_relative_weights_are_none(size, num_classes):
    """One half for each sample: the same resamples, so the same numbers, whatever way they are
    computed.
    """
    probs, labels, rng = overconfident(size, num_classes, 1)
    options = {"variance": rng.random((size, num_classes)), "resamples": 100}
    plain = macc.evaluate(probs, labels, **options)
    found = macc.evaluate(probs, labels, weights=np.full(size, 0.5), **options)
    assert found.p_values == pytest.approx(plain.p_values)
    few = size < 10_000  # beyond, chance is drawn otherwise where samples have weights
    for name, one in found.metrics.items():
        two = plain[name]
        assert one.value == pytest.approx(two.value, rel=1e-9, abs=1e-12), name
        if name != "accuracy":  # whose limits are exact without weights
            ends = (two.low, two.high)
            assert (one.low, one.high) == pytest.approx(
                ends, rel=1e-9 if few else 0.05, abs=1e-9 if few else 2e-3
            )
        if one.noise_floor is not None:
            assert one.noise_floor == pytest.approx(two.noise_floor, rel=1e-9 if few else 0.1), name
    for one, two in zip(found.bins, plain.bins, strict=True):
        assert (one.samples, one.accuracy_low) == pytest.approx((two.samples, two.accuracy_low), nan_ok=True)


def test_values_of_relative_weights_are_those_of_the_metrics_and_of_any_scale():
    probs, labels, rng = overconfident(150, 2, 2)
    weights = rng.exponential(size=150)
    weights[:5] = 0
    found = macc.evaluate(probs, labels, weights=weights, resamples=100)
    scaled = macc.evaluate(probs, labels, weights=7.3 * weights, resamples=100)
    for name, estimate in found.metrics.items():
        value = metrics.registry()[name](probs, labels, weights=weights)
        assert estimate.value == pytest.approx(value, rel=1e-9, abs=1e-12), name
        assert scaled[name].value == pytest.approx(value, rel=1e-9, abs=1e-12), name
        assert estimate.low <= estimate.value <= estimate.high
    assert found.num_samples == 145
    size = weights.sum() ** 2 / (weights**2).sum()
    assert f"145 samples say as much as {round(size)} of equal weights" in found.notes[-1]
    assert found.classes[1].frequency == pytest.approx(np.average(labels, weights=weights))
    assert found.mean_confidence == pytest.approx(np.average(probs.max(1), weights=weights))


def test_intervals_of_relative_weights_cover():
    """Samples of the easy kind were drawn four times as often as they occur, and weights undo
    that.
    """
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(200_000, 2)) * np.where(rng.random(200_000) < 0.5, 0.7, 3)[:, None]
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    easy = np.abs(np.diff(logits)[:, 0]) > 2
    probs = 1 / (1 + np.exp(1.4 * (logits[:, 0] - logits[:, 1])))
    chance = np.where(easy, 0.8, 0.2)
    names = ["accuracy", "nll", "positive_brier", "positive_ece", "auroc", "aurc"]
    truth = {name: metrics.registry()[name].value(probs, labels) for name in names}
    covered, blind = dict.fromkeys(names, 0), 0
    for _ in range(100):
        rows = rng.integers(200_000, size=3000)
        rows = rows[rng.random(3000) < chance[rows]][:400]
        weights = 0.16 / chance[rows]
        found = macc.evaluate(probs[rows], labels[rows], weights=weights, metrics=names, resamples=200)
        for name in names:
            covered[name] += found[name].low <= truth[name] <= found[name].high
        plain = macc.evaluate(probs[rows], labels[rows], metrics=["accuracy"], resamples=100)["accuracy"]
        blind += plain.low <= truth["accuracy"] <= plain.high
    # 95 % less three standard errors of 100 draws.
    assert min(covered.values()) >= 88, covered
    assert blind < 50


def test_tests_of_relative_weights_keep_their_size():
    rng = np.random.default_rng(4)
    found = {name: [] for name in ("spiegelhalter", "kuiper", "kolmogorov_smirnov")}
    for _ in range(300):
        probs = rng.uniform(0.05, 0.95, 500)
        labels = (rng.random(500) < probs).astype(int)
        tests = metrics.calibration_tests(probs, labels, weights=rng.exponential(size=500) ** 2)
        for name, p in tests.items():
            found[name].append(p < 0.05)
    for name, rejected in found.items():
        assert np.mean(rejected) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300), name
    assert np.mean(found["spiegelhalter"]) > 0.01


def test_tests_of_relative_weights_by_hand():
    rng = np.random.default_rng(11)
    probs = rng.random(300)
    labels, weights = (rng.random(300) < probs).astype(int), np.exp(2 * probs)
    found = metrics.calibration_tests(probs, labels, weights=weights)
    off, variance = weights * (labels - probs), weights**2 * probs * (1 - probs)
    tilt = 1 - 2 * probs
    z = (off * tilt).sum() / np.sqrt((variance * tilt**2).sum())
    assert found["spiegelhalter"] == pytest.approx(2 * norm.sf(abs(z)))
    path = off[np.argsort(probs)].cumsum() / np.sqrt(variance.sum())
    assert found["kolmogorov_smirnov"] == pytest.approx(distance_exceeds(np.abs(path).max()))


def test_resampled_means_of_relative_weights_by_hand():
    rng = np.random.default_rng(12)
    for size in (50, 10_050):
        values, weights = (
            torch.from_numpy(rng.random((size, 2))),
            torch.from_numpy(rng.exponential(size=size)),
        )
        counts = torch.cat(list(Resampling(size, 20, 0).counts()))
        expected = counts @ (values * weights[:, None]) / (counts @ weights)[:, None]
        torch.testing.assert_close(Resampling(size, 20, 0, weights).means(values), expected)
        drawn = torch.cat(list(Resampling(size, 20, 0, weights).counts()))
        torch.testing.assert_close(drawn, counts * weights * (weights.sum() / (counts @ weights))[:, None])


def test_limits_of_bins_have_the_effective_number_of_each_bin():
    probs, labels, _ = overconfident(200, 3, 13)
    confidence, right = probs.max(1), probs.argmax(1) == labels
    weights = np.exp(3 * confidence) / 7
    found = macc.evaluate(probs, labels, weights=weights, bins=5, metrics=["mce"])
    gaps = []
    filled = [(row, (confidence > row.low) & (confidence <= row.high)) for row in found.bins if row.samples]
    for row, inside in filled:
        each = weights[inside]
        size, share = each.sum() ** 2 / (each**2).sum(), np.average(right[inside], weights=each)
        z = norm.ppf(0.975)
        # The ends of Wilson's interval are where the share lies z standard errors off.
        for end in (row.accuracy_low, row.accuracy_high):
            if 0 < end < 1:
                assert abs(share - end) == pytest.approx(z * np.sqrt(end * (1 - end) / size))
        tail = 0.025 / len(filled)
        limits = (
            beta.ppf(tail, size * share, size * (1 - share) + 1) if share > 0 else 0.0,
            beta.ppf(1 - tail, size * share + 1, size * (1 - share)) if share < 1 else 1.0,
        )
        claimed = np.average(confidence[inside], weights=each)
        gaps.append(max(claimed - limits[0], limits[1] - claimed))
    assert found["mce"].high == pytest.approx(max(gaps))


@pytest.mark.parametrize("size", [300, 10_050])
def test_chance_varies_by_squared_weights(size):
    """Single samples are cells of few samples, and groups of them cells of many; labels are drawn
    often, or once.
    """
    rng = np.random.default_rng(14)
    probs = torch.from_numpy(rng.random(size))
    weights = torch.exp(2 * probs)
    outcomes = torch.from_numpy((rng.random(size) < probs.numpy()).astype(float))
    resampling = Resampling(size, 1000, 0, weights)
    cells = TopCells(TopLabels(probs, outcomes), 4, resampling)
    variance = (weights**2 * probs * (1 - probs)).sum()
    drawn = cells.null.sum(1) * weights.sum()
    assert float(drawn.var()) == pytest.approx(float(variance), rel=0.15)
    both = torch.stack([1 - probs, probs], dim=1)
    for draws in (1, 300):
        labels = torch.from_numpy((rng.random((size, draws)) < probs.numpy()[:, None]).astype(int))
        of_classes = ClassDraws(outcomes.long(), 1, resampling, labels)
        null = of_classes.noise(next(iter(width_cells(both, 1))), torch.zeros(2, 1))[2]
        spread = float((null[:, 1, 0] * weights.sum()).var())
        assert spread == pytest.approx(float(variance), rel=0.3), draws


def test_a_very_large_distance_has_a_very_small_p_value():
    assert distance_exceeds(4.99) == pytest.approx(2 * 6.1e-7, rel=0.05)
    assert [distance_exceeds(x) for x in (60, 8)] == pytest.approx([0, 0], abs=1e-14)


@pytest.mark.parametrize("weights", [[2, 0, 1] * 100, [0.5, 0, 1.25] * 100])
def test_comparisons(weights):
    probs, labels, _ = overconfident(300, 3, 5)
    other = np.exp(0.7 * np.log(probs))
    other /= other.sum(1, keepdims=True)
    asked = {"metrics": ["nll", "ece"], "resamples": 200}
    found = metrics.compare(probs, other, labels, weights=weights, **asked)
    for name in ("nll", "ece"):
        values = [metrics.registry()[name](p, labels, weights=weights) for p in (probs, other)]
        assert (found[name].a, found[name].b) == pytest.approx(values)
    if isinstance(weights[0], int):
        again = metrics.compare(
            probs.repeat(weights, 0), other.repeat(weights, 0), labels.repeat(weights), **asked
        )
        assert found == again
    else:
        assert "Weights are relative" in found.notes[0]
        runs = metrics.compare(
            [probs, other], [other, probs * 0.9 + 0.1 / 3], labels, weights=weights, **asked
        )
        assert runs["nll"].a == pytest.approx((found["nll"].a + found["nll"].b) / 2)
    assert found["nll"].p < 0.05


def test_groups():
    probs, labels, rng = overconfident(400, 2, 6)
    site, weights = rng.choice(["a", "b"], 400), rng.integers(0, 3, 400)
    asked = {"metrics": ["ece", "nll"], "resamples": 100}
    found = metrics.evaluate_groups(probs, labels, site, weights=weights, **asked)
    again = metrics.evaluate_groups(
        probs.repeat(weights, 0), labels.repeat(weights), site.repeat(weights), **asked
    )
    assert found == again
    # Whole weights of one group do not make those of the other whole.
    weights = np.where(site == "a", 2.0, 0.5)
    found = metrics.evaluate_groups(probs, labels, site, weights=weights, **asked)
    assert found.groups["a"].num_samples == (site == "a").sum()
    for name, report in found.groups.items():
        plain = macc.evaluate(probs[site == name], labels[site == name], **asked, confidence=0.975)
        assert report["nll"].high == pytest.approx(plain["nll"].high)


def test_equal_groups_of_relative_weights_are_found_to_differ_seldom():
    rng = np.random.default_rng(7)
    rejected = []
    for _ in range(60):
        probs, which = rng.uniform(0.1, 0.9, 300), rng.integers(2, size=300)
        outcomes = (rng.random(300) < probs).astype(float)
        p = equal_calibration(
            probs, outcomes, which, simulations=99, weights=rng.exponential(size=300) + 3 * which
        )
        rejected.append(p < 0.05)
    assert np.mean(rejected) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)


def stream_of(probs, labels, weights, repeat=False, **options):
    calibration = metrics.Calibration(probs.shape[1], intervals=True, **options)
    for start in range(0, len(probs), 100):
        part = slice(start, start + 100)
        if repeat:
            times = weights[part]
            calibration.update(probs[part].repeat(times, 0), labels[part].repeat(times))
        else:
            calibration.update(probs[part], labels[part], weights=weights[part])
    return calibration


@pytest.mark.parametrize("num_classes", [2, 3])
def test_streams(num_classes, tmp_path):
    probs, labels, rng = overconfident(1000, num_classes, 8)
    weights = rng.integers(0, 4, 1000)
    whole = stream_of(probs, labels, weights)
    again = stream_of(probs, labels, weights, repeat=True)
    assert whole.report(resamples=100) == again.report(resamples=100)
    relative = rng.exponential(size=1000)
    relative[:100] = 2
    found = stream_of(probs, labels, relative, relative_weights=True)
    report, exact = found.report(), macc.evaluate(probs, labels, weights=relative, resamples=300)
    assert report.num_samples == exact.num_samples == 1000
    values = found.compute()
    assert values["classwise_ece"].numpy() == pytest.approx(
        metrics.classwise_ece(probs, labels, weights=relative)
    )
    for name, one in report.metrics.items():
        two = exact[name]
        assert one.value == pytest.approx(two.value, rel=1e-3 if name == "auroc" else 1e-9), name
        assert values[name] == pytest.approx(one.value), name
        width = two.high - two.low
        # Areas of classes are taken to move together in a stream, which widens the interval.
        slack = 0.6 * width if name == "auroc" else 0.2 * width + 1e-3
        assert max(abs(one.low - two.low), abs(one.high - two.high)) < slack, (name, one, two)
        if one.noise_floor is not None:
            assert one.noise_floor == pytest.approx(two.noise_floor, rel=0.15), name
    assert [row.frequency for row in report.classes] == pytest.approx(
        [row.frequency for row in exact.classes]
    )
    for state in (whole, found):
        states.save(state, tmp_path / "state")
        assert states.load(tmp_path / "state").report(resamples=100) == state.report(resamples=100)
    with pytest.raises(ValueError, match="other kinds of weights: whole and relative"):
        whole.merge(found)
    with pytest.raises(ValueError, match=r"weights\[100\] is .*relative_weights=True"):
        whole.update(probs, labels, weights=relative)


def test_parts_of_a_stream_of_relative_weights_are_put_together():
    probs, labels, rng = overconfident(400, 3, 9)
    weights = rng.exponential(size=400)
    one, two = (
        stream_of(probs[part], labels[part], weights[part]) for part in (slice(0, 200), slice(200, None))
    )
    one.merge(two)
    assert one.compute()["ece"] == pytest.approx(metrics.ece(probs, labels, weights=weights))
    assert one.compute()["count"] == 400


def test_a_batch_without_weight_adds_nothing():
    calibration = metrics.Calibration(2)
    calibration.update([0.9, 0.2], [1, 0], weights=[0, 0])
    assert calibration.num_samples == 0
    with pytest.raises(ValueError, match="maps"):
        calibration.update(torch.rand(1, 2, 2, 2).softmax(1), torch.zeros(1, 2, 2).long(), weights=[1])


def test_columns_of_a_frame_and_ignored_samples():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"cat": [0.9, 0.2], "dog": [0.1, 0.8], "y": ["cat", "cat"], "w": [3, 1]})
    report = macc.evaluate(frame, "y", weights="w", metrics=["accuracy"])
    assert (report["accuracy"].value, report.num_samples) == (0.75, 4)
    assert "weights from 'w'" in report.notes[0]
    with pytest.raises(ValueError, match="weights names a column"):
        macc.evaluate([0.5], [0], weights="w")
    report = macc.evaluate(
        [0.9, 0.2, 0.5], [1, 1, 255], weights=[3, 1, 9], ignore_index=255, metrics=["accuracy"]
    )
    assert report["accuracy"].value == 0.75


def test_too_many_repeated_samples_are_refused():
    with pytest.raises(ValueError, match="sum to 2e\\+08.*make them relative"):
        macc.evaluate([0.9, 0.2], [1, 0], weights=[1e8, 1e8])


def test_independent_labels():
    rng = np.random.default_rng(10)
    probs = rng.random((200, 2))
    labels, weights = (rng.random((200, 2)) < probs**2).astype(int), rng.integers(0, 3, 200)
    asked = {"metrics": ["positive_ece", "nll"], "resamples": 100}
    found = metrics.evaluate_labels(probs, labels, weights=weights, **asked)
    repeated = metrics.evaluate_labels(probs.repeat(weights, 0), labels.repeat(weights, 0), **asked)
    assert found.to_dict() == repeated.to_dict()
    relative = metrics.evaluate_labels(probs, labels, weights=weights + 0.5, **asked)
    value = metrics.nll(probs[:, 1], labels[:, 1], weights=weights + 0.5)
    assert relative.labels[1].metrics["nll"].value == pytest.approx(value)

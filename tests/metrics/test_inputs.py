"""Every metric takes the same inputs and refuses the same mistakes, in one clear sentence."""

import inspect

import numpy as np
import pytest
import torch

from macc import metrics

EVERY = sorted(
    name
    for name, value in vars(metrics).items()
    if not name.startswith("_")
    and (inspect.isfunction(value) or (isinstance(value, metrics.Metric) and value.of == "any"))
    and list(inspect.signature(value).parameters)[:2] == ["probs", "labels"]
    # One wants groups too, the other a label of 0 or 1 for each column: test_groups.py and
    # test_labels.py.
    and name not in ("evaluate_groups", "evaluate_labels")
)
PROBS = np.array([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.1, 0.15, 0.75], [0.6, 0.3, 0.1], [0.3, 0.25, 0.45]])
LABELS = np.array([0, 1, 0, 2, 2])


def value(name, probs, labels, **options):
    result = getattr(metrics, name)(probs, labels, **options)
    return np.asarray(list(result.values()) if isinstance(result, dict) else result, dtype=float)


every = pytest.mark.parametrize("name", EVERY)
refusing = pytest.mark.parametrize("name", [*EVERY, "evaluate"])


def test_the_contract_finds_the_metrics():
    assert {"ece", "sce", "mce", "classwise_ece", "accuracy", "nll", "brier"} <= set(EVERY)


@refusing
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (np.empty((0, 3)), np.empty(0, int), "holds no samples"),
        (PROBS, LABELS[:4], "5 samples and labels has 4"),
        (PROBS, LABELS.astype(float), "integer class indices, got float64"),
        (PROBS, np.eye(3, dtype=int)[LABELS], r"one class index per sample, shape \(N,\), got \(5, 3\)"),
        (PROBS, np.array([0, 1, 3, 2, 2]), r"\[0, 2\] for 3 classes, got 3 at index 2"),
        (PROBS, np.array([0, 1, 2, 2, -1]), r"got -1 at index 4"),
        (PROBS.astype(int), LABELS, "probs must be floating-point, got int64"),
        (PROBS[None], LABELS[:1], r"\(N, K\), or \(N,\) for two classes, got \(1, 5, 3\)"),
        (PROBS[:, :1], LABELS, "one class; for two classes pass both columns"),
        (PROBS * 2, LABELS, r"probs\[0\] sums to 2, not 1; pass from_logits=True if these are logits"),
        (np.where(PROBS == 0.4, np.nan, PROBS), LABELS, r"probs\[1, 1\] is nan"),
        (np.where(PROBS == 0.4, np.inf, PROBS), LABELS, r"probs\[1, 1\] is inf"),
        (PROBS - 0.2, LABELS, r"probs\[0, 2\] is -0.1, and a probability is never negative"),
        (
            np.array([0.2, 1.2]),
            np.array([0, 1]),
            r"probs\[1\] is 1.2, and a vector holds probabilities of class 1",
        ),
        ([["a", "b"]], [0], "array of numbers"),
        ([[0.5, 0.5], [1.0]], [0, 1], "rectangular array"),
    ],
)
def test_mistakes_are_refused(name, probs, labels, message):
    with pytest.raises(ValueError, match=message):
        getattr(metrics, name)(probs, labels)


@every
def test_logits_are_declared_and_never_guessed(name):
    """Logits that all lie in [0, 1] are refused, not taken for probabilities."""
    with pytest.raises(ValueError, match="from_logits=True"):
        getattr(metrics, name)(np.array([[0.9, 0.8, 0.1]]), [0])
    np.testing.assert_allclose(
        value(name, np.log(PROBS) + 3.0, LABELS, from_logits=True),
        value(name, PROBS, LABELS),
        rtol=1e-9,
        atol=1e-12,
    )


@every
def test_rows_are_normalised_on_request(name):
    np.testing.assert_allclose(
        value(name, PROBS * 4, LABELS, normalise=True), value(name, PROBS, LABELS), rtol=1e-12, atol=1e-15
    )
    with pytest.raises(ValueError, match=r"probs\[0\] sums to 0 and cannot be normalised"):
        getattr(metrics, name)(PROBS * 0, LABELS, normalise=True)
    with pytest.raises(ValueError, match="applies to probabilities"):
        getattr(metrics, name)(PROBS, LABELS, normalise=True, from_logits=True)


@every
def test_a_vector_means_two_classes(name):
    p = np.array([0.2, 0.9, 0.6, 0.35])
    labels = np.array([0, 1, 0, 1])

    np.testing.assert_array_equal(value(name, p, labels), value(name, np.stack([1 - p, p], 1), labels))
    np.testing.assert_allclose(
        value(name, np.log(p / (1 - p)), labels, from_logits=True),
        value(name, p, labels),
        rtol=1e-9,
        atol=1e-12,
    )


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type_is_accumulated_in_float64(name, dtype):
    """The value is that of the rounded numbers in float64, not of sums in the narrow type."""
    narrow = torch.from_numpy(PROBS).repeat(300, 1).to(dtype)
    labels = torch.from_numpy(LABELS).repeat(300)

    wide = value(name, narrow.double(), labels, normalise=True)

    np.testing.assert_allclose(value(name, narrow, labels, normalise=True), wide, rtol=1e-12, atol=1e-14)


@every
def test_tensors_arrays_and_lists_agree(name):
    expected = value(name, PROBS, LABELS)

    np.testing.assert_array_equal(
        value(name, torch.from_numpy(PROBS).requires_grad_(), torch.from_numpy(LABELS)), expected
    )
    np.testing.assert_array_equal(value(name, PROBS.tolist(), LABELS.tolist()), expected)
    np.testing.assert_array_equal(value(name, np.asfortranarray(PROBS), LABELS.astype(np.uint8)), expected)
    np.testing.assert_array_equal(value(name, PROBS.astype(">f8"), LABELS.astype(">i4")), expected)
    frozen = PROBS.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(value(name, frozen, LABELS), expected)


@every
def test_the_order_of_samples_does_not_matter(name):
    rng = np.random.default_rng(0)
    probs = np.round(rng.dirichlet(np.ones(3), size=200), 1)
    probs[:, 2] = 1 - probs[:, 0] - probs[:, 1]
    probs = np.clip(probs, 0, 1)
    labels = rng.integers(0, 3, size=200)
    order = rng.permutation(200)

    np.testing.assert_allclose(
        value(name, probs[order], labels[order], normalise=True),
        value(name, probs, labels, normalise=True),
        rtol=1e-9,
    )


@every
def test_inputs_are_left_as_they_were(name):
    probs, labels = torch.from_numpy(PROBS * 4), torch.from_numpy(LABELS)
    before = probs.clone()
    getattr(metrics, name)(probs, labels, normalise=True)

    assert torch.equal(probs, before)


@pytest.mark.parametrize("bins", [0, -1, 1.5, True])
@pytest.mark.parametrize(
    "name", [n for n in EVERY if "bins" in inspect.signature(getattr(metrics, n)).parameters]
)
def test_bins_must_be_a_positive_integer(name, bins):
    with pytest.raises(ValueError, match="bins must be a positive integer"):
        getattr(metrics, name)(PROBS, LABELS, bins=bins)


@pytest.mark.parametrize("name", ["ece", "sce", "ace", "brier_decomposition", "evaluate"])
def test_bins_that_only_take_memory_are_refused(name):
    with pytest.raises(ValueError, match="bins must be at most 10000, got 1000000000; 15 is usual"):
        getattr(metrics, name)(PROBS, LABELS, bins=10**9)
    with pytest.raises(ValueError, match="bins must be at most 10000"):
        metrics.Calibration(3, 10**9)


@every
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_that_sum_to_a_little_more_than_1_keep_every_metric_in_its_range(name, dtype):
    """Accepted as rounding; the error or the score must not pass what is possible."""
    more = np.nextafter(dtype(1), dtype(2)) if dtype == np.float16 else 1 + 9e-5
    probs = np.array([[more, 0, 0], [0, more, 0], [1, 9e-5 * (dtype != np.float16), 0]], dtype=dtype)
    wrong, right = np.array([1, 2, 2]), np.array([0, 1, 0])
    largest = np.inf if name in ("nll", "refinement") else 2 if name.startswith("brier") else 1
    for labels in (wrong, right):
        found = value(name, probs, labels)
        assert (found[~np.isnan(found)] >= 0).all()
        assert (found[~np.isnan(found)] <= largest).all()


def test_streams_keep_the_range_too():
    probs, labels = np.array([[1 + 9e-5, 0], [0, 1 + 9e-5]]), np.array([1, 0])
    calibration = metrics.Calibration(2)
    calibration.update(probs, labels)
    assert calibration.compute()["ece"] == 1
    assert metrics.evaluate(probs, labels)["ece"].value == 1


def test_two_readers_do_not_share_memory():
    from macc.metrics.inputs import predictions

    other = PROBS[:, ::-1].copy()
    for one, two in zip(
        predictions(PROBS, LABELS).blocks(), predictions(other, LABELS).blocks(), strict=True
    ):
        np.testing.assert_array_equal(one.probs, PROBS)
        np.testing.assert_array_equal(two.probs, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_of_many_classes_are_checked_too(dtype):
    labels = torch.zeros(100, dtype=torch.long)
    good = torch.randn(100, 1000, generator=torch.Generator().manual_seed(0)).softmax(1).to(dtype)
    metrics.ece(good, labels)
    with pytest.raises(ValueError, match=r"probs\[0\] sums to"):
        metrics.ece(4 * good, labels)
    with pytest.raises(ValueError, match=r"probs\[0\] sums to 0"):
        metrics.ece(torch.zeros_like(good), labels)

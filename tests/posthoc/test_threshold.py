"""The promise of a threshold, kept over many validation sets; and the two commands that repair
predictions.
"""

import json

import numpy as np
import pytest
from scipy.stats import binomtest

from helpers.calibrators import data
from helpers.command import run
from helpers.stored import arrays
from macc import metrics, posthoc


def two_columns(doubt):
    """Probabilities of two classes with class 0 predicted."""
    return np.stack([1 - doubt, doubt], axis=1)


def test_limits_are_clopper_and_pearsons():
    from macc.metrics.intervals import clopper_pearson

    for wrong, size in ((0, 10), (3, 50), (50, 50), (499, 1000)):
        expected = binomtest(wrong, size).proportion_ci(0.9, method="exact")
        assert clopper_pearson(wrong, size, 0.05) == pytest.approx((expected.low, expected.high))
    assert clopper_pearson(0, 0, 0.05) == (0, 1)


@pytest.mark.parametrize("kind", ["calibrated", "over-confident", "under-confident", "flat", "step", "ties"])
def test_the_risk_is_kept_as_often_as_promised(kind):
    """Of 250 validation sets, the true risk above the threshold found exceeds the limit in at most
    10 %.
    """
    rng = np.random.default_rng(0)
    risk, broken, found_any, doubts = 0.1, 0, 0, []
    # True risk of accepting doubts up to d, for doubts uniform in (0, 0.5): the mean of the risk at
    # each doubt.
    fine = (np.arange(100_000) + 0.5) / 200_000
    at_doubt = {
        "calibrated": lambda d: d,
        "under-confident": lambda d: d / 4,
        "ties": lambda d: d,
        "over-confident": lambda d: np.minimum(4 * d, 0.7),
        "flat": lambda d: np.full_like(d, 0.1001),  # hardly above the limit, everywhere: nothing may be found
        "step": lambda d: np.where(d < 0.05, 0.02, 0.15),
    }[kind]
    above = np.cumsum(at_doubt(fine)) / np.arange(1, len(fine) + 1)
    for _ in range(250):
        doubt = rng.uniform(0, 0.5, 2000)
        labels = (rng.random(2000) < at_doubt(doubt)).astype(int)
        if kind == "ties":  # five confidences, and the file sorted by label
            doubt = np.ceil(doubt * 10) / 10 - 0.001
            doubt, labels = doubt[labels.argsort()], np.sort(labels)
        found = posthoc.threshold(two_columns(doubt), labels, risk=risk, confidence=0.9)
        if found.threshold is not None:
            found_any += 1
            largest = min(1 - found.threshold, 0.5)
            doubts.append(largest)
            broken += above[min(int(largest * 200_000), 100_000) - 1] > risk
    # 250 draws of probability 0.1 exceed 40 with probability 0.001.
    assert broken <= 40
    if kind != "flat":
        assert found_any > 100
    if kind == "calibrated":  # the most there is to find is a doubt of 0.2
        assert np.mean(doubts) > 0.12


def test_what_it_says_is_what_was_seen():
    logits, labels = data(5000, 3, scale=1.0)
    probs = posthoc.Identity.fit(4 * logits, labels)(4 * logits)
    fitted = posthoc.Temperature.fit(4 * logits, labels)(4 * logits)
    found = posthoc.threshold(fitted, labels, risk=0.2)
    above = fitted.max(1) >= found.threshold
    wrong = (fitted.argmax(1) != labels) & above

    assert found.accepted == above.sum()
    assert found.wrong == wrong.sum()
    assert found.coverage == above.mean()
    assert found.wrong / found.accepted < found.bound <= 0.2
    assert f"{found.threshold:.12g}" in str(found)
    assert posthoc.threshold(4 * logits, labels, risk=0.2, from_logits=True) == posthoc.threshold(
        probs, labels, risk=0.2
    )
    checked = posthoc.check(found, fitted, labels)
    assert (checked.accepted, checked.wrong, checked.held) == (found.accepted, found.wrong, True)
    assert str(checked).startswith("It held: ")
    exact = binomtest(checked.wrong, checked.accepted).proportion_ci(0.95, method="exact")
    assert (checked.low, checked.high) == pytest.approx((exact.low, exact.high))
    worse = posthoc.check(found, fitted, (labels + 1) % 3)
    assert not worse.held
    assert "not by chance" in str(worse)


def test_no_threshold():
    logits, labels = data(50)
    found = posthoc.threshold(logits, labels, risk=0.01, from_logits=True)

    assert found.threshold is None
    assert found.fewest == 299  # 0.99 ** 299 < 0.05
    assert "even without an error 299 are needed" in str(found)
    with pytest.raises(ValueError, match="there is no threshold to check"):
        posthoc.check(found, logits, labels, from_logits=True)
    for bad in ({"risk": 0}, {"risk": 2.0}, {"risk": 0.1, "confidence": 1}):
        with pytest.raises(ValueError, match=r"must lie in \(0, 1\)"):
            posthoc.threshold(logits, labels, from_logits=True, **bad)


def test_everything_can_be_accepted():
    labels = np.zeros(3000, dtype=int)
    found = posthoc.threshold(two_columns(np.full(3000, 0.4)), labels, risk=0.02)

    assert found.coverage == 1
    assert found.wrong == 0


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("val", 0), ("test", 1)):
        logits, labels = data(900, 3, seed=seed, dtype=np.float32)
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels)
    return tmp_path


def test_calibrate_writes_probabilities_and_the_calibrator(files):
    result = run(
        "calibrate", "--resamples", "100", "--fit", "val.npz", "--apply", "test.npz", "--json", "r.json"
    )
    assert result.code == 0, result.err
    fitted = posthoc.load(files / "test-calibrated.json")
    given, written = arrays(files / "test.npz"), arrays(files / "test-calibrated.npz")

    np.testing.assert_array_equal(written["probs"], fitted(given["logits"]))
    np.testing.assert_array_equal(written["labels"], given["labels"])
    assert written["probs"].dtype == np.float32
    numbers = json.loads((files / "r.json").read_text())
    assert numbers["after"]["nll"]["value"] == pytest.approx(metrics.nll(written["probs"], written["labels"]))
    assert numbers["after"]["nll"]["high"] < numbers["before"]["nll"]["low"]
    assert numbers["before_minus_after"]["nll"]["low"] > 0
    assert "Temperature (temperature" in result.out
    assert "+0.00" not in result.out.split("NLL")[0].split("accuracy")[0]


def test_calibrate_chooses_by_itself_and_reads_probabilities(files):
    for name in ("val", "test"):
        given = arrays(files / f"{name}.npz")
        probs = np.exp(given["logits"].astype(np.float64))
        np.savez(files / f"{name}.npz", probs=probs / probs.sum(1, keepdims=True), labels=given["labels"])
    result = run("calibrate", "--resamples", "100", "--fit", "val.npz", "--apply", "test.npz", "--method", "auto", "-o", "out.npz")  # fmt: skip

    assert result.code == 0, result.err
    assert "NLL, 5 folds" in result.out
    assert (files / "out.json").exists()
    assert run("evaluate", "out.npz").code == 0


def test_calibrate_pools_files_and_folders(files):
    (files / "more").mkdir()
    given = arrays(files / "val.npz")
    for i, part in enumerate(np.array_split(np.arange(900), 3)):
        np.savez(files / "more" / f"{i}.npz", logits=given["logits"][part], labels=given["labels"][part])
    once = run("calibrate", "--resamples", "100", "--fit", "val.npz", "--apply", "test.npz", "-o", "a.npz")
    folder = run("calibrate", "--resamples", "100", "--fit", "more", "--apply", "test.npz", "-o", "b.npz")
    twice = run(
        "calibrate",
        "--resamples",
        "100",
        "--fit",
        "more/0.npz",
        "--fit",
        "more/1.npz",
        "--apply",
        "test.npz",
        "-o",
        "c.npz",
    )
    assert (once.code, folder.code, twice.code) == (0, 0, 0), folder.err
    one, two, three = (posthoc.load(files / f"{name}.json").temperature for name in "abc")

    assert one == two
    assert one != three
    assert "fitted to 600 samples" in twice.out
    np.savez(files / "other.npz", logits=given["logits"][:, :2], labels=given["labels"] % 2)
    bad = run(
        "calibrate", "--resamples", "100", "--fit", "val.npz", "--fit", "other.npz", "--apply", "test.npz"
    )
    assert (bad.code, bad.err) == (
        2,
        "macc: val.npz and other.npz have other classes; they cannot be pooled\n",
    )
    (files / "empty").mkdir()
    bad = run("calibrate", "--resamples", "100", "--fit", "empty", "--apply", "test.npz")
    assert "empty has no .npz files" in bad.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "no calibrator is called 'magic'; there are"),
        (["-o", "out.txt"], "out.txt: results are written as .npz, .csv or .parquet"),
        (["-o", "nowhere/out.npz"], "does not exist"),
        (
            ["-o", "out.npz", "--json", "./out.json"],
            "--json out.json would overwrite what the calibrator of -o writes",
        ),
        (["--json", "test-calibrated.npz"], "give it another name"),
        (["--method", "platt"], "Platt is for two classes"),
        (["--method", "beta", "--grid"], "--grid is of the method temperature"),
        (["--resamples", "50"], "resamples must be an integer of at least 100, got 50"),
    ],
)
def test_calibrate_refuses_in_one_line_and_writes_nothing(files, arguments, message):
    before = sorted(files.iterdir())
    result = run("calibrate", "--resamples", "100", "--fit", "val.npz", "--apply", "test.npz", *arguments)

    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert sorted(files.iterdir()) == before


def test_threshold_command(files):
    same = run("calibrate", "--resamples", "100", "--fit", "val.npz", "--apply", "val.npz", "-o", "v.npz")
    assert "the same samples, before and after" in same.out
    run("calibrate", "--resamples", "100", "--fit", "val.npz", "--apply", "test.npz", "-o", "t.npz")
    good = run("threshold", "v.npz", "--risk", "0.2", "--check", "t.npz", "--json", "t.json")
    assert good.code == 0, good.out
    assert "t.npz: It held" in good.out
    assert json.loads((files / "t.json").read_text())["check"]["held"] is True
    none = run("threshold", "v.npz", "--risk", "0.001")
    assert none.code == 1
    assert none.out.startswith("No threshold can promise")
    bad = run("threshold", "v.npz", "--risk", "2")
    assert (bad.code, bad.err) == (
        2,
        "macc: risk must lie in (0, 1), got 2.0; write 0.02 for 2 %\n",
    )


def test_equal_confidences_are_accepted_together_or_not_at_all():
    """Errors are counted where a threshold can be, so the limit shown never contradicts the
    promise.
    """
    accepted = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        confidence = np.concatenate([0.99 - np.arange(20) * 1e-4, np.full(980, 0.9)])
        labels = np.concatenate([np.zeros(20), rng.random(980) < 0.035]).astype(int)
        found = posthoc.threshold(two_columns(1 - confidence), labels, risk=0.05)

        accepted.add(found.accepted)
        assert found.threshold is None or found.bound <= 0.05

    assert accepted == {0, 1000}


def test_the_order_of_equal_confidences_does_not_matter():
    labels = np.repeat([0, 1], [1900, 100])
    confidence = np.round(np.linspace(0.99, 0.6, 2000), 1)
    shuffled = np.random.default_rng(1).permutation(2000)
    one = posthoc.threshold(two_columns(1 - confidence), labels, risk=0.1)
    two = posthoc.threshold(two_columns(1 - confidence[shuffled]), labels[shuffled], risk=0.1)

    assert one == two
    assert one.threshold is not None


def test_columns_in_another_order_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "cat,0.7,0.2,0.1\ndog,0.2,0.5,0.3\nbird,0.1,0.2,0.7\n" * 10
    (tmp_path / "val.csv").write_text("label,cat,dog,bird\n" + rows)
    (tmp_path / "test.csv").write_text("label,bird,cat,dog\n" + rows)
    result = run(
        "calibrate", "--resamples", "100", "--fit", "val.csv", "--apply", "test.csv", "-o", "out.npz"
    )

    assert result.code == 2
    assert "the classes are cat, dog, bird in the fit and bird, cat, dog" in result.err
    assert not (tmp_path / "out.npz").exists()

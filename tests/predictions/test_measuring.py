"""Files that are read whole and in batches say the same."""

import numpy as np
import pytest

from macc.predictions import compared, in_batches, measured, open_source

HOW = {"positive": None, "bins": 15, "normalise": False}


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(300, 4))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels)
    np.savez(tmp_path / "b.npz", logits=2 * logits, labels=labels)
    return [open_source(tmp_path / name) for name in ("a.npz", "b.npz")]


def test_a_file_is_read_in_batches_above_the_limit(files):
    assert in_batches(files[0], 299)
    assert not in_batches(files[0], 300)


def test_batches_leave_sums_and_the_values_of_the_whole(files):
    asked = {"metrics": ["nll", "ece"], "confidence": 0.95, "resamples": 100, **HOW}
    whole, none = measured(files[0], batches=False, **asked)
    parts, sums = measured(files[0], batches=True, **asked)

    assert none is None
    assert sums.compute()["count"] == 300
    for name in ("nll", "ece"):
        assert parts[name].value == pytest.approx(whole[name].value, abs=1e-12)


def test_two_files_differ_by_the_same_in_batches(files):
    asked = {"metrics": ["nll", "ece"], "resamples": 100, **HOW}
    whole, parts = (compared(*files, most=most, **asked) for most in (300, 10))
    for name in ("nll", "ece"):
        assert parts[name].value == pytest.approx(whole[name].value, abs=1e-12)
        assert parts[name].value < 0

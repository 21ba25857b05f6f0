"""States in files: they merge, and those that nobody vouches for are refused in one sentence."""

import json
import math
import re

import numpy as np
import pytest

from helpers.command import run
from helpers.predictions import sharpened as sample
from helpers.predictions import write_parquet
from helpers.stored import arrays
from macc import metrics
from macc.metrics import states
from macc.metrics.streaming import check_streamed
from macc.predictions import source as reading_source

pytest.importorskip("pyarrow")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(reading_source, "_MOST_ROWS", 97)


def test_states_merge(folder, small_batches):
    probs, labels = sample(900)
    write_parquet(folder / "all.parquet", probs, labels)
    for i, part in enumerate(np.array_split(np.arange(900), 3)):
        write_parquet(folder / f"part{i}.parquet", probs[part], labels[part])
        assert run("evaluate", f"part{i}.parquet", "--state", f"s{i}")[0] == 0
    whole = run("evaluate", "all.parquet", "--json", "all.json", "--max-rows-in-memory", 10)
    merged = run("merge", "s0", "s1", "s2", "--json", "merged.json", "--state", "s")
    assert (whole[0], merged[0]) == (0, 0), merged[2]
    one, two = (json.loads((folder / f"{name}.json").read_text()) for name in ("all", "merged"))

    for name in check_streamed(None, 3):
        assert two[name]["value"] == pytest.approx(one[name]["value"], abs=1e-12), name
    assert "900 samples, 3 classes" in merged[1]
    assert "owl" in merged[1]
    code, _, said = run("merge", "s0", "s1", "./s0")
    assert code == 2
    assert "s0 is named twice, and its samples would count twice" in said
    assert run("merge", "s")[1] == merged[1]


def test_states_that_nobody_vouches_for(folder):
    probs, labels = sample(50)
    write_parquet(folder / "p.parquet", probs, labels)
    run("evaluate", "p.parquet", "--state", "good")
    run("evaluate", "p.parquet", "--state", "other", "--bins", 10)
    good = arrays(folder / "good")
    (folder / "text").write_text("hello")
    np.savez(folder / "strange.npz", **{**good, "top": good["top"][:, :3]})
    np.savez(folder / "nan.npz", **{**good, "top": good["top"] * np.nan})
    np.savez(folder / "less.npz", **{name: value for name, value in good.items() if name != "hits"})
    np.savez(folder / "about.npz", **{**good, "about": np.frombuffer(b'{"num_classes": 9e99}', np.uint8)})
    np.savez(folder / "empty.npz", **{**good, "about": np.zeros(0, np.uint8)})
    for name, message in {
        "nothing": "does not exist",
        "text": "is not a state written by macc evaluate --state",
        "strange.npz": "this version of macc",
        "nan.npz": "this version of macc",
        "less.npz": "this version of macc",
        "about.npz": "this version of macc",
        "empty.npz": "this version of macc",
        "p.parquet": "is not a state",
    }.items():
        code, out, err = run("merge", "good", name)
        assert (code, out) == (2, ""), name
        assert message in err
        assert len(err.splitlines()) == 1
    code, _, err = run("merge", "good", "other")
    assert code == 2
    assert re.search("cannot merge states of other bins: (15 and 10|10 and 15)", err)


def test_small_parts_give_the_intervals_of_the_whole(tmp_path):
    """Parts of one row each, many of them alike: their groups must differ although each is the
    first of its part.
    """
    probs, labels = sample(120, 2, sharpen=1.0)
    probs = probs.round(1)
    whole = metrics.Calibration(2, intervals=True)
    whole.update(probs, labels)
    paths = [tmp_path / str(i) for i in range(120)]
    for i, path in enumerate(paths):
        part = metrics.Calibration(2, intervals=True)
        part.update(probs[i : i + 1], labels[i : i + 1])
        states.save(part, path)
    one, two = whole.report(), states.merged(paths).report()

    for name in ("accuracy", "nll", "brier", "ece", "sce", "positive_ece"):
        width = one[name].high - one[name].low
        assert two[name].value == pytest.approx(one[name].value), name
        assert two[name].high - two[name].low == pytest.approx(width, rel=0.25), name
    again = states.merged(paths[::-1])
    assert again.report().to_dict() == two.to_dict()


def test_states_that_no_samples_can_have(folder):
    """Any array spoilt in any way: one sentence, or numbers within their range."""
    rng = np.random.default_rng(0)
    probs, labels = sample(60)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    run("evaluate", "p.npz", "--state", "good")
    good = arrays(folder / "good")
    names = sorted(set(good) - {"about"})
    refused = 0
    ways = [
        lambda values: values * 3,
        lambda values: -values,
        lambda values: values + 1,
        lambda values: values * 1e300,
        lambda values: values - 0.5,
        lambda values: np.where(rng.random(values.shape) < 0.01, 1e6, values),
        lambda values: rng.permutation(values.ravel()).reshape(values.shape),
        lambda values: np.zeros_like(values),
    ]
    for name in names:
        for way in ways:
            np.savez(folder / "bad.npz", **{**good, name: way(good[name])})
            code, out, err = run("merge", "bad.npz", "--json", "bad.json")
            if code:
                assert (code, out) == (2, ""), name
                assert len(err.splitlines()) == 1
                refused += 1
                continue
            for metric, row in json.loads((folder / "bad.json").read_text()).items():
                most = {"nll": math.inf, "brier": 2}.get(metric, 1)
                assert (np.array([row["low"], row["value"], row["high"]]) >= 0).all(), (name, metric)
                assert (np.array([row["low"], row["value"], row["high"]]) <= most + 1e-6).all(), (
                    name,
                    metric,
                )
    assert refused > 0.8 * len(names) * len(ways)


@pytest.mark.parametrize("about", [{"num_classes": 10**6}, {"bins": 10**9}, {"bins": 1.0}, {"positive": 7}])
def test_numbers_in_a_state_take_no_memory(folder, about):
    probs, labels = sample(60, 2)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    run("evaluate", "p.npz", "--state", "good")
    good = arrays(folder / "good")
    said = {**json.loads(good["about"].tobytes()), **about}
    np.savez(
        folder / "bad.npz", **{**good, "about": np.frombuffer(json.dumps(said).encode(), dtype=np.uint8)}
    )
    code, _, err = run("merge", "bad.npz")
    assert code == 2
    assert "this version of macc" in err


def test_batches_without_an_entry_above_the_first_bin(folder):
    """As models of many classes give them before they are trained."""
    probs, labels = np.full((20, 30), 1 / 30), np.arange(20)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    code, _, err = run("evaluate", "p.npz", "--state", "s", "--json", "p.json")
    assert code == 0, err
    found = json.loads((folder / "p.json").read_text())

    assert found["sce"]["value"] == pytest.approx(metrics.sce(probs, labels))
    np.testing.assert_allclose(found["classwise_ece"]["value"], metrics.classwise_ece(probs, labels))

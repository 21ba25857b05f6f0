"""``macc calibrate --by`` and ``macc apply --by``: groups from a column, or from a second file."""

import csv
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from helpers.command import run
from macc import posthoc


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two classes on two sites, one of which is otherwise; the second file has a site that the
    first has not.
    """
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, more in (("val", []), ("test", ["z"] * 5)):
        probs = rng.beta(1.5, 1.5, 300)
        site = np.array([*more, *rng.choice(["n", "s"], 300 - len(more))])
        sick = (rng.random(300) < np.where(site == "s", 0.4 * probs, probs)).astype(int)
        with Path(f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["site", "prob", "label"], *zip(site, probs, sick, strict=True)])
        np.savez(f"{name}.npz", probs=probs, labels=sick)
        with Path(f"{name}-sites.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["site"], *([each] for each in site)])


CALIBRATE = [
    "calibrate",
    "--resamples",
    "100",
    "--fit",
    "val.csv",
    "--apply",
    "test.csv",
    "--method",
    "platt",
    "--by",
    "site",
    "-o",
    "out.csv",
]


def test_groups_of_a_column_and_of_a_second_file(files):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = run(*CALIBRATE)
    assert result.code == 0, result.err
    assert "has not seen the group z; the common map is used" in result.err
    assert "gain in NLL, held out" in result.out
    fitted = posthoc.Grouped.load("out.json")
    assert "s" in fitted.slopes
    with Path("out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["site", "prob", "label"]
    probs = np.load("test.npz")["probs"]
    with pytest.warns(UserWarning, match="group z"):
        expected = fitted(np.log(np.stack([1 - probs, probs], 1)), [row["site"] for row in rows])[:, 1]
    np.testing.assert_allclose([float(row["prob"]) for row in rows], expected, rtol=1e-9)

    words = ["apply", "out.json", "test.npz", "--by", "site", "--groups", "test-sites.csv", "-o", "again.npz"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        applied = run(*words)
    assert applied.code == 0, applied.err
    assert "with own maps of" in applied.out
    np.testing.assert_allclose(np.load("again.npz")["probs"], expected, rtol=1e-9)


def test_groups_of_second_files_in_a_fit(files):
    words = [
        "calibrate",
        "--resamples",
        "100",
        "--fit",
        "val.npz",
        "--apply",
        "val.npz",
        "--by",
        "site",
        "--fit-groups",
        "val-sites.csv",
        "-o",
        "arrays.npz",
    ]
    result = run(*words, "--apply-groups", "val-sites.csv")
    assert result.code == 0, result.err
    scores = json.loads(Path("arrays.json").read_text())["scores"]
    assert [score["name"] for score in scores] == ["n", "s"]


def test_refusals(files):
    posthoc.Grouped(posthoc.Temperature(2, 1.5), {}, {}, 1.0, ()).save("out.json")
    for words, said in (
        ("apply out.json test.csv --ignore site -o o.csv", "is of groups; say with --by COLUMN"),
        ("apply out.json test.csv --by place -o o.csv", "no column 'place'"),
        ("calibrate --fit val.npz --apply test.npz --fit-groups val-sites.csv", "need --by COLUMN"),
        ("calibrate --fit val.npz --apply test.npz --by site", "no column 'site'"),
    ):
        result = run(*words.split())
        assert result.code == 2, words
        assert said in result.err
        assert not Path("o.csv").exists()

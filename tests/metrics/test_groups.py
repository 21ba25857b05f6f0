"""Groups: what each shows, intervals for all at once, and the test that all are equally
calibrated.
"""

import csv
import json

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

import macc
from helpers.command import run
from macc import metrics
from macc.metrics.groups import equal_calibration


def draw(rows, seed, *, worse=None, factor=1.0):
    """Probabilities of two classes, outcomes and groups; one group may be worse, and all may be off
    by a factor.
    """
    rng = np.random.default_rng(seed)
    probs = rng.beta(2, 2, rows)
    groups = rng.choice(3, rows, p=[0.6, 0.3, 0.1])
    truth = factor * probs
    truth = np.where(groups == worse, 0.5 * truth, truth)
    return probs, (rng.random(rows) < truth).astype(float), groups


@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_equal_groups_are_rejected_as_rarely_as_promised(factor):
    """Also where all are miscalibrated alike: of 200 samples about 10 have a p-value of at most
    0.05.
    """
    values = [
        equal_calibration(*draw(600, seed, factor=factor), simulations=99, seed=seed) for seed in range(200)
    ]
    rejected = sum(p <= 0.05 for p in values)

    # 200 draws of probability 0.05 exceed 20 with probability 0.001.
    assert rejected <= 20
    assert 0.35 < np.mean(values) < 0.65


def test_a_worse_group_is_found():
    probs, right, groups = draw(3000, 0, worse=1)
    names = np.array(["A", "B", "C"])[groups]
    found = metrics.evaluate_groups(
        probs, right.astype(int), names, metrics=["ece", "accuracy"], resamples=200
    )

    assert next(iter(found.groups)) == "B"
    assert found.p_value <= 0.01
    assert "The groups are not equally calibrated" in str(found)
    assert found.groups["B"]["positive_ece"].low > 0
    assert found.groups["A"]["positive_ece"].low == 0


def test_each_group_has_the_report_of_its_samples():
    """At a level that holds for all groups at once."""
    probs, right, groups = draw(900, 1)
    labels = right.astype(int)
    found = metrics.evaluate_groups(probs, labels, groups, resamples=100, confidence=0.9)
    for name, report in found.groups.items():
        kept = groups == int(name)
        alone = macc.evaluate(probs[kept], labels[kept], resamples=100, confidence=1 - 0.1 / 3)
        assert report.num_samples == kept.sum()
        for metric, estimate in alone.metrics.items():
            assert report[metric].value == pytest.approx(estimate.value, nan_ok=True)
            assert (report[metric].low, report[metric].high) == pytest.approx(
                (estimate.low, estimate.high), nan_ok=True
            )
    assert found.small == [name for name in found.groups if (groups == int(name)).sum() < 100]
    assert "below 100" in str(found)
    assert sum(entry["samples"] for entry in found.to_dict()["groups"].values()) == 900


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a"] * 10, "all samples are of one group, 'a'"),
        (["a"] * 9 + ["b"], "the group 'b' has one sample"),
        (["a"] * 4, "one group for each of 10 samples"),
    ],
)
def test_groups_that_say_nothing_are_refused(groups, message):
    with pytest.raises(ValueError, match=message):
        metrics.evaluate_groups(np.linspace(0.1, 0.9, 10), np.arange(10) % 2, groups)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    probs, right, groups = draw(1500, 2, worse=1)
    site, sex = np.array(["A", "B", "B"])[groups], np.where(np.arange(1500) % 2, "f", "m")
    labels = right.astype(int)
    columns = {"site": site, "sex": sex, "prob": probs, "label": labels}
    with (tmp_path / "p.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    parquet.write_table(arrow.table(columns), "p.parquet")
    np.savez("p.npz", probs=probs, labels=labels, site=site, sex=sex)
    np.savez("plain.npz", probs=probs, labels=labels)
    return tmp_path


def test_groups_come_from_columns_or_from_a_second_file(files):
    words = ("--by", "site", "--by", "sex", "--metrics", "ece", "--resamples", 100)
    outputs = [
        run("evaluate", *file, *words)
        for file in (["p.csv"], ["p.parquet"], ["p.npz"], ["plain.npz", "--groups", "p.csv"])
    ]

    assert [each.code for each in outputs] == [0] * 4, outputs[0].err
    assert len({each.out for each in outputs}) == 1
    assert "B, f" in outputs[0].out
    run("evaluate", "p.csv", "--by", "site", "--ignore", "sex", "--metrics", "ece", "--json", "n.json")
    assert list(json.loads((files / "n.json").read_text())["groups"]) == ["B", "A"]


def test_check_fails_on_the_worst_group(files):
    words = ("p.csv", "--ignore", "sex", "--max-ece")
    assert run("check", *words, 0.2, "--ignore", "site").code == 0
    failed = run("check", *words, 0.2, "--by", "site")
    kept = run("check", *words, 0.5, "--by", "site")

    assert failed.code == 1
    assert failed.out.splitlines()[-1] == "1 of 2 groups do not keep the limits, B first of all"
    assert (kept.code, kept.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("p.csv", "--by", "town"), "p.csv has no column 'town'"),
        (("p.parquet", "--by", "town"), "p.parquet has no column 'town'"),
        (("p.npz", "--by", "town"), "p.npz has no column 'town'"),
        (("p.csv", "--groups", "p.parquet"), "needs --by COLUMN"),
        (("p.csv", "--by", "site", "--ignore", "sex", "--state", "s"), "leave --state and --plot out"),
        (("p.csv", "--by", "site", "--ignore", "sex", "--max-rows-in-memory", 10), "needs all in memory"),
        (("plain.npz", "--by", "site", "--groups", "short.csv"), "has 2 rows and plain.npz has 1500"),
        (("plain.npz", "--by", "site", "--groups", "gap.csv"), "the sample 2 has no group"),
    ],
)
def test_what_cannot_be_grouped_is_refused(files, words, message):
    (files / "short.csv").write_text("site\nA\nB\n")
    (files / "gap.csv").write_text("site,x\nA,1\n,1\n")
    ended = run("evaluate", *words)

    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1

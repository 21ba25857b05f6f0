"""Files of independent labels: `--multi-label` of `evaluate`, `check` and `threshold`."""

import json
import warnings
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet
from scipy.special import expit

from helpers.command import run
from macc import metrics, posthoc

NAMES = ["sea", "sky", "people"]


def drawn(seed, count=600):
    """Three labels; the probability of the last is too close to 0 and 1."""
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(count, 3))
    return logits * [1, 1, 2], (random.random((count, 3)) < expit(logits)).astype(int)


def write_csv(path, probs, labels):
    """Labels in another order than probabilities, which their names pair."""
    header = ["id", *(f"prob_{name}" for name in NAMES), *(f"label_{name}" for name in reversed(NAMES))]
    rows = [
        [str(i), *map(str, p), *map(str, y[::-1])] for i, (p, y) in enumerate(zip(probs, labels, strict=True))
    ]
    Path(path).write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("val", 0), ("test", 1)):
        logits, labels = drawn(seed)
        np.savez(f"{name}.npz", logits=logits, labels=labels.astype(np.float32), classes=NAMES)
    logits, labels = drawn(0)
    probs = expit(logits)
    np.save("probs.npy", probs)
    np.save("labels.npy", labels)
    write_csv("val.csv", probs, labels)
    columns = {f"p_{name}": probs[:, i] for i, name in enumerate(NAMES)}
    columns |= {f"y_{name}": labels[:, i] > 0 for i, name in enumerate(NAMES)}
    parquet.write_table(arrow.table(columns), "val.parquet")
    parquet.write_table(arrow.table({"probs": probs.tolist(), "labels": labels.tolist()}), "lists.parquet")


@pytest.mark.parametrize(
    "words",
    [
        ["val.npz"],
        ["val.csv"],
        ["val.parquet", "--class-columns", "p_*", "--label-column", "y_*"],
        ["val.csv", "--class-columns", "prob_*", "--label-column", "label_sea,label_sky,label_people"],
        ["lists.parquet"],
        ["probs.npy", "labels.npy"],
    ],
    ids=" ".join,
)
def test_every_form_gives_the_report_of_the_arrays(words):
    logits, labels = drawn(0)
    ended = run("evaluate", *words, "--multi-label", "--json", "found.json")
    assert ended.code == 0, ended.err
    found = json.loads(Path("found.json").read_text())
    expected = metrics.evaluate_labels(expit(logits), labels)
    rows = list(found["labels"].values())
    for metric in metrics.labels.metrics_of_labels():
        assert found["mean"][metric]["low"] == pytest.approx(expected[metric].low, abs=1e-6)
        assert [row[metric]["value"] for row in rows] == pytest.approx(
            [row.metrics[metric].value for row in expected.labels], abs=1e-6
        )
    assert "mean over labels" in ended.out
    if words == ["val.csv"]:
        assert list(found["labels"]) == NAMES
        assert "Scores from prob_sea, prob_sky, prob_people; labels from label_sea" in ended.out


def test_every_label_has_to_keep_a_limit():
    assert run("check", "val.npz", "--multi-label", "--max-ece", 0.2, "--max-nll", 2).code == 0
    ended = run("check", "val.npz", "--multi-label", "--max-ece", 0.08)
    assert ended.code == 1
    lines = ended.out.splitlines()
    assert lines[0].startswith("people: ECE 11.8 % is above")
    assert lines[-1].endswith("labels do not keep the limits, people first of all")
    assert (
        "--max-sce is not measured of labels" in run("check", "val.npz", "--multi-label", "--max-sce", 1).err
    )


def test_thresholds_of_labels_and_what_they_do_on_others():
    ended = run("threshold", "val.npz", "--multi-label", "--check", "test.npz", "--json", "found.json")
    assert ended.code == 0, ended.err
    logits, labels = drawn(0)
    expected = posthoc.label_thresholds(expit(logits), labels, names=NAMES)
    assert str(expected) in ended.out
    others, truth = drawn(1)
    given = expit(others) >= expected.thresholds
    seen = json.loads(Path("found.json").read_text())["check"]["labels"]
    assert [row["wrong"] for row in seen] == (given & (truth == 0)).sum(0).tolist()
    assert [row["recall"] for row in seen] == pytest.approx((given & (truth == 1)).sum(0) / truth.sum(0))

    careful = run("threshold", "val.npz", "--multi-label", "--risk", 0.3, "--check", "test.npz")
    assert careful.code == 0, careful.out
    assert (
        "At most 30.0 % of those that are given a label do not have it: the thresholds held." in careful.out
    )
    logits[:, 0] *= -1
    np.savez("turned.npz", logits=logits, labels=labels, classes=NAMES)
    broken = run("threshold", "val.npz", "--multi-label", "--risk", 0.3, "--check", "turned.npz")
    assert broken.code == 1
    assert "More than 30.0 % of those that are given the label do not have it: sea." in broken.out
    # No threshold promises a risk of 1 in 1000 from 600 samples.
    assert run("threshold", "val.npz", "--multi-label", "--risk", 0.001).code == 1


def test_missing_labels_are_refused_or_left_out():
    logits, labels = drawn(0, 40)
    given = labels.astype(float)
    given[7, 1] = np.nan
    np.savez("gaps.npz", logits=logits, labels=given)
    assert (
        "gaps.npz, row 8, label 1: there is no label; --drop-missing"
        in run("evaluate", "gaps.npz", "--multi-label").err
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        ended = run("evaluate", "gaps.npz", "--multi-label", "--drop-missing")
    assert ended.err == "macc: warning: gaps.npz: 1 of 40 samples lack a label and were left out\n"
    assert "39 samples, 3 labels" in ended.out


def test_what_is_refused():
    def refusal(*words):
        ended = run("evaluate", *words)
        assert ended.code == 2
        return ended.err

    logits, labels = drawn(0, 40)
    assert "macc evaluate --multi-label measures" in refusal("val.npz")
    assert "--multi-label has no use for --by" in refusal("val.csv", "--multi-label", "--by", "id")
    assert "has no column 'logit_*' for --class-columns" in refusal("val.csv", "--multi-label", "--logits")
    assert "2 columns of scores (prob_sea, prob_sky) and 3 of labels" in refusal(
        "val.csv", "--multi-label", "--class-columns", "prob_sea,prob_sky"
    )
    text = Path("val.csv").read_text()
    Path("odd.csv").write_text(text.replace("label_sky", "label_star"))
    assert "has the column 'prob_sky' and no 'label_sky'" in refusal("odd.csv", "--multi-label")
    assert "has more than 5 rows" in refusal("val.csv", "--multi-label", "--max-rows-in-memory", 5)
    write_csv("logits.csv", logits, labels)
    assert "logits.csv, line 2: the probability of 'sky' must be in [0, 1]" in refusal(
        "logits.csv", "--multi-label"
    )
    np.savez("two.npz", logits=logits, labels=labels + 1)
    assert "labels must lie in [0, 1] for 2 classes, got 2" in refusal("two.npz", "--multi-label")
    np.savez("one.npz", logits=logits, labels=labels[:, 0])
    assert "leave --multi-label out where a sample has one class" in refusal("one.npz", "--multi-label")
    assert "macc reads .npz" in refusal(__file__, "--multi-label")

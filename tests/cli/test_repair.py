"""``macc apply``: a calibrator of yesterday on the predictions of today, in any format, with or
without labels.
"""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from helpers.command import run
from macc import posthoc
from macc.predictions import open_source

NAMES = ["cat", "dog", "owl"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Logits in every format, with names of samples and, in some, labels; and a calibrator of
    them.
    """
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    truth = 2 * rng.normal(size=(60, 3))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    logits = 2 * truth
    posthoc.VectorScaling.fit(logits, labels).save(tmp_path / "c.json")
    np.savez("p.npz", logits=logits, labels=labels, id=np.arange(60), more=np.zeros((60, 2)))
    np.savez("bare.npz", logits=logits)
    np.save("p.npy", logits)
    np.save("y.npy", labels)
    with Path("p.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "cat", "dog", "note", "owl", "label"])
        for i, (row, label) in enumerate(zip(logits.tolist(), labels.tolist(), strict=True)):
            writer.writerow([f"s{i}", row[0], row[1], f"a, {i}", row[2], NAMES[label]])
    with Path("bare.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        writer.writerows(logits.tolist())
    return logits, labels


def macc(*words):
    """What a command that ends well prints."""
    result = run(*words)
    assert result.code == 0, result.err
    return result.out


def table(name):
    """The columns of a .csv or .parquet."""
    if name.endswith(".parquet"):
        from pyarrow import parquet

        return parquet.read_table(name).to_pydict()
    with Path(name).open(newline="") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def probs_in(name, classes=NAMES):
    if name.endswith(".npz"):
        return np.load(name)["probs"]
    return np.array([table(name)[each] for each in classes], dtype=float).T


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
def test_a_table_keeps_its_columns(files, kind):
    logits, labels = files
    macc("apply", "c.json", "p.csv", "--logits", "--ignore", "id,note", "-o", f"out.{kind}")
    expected = posthoc.load("c.json")(logits)

    np.testing.assert_allclose(probs_in(f"out.{kind}"), expected, rtol=1e-12)
    if kind == "npz":
        found = np.load("out.npz")
        assert found["classes"].tolist() == NAMES
        assert found["id"][:2].tolist() == ["s0", "s1"]
        assert found["labels"].tolist() == [NAMES[label] for label in labels]
    else:
        found = table(f"out.{kind}")
        assert list(found) == ["id", "cat", "dog", "note", "owl", "label"]
        assert found["note"][:2] == ["a, 0", "a, 1"]
        assert found["label"] == [NAMES[label] for label in labels]
    options = () if kind == "npz" else ("--ignore", "id,note")
    assert "60 samples, 3 classes" in macc("evaluate", f"out.{kind}", *options)


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
@pytest.mark.parametrize("given", ["bare.npz", "bare.csv", "p.npy"])
def test_labels_are_not_needed(files, given, kind):
    logits, _ = files
    options = [] if given.endswith(".npz") else ["--logits"]
    macc("apply", "c.json", given, *options, "-o", f"out.{kind}")
    classes = NAMES if given == "bare.csv" else ["0", "1", "2"]

    np.testing.assert_allclose(probs_in(f"out.{kind}", classes), posthoc.load("c.json")(logits), rtol=1e-12)


def test_arrays_become_columns_and_stay_arrays(files):
    _, labels = files
    macc("apply", "c.json", "p.npz", "-o", "out.npz")
    macc("apply", "c.json", "p.npz", "-o", "out.csv")
    macc("apply", "c.json", "p.npy", "y.npy", "--logits", "-o", "paired.parquet")
    found = np.load("out.npz")

    assert set(found) == {"probs", "labels", "id", "more"}
    assert list(table("out.csv")) == ["0", "1", "2", "label", "id"]
    assert table("paired.parquet")["label"] == labels.tolist()
    assert "60 samples" in macc("evaluate", "out.csv", "--ignore", "id")


def test_lists_and_two_classes(files, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    logits, labels = files
    parquet.write_table(arrow.table({"id": labels, "logits": logits.tolist()}), "lists.parquet")
    macc("apply", "c.json", "lists.parquet", "-o", "lists.csv")
    assert list(table("lists.csv")) == ["id", "0", "1", "2"]

    margin = logits[:, 1] - logits[:, 0]
    fitted = posthoc.Temperature.fit(margin, labels % 2)
    fitted.save("two.json")
    with Path("two.csv").open("w") as file:
        file.writelines(["id,logit\n", *(f"{i},{value!r}\n" for i, value in enumerate(margin.tolist()))])
    macc("apply", "two.json", "two.csv", "--logits", "--ignore", "id", "-o", "out.csv")
    assert list(table("out.csv")) == ["id", "prob"]
    np.testing.assert_allclose(np.array(table("out.csv")["prob"], dtype=float), fitted(margin), rtol=1e-12)


def test_calibrate_writes_every_format(files):
    for kind in ("csv", "parquet"):
        macc(
            "calibrate",
            "--resamples",
            "100",
            "--fit",
            "p.csv",
            "--apply",
            "p.csv",
            "--logits",
            "--ignore",
            "id,note",
            "-o",
            f"o.{kind}",
        )
        assert list(table(f"o.{kind}")) == ["id", "cat", "dog", "note", "owl", "label"]
    macc("apply", "o.json", "p.csv", "--logits", "--ignore", "id,note", "-o", "again.csv")
    assert table("again.csv") == table("o.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["c.json", "four.npy", "--logits", "-o", "x.csv"],
            "four.npy has 4 classes, and the VectorScaling was fitted to 3",
        ),
        (["p.csv", "p.npz", "-o", "x.csv"], "p.csv is not a calibrator"),
        (["p.npz", "p.npz", "-o", "x.csv"], "p.npz is not a calibrator: it is no text"),
        (["c.json", "p.npz", "-o", "x.txt"], "x.txt: results are written as"),
        (["c.json", "p.npz", "-o", "p.npz"], "p.npz would overwrite"),
        (["c.json", "holed.csv", "--logits", "-o", "x.csv"], "holed.csv, line 3: .*nan"),
        (
            ["c.json", "p.csv", "--logits", "-o", "x.csv"],
            "has 5 classes, and .* fitted to 3; .*--ignore columns that",
        ),
    ],
)
def test_mistakes_leave_nothing_behind(files, tmp_path, arguments, message):
    np.save("four.npy", np.zeros((5, 4)))
    (tmp_path / "holed.csv").write_text("cat,dog,owl\n1,2,3\n1,nan,3\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = run("apply", *arguments)

    assert result.code == 2
    assert re.search(message, result.err)
    assert result.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_rows_are_read_in_batches(files, monkeypatch):
    monkeypatch.setattr("macc.predictions.source._MOST_ROWS", 7)
    parts = list(open_source(Path("bare.csv"), logits=True, labelled=False).rows())
    assert [len(part.scores) for part in parts] == [7] * 8 + [4]
    macc("apply", "c.json", "bare.csv", "--logits", "-o", "out.parquet")
    assert len(table("out.parquet")["cat"]) == 60


def test_classes_in_another_order_are_refused(files, tmp_path):
    """A map of its own for each class would repair the wrong ones."""
    (tmp_path / "val.csv").write_text(
        "cat,dog,owl,label\n" + "2,0,1,cat\n0,2,1,dog\n1,0,2,owl\n2,1,0,dog\n" * 10
    )
    (tmp_path / "other.csv").write_text("owl,cat,dog\n1,2,0\n1,0,2\n")
    macc(
        "calibrate",
        "--resamples",
        "100",
        "--fit",
        "val.csv",
        "--apply",
        "val.csv",
        "--logits",
        "--method",
        "vector-scaling",
        "-o",
        "v.npz",
    )
    result = run("apply", "v.json", "other.csv", "--logits", "-o", "x.csv")

    assert result.code == 2
    assert "cat, dog, owl in the fit and owl, cat, dog where it is applied" in result.err
    assert not (tmp_path / "x.csv").exists()
    macc("apply", "v.json", "other.csv", "--logits", "--class-columns", "cat,dog,owl", "-o", "x.csv")

"""Files read in batches: the same values as in memory, and bad files."""

import json
import sys

import numpy as np
import pytest

from helpers.command import run
from helpers.predictions import sharpened as sample
from helpers.predictions import write_csv, write_parquet
from macc.metrics.streaming import check_streamed
from macc.predictions import open_source
from macc.predictions import source as reading_source

arrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

NAMES = ["cat", "dog", "owl"]


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(reading_source, "_MOST_ROWS", 97)


@pytest.mark.parametrize("kind", ["parquet", "row groups", "csv", "names", "list", "logits"])
def test_streamed_values_are_those_in_memory(folder, small_batches, kind):
    probs, labels = sample(1000)
    if kind == "csv":
        file = "p.csv"
        write_csv(folder / file, probs, labels, ["label", *NAMES])
    elif kind == "names":
        file = "p.csv"
        write_csv(folder / file, probs, np.array(NAMES)[labels], ["label", *NAMES])
    elif kind in ("list", "logits"):
        file, key = "p.parquet", "probs" if kind == "list" else "logits"
        rows = probs if kind == "list" else np.log(probs) + 5
        parquet.write_table(arrow.table({key: list(rows), "label": labels}), folder / file)
    else:
        file = "p.parquet"
        write_parquet(folder / file, probs, labels, row_group_size=130 if kind == "row groups" else None)
    whole = run("evaluate", file, "--json", "whole.json")
    parts = run("evaluate", file, "--json", "parts.json", "--max-rows-in-memory", 999)
    assert (whole[0], parts[0]) == (0, 0), whole[2] + parts[2]
    exact, streamed = (json.loads((folder / f"{name}.json").read_text()) for name in ("whole", "parts"))

    assert set(streamed) == {*check_streamed(None, 3), "classwise_ece"}
    for name in check_streamed(None, 3):
        tolerance = 1e-3 if name == "auroc" else 1e-9
        assert streamed[name]["value"] == pytest.approx(exact[name]["value"], abs=tolerance), name
    np.testing.assert_allclose(streamed["classwise_ece"]["value"], exact["classwise_ece"]["value"], atol=1e-9)
    assert "Left out, because they need all samples in memory: " in parts[1]
    assert "smooth_ece" in parts[1].split("Left out")[1]
    assert "AUROC from" in parts[1]
    if kind != "list" and kind != "logits":
        assert "owl" in parts[1]


def test_check_streams(folder, small_batches):
    probs, labels = sample(3000)
    write_parquet(folder / "p.parquet", probs, labels)
    options = "--max-rows-in-memory", 100
    assert run("check", "p.parquet", "--max-ece", 0.5, *options)[0] == 0
    code, out, _ = run("check", "p.parquet", "--max-ece", 0.01, *options)
    assert code == 1
    assert "above the limit" in out
    code, _, err = run("check", "p.parquet", "--max-smooth-ece", 0.1, *options)
    assert code == 2
    assert "smooth_ece needs all samples in memory; raise --max-rows-in-memory" in err


def test_compare_streams(folder, small_batches):
    a, labels = sample(4000)
    b, _ = sample(4000, sharpen=1.0)
    write_parquet(folder / "a.parquet", a, labels, row_group_size=150)
    write_csv(folder / "b.csv", b, labels, ["label", *NAMES])
    options = "--json", "parts.json", "--max-rows-in-memory", 100
    code, out, err = run("compare", "a.parquet", "b.csv", *options)
    assert code == 0, err
    assert run("compare", "a.parquet", "b.csv", "--json", "whole.json")[0] == 0
    one, two = (json.loads((folder / f"{name}.json").read_text()) for name in ("parts", "whole"))

    for name, row in one.items():
        assert row["value"] == pytest.approx(two[name]["value"], abs=1e-9), name
        if name == "mce":
            assert row["low"] is two[name]["low"] is None
            continue
        width = two[name]["high"] - two[name]["low"]
        assert row["low"] == pytest.approx(two[name]["low"], abs=0.2 * width), name
        assert row["high"] == pytest.approx(two[name]["high"], abs=0.2 * width), name
    assert {"accuracy", "nll", "ece", "sce"} <= set(one)
    assert "B better" in out
    assert "Left out" in out
    write_csv(folder / "c.csv", b, (labels + (np.arange(4000) == 1234)) % 3, ["label", *NAMES])
    code, _, err = run("compare", "a.parquet", "c.csv", *options)
    assert code == 2
    assert "a.parquet, row 1235, and c.csv, line 1236, disagree on labels" in err


def test_bad_rows_are_named(folder, small_batches):
    probs, labels = sample(500)
    probs[303, 1] = np.nan
    write_parquet(folder / "p.parquet", probs, labels)
    for options in ([], ["--max-rows-in-memory", 100]):
        code, out, err = run("evaluate", "p.parquet", *options)
        assert (code, out) == (2, "")
        assert err.startswith("macc: p.parquet, row 304: the probability of 'dog' is nan;")
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_bad_parquet_is_one_sentence(folder, streamed):
    probs, labels = sample(50)
    write_parquet(folder / "good.parquet", probs, labels)
    content = (folder / "good.parquet").read_bytes()

    def saved(name, **columns):
        parquet.write_table(arrow.table(columns), folder / name)

    (folder / "cut.parquet").write_bytes(content[: len(content) // 2])
    (folder / "text.parquet").write_text("label,cat\n0,1\n")
    spoilt = bytearray(content)
    spoilt[4:400] = b"\xff" * 396
    (folder / "spoilt.parquet").write_bytes(spoilt)
    saved("unlabelled.parquet", cat=probs[:, 0], dog=probs[:, 1])
    saved("text column.parquet", cat=["a"] * 50, dog=probs[:, 1], label=labels)
    saved("one.parquet", cat=probs[:, 0], label=labels)
    saved("none.parquet", cat=probs[:0, 0], dog=probs[:0, 1], label=labels[:0])
    saved("both.parquet", probs=list(probs), logits=list(probs), label=labels)
    saved("ragged.parquet", probs=[row[: 3 - (i == 7)] for i, row in enumerate(probs)], label=labels)
    saved("strange label.parquet", cat=probs[:, 0], dog=1 - probs[:, 0], label=["wolf"] * 50)
    saved("float label.parquet", cat=probs[:, 0], dog=1 - probs[:, 0], label=labels + 0.5)
    messages = {
        "cut.parquet": "is not a readable .parquet",
        "text.parquet": "is not a readable .parquet",
        "spoilt.parquet": "spoilt.parquet",
        "unlabelled.parquet": "has no column 'label'",
        "text column.parquet": "the column 'cat' holds string, not numbers",
        "one.parquet": "for two classes call it 'prob'",
        "none.parquet": "has no samples",
        "both.parquet": "keep the one to be measured",
        "ragged.parquet": "not all rows have the 3 numbers",
        "strange label.parquet": "row 1: the label 'wolf' is not the name of a class nor a class index",
        "float label.parquet": "is not the name of a class nor a class index",
    }
    for name, message in messages.items():
        code, out, err = run("evaluate", name, *(["--max-rows-in-memory", 1] if streamed else []))
        assert (code, out) == (2, ""), name
        assert message in err, name
        assert len(err.splitlines()) == 1, name


def test_without_pyarrow(folder, monkeypatch):
    probs, labels = sample(50)
    write_parquet(folder / "p.parquet", probs, labels)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = run("evaluate", "p.parquet")
    assert code == 2
    assert "needs pyarrow; install it with pip install 'macc-torch[parquet]'" in err


def test_two_classes_and_label_columns(folder):
    probs, labels = sample(300, 2)
    parquet.write_table(arrow.table({"prob": probs[:, 1], "truth": labels}), folder / "p.parquet")
    whole = run("evaluate", "p.parquet", "--label-column", "truth")
    parts = run("evaluate", "p.parquet", "--label-column", "truth", "--max-rows-in-memory", 10)
    assert (whole[0], parts[0]) == (0, 0)
    assert "300 samples, 2 classes" in parts[1]


def test_empty_lines_of_a_csv_are_no_samples(tmp_path):
    (tmp_path / "a.csv").write_text("label,a,b\n0,0.9,0.1\n1,0.2,0.8\n")
    (tmp_path / "b.csv").write_text("label,a,b\n0,0.9,0.1\n\n1,0.2,0.8\n\n")

    assert [open_source(tmp_path / name).num_rows for name in ("a.csv", "b.csv")] == [2, 2]


def test_the_same_table_gives_the_same_labels_as_csv_and_as_parquet(tmp_path):
    """Columns named by numbers in another order: labels are what the option says, in both."""
    table = arrow.table({"1": [0.9, 0.2], "0": [0.1, 0.8], "label": [1, 0]})
    parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("1,0,label\n0.9,0.1,1\n0.2,0.8,0\n")
    for labels_are, labels in (("names", [0, 1]), ("indices", [1, 0])):
        for kind in ("csv", "parquet"):
            source = open_source(tmp_path / f"a.{kind}", labels_are=labels_are)
            assert source.load().labels.tolist() == labels


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_the_index_of_a_data_frame_is_no_class(tmp_path, name):
    (tmp_path / "a.csv").write_text(f"{name},a,b,label\n0,0.9,0.1,a\n1,0.2,0.8,b\n")
    with pytest.raises(ValueError, match="looks like the index of a data frame .* index=False"):
        open_source(tmp_path / "a.csv", logits=True)

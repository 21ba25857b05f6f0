"""``macc evaluate | check | compare``: what a person types, sees, and is told when a file is
bad.
"""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import macc
from helpers.command import run
from helpers.predictions import npy_bytes, sample, write_csv, zipped
from helpers.stored import arrays
from macc import metrics
from macc.cli import app


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def saved(path):
    return {name: row["value"] for name, row in json.loads(path.read_text()).items()}


def test_all_kinds_of_file_give_the_same_numbers(folder):
    probs, labels = sample(120, 3)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    np.savez_compressed(folder / "l.npz", logits=np.log(probs), labels=labels)
    np.save(folder / "p.npy", probs)
    np.save(folder / "l.npy", np.log(probs))
    np.save(folder / "y.npy", labels)
    write_csv(folder / "p.csv", probs, labels, ["label", "cat", "dog", "owl"])
    write_csv(
        folder / "n.csv", probs, np.array(["cat", "dog", "owl"])[labels], ["label", "cat", "dog", "owl"]
    )
    write_csv(folder / "l.csv", np.log(probs), labels, ["truth", "cat", "dog", "owl"])
    commands = [
        ["p.npz"],
        ["l.npz"],
        ["p.npy", "y.npy"],
        ["l.npy", "y.npy", "--logits"],
        ["p.csv"],
        ["n.csv"],
        ["l.csv", "--logits", "--label-column", "truth"],
    ]
    for command in commands:
        code, out, err = run("evaluate", *command, "--json", "out.json")
        assert (code, err) == (0, ""), command
        assert out.startswith("120 samples, 3 classes\n"), command
        assert saved(folder / "out.json")["ece"] == pytest.approx(metrics.ece(probs, labels), rel=1e-9)
        assert ("owl" in out) == command[0].endswith(".csv")


@pytest.mark.parametrize("kind", ["memory", "streamed", "state"])
def test_only_the_metrics_asked_for(folder, kind):
    probs, labels = sample(300, 3)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    write_csv(folder / "p.csv", probs, labels, ["label", "cat", "dog", "owl"])
    more = {"memory": [], "streamed": ["--max-rows-in-memory", 100], "state": ["--state", "s"]}[kind]
    written = []
    for words in (["--metrics", "ece, nll"], ["--metrics", "nll", "--metrics", "ece", "--resamples", 200]):
        code, out, err = run("evaluate", "p.csv", "--json", "out.json", *words, *more)
        assert (code, err) == (0, "")
        assert "Left out" not in out
        written.append(json.loads((folder / "out.json").read_text()))
        assert list(written[-1]) == ["nll", "ece"]
    assert written[0]["nll"]["value"] == written[1]["nll"]["value"]
    assert written[0]["nll"]["low"] != written[1]["nll"]["low"]
    for words, message in {
        ("--metrics", "ecc"): "no metric is called 'ecc'; did you mean 'ece'",
        ("--resamples", 10): "resamples must be an integer of at least 100, got 10",
    }.items():
        code, out, err = run("evaluate", "p.csv", *words, *more)
        assert (code, out) == (2, "")
        assert message in err
    if kind != "memory":
        code, _, err = run("evaluate", "p.csv", "--metrics", "nll,aurc", *more)
        assert code == 2
        assert "aurc needs all samples in memory" in err


@pytest.mark.parametrize("most", [1000, 100])
def test_only_the_differences_asked_for(folder, most):
    probs, labels = sample(300, 3)
    for name, values in (("a", probs), ("b", probs**2 / (probs**2).sum(1, keepdims=True))):
        write_csv(folder / f"{name}.csv", values, labels, ["label", "cat", "dog", "owl"])
    options = "--json", "out.json", "--resamples", 200, "--max-rows-in-memory", most
    code, out, err = run("compare", "a.csv", "b.csv", "--metrics", "brier,nll", *options)
    assert (code, err) == (0, "")
    assert list(json.loads((folder / "out.json").read_text())) == ["nll", "brier"]
    assert "corrected for the 2 metrics shown" in out
    code, _, err = run("compare", "a.csv", "b.csv", "--metrics", "auroc", *options)
    assert code == (0 if most == 1000 else 2)
    assert most == 1000 or "auroc of two models is compared in memory only" in err


def test_two_classes_in_one_column(folder):
    p, labels = np.array([0.1, 0.7, 0.8, 0.4]), np.array([0, 1, 0, 1])
    write_csv(folder / "two.csv", p[:, None], labels, ["label", "prob"])

    assert run("evaluate", "two.csv", "--json", "out.json")[0] == 0
    assert saved(folder / "out.json")["ece"] == pytest.approx(metrics.ece(p, labels))


def test_rows_are_normalised_on_request(folder):
    probs, labels = sample(50, 3)
    np.savez(folder / "p.npz", probs=probs * 2, labels=labels)

    code, _, err = run("evaluate", "p.npz")
    assert code == 2
    assert (
        "p.npz, row 1: the probabilities sum to 2, not 1; rename the key to 'logits' if these are logits, or add --normalise"
        in err
    )
    assert run("evaluate", "p.npz", "--normalise", "--json", "out.json")[0] == 0
    assert saved(folder / "out.json")["sce"] == pytest.approx(metrics.sce(probs, labels))


def test_the_plot_is_written_in_the_format_of_its_name(folder):
    probs, labels = sample(80, 3)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    for name, start in (("d.png", b"\x89PNG"), ("d.svg", b"<?xml"), ("d.pdf", b"%PDF")):
        assert run("evaluate", "p.npz", "--plot", name)[0] == 0
        assert (folder / name).read_bytes().startswith(start)
    code, _, err = run("evaluate", "p.npz", "--plot", "d.xyz")
    assert (code, err) == (2, "macc: d.xyz: a diagram is written as .png, .pdf or .svg\n")


def test_outputs_appear_whole_or_not_at_all(folder, monkeypatch):
    probs, labels = sample(40, 3)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    (folder / "out.json").write_text("before")
    before = sorted(folder.iterdir())

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = run("evaluate", "p.npz", "--json", "out.json")
    assert (code, err) == (2, "macc: out.json cannot be written: No space left on device\n")
    assert (folder / "out.json").read_text() == "before"
    assert sorted(folder.iterdir()) == before


def test_outputs_in_bad_places_are_refused(folder):
    probs, labels = sample(40, 3)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    (folder / "sub").mkdir()

    assert run("evaluate", "p.npz", "--json", "sub")[::2] == (
        2,
        "macc: sub is a folder; name a file to write\n",
    )
    assert "the folder nowhere does not exist" in run("evaluate", "p.npz", "--json", "nowhere/out.json")[2]


def over_confident(folder, n=3000):
    probs, labels = sample(n, 4, 2.0)
    sharp = probs**3 / (probs**3).sum(1, keepdims=True)
    np.savez(folder / "sharp.npz", probs=sharp, labels=labels)
    np.savez(folder / "good.npz", probs=probs, labels=labels)


def test_check_keeps_limits_by_the_upper_bound(folder):
    over_confident(folder)
    ece = macc.evaluate(*arrays(folder / "good.npz").values(), metrics=["ece"])["ece"]

    code, out, err = run("check", "good.npz", "--max-ece", ece.high + 0.001, "--max-nll", 5)
    assert (code, err) == (0, "")
    assert "is within the limit" in out.splitlines()[0]
    code, out, _ = run("check", "good.npz", "--max-ece", (ece.value + ece.high) / 2)
    assert code == 1
    assert out.startswith("too few samples to tell: ECE ")
    assert len(out.splitlines()) == 1
    code, out, _ = run("check", "sharp.npz", "--max-ece", "0.02", "--max-sce", "0.9")
    assert code == 1
    assert out.splitlines()[-1].startswith("ECE ")
    assert "is above the limit of 2 %" in out
    assert out.splitlines()[0].startswith("SCE")


def test_a_higher_confidence_is_harder_to_satisfy(folder):
    over_confident(folder)
    reports = [
        macc.evaluate(*arrays(folder / "good.npz").values(), metrics=["ece"], confidence=c)["ece"]
        for c in (0.5, 0.99)
    ]
    limit = (reports[0].high + reports[1].high) / 2

    assert run("check", "good.npz", "--max-ece", limit, "--confidence", "0.5")[0] == 0
    assert run("check", "good.npz", "--max-ece", limit, "--confidence", "0.99")[0] == 1


def test_check_needs_a_sensible_limit(folder):
    over_confident(folder, 50)

    assert run("check", "good.npz")[::2] == (
        2,
        "macc: give at least one limit to check, such as --max-ece 0.02\n",
    )
    assert run("check", "good.npz", "--max-ece", "0")[::2] == (2, "macc: --max-ece must be above 0, got 0\n")
    assert run("check", "good.npz", "--max-ece", "0.1", "--confidence", "95")[0] == 2


def test_compare_prints_the_paired_table(folder):
    over_confident(folder)
    code, out, err = run("compare", "sharp.npz", "good.npz", "--json", "out.json")

    assert (code, err) == (0, "")
    assert out.startswith("A  sharp.npz\nB  good.npz\n\n3 000 samples, the same for both")
    assert next(line for line in out.splitlines() if line.startswith("ECE")).endswith("B better")
    assert json.loads((folder / "out.json").read_text())["ece"]["p"] < 0.001


def test_compare_takes_npy_files_and_mixes_logits_with_probabilities(folder):
    probs, labels = sample(100, 3)
    np.save(folder / "a.npy", probs)
    np.save(folder / "y.npy", labels)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    np.savez(folder / "l.npz", logits=np.log(probs), labels=labels)

    assert run("compare", "a.npy", "a.npy", "y.npy")[0] == 0
    code, out, _ = run("compare", "p.npz", "l.npz")
    assert code == 0
    assert "better" not in out


def test_compare_refuses_other_samples(folder):
    probs, labels = sample(30, 3)
    np.savez(folder / "a.npz", probs=probs, labels=labels)
    np.savez(folder / "b.npz", probs=probs[1:], labels=labels[1:])
    moved = labels.copy()
    moved[4] = (moved[4] + 1) % 3
    np.savez(folder / "c.npz", probs=probs, labels=moved)
    write_csv(folder / "d.csv", probs, labels, ["label", "x", "y", "z"])
    write_csv(folder / "e.csv", probs, labels, ["label", "x", "z", "y"])

    assert "a.npz has 30 samples and b.npz has 29" in run("compare", "a.npz", "b.npz")[2]
    assert "a.npz, row 5, and c.npz, row 5, disagree on labels" in run("compare", "a.npz", "c.npz")[2]
    assert "class columns" in run("compare", "d.csv", "e.csv")[2]


def huge_header():
    """A header that asks for a terabyte, and no data."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 125)}
    )
    return buffer.getvalue()


def damaged(archive):
    """One byte of the first member's data is another."""
    data = bytearray(archive)
    data[60] ^= 0xFF
    return bytes(data)


Y = npy_bytes(np.array([0, 1]))
P = npy_bytes(np.array([[0.6, 0.4], [0.3, 0.7]]))
BAD = {
    "empty.npz": (b"", "is empty"),
    "text.npz": (b"hello", "text.npz is damaged, cut or not an .npz file"),
    "cut.npz": (zipped(probs=P, labels=Y)[:-40], "cut.npz is damaged, cut or not an .npz file"),
    "broken.npz": (damaged(zipped(probs=P, labels=Y)), "broken.npz is damaged, cut or not an .npz file"),
    "magic.npz": (
        zipped(probs=b"no array", labels=Y),
        "the array 'probs' in magic.npz is damaged or not a numpy array",
    ),
    "pickle.npz": (
        zipped(probs=npy_bytes(np.array([{}], dtype=object)), labels=Y),
        "holds Python objects, which are never loaded",
    ),
    "huge.npz": (zipped(probs=huge_header(), labels=Y), "header promises 1000000000000 bytes"),
    "nolabels.npz": (zipped(probs=P), "has no key 'labels'; it has probs"),
    "noprobs.npz": (zipped(outputs=P, labels=Y), "has neither 'probs' nor 'logits'; it has labels, outputs"),
    "both.npz": (zipped(probs=P, logits=P, labels=Y), "has both 'probs' and 'logits'"),
    "words.npz": (zipped(probs=npy_bytes(np.array(["a", "b"])), labels=Y), "not numbers"),
    "nan.npz": (
        zipped(probs=npy_bytes(np.array([[0.6, 0.4], [np.nan, 0.7]])), labels=Y),
        "nan.npz, row 2: the probability of class 0 is nan",
    ),
    "range.npz": (
        zipped(probs=P, labels=npy_bytes(np.array([0, 2]))),
        "labels must lie in [0, 1] for 2 classes",
    ),
    "short.npz": (zipped(probs=P, labels=npy_bytes(np.array([0]))), "2 samples and labels has 1"),
    "floats.npz": (
        zipped(probs=P, labels=npy_bytes(np.array([0.0, 0.5]))),
        "floats.npz, row 2: the label '0.5' is not a class index",
    ),
    "nothing.npz": (
        zipped(probs=npy_bytes(np.empty((0, 2))), labels=npy_bytes(np.empty(0, int))),
        "probs holds no samples",
    ),
    "empty.csv": (b"", "is empty"),
    "header.csv": (b"label,a,b\n", "has a header and no samples"),
    "column.csv": (b"a,b\n0.5,0.5\n", "has no column 'label'; its columns are a, b"),
    "alone.csv": (b"label\n1\n", "has no column of probabilities"),
    "one.csv": (b"label,score\n1,0.5\n", "for two classes call it 'prob'"),
    "text.csv": (b"label,a,b\n0,0.5,0.5\n1,high,0.5\n", "line 3: 'high' in column 'a' is not a number"),
    "blank.csv": (b"label,a,b\n0,,1\n", "line 2: '' in column 'a' is not a number"),
    "nan.csv": (b"label,a,b\n0,nan,0.5\n", "nan.csv, line 2: the probability of 'a' is nan"),
    "fields.csv": (b"label,a,b\n0,0.5\n", "line 2: 2 fields where the header has 3"),
    "twice.csv": (b"label,a,a\n0,0.5,0.5\n", "the column 'a' appears twice"),
    "unknown.csv": (
        b"label,a,b\nc,0.5,0.5\n",
        "line 2: the label 'c' is not the name of a class nor a class index; the classes are a, b",
    ),
    "mixed.csv": (
        b"label,a,b\na,0.5,0.5\n1,0.5,0.5\n",
        "line 3: the label '1' mixes class names and class indices",
    ),
    "range.csv": (
        b"label,a,b\n5,0.5,0.5\n",
        "range.csv, line 2: labels must lie in [0, 1] for 2 classes, got 5",
    ),
    "binary.csv": (b"\xff\xfe\x00label", "is not UTF-8 text"),
    "model.pt": (b"PK", "macc reads .npz, .npy, .csv or .parquet, not .pt"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_sentence_and_exit_code_2(folder, name):
    content, message = BAD[name]
    (folder / name).write_bytes(content)
    for command in (["evaluate", name], ["check", name, "--max-ece", "0.1"], ["compare", name, name]):
        code, out, err = run(*command)
        assert code == 2, err
        assert out == ""
        assert err.startswith("macc: ")
        assert len(err.splitlines()) == 1
        assert message in err


def test_missing_files_folders_and_missing_labels(folder):
    (folder / "sub.npz").mkdir()
    np.save(folder / "p.npy", np.eye(2))
    (folder / "cut.npy").write_bytes(npy_bytes(np.eye(50))[:300])
    (folder / "huge.npy").write_bytes(huge_header())
    (folder / "y.npy").write_bytes(Y)
    np.savez(folder / "p.npz", probs=np.eye(2), labels=np.array([0, 1]))

    assert run("evaluate", "none.npz")[::2] == (2, "macc: none.npz does not exist\n")
    assert "is a folder" in run("evaluate", "sub.npz")[2]
    assert "name a second .npy with the labels" in run("evaluate", "p.npy")[2]
    assert "holds its labels itself" in run("evaluate", "p.npz", "y.npy")[2]
    assert "--logits says they are logits" in run("evaluate", "p.npz", "--logits")[2]
    for name in ("cut.npy", "huge.npy"):
        code, _, err = run("evaluate", name, "y.npy")
        assert code == 2
        assert "header promises" in err


def test_an_archive_that_lies_about_its_size_is_refused(folder):
    """A stored entry whose directory and header both promise a terabyte."""
    data = bytearray(zipped(probs=huge_header(), labels=Y))
    at = data.find(b"PK\x01\x02")
    data[at + 24 : at + 28] = (2**32 - 2).to_bytes(4, "little")
    (folder / "liar.npz").write_bytes(bytes(data))
    code, _, err = run("evaluate", "liar.npz")

    assert code == 2
    assert "more than the file can hold" in err


def test_fortran_order_and_half_precision_are_read(folder):
    probs, labels = sample(60, 4)
    np.savez(folder / "p.npz", probs=np.asfortranarray(probs), labels=labels.astype(np.uint8))
    assert run("evaluate", "p.npz", "--json", "out.json")[0] == 0
    assert saved(folder / "out.json")["sce"] == pytest.approx(metrics.sce(probs, labels))
    np.savez(folder / "h.npz", probs=probs.astype(np.float16), labels=labels)
    assert run("evaluate", "h.npz", "--normalise")[0] == 0


def test_help_of_each_command_names_its_options():
    for command, word in (("evaluate", "--plot"), ("check", "--max-ece"), ("compare", "--json")):
        result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120", "NO_COLOR": "1"})
        assert result.exit_code == 0
        assert word in result.output


def test_the_command_itself_runs(folder):
    over_confident(folder, 200)
    done = subprocess.run(
        [sys.executable, "-m", "macc", "check", "sharp.npz", "--max-ece", "0.01"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert done.returncode == 1
    assert done.stderr == ""
    assert "above the limit" in done.stdout


def test_a_table_survives_a_terminal_without_its_characters(folder):
    over_confident(folder, 100)
    done = subprocess.run(
        [sys.executable, "-m", "macc", "evaluate", "good.npz"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout

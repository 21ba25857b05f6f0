"""``--weight-column`` of every command that measures or fits."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.command import run


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Predictions with whole weights ``w`` and relative ones ``r``, and the same rows repeated."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    probs = rng.beta(1.5, 1.5, 300)
    sick = (rng.random(300) < 0.8 * probs).astype(int)
    times, relative = rng.integers(0, 4, 300), rng.exponential(size=300)
    table(Path("p.csv"), probs, sick, w=times, r=relative, site=["n", "s"] * 150)
    table(Path("repeated.csv"), probs.repeat(times), sick.repeat(times))
    np.savez("p.npz", probs=probs, labels=sick, w=times, r=relative, short=times[:7])
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"prob": probs, "label": sick, "w": times, "r": relative}), "p.parquet")


def table(path, probs, labels, **more):
    with path.open("w", newline="") as file:
        rows = zip(probs, labels, *more.values(), strict=True)
        csv.writer(file).writerows([["prob", "label", *more], *rows])


def numbers(*arguments):
    code, out, err = run(*arguments, "--json", "out.json")
    assert (code, err) == (0, ""), out
    return json.loads(Path("out.json").read_text())


OTHERS = ["--ignore", "w,r,site"]
FEW = ["--metrics", "nll,ece", "--resamples", "100"]


@pytest.mark.parametrize("more", [[], ["--max-rows-in-memory", "100"]])
@pytest.mark.usefixtures("files")
def test_whole_weights_are_repeated_rows(more):
    more = [*more, *FEW]
    repeated = numbers("evaluate", "repeated.csv", *more)
    assert numbers("evaluate", "p.csv", "--weight-column", "w", "--ignore", "r,site", *more) == repeated
    assert numbers("evaluate", "p.parquet", "--weight-column", "w", "--ignore", "r", *more) == repeated
    if "--max-rows-in-memory" not in more:
        assert numbers("evaluate", "p.npz", "--weight-column", "w", *more) == repeated


@pytest.mark.usefixtures("files")
def test_relative_weights_of_all_kinds_of_files():
    found = [
        numbers("evaluate", "p.csv", "--weight-column", "r", "--ignore", "w,site", *FEW),
        numbers("evaluate", "p.npz", "--weight-column", "r", *FEW),
        numbers("evaluate", "p.parquet", "--weight-column", "r", "--ignore", "w", *FEW),
        numbers(
            "evaluate",
            "p.parquet",
            "--weight-column",
            "r",
            "--ignore",
            "w",
            "--max-rows-in-memory",
            "10",
            *FEW,
        ),
    ]
    assert found[0] == found[1] == found[2]
    for name, row in found[3].items():
        assert row["value"] == pytest.approx(found[0][name]["value"], rel=1e-3), name
    assert found[0]["ece"]["value"] != numbers("evaluate", "p.csv", *OTHERS, *FEW)["ece"]["value"]


@pytest.mark.usefixtures("files")
def test_states_of_parts_with_weights_are_put_together():
    text = Path("p.csv").read_text().splitlines()
    for name, part in (("a", text[1:150]), ("b", text[150:])):
        Path(f"{name}.csv").write_text("\n".join([text[0], *part]))
        run("evaluate", f"{name}.csv", "--weight-column", "r", "--ignore", "w,site", "--state", name, *FEW)
    whole = numbers("evaluate", "p.csv", "--weight-column", "r", "--ignore", "w,site", *FEW)
    merged = numbers("merge", "a", "b")
    assert merged["ece"]["value"] == pytest.approx(whole["ece"]["value"])
    run("evaluate", "a.csv", "--weight-column", "w", "--ignore", "r,site", "--state", "c", *FEW)
    code, _, err = run("merge", "b", "c")
    assert code == 2
    assert "cannot merge states of other kinds of weights" in err


@pytest.mark.usefixtures("files")
def test_check_groups_and_compare():
    weighted = ["p.csv", "--weight-column", "w", "--ignore", "r,site"]
    value = numbers("evaluate", "repeated.csv", "--metrics", "ece")["positive_ece"]["high"]
    assert run("check", *weighted, "--max-ece", str(value + 1e-6))[0] == 0
    assert run("check", *weighted, "--max-ece", str(value - 1e-6))[0] == 1
    repeated = numbers("evaluate", "repeated.csv", *FEW)
    groups = numbers("evaluate", "p.csv", "--weight-column", "w", "--ignore", "r", "--by", "site", *FEW)
    assert groups["all"] == repeated
    assert sum(group["samples"] for group in groups["groups"].values()) == len(
        Path("repeated.csv").read_text().splitlines()[1:]
    )
    limits = ["--max-nll", str(groups["groups"]["n"]["nll"]["high"] + 1)]
    by = ["--weight-column", "w", "--ignore", "r", "--by", "site"]
    assert run("check", "p.csv", *by, *limits)[0] == 0
    both = ["p.csv", "p.parquet", "--weight-column", "w", "--class-columns", "prob", *FEW]
    for more in ([], ["--max-rows-in-memory", "10"]):
        same = numbers("compare", *both, *more)
        assert same["ece"]["a"] == same["ece"]["b"] == pytest.approx(repeated["ece"]["value"])


@pytest.mark.parametrize(
    ("column", "cells", "said"),
    [
        ("v", None, "p.csv has no column 'v'; its columns are"),
        ("w", ["-1"], "p.csv, line 2: the weight '-1' is no finite number of at least 0; repair it"),
        ("w", ["1", "nan"], "p.csv, line 3: the weight 'nan' is no finite number"),
        ("w", ["1", "1", ""], "p.csv, line 4: the weight '' is no finite number"),
        ("w", ["heavy"], "p.csv, line 2: the weight 'heavy' is no finite number"),
        ("w", ["0"] * 300, "p.csv: all weights in 'w' are 0; at least one sample has to count"),
        ("label", None, "p.csv: 'label' has the labels; --weight-column names another column"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--max-rows-in-memory", "10"]])
@pytest.mark.usefixtures("files")
def test_bad_weights_in_a_table(column, cells, said, more):
    if cells is not None:
        with Path("p.csv").open(newline="") as file:
            header, *rows = csv.reader(file)
        for row, cell in zip(rows, cells, strict=False):
            row[2] = cell
        with Path("p.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    ignored = ",".join({"w", "r", "site"} - {column})
    code, out, err = run("evaluate", "p.csv", "--weight-column", column, "--ignore", ignored, *more)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["p.npz", "--weight-column", "v"], "p.npz has no key 'v'; it has"),
        (["p.npz", "--weight-column", "short"], "a weight for each of 300 samples, got shape (7,)"),
        (["p.npy", "l.npy", "--weight-column", "w"], "weights are in a .csv, .parquet or .npz"),
        (["maps.npz", "--weight-column", "w"], "has maps, and --weight-column is for rows"),
    ],
)
@pytest.mark.usefixtures("files")
def test_bad_weights_of_arrays(arguments, said):
    np.save("p.npy", np.full((4, 2), 0.5))
    np.save("l.npy", np.zeros(4, dtype=int))
    np.savez("maps.npz", probs=np.full((2, 2, 3, 3), 0.5), labels=np.zeros((2, 3, 3), dtype=int))
    code, out, err = run("evaluate", *arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("method", ["platt", "isotonic"])
@pytest.mark.usefixtures("files")
def test_calibrate(method):
    weighted = [
        "--fit",
        "p.csv",
        "--apply",
        "p.csv",
        "--weight-column",
        "w",
        "--ignore",
        "r,site",
        "-o",
        "a.npz",
    ]
    repeated = ["--fit", "repeated.csv", "--apply", "repeated.csv", "-o", "b.npz"]
    options = ["--method", method, "--resamples", "100"]
    found = numbers("calibrate", *weighted, *options)
    assert found == numbers("calibrate", *repeated, *options)
    relative = ["--weight-column", "r", "--ignore", "w,site", "-o", "c.npz", *options]
    other = numbers("calibrate", "--fit", "p.csv", "--apply", "p.csv", *relative)
    assert other["calibrator"] != found["calibrator"]
    assert other["after"]["nll"]["value"] < other["before"]["nll"]["value"]


@pytest.mark.usefixtures("files")
def test_thresholds_and_sets():
    weighted = ["--weight-column", "w", "--ignore", "r,site"]
    for command in (["threshold", "p.csv", "--risk", "0.4", "--check", "p.csv"], ["sets", "--fit", "p.csv"]):
        alike = [part.replace("p.csv", "repeated.csv") for part in command]
        assert numbers(*command, *weighted) == numbers(*alike)
    relative = ["--weight-column", "r", "--ignore", "w,site"]
    found = numbers("threshold", "p.csv", "--risk", "0.4", *relative)["threshold"]
    assert found["weighted"] == 300
    assert found["samples"] < 300
    code, _, err = run("sets", "--fit", "p.csv", *relative)
    assert code == 2
    assert "Sets takes whole weights only" in err

"""Files read in batches: the same values as in memory, intervals alike, states that merge, and bad files."""

import json
import math
import re
import sys

import numpy as np
import pytest

import macc
from helpers.command import run
from helpers.predictions import write_csv
from helpers.stored import arrays
from macc import metrics
from macc.metrics import _partial
from macc.metrics._partial import Partial, fine_cells
from macc.predictions import open_source
from macc.predictions import source as reading_source

arrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

NAMES = ["cat", "dog", "owl"]


def sample(rows, classes=3, *, seed=0, sharpen=1.7):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * 1.5
    probs = np.exp(logits)
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random((rows, 1))).sum(1).clip(max=classes - 1)
    probs = probs**sharpen
    return probs / probs.sum(1, keepdims=True), labels


def write_parquet(path, probs, labels, names=NAMES, **options):
    columns = {name: probs[:, j] for j, name in enumerate(names)}
    parquet.write_table(arrow.table({**columns, "label": labels}), path, **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


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

    assert set(streamed) == {*_partial.check_streamed(None, 3), "classwise_ece"}
    for name in _partial.check_streamed(None, 3):
        tolerance = 1e-3 if name == "auroc" else 1e-9
        assert streamed[name]["value"] == pytest.approx(exact[name]["value"], abs=tolerance), name
    np.testing.assert_allclose(streamed["classwise_ece"]["value"], exact["classwise_ece"]["value"], atol=1e-9)
    assert "Left out, because they need all samples in memory: " in parts[1]
    assert "smooth_ece" in parts[1].split("Left out")[1]
    assert "AUROC from" in parts[1]
    if kind != "list" and kind != "logits":
        assert "owl" in parts[1]


def test_intervals_are_those_in_memory():
    """From sums by group as from resampled samples, within the noise of resampling."""
    probs, labels = sample(20_000)
    state = Partial(3)
    for part in np.array_split(np.arange(20_000), 7):
        state.update(probs[part], labels[part])
    streamed, exact = state.report(), macc.evaluate(probs, labels, metrics=_partial.check_streamed(None, 3))
    for name in _partial.check_streamed(None, 3):
        one, two = streamed[name], exact[name]
        width = two.high - two.low
        wide = 2.0 if name == "auroc" else 1.0  # the most that classes can vary together
        assert one.low == pytest.approx(two.low, abs=0.15 * width * wide + 1e-5), name
        assert one.high == pytest.approx(two.high, abs=0.15 * width * wide + 1e-5), name
        if two.noise_floor is not None:
            assert one.noise_floor == pytest.approx(two.noise_floor, rel=0.1), name
    for one, two in zip(streamed.classes, exact.classes, strict=True):
        assert (one.name, one.samples, one.frequency) == (two.name, two.samples, two.frequency)
        assert one.mean_probability == pytest.approx(two.mean_probability)
    for one, two in zip(streamed.bins, exact.bins, strict=True):
        assert one.samples == two.samples
        assert one.accuracy_low == pytest.approx(two.accuracy_low, nan_ok=True)


def test_intervals_do_not_mind_the_order_of_the_file():
    """A file sorted by label and confidence: groups are drawn sample by sample, so nothing changes."""
    probs, labels = sample(30_000)
    widths = []
    for order in (np.arange(30_000), np.lexsort([probs.max(1), labels])):
        state = Partial(3)
        state.update(probs[order], labels[order])
        ece = state.report()["accuracy"]
        widths.append(ece.high - ece.low)
    assert widths[1] == pytest.approx(widths[0], rel=0.15)
    assert widths[0] == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 30_000), rel=0.25)


@pytest.mark.parametrize("per_octave", [64, 8, 1])
def test_fine_cells_rise_with_the_probability(per_octave):
    probs = np.sort(np.concatenate([np.random.default_rng(0).random(5000), 2.0 ** -np.arange(40.0), [0, 1]]))
    both = np.concatenate([probs, 1 - 2.0 ** -np.arange(1.0, 30)])
    both.sort()
    cells = fine_cells(both[:, None].copy(), per_octave)[:, 0]

    assert (np.diff(cells) >= 0).all()
    assert cells.min() == 0
    assert cells.max() == _partial._num_cells(per_octave) - 1
    # 64 an octave: a cell is at most 1.6 % wide, relative to the distance from the nearer end.
    same = np.diff(cells) == 0
    near = np.minimum(both, 1 - both)[:-1] > 2.0**-23
    assert (
        np.diff(both)[same & near] <= np.minimum(both, 1 - both)[:-1][same & near] * 1.05 / per_octave
    ).all()


def test_sums_of_many_classes_stay_small():
    probs = np.random.default_rng(0).dirichlet(np.full(15_000, 0.01), size=3)
    labels = np.array([0, 7, probs[2].argmax()])
    state = Partial(15_000)
    state.update(probs, labels)
    exact = metrics.auroc(probs, labels)

    assert sum(part.nbytes for part in state.sums.values()) < 3 * 2**27
    area = state.report(metrics=["auroc"], resamples=100)["auroc"]
    assert area.low <= exact <= area.high


def test_too_many_classes_for_sums_are_refused_before_they_take_memory():
    with pytest.raises(ValueError, match="100 000 classes in 15 bins are too many to measure in batches"):
        Partial(100_000)


def test_the_error_of_the_area_is_within_its_bound():
    probs, labels = sample(5000)
    probs = probs.round(3)
    probs /= probs.sum(1, keepdims=True)
    state = Partial(3)
    state.update(probs, labels)
    area = state.draws().auroc

    assert abs(area.value - metrics.auroc(probs, labels)) <= area.error
    assert area.error < 0.01


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

    for name in _partial.check_streamed(None, 3):
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
    """Parts of one row each, many of them alike: their groups must differ although each is the first of its part."""
    probs, labels = sample(120, 2, sharpen=1.0)
    probs = probs.round(1)
    whole = Partial(2)
    whole.update(probs, labels)
    paths = [tmp_path / str(i) for i in range(120)]
    for i, path in enumerate(paths):
        part = Partial(2)
        part.update(probs[i : i + 1], labels[i : i + 1])
        part.save(path)
    one, two = whole.report(), _partial.merged(paths).report()

    for name in ("accuracy", "nll", "brier", "ece", "sce", "positive_ece"):
        width = one[name].high - one[name].low
        assert two[name].value == pytest.approx(one[name].value), name
        assert two[name].high - two[name].low == pytest.approx(width, rel=0.25), name
    again = _partial.merged(paths[::-1])
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


def test_a_label_of_probability_0_is_infinitely_unlikely():
    state = Partial(2)
    state.update(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 0]))
    assert state.report()["nll"].value == math.inf
    assert state.report().to_json()


def test_batches_without_an_entry_above_the_first_bin(folder):
    """As models of many classes give them before they are trained."""
    probs, labels = np.full((20, 30), 1 / 30), np.arange(20)
    np.savez(folder / "p.npz", probs=probs, labels=labels)
    code, _, err = run("evaluate", "p.npz", "--state", "s", "--json", "p.json")
    assert code == 0, err
    found = json.loads((folder / "p.json").read_text())

    assert found["sce"]["value"] == pytest.approx(metrics.sce(probs, labels))
    np.testing.assert_allclose(found["classwise_ece"]["value"], metrics.classwise_ece(probs, labels))


def test_many_classes_have_fewer_groups():
    assert Partial(10).sums["class_gaps"].shape[0] == 1024
    assert Partial(1000).sums["class_gaps"].nbytes < 2**26
    with pytest.raises(ValueError, match="a batch has 3 classes, and those before it have 2"):
        Partial(2).update(*sample(10))
    with pytest.raises(ValueError, match="no samples were seen"):
        Partial(2).report()


def test_few_samples_and_one_class_in_a_stream():
    rng = np.random.default_rng(1)
    few, same = Partial(2), Partial(3)
    few.update(rng.dirichlet([1, 1], size=6), rng.integers(0, 2, 6))
    same.update(rng.dirichlet([1, 1, 1], size=100), np.zeros(100, dtype=int))
    ece, auroc = few.report()["ece"], same.report()["auroc"]

    assert ece.low < ece.value < ece.high
    assert np.isnan([auroc.value, auroc.low, auroc.high]).all()


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

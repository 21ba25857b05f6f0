"""Maps of whole images in files: `evaluate`, `check`, `compare` and `merge`, and what other
commands say.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

import macc
from helpers.command import run
from macc.metrics import dense

IGNORED = 255


def maps(count=30, classes=3, side=(6, 5), seed=0):
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(count, classes, *side))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(1).astype(np.uint8)
    labels[:, 0] = IGNORED
    return (1.5 * logits).astype(np.float32), labels


def write_folder(path, logits, labels, kind="logits"):
    for part, arrays in ((kind, logits), ("labels", labels)):
        (path / part).mkdir(parents=True)
        for i, array in enumerate(arrays):
            np.save(path / part / f"{i:03d}.npy", array)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder; four images are read at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dense, "_ELEMENTS", 4 * 3 * 6 * 5)
    return tmp_path


def numbers(*words):
    ended = run("evaluate", *words, "--ignore-index", IGNORED, "--json", "found.json")
    assert ended.code == 0, ended.err
    return json.loads(Path("found.json").read_text()), ended.out


@pytest.mark.parametrize("form", ["npz", "compressed", "npy", "folder"])
def test_every_form_gives_the_report_of_the_arrays(folder, form):
    logits, labels = maps()
    words = ["maps.npz"]
    if form == "npy":
        np.save("maps.npy", logits)
        np.save("labels.npy", labels)
        words = ["maps.npy", "labels.npy", "--logits"]
    elif form == "folder":
        words = [write_folder(folder / "maps", logits, labels)]
    else:
        write = np.savez if form == "npz" else np.savez_compressed
        write("maps.npz", logits=logits, labels=labels, classes=["road", "car", "sky"])

    found, out = numbers(*words)
    names = ["road", "car", "sky"] if words == ["maps.npz"] else None
    expected = macc.evaluate(logits, labels, from_logits=True, ignore_index=IGNORED, classes=names)
    assert out.strip() == str(expected)
    assert found == json.loads(expected.to_json())


def test_images_of_a_folder_may_differ_in_size(folder):
    sizes = [(6, 5), (6, 5), (4, 9), (6, 5), (3, 3)]
    parts = [maps(1, side=side, seed=i) for i, side in enumerate(sizes)]
    as_maps = [softmax(logits[0].astype(np.float64), axis=0) for logits, _ in parts]
    rows = np.concatenate([each.reshape(3, -1).T for each in as_maps])
    write_folder(folder / "maps", as_maps, [labels[0] for _, labels in parts], kind="probs")

    found, out = numbers("maps")
    flat = np.concatenate([labels.ravel() for _, labels in parts])
    expected = macc.evaluate(rows, flat.astype(int), ignore_index=IGNORED, metrics=["nll", "sce"])
    assert "resampling 5 whole images" in out
    assert found["nll"]["value"] == pytest.approx(expected["nll"].value, abs=1e-6)
    assert found["sce"]["value"] == pytest.approx(expected["sce"].value, abs=1e-6)


def test_limits_are_checked_and_parts_are_merged(folder):
    logits, labels = maps(count=60)
    np.savez("all.npz", logits=logits, labels=labels)
    for part, some in enumerate((slice(0, 25), slice(25, 60))):
        np.savez(f"part{part}.npz", logits=logits[some], labels=labels[some])
        run("evaluate", f"part{part}.npz", "--ignore-index", IGNORED, "--state", f"state{part}")

    assert run("check", "all.npz", "--ignore-index", IGNORED, "--max-ece", 0.6).code == 0
    ended = run("check", "all.npz", "--ignore-index", IGNORED, "--max-ece", 0.01)
    assert ended.code == 1
    assert "is above the limit of 1 %" in ended.out
    assert "mce has no interval by images" in run("check", "all.npz", "--max-mce", 0.5).err
    assert "resampling 60 whole images" in run("merge", "state0", "state1", "--json", "merged.json").out
    merged, whole = json.loads(Path("merged.json").read_text()), numbers("all.npz")[0]
    for name in ("accuracy", "nll", "ece", "sce"):
        assert merged[name]["value"] == pytest.approx(whole[name]["value"])


def test_models_are_compared_image_by_image(folder):
    logits, labels = maps(count=60)
    np.savez("a.npz", logits=logits, labels=labels)
    write_folder(folder / "b", logits / 1.5, labels)
    ended = run("compare", "a.npz", "b", "--ignore-index", IGNORED, "--json", "found.json")
    assert ended.code == 0, ended.err
    assert "resampling 60 whole images" in ended.out
    found = json.loads(Path("found.json").read_text())
    one, two = (
        macc.evaluate(given, labels, from_logits=True, ignore_index=IGNORED)
        for given in (logits, logits / 1.5)
    )
    assert found["nll"]["value"] == pytest.approx(one["nll"].value - two["nll"].value, abs=1e-6)
    # The same classes are predicted: only an image that was not seen could tell the models apart.
    assert found["accuracy"]["value"] == 0
    assert found["accuracy"]["low"] == pytest.approx(-found["accuracy"]["high"])

    labels[41, 3, 3] = (labels[41, 3, 3] + 1) % 3
    np.savez("c.npz", logits=logits, labels=labels)
    ended = run("compare", "a.npz", "c.npz", "--ignore-index", IGNORED)
    assert ended.code == 2
    assert "a.npz, image 42, and c.npz, image 42, disagree on labels" in ended.err
    np.savez("rows.npz", logits=logits[:, :, 1, 1], labels=labels[:, 1, 1])
    assert "has maps of whole images and rows.npz has rows" in run("compare", "a.npz", "rows.npz").err


def test_an_error_names_the_image_and_the_pixel(folder):
    logits, labels = maps()
    np.savez("maps.npz", logits=logits, labels=labels)
    ended = run("evaluate", "maps.npz")
    assert ended.code == 2
    assert "maps.npz, image 1, pixel (0, 0): the label is 255" in ended.err
    assert "--ignore-index 255 leaves such pixels out" in ended.err

    logits[17, 2, 3, 4] = np.nan
    np.savez("maps.npz", logits=logits, labels=labels)
    write_folder(folder / "maps", logits, labels)
    where = "pixel (3, 4): the logit of class 2 is nan"
    assert f"maps.npz, image 18, {where}" in run("evaluate", "maps.npz", "--ignore-index", IGNORED).err
    assert f"maps, image '017.npy', {where}" in run("evaluate", "maps", "--ignore-index", IGNORED).err
    np.savez("maps.npz", probs=abs(logits), labels=labels)
    ended = run("evaluate", "maps.npz", "--ignore-index", IGNORED)
    assert "maps.npz, image 1, pixel (1, 0): the probabilities sum to" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["calibrate", "--fit", "maps.npz", "--apply", "maps.npz"],
        ["threshold", "maps.npz"],
        ["threshold", "folder"],
        ["sets", "--fit", "maps.npz"],
        ["report", "maps.npz", "-o", "page.html"],
        ["plot", "reliability", "maps.npz", "-o", "plot.png"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_commands_of_rows_say_that_maps_are_for_others(folder, words):
    logits, labels = maps(4)
    np.savez("maps.npz", logits=logits, labels=labels)
    write_folder(folder / "folder", logits, labels)
    ended = run(*words)
    assert ended.code == 2
    assert "has maps of whole images, and this command takes rows (N, K)" in ended.err


def test_what_cannot_be_maps_is_refused(folder):
    logits, labels = maps(4)

    def refusal(*words):
        ended = run("evaluate", *words)
        assert ended.code == 2
        return ended.err

    np.savez("maps.npz", logits=logits, labels=labels[:, 1:])
    assert "labels of logits (4, 3, 6, 5) must have shape (4, 6, 5), got (4, 5, 5)" in refusal("maps.npz")
    np.savez("maps.npz", logits=logits[:, :1], labels=labels)
    assert "one class; for two classes give a map of each" in refusal("maps.npz")
    np.savez("maps.npz", logits=logits, labels=labels.astype(float))
    assert "labels of maps must be whole numbers" in refusal("maps.npz")
    np.savez("maps.npz", logits=np.asfortranarray(logits), labels=labels)
    assert "is in Fortran order and cannot be read in pieces" in refusal("maps.npz")
    np.savez("maps.npz", logits=logits, labels=np.full_like(labels, IGNORED))
    assert "maps.npz has no pixel with a label" in refusal("maps.npz", "--ignore-index", IGNORED)
    assert "--by is for rows" in refusal("maps.npz", "--by", "site")
    assert "--drop-missing is for rows" in refusal("maps.npz", "--drop-missing")
    np.savez("rows.npz", logits=logits[:, :, 1, 1], labels=labels[:, 1, 1])
    assert "rows.npz has rows, and --ignore-index is for maps" in refusal("rows.npz", "--ignore-index", 1)

    assert "is a folder, and not one of maps: a folder of maps has 'logits'" in refusal(folder)
    write_folder(folder / "maps", logits, labels)
    (folder / "maps" / "labels" / "002.npy").unlink()
    assert "has '002.npy' and" in refusal("maps")
    np.save("maps/labels/002.npy", labels[2])
    np.save("maps/logits/002.npy", logits[2, :2])
    assert "002.npy has 2 classes and '000.npy' has 3; make them agree" in refusal("maps")
    (folder / "maps" / "probs").mkdir()
    assert "has both 'logits' and 'probs'" in refusal("maps")

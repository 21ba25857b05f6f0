"""`macc data`: what it prints, what it writes, and how it says no."""

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from macc import data
from macc.cli import app, main
from macc.data import sheet

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MACC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MACC_OFFLINE", "1")
    monkeypatch.delenv("MACC_DATA", raising=False)


def run(*args):
    result = CliRunner().invoke(app, ["data", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refuse(*args):
    with pytest.raises(ValueError) as error:
        CliRunner().invoke(app, ["data", *args], catch_exceptions=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def write_pets(root):
    for name, value in (("cat", 20), ("dog", 200)):
        (root / name).mkdir(parents=True)
        for k in range(15):
            Image.new("RGB", (20, 12), (value, k, 0)).save(root / name / f"{k}.png")


class TestList:
    def test_every_set_in_a_line(self, tmp_path):
        output = run("list")

        for name in data.known():
            assert sum(line.startswith((f"{name} ", f"{name}:PATH ")) for line in output.splitlines()) == 1
        table, said = output.split("\n\n")
        assert max(len(line) for line in table.splitlines()) <= 80
        assert max(len(line) for line in said.splitlines() if "looked for" not in line) <= 80
        line = next(line for line in output.splitlines() if line.startswith("cifar10 "))
        for words in ("10", "45000/5000/10000", "no, 170 MB", "none stated"):
            assert words in line
        assert f"Files are looked for in {tmp_path / 'cache' / 'data'}" in output
        assert not (tmp_path / "cache").exists()

    def test_what_is_there(self, tmp_path):
        folder = tmp_path / "cifar-100-python"
        folder.mkdir()
        for name in ("train", "test", "meta"):
            (folder / name).touch()
        (tmp_path / "cifar-10-python.tar.gz").touch()
        lines = {line.split()[0]: line for line in run("list", "--data", str(tmp_path)).splitlines() if line}

        assert lines["cifar100"].split()[3] == "yes"
        assert lines["cifar10"].split()[3] == "packed"
        assert "embedded" in lines["digits"]
        assert "your files" in lines["folder:PATH"]


class TestPrepare:
    def test_embedded(self):
        assert (
            run("prepare", "digits")
            == "digits is embedded, there is nothing to prepare: 1295 train, 143 val, 359 test\n"
        )

    def test_a_folder(self, tmp_path):
        write_pets(tmp_path / "pets")

        assert (
            run("prepare", "folder:pets", "--size", "8") == "folder:pets is ready: 22 train, 2 val, 6 test\n"
        )
        assert len([path for path in (tmp_path / "cache" / "folders").iterdir() if path.is_dir()]) == 1

    def test_missing(self, tmp_path):
        assert refuse("prepare", "cifar10", "--data", "d").startswith(
            "cifar10 is not in d and $MACC_OFFLINE forbids downloads: put"
        )
        assert (
            refuse("prepare", "digits", "--size", "8")
            == "--size is for folder:PATH, whose images may have any size; leave it out for digits"
        )


class TestShow:
    def test_digits(self, tmp_path):
        output = run("show")  # the default set
        counts = data.load("digits").counts()

        for k in range(10):
            row = [str(k), *(str(int(counts[name][k])) for name in ("train", "val", "test"))]
            assert row in [line.split() for line in output.splitlines()]
        assert ["all", "1295", "143", "359"] in [line.split() for line in output.splitlines()]
        assert "imbalance factor 1.05 (largest to smallest training class)" in output
        assert "shifts           noise 1-5, rotation 1-5" in output
        assert "contact sheet    digits-sheet.png" in output
        assert [path.name for path in tmp_path.iterdir()] == ["digits-sheet.png"]

    def test_the_sheet_shows_the_images_in_the_rows_of_their_classes(self, tmp_path):
        write_pets(tmp_path / "pets")
        run("show", "folder:pets", "-o", "sheet.png")
        with Image.open("sheet.png") as sheet:
            pixels = np.asarray(sheet)
        reds = {value: np.argwhere((pixels[..., 0] == value) & (pixels[..., 2] == 0)) for value in (20, 200)}

        assert all(len(found) > 1000 for found in reds.values())
        assert reds[20][:, 0].max() < reds[200][:, 0].min()

    def test_options_are_shown(self):
        output = run(
            "show", "digits", "--subset", "200", "--imbalance", "10", "--label-noise", "0.5", "--seed", "3"
        )
        expected = (
            data.load("digits")
            .subset(train=200, seed=3)
            .make_imbalanced(10, seed=3)
            .with_label_noise(0.5, seed=3)
        )
        rows = [line.split() for line in output.splitlines()]

        for k, count in enumerate(expected.train.counts(10).tolist()):
            assert any(row[:2] == [str(k), str(count)] for row in rows)

    def test_features_have_no_sheet(self, tmp_path):
        np.savez("mine.npz", features=np.random.default_rng(0).normal(size=(50, 4)), labels=np.arange(50) % 2)
        output = run("show", "arrays:mine.npz")

        assert "no contact sheet: the inputs are features" in output
        assert "each feature by its mean and standard deviation in training" in output
        assert [path.name for path in tmp_path.iterdir()] == ["mine.npz"]
        assert (
            refuse("show", "arrays:mine.npz", "-o", "x.png")
            == "mine holds features, not images; there is nothing to draw"
        )

    def test_many_classes_and_empty_ones(self, tmp_path):
        names = np.array([f"{k:03}" for k in range(120)])
        np.savez("many.npz", images=np.zeros((300, 6, 6), "u1"), labels=np.arange(300) % 119, classes=names)
        output = run("show", "arrays:many.npz")

        assert "…" in output
        assert "infinite (" in output
        assert "contact sheet    many-sheet.png" in output
        with Image.open("many-sheet.png") as sheet:
            assert sheet.width < 3000

    def test_names_are_printed_as_they_are(self):
        names = np.array(["c[/d]", "[mild]", "[red]x", ":warning:"])
        features = np.random.default_rng(0).normal(size=(100, 4))
        np.savez("[b]mine.npz", features=features, labels=np.arange(100) % 4, classes=names)
        output = run("show", "arrays:[b]mine.npz")

        assert output.startswith("[b]mine: 4 classes")
        for name in names:
            assert [name, "18", "2", "5"] in [line.split() for line in output.splitlines()]

    def test_where_it_cannot_be_written(self, tmp_path):
        assert "nowhere/x.png: the folder nowhere does not exist; create it first" in refuse(
            "show", "digits", "-o", "nowhere/x.png"
        )
        assert (
            refuse("show", "digits", "-o", "x.jpg")
            == "the contact sheet is a PNG file; call it x.png, not x.jpg"
        )
        assert not list(tmp_path.iterdir())

    def test_a_failed_drawing_keeps_the_old_sheet(self, tmp_path, monkeypatch):
        (tmp_path / "x.png").write_text("old")

        class Broken:
            def save(self, *_, **__):
                raise OSError("disk full")

        monkeypatch.setattr(sheet, "draw_sheet", lambda _: Broken())
        assert refuse("show", "digits", "-o", "x.png") == "x.png cannot be written: disk full"
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.png", "old")]


def test_a_mistake_is_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["macc", "data", "show", "digit"])
    with pytest.raises(SystemExit) as stopped:
        main()

    assert stopped.value.code == 2
    assert capsys.readouterr().err == "macc: no data set is called 'digit'; did you mean 'digits'?\n"


def test_help_loads_nothing_heavy():
    code = (
        "import json, sys\n"
        "from typer.testing import CliRunner\n"
        "from macc.cli import app\n"
        "for args in (['--help'], ['data', '--help'], ['data', 'show', '--help']):\n"
        "    assert CliRunner().invoke(app, args).exit_code == 0\n"
        "print(json.dumps(sorted(m for m in sys.modules if '.' not in m)))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"torch", "sklearn", "numpy", "PIL", "pooch", "pyarrow"} & set(json.loads(found.stdout))

"""Corrupted copies as files: written, resumed, read and evaluated."""

import json
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from helpers import trees
from helpers.pictures import picture
from helpers.trees import write_cifar10
from macc import data, training
from macc.cli import app
from macc.data import corruptions, regenerated

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def root(tmp_path):
    """CIFAR-10 in small, whose checksums are not compared."""
    write_cifar10(tmp_path)
    return tmp_path


def corrupt_command(root, *more):
    arguments = ["data", "corrupt", "cifar10", "--data", str(root), "--no-verify", *more]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result


class TestFiles:
    def test_written_read_and_made_on_the_fly_are_the_same(self, root, monkeypatch):
        monkeypatch.setattr(regenerated, "CHUNK", 7)  # of 20 images
        result = corrupt_command(root)
        assert result.stdout == f"{root / 'cifar10_c_regen'}\n"
        assert "gaussian_noise (1 of 19): 100 images\n" in result.stderr
        splits = data.load("cifar10_c_regen", root=root, verify=False)

        assert splits.name == "cifar10_c_regen"
        assert len(splits.shifts) == 95
        clean = data.load("cifar10", root=root, verify=False)
        made = corruptions.corrupted(clean, corruptions=["fog", "frost_synthetic"], severities=[2, 5])
        assert made.name == splits.name
        for name, part in made.shifts.items():
            assert (splits.shifts[name].inputs.int() - part.inputs.int()).abs().max() <= 1
            assert torch.equal(splits.shifts[name].labels, part.labels)
        # The official layout, so that it could be read as one.
        pixels = np.load(root / "cifar10_c_regen" / "fog.npy")
        assert pixels.shape == (100, 32, 32, 3)
        assert np.load(root / "cifar10_c_regen" / "labels.npy").tolist() == 5 * clean.test.labels.tolist()

    def test_what_is_there_is_not_made_again(self, root):
        corrupt_command(root, "--only", "fog")
        file = root / "cifar10_c_regen" / "fog.npy"
        written = file.stat().st_mtime_ns
        result = corrupt_command(root, "--only", "fog", "--only", "snow")

        assert "fog (1 of 2): there already\nsnow (2 of 2): 100 images\n" in result.stderr
        assert file.stat().st_mtime_ns == written
        with pytest.raises(ValueError, match="cifar10_c_regen is incomplete: .* lacks gaussian_noise"):
            data.load("cifar10_c_regen", root=root, verify=False)
        few = data.cifar10_c_regen(root=root, verify=False, corruptions=["snow"])
        assert len(few.shifts) == 5

    def test_killed_it_goes_on(self, root):
        code = (
            "import time\nfrom macc.data import regenerated\n"
            "def slow(count): print('made', flush=True); time.sleep(60)\n"
            f"regenerated.write_corrupted('cifar10', root={str(root)!r}, verify=False, "
            "corruptions=['brightness', 'contrast'], on_start=lambda name, _: print(name, flush=True), "
            "on_images=lambda _: time.sleep(60 if regenerated.done() else 0))\n"
        )
        code = code.replace("regenerated.done()", "(lambda: __import__('pathlib').Path("
                            f"{str(root / 'cifar10_c_regen' / 'brightness.npy')!r}).is_file())()")  # fmt: skip
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        folder = root / "cifar10_c_regen"
        for _ in range(600):
            if list(folder.glob(".writing-*")) and (folder / "brightness.npy").is_file():
                break
            time.sleep(0.1)
        process.kill()
        process.communicate()

        assert not (folder / "contrast.npy").exists()
        written = (folder / "brightness.npy").stat().st_mtime_ns
        corrupt_command(root, "--only", "brightness", "--only", "contrast")
        assert (folder / "brightness.npy").stat().st_mtime_ns == written
        assert sorted(path.name for path in folder.iterdir()) == [
            ".lock", "about.json", "brightness.npy", "contrast.npy", "labels.npy",
        ]  # fmt: skip

    def test_other_images_are_not_mixed_in(self, root):
        corrupt_command(root, "--only", "fog")
        about = root / "cifar10_c_regen" / "about.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | {"version": 0}))
        with pytest.raises(ValueError, match="made from other images or by another version; delete it"):
            corrupt_command(root, "--only", "snow")

    def test_sets_of_another_version_are_not_read(self, root):
        corrupt_command(root, "--only", "fog")
        about = root / "cifar10_c_regen" / "about.json"
        whole = about.read_text()
        for text in (json.dumps(json.loads(whole) | {"version": 1}), "{}", "no"):
            about.write_text(text)
            with pytest.raises(
                ValueError, match="by another version; delete it .* macc data corrupt cifar10"
            ):
                data.cifar10_c_regen(root=root, verify=False, corruptions=["fog"])
        about.unlink()
        with pytest.raises(ValueError, match="by another version"):
            data.cifar10_c_regen(root=root, verify=False, corruptions=["fog"])

    def test_what_is_gone_or_cut_is_made_again(self, root):
        corrupt_command(root, "--only", "fog")
        folder = root / "cifar10_c_regen"
        before = (folder / "fog.npy").read_bytes()
        (folder / "labels.npy").unlink()
        (folder / "fog.npy").write_bytes(before[:-5])
        assert "fog (1 of 1): 100 images" in corrupt_command(root, "--only", "fog").stderr
        assert (folder / "fog.npy").read_bytes() == before
        assert len(data.cifar10_c_regen(root=root, verify=False, corruptions=["fog"]).shifts) == 5

    def test_mistakes(self, root, tmp_path):
        with pytest.raises(ValueError, match="no corruption is called 'fogg'; there are gaussian_noise"):
            corrupt_command(root, "--only", "fogg")
        with pytest.raises(
            ValueError, match="corrupted files are written of cifar10, cifar100, tiny_imagenet"
        ):
            regenerated.write_corrupted("digits")
        with pytest.raises(ValueError, match="`macc data corrupt cifar10`"):
            data.load("cifar10_c_regen", root=root, verify=False)
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="cannot be written"):
            corrupt_command(root, "-o", str(tmp_path / "file"))
        with pytest.raises(ValueError, match="holds features; only images can be corrupted"):
            corruptions.corrupted(data.load("synthetic"))

    def test_tiny_imagenet(self, root):
        tree = trees.write_tiny_imagenet(root, 3, 4, 2)
        for path, pixels in zip((tree / "val" / "images").iterdir(), picture(64, 6), strict=True):
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
        folder = root / "tiny_imagenet_c_regen"
        made = []
        for chosen in (["fog"], ["fog", "pixelate"]):
            regenerated.write_corrupted(
                "tiny_imagenet", root=root, verify=False, corruptions=chosen,
                on_start=lambda *words: made.append(words),
            )  # fmt: skip
            assert not list(folder.glob(".writing-*"))
            # As a killed process leaves it.
            shutil.rmtree(folder / "fog" / "4")
            (folder / ".writing-fog" / "level").mkdir(parents=True)

        assert made == [("fog", 30), ("fog", 6), ("pixelate", 30)]
        with pytest.raises(ValueError, match="is incomplete: .* lacks fog; get or make it again"):
            data.tiny_imagenet_c_regen(root=root, verify=False, corruptions=["fog"])
        splits = data.tiny_imagenet_c_regen(root=root, verify=False, corruptions=["pixelate"])
        expected = corruptions.corrupt(splits.test.inputs, "pixelate", 5)
        stored = splits.shifts["pixelate-5"]
        assert torch.equal(stored.labels, splits.test.labels)
        assert (stored.inputs.float() - expected.float()).abs().mean() < 10  # JPEG
        # The official layout, so that it can be read as one.
        folder.rename(root / "Tiny-ImageNet-C")
        official = data.tiny_imagenet_c(root=root, verify=False, corruptions=["pixelate"])
        assert torch.equal(official.shifts["pixelate-5"].inputs, stored.inputs)


def test_a_run_is_evaluated_on_official_and_on_generated_files_by_one_mechanism(root, monkeypatch):
    read = data.load
    monkeypatch.setattr(data, "load", lambda name, **options: read(name, **{**options, "verify": False}))
    labels = read("cifar10", root=root, verify=False).test.labels.tolist()
    from macc.data._cells import STANDARD

    trees.write_cifar_c(root / "CIFAR-10-C", labels, STANDARD)
    regenerated.write_corrupted(
        "cifar10", root=root, verify=False, corruptions=corruptions.names(standard=True)
    )
    recipe = training.Recipe(
        dataset="cifar10", model="linear", loss="CrossEntropy", epochs=1, batch_size=30,
        optimiser={"name": "sgd", "lr": 0.01}, subset={"test": 10},
    )  # fmt: skip
    run = training.fit(recipe, root=root, out=root / "runs")
    for name, frost in (("cifar10_c", "frost-3"), ("cifar10_c_regen", "frost_synthetic-3")):
        written = training.predict(run, data=name, root=root)
        found = {path.relative_to(run.path / "predictions").as_posix() for path in written}
        assert len(found) == 75
        assert {f"{name}/fog-5.npz", f"{name}/{frost}.npz"} <= found
        with (
            np.load(run.path / "predictions" / name / "fog-5.npz") as cell,
            np.load(run.path / "predictions" / "test.npz") as clean,
        ):
            assert cell["logits"].shape == (10, 10)
            assert cell["labels"].tolist() == clean["labels"].tolist()  # the same images as the run's own

"""Chest X-rays from their usual folders: read, split, refused."""

import csv
import shutil

import numpy as np
import pytest
import torch

from helpers import trees
from helpers.data_files import load, refused, sizes
from helpers.shared_data import SHARED, needs_shared_data
from macc import data

pytest.importorskip("PIL")


class TestChestXray:
    def test_kaggle_and_mendeley_trees_give_the_same_split(self, tmp_path):
        kaggle = trees.write_chest(tmp_path / "kaggle")
        shutil.copytree(kaggle, tmp_path / "mendeley" / "chest_xray")
        for path in (tmp_path / "mendeley" / "chest_xray" / "val").rglob("*.png"):
            path.rename(tmp_path / "mendeley" / "chest_xray" / "train" / path.parent.name / path.name)
        shutil.rmtree(tmp_path / "mendeley" / "chest_xray" / "val")
        splits = load("chest_xray", tmp_path / "kaggle")

        assert sizes(splits) == (94, 10, 16)
        assert splits.shape == (1, 16, 16)
        assert splits.classes == ("NORMAL", "PNEUMONIA")
        assert splits.normalisation is None
        assert splits.augmentation == data.Augmentation(flip=True, rotate=True)
        assert load("chest_xray", tmp_path / "mendeley").digest() == splits.digest()
        assert data.known()["chest_xray"].sizes == (5232 - 523, 523, 624)

    def test_lists(self, tmp_path):
        folder = trees.write_chest(tmp_path)
        for part in ("train", "test"):
            with (folder / f"mendley_{part}.csv").open("w", newline="") as file:
                for path in sorted((folder / part).rglob("*.png"))[::2]:
                    label = int(path.parent.name == "PNEUMONIA")
                    csv.writer(file).writerow([path.relative_to(folder).as_posix(), label])
        assert sizes(load("chest_xray", tmp_path)) == (45, 5, 8)
        (folder / "mendley_test.csv").write_text("../../secret.png,1\n")
        assert "line 1: '../../secret.png' leads outside its folder" in refused("chest_xray", tmp_path)
        (folder / "mendley_test.csv").write_text("test/NORMAL/none.png,1\n")
        assert "line 1: there is no file" in refused("chest_xray", tmp_path)
        (folder / "mendley_test.csv").write_text("path,label\ntest/NORMAL/test-000.png,2\n")
        assert "line 2: expected path,label with a label 0 or 1" in refused("chest_xray", tmp_path)

    def test_any_size(self, tmp_path):
        trees.write_chest(tmp_path, 5, 1, 1, side=20)
        trees.write_image(tmp_path / "chest_xray" / "test" / "NORMAL" / "wide.png", 9, side=30, mode="L")

        assert data.chest_xray(root=tmp_path, verify=False, size=12).shape == (1, 12, 12)
        assert load("chest_xray", tmp_path).shape == (1, 832, 832)
        with pytest.raises(ValueError, match="`size` must be a number of pixels"):
            data.chest_xray(root=tmp_path, size=0)

    def test_features_are_pooled_and_split_anew(self, tmp_path):
        trees.write_chest_features(tmp_path)
        splits = load("chest_xray_features", tmp_path)

        assert sizes(splits) == (94, 10, 20)
        assert splits.augmentation is None

    def test_augmented_validation_only_under_the_legacy_name(self, tmp_path):
        from PIL import Image

        trees.write_chest(tmp_path)
        rng = np.random.default_rng(0)
        for path in (tmp_path / "chest_xray").rglob("*.png"):
            Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(path)
        right, legacy = load("chest_xray", tmp_path), load("chest_xray_augmented_val", tmp_path)

        assert torch.equal(right.train.inputs, legacy.train.inputs)
        assert torch.equal(right.test.inputs, legacy.test.inputs)
        assert not torch.equal(right.val.inputs, legacy.val.inputs)
        # The same pixels in other places.
        assert torch.equal(
            right.val.inputs.flatten(1).sort().values, legacy.val.inputs.flatten(1).sort().values
        )
        assert load("chest_xray_augmented_val", tmp_path).digest() == legacy.digest()

    def test_bad_trees(self, tmp_path):
        assert "put chest_xray or chest_xray*.zip" in refused("chest_xray", tmp_path)
        folder = trees.write_chest(tmp_path, 5, 1, 1)
        assert "must have (4709, 523, 624)" in refused("chest_xray", tmp_path, verify=True)
        image = folder / "train" / "NORMAL" / "train-000.png"
        image.write_bytes(image.read_bytes()[:40])
        assert "train-000.png cannot be decoded" in refused("chest_xray", tmp_path)
        shutil.rmtree(folder / "train" / "NORMAL")
        assert "NORMAL is missing" in refused("chest_xray", tmp_path)
        shutil.rmtree(folder / "test")
        assert "must hold the folders train and test" in refused("chest_xray", tmp_path)


@needs_shared_data
def test_the_features_of_the_shared_folder():
    assert data.load("chest_xray_features", root=SHARED).test.counts(2).tolist() == [234, 390]

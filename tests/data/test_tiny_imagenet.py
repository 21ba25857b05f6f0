"""Tiny-ImageNet from the official tree, and its corrupted copy."""

import shutil

import pytest
import torch

from helpers import trees
from helpers.data_files import load, refused, sizes
from macc import data
from macc.data._cells import STANDARD

pytest.importorskip("PIL")


class TestTinyImagenet:
    def test_the_official_tree(self, tmp_path):
        trees.write_tiny_imagenet(tmp_path)
        splits = load("tiny_imagenet", tmp_path)

        assert sizes(splits) == (36, 4, 12)
        assert splits.shape == (3, 64, 64)
        assert splits.classes == ("n00000000", "n00000001", "n00000002", "n00000003")
        assert splits.test.labels.tolist() == [k for k in range(4) for _ in range(3)]
        assert (splits.test.inputs[:, 0, 0, 0].long() - 20 * splits.test.labels).abs().max() <= 2
        both = torch.cat([splits.train.inputs, splits.val.inputs])[:, 0, 0, 0].long()
        labels = torch.cat([splits.train.labels, splits.val.labels])
        assert ((both - 20 * labels >= -2) & (both - 20 * labels <= 11)).all()
        assert splits.augmentation == data.Augmentation(pad=4, flip=True)

    def test_validation_on_training_images_only_under_the_legacy_name(self, tmp_path):
        trees.write_tiny_imagenet(tmp_path, 4, 10)
        right, legacy = load("tiny_imagenet", tmp_path), load("tiny_imagenet_legacy_val", tmp_path)

        def pixels(part):
            return {tuple(row) for row in part.inputs.flatten(1)[:, ::97].tolist()}

        assert torch.equal(right.train.inputs, legacy.train.inputs)
        assert not pixels(right.val) & pixels(right.train)
        assert legacy.val.labels.tolist() == [0, 0, 0, 0]  # the first tenth of the folder: its first classes
        assert (legacy.val.inputs[:, 0, 0, 0] <= 12).all()
        assert len(pixels(legacy.val) & pixels(legacy.train)) >= 3

    def test_bad_trees(self, tmp_path):
        assert "put tiny-imagenet-200 or tiny-imagenet-200.zip into" in refused("tiny_imagenet", tmp_path)
        folder = trees.write_tiny_imagenet(tmp_path, 2, 5, 1)
        assert "must have (90000, 10000, 10000)" in refused("tiny_imagenet", tmp_path, verify=True)
        (folder / "val" / "val_annotations.txt").write_text("../../x.JPEG\tn00000000\t0\n")
        assert "line 1: expected a file and a class" in refused("tiny_imagenet", tmp_path)
        (folder / "val" / "val_annotations.txt").write_text("val_9.JPEG\tn00000000\t0\n")
        assert "line 1: there is no file" in refused("tiny_imagenet", tmp_path)
        (folder / "val" / "val_annotations.txt").unlink()
        assert "val_annotations.txt; the labels" in refused("tiny_imagenet", tmp_path)
        shutil.rmtree(folder / "train" / "n00000001")
        assert "n00000001/images holds no images" in refused("tiny_imagenet", tmp_path)

    def test_the_corrupted_tree(self, tmp_path):
        trees.write_tiny_imagenet(tmp_path)
        folder = trees.write_tiny_imagenet_c(tmp_path, STANDARD)
        splits = load("tiny_imagenet_c", tmp_path)

        assert len(splits.shifts) == 75
        assert list(splits.shifts)[:6] == [*(f"gaussian_noise-{k}" for k in range(1, 6)), "shot_noise-1"]
        part = splits.shifts["fog-4"]
        assert torch.equal(part.labels, splits.test.labels)
        assert (part.inputs[:, 0, 0, 0].long() - 20 * part.labels - 4).abs().max() <= 2
        few = data.tiny_imagenet_c(root=tmp_path, verify=False, corruptions=["fog"])
        assert list(few.shifts) == [f"fog-{k}" for k in range(1, 6)]
        shutil.rmtree(folder / "fog" / "3")
        assert "there is no folder" in refused("tiny_imagenet_c", tmp_path)
        shutil.rmtree(folder / "fog")
        assert "lacks fog" in refused("tiny_imagenet_c", tmp_path)

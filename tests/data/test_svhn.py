"""SVHN from files in their usual layout."""

import numpy as np

from helpers import trees
from helpers.data_files import load, refused, sizes
from macc.data._splits import seeded_split


class TestSvhn:
    def test_images_labels_and_split(self, tmp_path):
        trees.write_svhn(tmp_path)
        splits = load("svhn", tmp_path)
        pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 40), dtype=np.uint8)
        in_val, in_train = seeded_split(40, 0.1)

        assert sizes(splits) == (36, 4, 10)
        # Label 10 is the digit 0: 1, 2, …, 9, 10 → 1, 2, …, 9, 0.
        assert splits.test.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
        assert splits.train.inputs[0].tolist() == pixels[:, :, :, in_train[0]].transpose(2, 0, 1).tolist()
        assert splits.val.labels.tolist() == [(int(k) + 1) % 10 for k in in_val]
        assert splits.augmentation is None
        assert splits.classes[0] == "0"

    def test_bad_files(self, tmp_path):
        assert "put train_32x32.mat, test_32x32.mat into" in refused("svhn", tmp_path)
        trees.write_svhn(tmp_path)
        assert "is not the published file: its MD5 is" in refused("svhn", tmp_path, verify=True)
        path = tmp_path / "test_32x32.mat"
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        assert "damaged or cut" in refused("svhn", tmp_path)
        path.write_bytes(b"no matlab file" * 40)
        assert "test_32x32.mat" in refused("svhn", tmp_path)
        from scipy.io import savemat

        savemat(path, {"X": np.zeros((32, 32, 1, 5), np.uint8), "y": np.ones((5, 1))})
        assert "must hold X as uint8 (32, 32, 3, N), got uint8 (32, 32, 1, 5)" in refused("svhn", tmp_path)
        savemat(path, {"X": np.zeros((32, 32, 3, 5), np.uint8), "y": np.ones((4, 1))})
        assert "one label for each of its 5 images" in refused("svhn", tmp_path)
        savemat(path, {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": np.full((1, 1), 11)})
        assert "must lie in 1 … 10, got 11" in refused("svhn", tmp_path)

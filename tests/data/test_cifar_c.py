"""CIFAR-C from the published files."""

import shutil
import tarfile

import numpy as np
import pytest
import torch

from helpers import trees
from helpers.data_files import load, refused
from helpers.trees import write_cifar10
from macc import data
from macc.data._cells import EXTRA, STANDARD

pytest.importorskip("PIL")


class TestCifarC:
    @pytest.fixture
    def root(self, tmp_path):
        write_cifar10(tmp_path)
        clean = load("cifar10", tmp_path)
        trees.write_cifar_c(tmp_path / "CIFAR-10-C", clean.test.labels.tolist(), (*STANDARD, *EXTRA))
        return tmp_path

    def test_cells(self, root):
        splits = load("cifar10_c", root)

        assert len(splits.shifts) == 95
        assert splits.name == "cifar10_c"
        assert torch.equal(splits.test.inputs, load("cifar10", root).test.inputs)
        part = splits.shifts["speckle_noise-3"]
        assert torch.equal(part.labels, splits.test.labels)
        assert part.inputs.shape == (20, 3, 32, 32)
        assert part.inputs[:, 0].unique().tolist() == [15]
        assert part.inputs[:, 1].unique().tolist() == [3]
        assert part.inputs[:, 2, 0, 0].tolist() == list(range(20))
        (images, _), *_ = splits.batches("speckle_noise-3", batch_size=20)
        torch.testing.assert_close(images, splits.normalisation(part.inputs.contiguous()))

    def test_15_or_19_or_some(self, root):
        assert len(data.cifar10_c(root=root, verify=False, corruptions=["fog", "snow"]).shifts) == 10
        (root / "CIFAR-10-C" / "saturate.npy").unlink()
        assert len(load("cifar10_c", root).shifts) == 75
        (root / "CIFAR-10-C" / "fog.npy").unlink()
        assert "lacks fog; get or make it again, or say which to read" in refused("cifar10_c", root)
        with pytest.raises(ValueError, match="no corruption is called 'fogg'"):
            data.cifar10_c(root=root, verify=False, corruptions=["fogg"])

    def test_an_archive(self, root):
        with tarfile.open(root / "CIFAR-10-C.tar", "w") as tar:
            tar.add(root / "CIFAR-10-C", "CIFAR-10-C")
        shutil.rmtree(root / "CIFAR-10-C")
        assert len(load("cifar10_c", root).shifts) == 95

    def test_bad_files(self, root):
        folder = root / "CIFAR-10-C"
        path = folder / "fog.npy"
        content = path.read_bytes()
        path.write_bytes(content[:-5])
        assert "fog.npy is damaged or cut: its header promises" in refused("cifar10_c", root)
        path.write_bytes(content[:20])
        assert "fog.npy is damaged" in refused("cifar10_c", root)
        np.save(path, np.array([{}], dtype=object), allow_pickle=True)
        assert "holds Python objects, which are never loaded" in refused("cifar10_c", root)
        np.save(path, np.zeros((100, 3, 32, 32), np.uint8))
        assert "must hold uint8 (100, 32, 32, 3), got uint8 (100, 3, 32, 32)" in refused("cifar10_c", root)
        np.save(folder / "labels.npy", np.zeros(7, np.uint8))
        assert "must hold the labels of five levels" in refused("cifar10_c", root)
        shutil.rmtree(folder)
        assert "put CIFAR-10-C or CIFAR-10-C.tar into" in refused("cifar10_c", root)

    def test_labels_of_other_images(self, root, monkeypatch):
        clean = load("cifar10", root)
        from macc.data._cells import read_cells

        np.save(root / "CIFAR-10-C" / "labels.npy", np.zeros(100, np.uint8))
        with pytest.raises(ValueError, match="are not those of the 20 test images of cifar10"):
            read_cells("c", root / "CIFAR-10-C", clean, corruptions=["fog"], verify=True)

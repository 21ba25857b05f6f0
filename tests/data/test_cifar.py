"""CIFAR from files in their true format: read, split, and refused where they are not whole."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from helpers.shared_data import SHARED, needs_shared_data
from helpers.trees import CIFAR10_NAMES, batch, old_pickle, write_cifar10, write_cifar100
from macc import data
from macc.data import cifar
from macc.data._splits import check_sizes


class TestCifar:
    def test_cifar10(self, tmp_path):
        write_cifar10(tmp_path)
        splits = data.load("cifar10", root=tmp_path, verify=False)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (90, 10, 20)
        assert splits.classes == tuple(name.decode() for name in CIFAR10_NAMES)
        expected = batch(20, 6)
        assert splits.test.labels.tolist() == expected[b"labels"]
        assert torch.equal(splits.test.inputs.flatten(1), torch.from_numpy(expected[b"data"]))
        every = {tuple(row[:8]) for k in range(1, 6) for row in batch(20, k)[b"data"].tolist()}
        ours = torch.cat([splits.train.inputs, splits.val.inputs]).flatten(1)[:, :8]
        assert {tuple(row) for row in ours.tolist()} == every
        assert splits.normalisation.mean == (0.4914, 0.4822, 0.4465)
        assert splits.augmentation == data.Augmentation(pad=4, flip=True)

    def test_cifar100(self, tmp_path):
        write_cifar100(tmp_path)
        splits = data.load("cifar100", root=tmp_path, verify=False)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (36, 4, 10)
        assert splits.num_classes == 100
        assert splits.test.labels.tolist() == batch(10, 10, classes=100, key=b"fine_labels")[b"fine_labels"]

    def test_the_environment_says_where(self, tmp_path, monkeypatch):
        write_cifar100(tmp_path)
        monkeypatch.setenv("MACC_DATA", str(tmp_path))

        assert len(data.load("cifar100", verify=False).train) == 36

    def test_verify_refuses_other_files_before_opening_them(self, tmp_path, monkeypatch):
        write_cifar10(tmp_path)
        monkeypatch.setattr(cifar, "read_pickle", lambda *_: pytest.fail("opened unverified"))
        with pytest.raises(
            ValueError, match=r"batches.meta is not the published file: its MD5 is \w+, expected 5ff9c5"
        ):
            data.load("cifar10", root=tmp_path)

    def test_the_published_sizes_are_asserted(self, tmp_path):
        write_cifar100(tmp_path)
        splits = data.load("cifar100", root=tmp_path, verify=False)
        with pytest.raises(ValueError, match=r"must have \(45000, 5000, 10000\) .* got \(36, 4, 10\)"):
            check_sizes(splits, cifar.SIZES)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c.pop(b"data"), r"must hold 'data' as uint8 \(N, 3072\), got NoneType"),
            (lambda c: c.update({b"data": c[b"data"][:, :99]}), r"got uint8 \(20, 99\)"),
            (lambda c: c.update({b"data": c[b"data"].astype("f4")}), "got float32"),
            (lambda c: c.update({b"labels": c[b"labels"][1:]}), "20 images and 19 labels"),
            (lambda c: c.update({b"labels": "none"}), "must hold 'labels' as a list of class indices"),
            (lambda c: c.update({b"labels": [10] * 20}), r"must lie in \[0, 9\] for 10 classes, got 10"),
        ],
    )
    def test_contents_that_do_not_match(self, tmp_path, change, message):
        folder = write_cifar10(tmp_path)
        content = batch(20, 6)
        change(content)
        (folder / "test_batch").write_bytes(old_pickle(content))
        with pytest.raises(ValueError, match=message):
            data.load("cifar10", root=tmp_path, verify=False)

    @pytest.mark.parametrize("keep", [0, 10, 1000, -1])
    def test_a_cut_file(self, tmp_path, keep):
        path = write_cifar10(tmp_path) / "data_batch_3"
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(ValueError, match="data_batch_3 is damaged"):
            data.load("cifar10", root=tmp_path, verify=False)


@needs_shared_data
class TestRealCifar10:
    @pytest.fixture
    def root(self):
        """Made once for this machine: it takes the pixels from a package registry."""
        root = Path(tempfile.gettempdir()) / "macc-real-cifar10"
        if not (root / "cifar-10-batches-py" / "batches.meta").is_file():
            made = subprocess.run(
                [sys.executable, SHARED / "get-cifar10", root], capture_output=True, text=True
            )
            if made.returncode:
                pytest.skip(f"get-cifar10 did not work here: {made.stderr[-200:]}")
        return root

    def test_every_byte_is_the_published_one(self, root):
        splits = data.load("cifar10", root=root)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (45_000, 5_000, 10_000)
        together = splits.train.counts(10) + splits.val.counts(10)
        assert together.tolist() == [5000] * 10
        assert splits.test.counts(10).tolist() == [1000] * 10
        fitted = data.Normalisation.fit(splits.train.inputs)
        assert fitted.mean == pytest.approx(splits.normalisation.mean, abs=1e-3)
        # The published standard deviations are means over images, smaller than those over all
        # pixels.
        assert fitted.std == pytest.approx((0.247, 0.243, 0.261), abs=1e-3)

"""Fashion-MNIST from files in their true format, packed or not."""

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers.trees import write_fashion
from macc import data


class TestFashion:
    @pytest.mark.parametrize("packed", [True, False])
    def test_both_forms(self, tmp_path, packed):
        write_fashion(tmp_path, packed=packed)
        splits = data.load("fashion_mnist", root=tmp_path, verify=False)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (27, 3, 10)
        assert splits.shape == (1, 28, 28)
        rng = np.random.default_rng(0)
        rng.integers(0, 256, (30, 28, 28)), rng.integers(0, 10, 30)
        images, labels = rng.integers(0, 256, (10, 28, 28)), rng.integers(0, 10, 10)
        np.testing.assert_array_equal(splits.test.inputs[:, 0].numpy(), images)
        np.testing.assert_array_equal(splits.test.labels.numpy(), labels)
        assert list(splits.shifts) == [f"{shift}-{n}" for shift in ("noise", "rotation") for n in range(1, 6)]
        assert all(len(part) == 10 for part in splits.shifts.values())

    def test_verify(self, tmp_path):
        write_fashion(tmp_path)
        with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz is not the published file"):
            data.load("fashion_mnist", root=tmp_path)

    def test_what_the_files_hold_is_checked_and_not_who_packed_them(self, tmp_path, monkeypatch):
        folder = write_fashion(tmp_path)
        module = sys.modules["macc.data.fashion_mnist"]
        unpacked = {path.stem: gzip.decompress(path.read_bytes()) for path in folder.iterdir()}
        known = {name: (hashlib.md5(each).hexdigest(), len(each)) for name, each in unpacked.items()}
        assert known.keys() == module.CONTENT.keys()
        monkeypatch.setattr(module, "CONTENT", known)
        monkeypatch.setattr(module, "SIZES", (27, 3, 10))
        for name, content in unpacked.items():  # packed with another time, and one of them not at all
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=7))
        (folder / "t10k-labels-idx1-ubyte.gz").unlink()
        (folder / "t10k-labels-idx1-ubyte").write_bytes(unpacked["t10k-labels-idx1-ubyte"])

        assert len(data.load("fashion_mnist", root=tmp_path).test) == 10
        for path in (folder / "t10k-labels-idx1-ubyte", folder / "train-images-idx3-ubyte.gz"):
            content = unpacked[path.name.removesuffix(".gz")]
            changed = bytes([*content[:-1], content[-1] ^ 1]), content + bytes(10**6)
            for wrong in changed:
                path.write_bytes(gzip.compress(wrong) if path.suffix else wrong)
                with pytest.raises(ValueError, match=f"{path.name} is not the published file.*--no-verify"):
                    data.load("fashion_mnist", root=tmp_path)
            path.write_bytes(gzip.compress(content) if path.suffix else content)

    def test_the_files_that_a_linux_distribution_packs(self, tmp_path):
        packed = Path("/usr/share/datasets/fashion-mnist")
        if not packed.is_dir():
            pytest.skip("needs the Debian package dataset-fashion-mnist")
        (tmp_path / "FashionMNIST").mkdir()
        (tmp_path / "FashionMNIST" / "raw").symlink_to(packed)

        assert len(data.load("fashion_mnist", root=tmp_path).test) == 10_000

    def test_damaged_files(self, tmp_path):
        folder = write_fashion(tmp_path)
        path = folder / "t10k-images-idx3-ubyte.gz"
        whole = path.read_bytes()
        for content, message in [
            (whole[:-30], "is damaged or cut"),
            (
                gzip.compress(b"\0\0\x08\3" + struct.pack(">3I", 2**31, 2**31, 9)),
                "should have .* bytes by its header and has 16",
            ),
            (
                gzip.compress(gzip.decompress(whole) + b"x"),
                "should have 7856 bytes by its header and has 7857",
            ),
            (gzip.compress(b"\0\0\x08\1abcd"), "does not start like an IDX file of 3 axes"),
            (b"not gzip", "is damaged or cut"),
        ]:
            path.write_bytes(content)
            with pytest.raises(ValueError, match=message):
                data.load("fashion_mnist", root=tmp_path, verify=False)

    def test_labels_that_do_not_match(self, tmp_path):
        folder = write_fashion(tmp_path)
        (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(b"\0\0\x08\1" + struct.pack(">I", 3) + b"abc")
        )
        with pytest.raises(ValueError, match="10 t10k images and 3 labels"):
            data.load("fashion_mnist", root=tmp_path, verify=False)

"""PACS by both rules from its usual folders: read, split, refused."""

import shutil
import zipfile

import numpy as np
import pytest
import torch

from helpers import trees
from helpers.data_files import load, refused, sizes
from helpers.shared_data import SHARED, needs_shared_data
from macc import data

pytest.importorskip("PIL")


class TestPacs:
    def test_protocol_a(self, tmp_path):
        trees.write_pacs(tmp_path, 4)
        splits = load("pacs_a", tmp_path)

        assert sizes(splits) == (28, 28, 56)
        assert list(splits.shifts) == ["cartoon", "sketch"]
        assert splits.classes == trees.PACS_CLASSES
        reds = {name: sorted(set(part.inputs[:, 0, 0, 0].tolist())) for name, part in splits.parts().items()}
        for d, name in enumerate(("train", "val", "cartoon", "sketch")):
            assert reds[name] == [60 * d + 8 * k for k in range(7)]
        assert torch.equal(
            splits.test.inputs, torch.cat([splits.shifts["cartoon"].inputs, splits.shifts["sketch"].inputs])
        )
        # Sketches are grey and become three equal channels.
        sketch = splits.shifts["sketch"].inputs
        assert torch.equal(sketch[:, 0], sketch[:, 2])
        assert splits.normalisation.mean == (0.485, 0.456, 0.406)
        assert splits.augmentation is None

    @pytest.mark.parametrize("domain", ["photo", "art", "cartoon", "sketch"])
    def test_protocol_b(self, tmp_path, domain):
        trees.write_pacs(tmp_path, 4)
        splits = load(f"pacs_b_{domain}", tmp_path)
        others = [d for d in ("photo", "art", "cartoon", "sketch") if d != domain]

        assert sizes(splits) == (23, 5, 84)
        assert list(splits.shifts) == others
        assert [len(part) for part in splits.shifts.values()] == [28] * 3
        offset = 60 * ("photo", "art", "cartoon", "sketch").index(domain)
        own = torch.cat([splits.train.inputs, splits.val.inputs])[:, 0, 0, 0]
        assert sorted(own.tolist()) == sorted(offset + 8 * k for k in range(7) for _ in range(4))
        labels = torch.cat([splits.train.labels, splits.val.labels])
        assert torch.equal((own.long() - offset) // 8, labels)

    def test_published_sizes(self):
        known = data.known()
        assert known["pacs_a"].sizes == (1670, 2048, 6273)
        assert known["pacs_b_photo"].sizes == (1336, 334, 8321)
        assert known["pacs_b_art_features"].sizes == (1639, 409, 7943)
        assert known["pacs_b_cartoon"].sizes == (1876, 468, 7647)
        assert known["pacs_b_sketch"].sizes == (3144, 785, 6062)

    def test_large_images_are_cut_around_the_centre(self, tmp_path):
        from PIL import Image

        trees.write_pacs(tmp_path, 1, side=227)
        pixels = np.random.default_rng(0).integers(0, 256, (227, 227, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "PACS" / "photo" / "dog" / "pic_000.png")
        splits = load("pacs_a", tmp_path)

        assert splits.shape == (3, 224, 224)
        assert torch.equal(
            splits.train.inputs[0], torch.from_numpy(pixels[1:225, 1:225].transpose(2, 0, 1).copy())
        )

    def test_features(self, tmp_path):
        path = trees.write_pacs_features(tmp_path, 10)
        splits = load("pacs_b_art_features", tmp_path)

        assert splits.kind == "features"
        assert splits.shape == (8,)
        assert sizes(splits) == (56, 14, 210)
        with np.load(path) as found:
            expected = torch.from_numpy(found["photo_features"].astype(np.float32))
        assert torch.equal(splits.shifts["photo"].inputs, expected)
        assert splits.normalisation is None

    def test_features_that_do_not_fit(self, tmp_path):
        path = trees.write_pacs_features(tmp_path, 2)
        with np.load(path) as found:
            arrays = dict(found)
        np.savez(path, **{key: value for key, value in arrays.items() if key != "photo_labels"})
        assert "lacks photo_labels" in refused("pacs_a_features", tmp_path)
        np.savez(path, **arrays, more=np.zeros(3))
        assert "holds more, which this data set does not have" in refused("pacs_a_features", tmp_path)
        np.savez(path, **(arrays | {"photo_features": np.full((14, 8), np.nan)}))
        assert "NaN" in refused("pacs_a_features", tmp_path)

    def test_an_archive_is_read_in_place(self, tmp_path):
        folder = trees.write_pacs(tmp_path / "made", 2)
        with zipfile.ZipFile(tmp_path / "PACS-112px.zip", "w") as archive:
            for path in folder.rglob("*.png"):
                archive.write(path, path.relative_to(tmp_path / "made"))
        assert load("pacs_a", tmp_path).digest() == load("pacs_a", tmp_path / "made").digest()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["PACS-112px.zip", "made"]

    def test_bad_trees(self, tmp_path):
        assert "put PACS or PACS*.zip" in refused("pacs_a", tmp_path)
        folder = trees.write_pacs(tmp_path, 2)
        assert "pacs_a must have (1670, 2048, 6273)" in refused("pacs_a", tmp_path, verify=True)
        (folder / "photo" / "dog" / "Thumbs.db").write_bytes(b"x")
        (folder / "photo" / "dog" / "._pic_000.png").write_bytes(b"x")
        assert sizes(load("pacs_a", tmp_path)) == (14, 14, 28)
        image = folder / "photo" / "dog" / "pic_000.png"
        whole = image.read_bytes()
        image.write_bytes(whole[:40])
        assert "pic_000.png cannot be decoded" in refused("pacs_a", tmp_path)
        image.write_bytes(whole)
        for path in (folder / "photo" / "dog").glob("*.png"):
            path.unlink()
        assert "dog holds no images" in refused("pacs_a", tmp_path)
        shutil.rmtree(folder / "photo" / "dog")
        assert "photo must hold the folders dog, elephant" in refused("pacs_a", tmp_path)
        shutil.rmtree(folder / "sketch")
        assert "must hold the folders photo, art_painting, cartoon, sketch" in refused("pacs_a", tmp_path)

    def test_a_hostile_archive(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "PACS.zip", "w") as archive:
            archive.writestr("PACS/../../evil.png", b"x")
        assert "a path that leads outside its folder; refused" in refused("pacs_a", tmp_path)
        assert not list(tmp_path.parent.glob("evil*"))


@needs_shared_data
def test_the_features_of_the_shared_folder():
    assert sizes(data.load("pacs_a_features", root=SHARED)) == (1670, 2048, 6273)

"""A user's own images: layouts, the cache, and everything that may be wrong with a folder."""

import os
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
import torch

from helpers.shared_data import SHARED, needs_shared_data
from macc import data
from macc.data import _images as module

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MACC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "folders"


def write_image(path, value, *, size=(6, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode in ("L", "P") else (value, 0, 255 - value)
    Image.new(mode, (size[1], size[0]), colour).save(path)


def write_classes(root, counts, *, start=0, **options):
    """Images whose red value says which one it is."""
    for name, count in counts.items():
        for k in range(count):
            write_image(root / name / f"{k:03}.png", start + k, **options)
        start += count
    return root


def reds(part):
    return sorted(part.inputs[:, 0, 0, 0].tolist())


def no_decoding(monkeypatch):
    monkeypatch.setattr(module, "_decoded", lambda *_: pytest.fail("decoded again"))


class TestLayouts:
    def test_class_folders_are_split_by_a_fixed_seed(self, tmp_path):
        root = write_classes(tmp_path / "pets", {"cat": 30, "dog": 20})
        splits = data.load(f"folder:{root}")

        assert (len(splits.train), len(splits.val), len(splits.test)) == (36, 4, 10)
        assert splits.classes == ("cat", "dog")
        assert splits.name == "pets"
        assert splits.shape == (3, 6, 8)
        assert sorted(red for part in splits.parts().values() for red in reds(part)) == list(range(50))
        for part in splits.parts().values():
            assert torch.equal(part.labels, (part.inputs[:, 0, 0, 0] >= 30).long())
            assert torch.equal(part.inputs[:, 2], 255 - part.inputs[:, 0])

    def test_class_folders_can_stay_whole(self, tmp_path):
        root = write_classes(tmp_path / "pets", {"cat": 30, "dog": 20})
        cut = data.load(f"folder:{root}")
        splits = data.load(f"folder:{root}", cut=False)

        assert len(cut.test) == 10
        for part in splits.parts().values():
            assert part.inputs[:, 0, 0, 0].tolist() == list(range(50))
            assert part.labels.tolist() == 30 * [0] + 20 * [1]

    def test_split_folders_and_shifts(self, tmp_path):
        root = tmp_path / "x"
        for start, (split, count) in enumerate([("train", 10), ("validation", 3), ("test", 4), ("night", 2)]):
            write_classes(root / split, {"a": count, "b": count}, start=50 * start)
        splits = data.load("folder:x", root=tmp_path)

        assert {name: len(p) for name, p in splits.parts().items()} == {
            "train": 20,
            "val": 6,
            "test": 8,
            "night": 4,
        }
        assert reds(splits.val) == list(range(50, 56))
        assert reds(splits.shifts["night"]) == list(range(150, 154))

    def test_two_names_of_validation(self, tmp_path):
        for split in ("train", "val", "valid"):
            write_classes(tmp_path / "x" / split, {"a": 10, "b": 10})
        with pytest.raises(ValueError, match="x has the splits 'val' and 'valid', which mean the same"):
            data.folder(tmp_path / "x")

    def test_a_split_left_over_does_not_take_the_place_of_a_chosen_one(self, tmp_path):
        for split in ("train", "night"):
            write_classes(tmp_path / "x" / split, {"a": 10, "b": 10})
        with pytest.raises(ValueError, match="x has a split 'train' that is a shifted test set, .*rename it"):
            data.folder(tmp_path / "x", train="night")

    def test_a_class_called_train(self, tmp_path):
        splits = data.folder(write_classes(tmp_path / "x", {"car": 20, "train": 20}))

        assert splits.classes == ("car", "train")

    def test_domains_as_splits(self, tmp_path):
        root = tmp_path / "x"
        for domain in ("photo", "art", "sketch"):
            write_classes(root / domain, {"a": 10, "b": 10})
        with pytest.raises(
            ValueError,
            match=r"art holds folders and no images: if 'art', 'photo', 'sketch' are splits .*train='art'",
        ):
            data.folder(root)
        splits = data.folder(root, train="photo", val="art")

        assert {name: len(p) for name, p in splits.parts().items()} == {
            "train": 16,
            "val": 20,
            "test": 4,
            "sketch": 20,
        }

    @pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
    def test_archives(self, tmp_path, suffix, cache, monkeypatch):
        root = write_classes(tmp_path / "pets" / "inner", {"cat": 10, "dog": 10})
        archive = tmp_path / f"pets{suffix}"
        shutil.make_archive(
            str(tmp_path / "pets"), {".zip": "zip", ".tar.gz": "gztar"}[suffix], tmp_path / "pets"
        )
        splits = data.folder(archive)

        assert splits.name == "pets"
        assert splits.digest() == data.folder(root).digest()
        assert not list(cache.glob(".unpacking*"))
        no_decoding(monkeypatch)

        assert data.folder(archive).digest() == splits.digest()

    def test_other_files_are_left_alone(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        (root / "notes.txt").write_text("x")
        (root / "a" / "Thumbs.db").write_text("x")
        (root / "a" / ".hidden.png").write_text("x")
        (root / ".git").mkdir()
        (root / "__MACOSX").mkdir()

        assert len(data.folder(root).train) == 29

    def test_a_class_may_begin_with_an_underscore(self, tmp_path):
        root = write_classes(tmp_path / "x", {"_background": 20, "a": 20, "__b": 20})

        assert data.folder(root).classes == ("__b", "_background", "a")


class TestDecoding:
    def test_sizes(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 10, "b": 10})
        write_image(root / "a" / "wide.png", 1, size=(300, 500))

        assert data.folder(root).shape == (3, 224, 224)
        assert data.folder(root, size=5).shape == (3, 5, 5)
        assert data.folder(root, size=5, channels=1).shape == (1, 5, 5)
        large = write_classes(tmp_path / "y", {"a": 10, "b": 10}, size=(300, 300))
        assert data.folder(large).shape == (3, 224, 224)

    def test_the_centre_is_kept(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 10, "b": 10}, size=(4, 12))
        pixels = np.zeros((4, 12, 3), "u1")
        pixels[:, 4:8] = 200
        for path in root.rglob("*.png"):
            Image.fromarray(pixels).save(path)

        assert (data.folder(root, size=4).train.inputs == 200).all()

    def test_modes_and_orientation(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 10, "b": 10}, size=(6, 6))
        write_image(root / "a" / "grey.png", 77, mode="L", size=(6, 6))
        write_image(root / "a" / "alpha.png", 99, size=(6, 6))
        Image.open(root / "a" / "alpha.png").convert("RGBA").save(root / "a" / "alpha.png")
        pixels = np.zeros((6, 6, 3), "u1")
        pixels[:3] = 250
        exif = Image.Exif()
        exif[0x0112] = 6  # the camera lay on its side
        Image.fromarray(pixels).save(root / "a" / "turned.png", exif=exif)
        images = torch.cat([p.inputs for p in data.folder(root).parts().values()])

        assert images.shape[1] == 3
        assert any((image == 77).all() for image in images)
        turned = torch.from_numpy(pixels).permute(2, 0, 1).rot90(-1, dims=(1, 2))
        assert any(torch.equal(image, turned) for image in images)

    @pytest.mark.parametrize("channels", [1, 3])
    @pytest.mark.parametrize(
        ("suffix", "dtype"), [("png", "uint16"), ("tiff", "uint16"), ("tiff", ">u2"), ("tiff", "int32")]
    )
    def test_sixteen_bits_keep_their_greys(self, tmp_path, suffix, dtype, channels):
        greys = np.linspace(0, 65535, 36).reshape(6, 6)
        for name in ("a", "b"):
            (tmp_path / "x" / name).mkdir(parents=True)
            for k in range(10):
                Image.fromarray(greys.astype(dtype)).save(tmp_path / "x" / name / f"{k}.{suffix}")
        image = data.folder(tmp_path / "x", channels=channels).train.inputs[0]

        expected = torch.from_numpy(greys / 257).expand(channels, 6, 6)
        torch.testing.assert_close(image.double(), expected, atol=0.51, rtol=0)

    @pytest.mark.parametrize(
        ("dtype", "low", "high", "mode"),
        [("float32", 0, 1, "F"), ("int32", 0, 65536, "I"), ("int32", -1, 9, "I")],
    )
    def test_greys_without_black_and_white_are_refused(self, tmp_path, dtype, low, high, mode):
        root = write_classes(tmp_path / "x", {"a": 10, "b": 10})
        Image.fromarray(np.array([[low, high]], dtype)).save(root / "a" / "scan.tiff")
        with pytest.raises(
            ValueError, match=f"scan.tiff .*mode {mode} with values from {low} to {high}.*8 or 16 bits"
        ):
            data.folder(root)

    def test_mirrored_only_in_training_and_only_if_wanted(self, tmp_path):
        pixels = np.zeros((6, 6, 3), "u1")
        pixels[:, :3] = 200
        for k in range(60):
            path = tmp_path / "x" / "ab"[k % 2] / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)

        def sides(splits, part, generator=None):
            inputs = torch.cat(
                [inputs for inputs, _ in splits.batches(part, batch_size=9, generator=generator)]
            )
            return set((inputs[:, 0, 0, 0] > inputs[:, 0, 0, 5]).tolist())

        mirrored, plain = data.folder(tmp_path / "x"), data.folder(tmp_path / "x", flip=False)
        assert sides(mirrored, "train", torch.Generator().manual_seed(0)) == {True, False}
        assert sides(mirrored, "test") == {True}
        assert sides(plain, "train", torch.Generator().manual_seed(0)) == {True}

    def test_normalisation_is_that_of_the_training_images(self, tmp_path):
        splits = data.folder(write_classes(tmp_path / "x", {"a": 20, "b": 20}))
        batch, _ = next(iter(splits.batches("train", batch_size=100)))

        torch.testing.assert_close(batch[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
        torch.testing.assert_close(batch[:, 0].std(correction=0), torch.tensor(1.0))


class TestCache:
    def test_a_second_start_decodes_nothing(self, tmp_path, monkeypatch):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        first = data.folder(root)
        no_decoding(monkeypatch)

        assert data.folder(root).digest() == first.digest()

    def test_images_stay_on_disk_and_cannot_be_changed_there(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        first = data.folder(root)
        digest = first.digest()
        first.train.inputs.zero_()

        assert data.folder(root).digest() == digest

    @pytest.mark.parametrize("change", ["add", "remove", "rewrite", "touch"])
    def test_a_changed_folder_is_decoded_anew(self, tmp_path, change):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        first = data.folder(root).digest()
        path = root / "a" / "003.png"
        if change == "add":
            write_image(root / "a" / "new.png", 250)
        elif change == "remove":
            path.unlink()
        else:
            status = path.stat()
            write_image(path, 251)
            if change == "rewrite":
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))

        assert data.folder(root).digest() != first

    def test_two_processes_at_once(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 100, "b": 100})
        code = f"from macc import data; print(data.folder({str(root)!r}).digest())"
        running = [
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        digests = [process.communicate(timeout=120)[0] for process in running]

        assert digests[0] == digests[1] != ""

    def test_a_damaged_image_leaves_nothing_behind(self, tmp_path, cache):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        whole = (root / "b" / "007.png").read_bytes()
        for content in (b"no image", b"", whole[:40]):
            (root / "b" / "007.png").write_bytes(content)
            with pytest.raises(ValueError, match="007.png cannot be decoded .*; replace or remove it"):
                data.folder(root)
        assert not [path for path in cache.iterdir() if path.suffix != ".lock"]

    def test_an_interrupted_build_starts_again(self, tmp_path, monkeypatch, cache):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        expected = data.folder(root).digest()
        (kept,) = (path for path in cache.iterdir() if path.is_dir())
        (kept / "index.json").unlink()

        assert data.folder(root).digest() == expected

    def test_no_room(self, tmp_path, monkeypatch):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
        with pytest.raises(
            ValueError, match=r"decoded images need 0.0 GB and .* smaller `size`, .*\$MACC_CACHE"
        ):
            data.folder(root)

    def test_a_cache_that_cannot_be_written(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("x")
        monkeypatch.setenv("MACC_CACHE", str(tmp_path / "file"))
        with pytest.raises(ValueError, match=r"cannot hold the decoded images .*\$MACC_CACHE"):
            data.folder(write_classes(tmp_path / "x", {"a": 20, "b": 20}))


class TestMistakes:
    def test_folders(self, tmp_path):
        with pytest.raises(ValueError, match="there is no folder .*nothing"):
            data.load("folder:nothing", root=tmp_path)
        (tmp_path / "a.txt").write_text("x")
        with pytest.raises(ValueError, match="a.txt must be a folder of images"):
            data.folder(tmp_path / "a.txt")
        (tmp_path / "flat").mkdir()
        write_image(tmp_path / "flat" / "1.png", 1)
        with pytest.raises(ValueError, match="flat holds no folders; put the images of each class"):
            data.folder(tmp_path / "flat")

    def test_an_empty_class_folder(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        (root / "empty").mkdir()
        (root / "empty" / "readme.txt").write_text("x")
        with pytest.raises(ValueError, match="class folder .*empty holds no images"):
            data.folder(root)

    def test_one_class(self, tmp_path):
        with pytest.raises(ValueError, match="x has 1 class"):
            data.folder(write_classes(tmp_path / "x", {"a": 20}))

    def test_a_class_that_is_only_tested(self, tmp_path):
        root = tmp_path / "x"
        write_classes(root / "train", {"a": 10, "b": 10})
        write_classes(root / "test", {"a": 3, "c": 3})
        with pytest.raises(ValueError, match="class 'c' of .*test has no folder among the training images"):
            data.folder(root)

    def test_too_few(self, tmp_path):
        with pytest.raises(ValueError, match="4 images are too few to set some aside for test"):
            data.folder(write_classes(tmp_path / "x", {"a": 2, "b": 2}))

    def test_options(self, tmp_path):
        root = write_classes(tmp_path / "x", {"a": 20, "b": 20})
        with pytest.raises(ValueError, match=r"`channels` must be 3 \(colour\) or 1 \(grey\), got 2"):
            data.folder(root, channels=2)
        with pytest.raises(ValueError, match="`size` must be a number of pixels, at least 1, got 0"):
            data.folder(root, size=0)

    def test_an_archive_that_reaches_out(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr("../../outside.png", "x")
        with pytest.raises(ValueError, match="leads outside its folder; refused"):
            data.folder(tmp_path / "x.zip")


@needs_shared_data
class TestRealImages:
    def test_chest_x_rays(self, monkeypatch):
        splits = data.load("folder:chest_xray-128px.zip", root=SHARED)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (5216, 16, 624)
        assert splits.classes == ("NORMAL", "PNEUMONIA")
        assert splits.train.counts(2).tolist() == [1341, 3875]
        assert splits.imbalance_factor() == pytest.approx(2.89, abs=0.005)
        assert splits.shape == (3, 128, 128)
        no_decoding(monkeypatch)
        data.load("folder:chest_xray-128px.zip", root=SHARED)

    def test_pacs(self):
        splits = data.folder(
            SHARED / "PACS-112px.zip", size=32, train="photo", val="art_painting", test="cartoon"
        )

        assert (len(splits.train), len(splits.val), len(splits.test)) == (1670, 2048, 2344)
        assert len(splits.shifts["sketch"]) == 3929
        assert splits.num_classes == 7


def test_an_image_that_would_take_gigabytes_is_refused_unopened(tmp_path):
    """A few bytes say that the image has 400 million pixels."""
    for name in ("a", "b"):
        for number in range(6):
            write_image(tmp_path / "in" / "train" / name / f"{number}.png", number)
    path = tmp_path / "in" / "train" / "a" / "0.png"
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 20_000, 20_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)

    with pytest.raises(ValueError, match="0.png cannot be decoded .*400000000 pixels"):
        data.load(f"folder:{tmp_path / 'in'}")

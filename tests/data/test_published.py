"""SVHN, PACS, chest X-rays and 20 Newsgroups from files in their usual layouts: read, split, refused."""

import csv
import shutil
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from helpers import trees
from helpers.shared_data import SHARED
from helpers.trees import write_cifar10
from macc import data
from macc.data._cells import EXTRA, STANDARD
from macc.data._splits import seeded_split

pytest.importorskip("PIL")
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not on this machine")


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("MACC_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("MACC_OFFLINE", "1")
    monkeypatch.delenv("MACC_DATA", raising=False)


def load(name, root):
    return data.load(name, root=root, verify=False)


def refused(name, root, *, verify=False):
    with pytest.raises(ValueError) as error:
        data.load(name, root=root, verify=verify)
    assert "\n" not in str(error.value)
    return str(error.value)


def sizes(splits):
    return len(splits.train), len(splits.val), len(splits.test)


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


class TestNewsgroups:
    def test_the_published_split_of_all_documents(self, tmp_path):
        trees.write_newsgroups(tmp_path)
        splits = load("newsgroups", tmp_path)
        order = np.random.RandomState(1).permutation(1000)

        assert splits.name == "newsgroups"
        assert sizes(splits) == (755, 45, 200)
        assert splits.classes == trees.GROUPS
        assert splits.test.labels.tolist() == [k // 50 for k in order[-200:]]
        assert splits.val.labels.tolist() == [k // 50 for k in order[-245:-200]]
        assert (round(900 / 19_997 * 19_997), int(0.2 * 19_997)) == (900, 3999)

    def test_tokens(self, tmp_path):
        trees.write_newsgroups_by_date(tmp_path)
        splits = load("newsgroups", tmp_path)

        assert splits.name == "newsgroups_bydate"
        assert sizes(splits) == (900, 100, 200)
        assert splits.shape == (1000,)
        assert splits.vectors is None
        # The three words of every training text are the commonest, in the order in which they come.
        row = splits.train.inputs[0].tolist()
        body = [token for token in row if token]
        assert body[:3] == [1, 2, 3]
        assert row[: 1000 - len(body)] == [0] * (1000 - len(body))
        # Headers are dropped, and words of the test texts are not counted: some, words, here, 20 topics, x, xx.
        assert splits.vocabulary == 1 + 3 + 20 + 2
        known = [token for token in splits.test.inputs[0].tolist() if token]
        assert known[0] == 2
        assert len(known) == 2  # "words", its topic

    def test_the_archive_and_what_it_unpacks_to_are_the_same(self, tmp_path):
        path = trees.write_newsgroups_by_date(tmp_path, 10, 2)
        for folder in (tmp_path / "flat", tmp_path / "deep" / "20news-bydate"):
            with tarfile.open(path) as tar:
                tar.extractall(folder, filter="data")
        packed = load("newsgroups", tmp_path).digest()

        assert load("newsgroups", tmp_path / "flat").digest() == packed
        assert load("newsgroups", tmp_path / "deep").digest() == packed
        shutil.rmtree(tmp_path / "flat" / "20news-bydate-test")
        assert "has a train part and lacks the other" in refused("newsgroups", tmp_path / "flat")

    def test_texts_keep_their_last_words_and_numbers_of_words_are_bounded(self, tmp_path, monkeypatch):
        import sys

        module = sys.modules["macc.data.newsgroups"]
        monkeypatch.setattr(module, "WORDS", 50)
        trees.write_newsgroups(tmp_path, 2)
        long = " ".join(f"word{k}" for k in range(1500) for _ in range(2))
        for group in trees.GROUPS:
            for number in ("1000", "1001"):
                (tmp_path / "20_newsgroups" / group / number).write_bytes(
                    b"H: x\n\n" + long.encode() + b" end end end"
                )
        splits = load("newsgroups", tmp_path)

        assert splits.vocabulary == 50
        assert int(splits.train.inputs.max()) == 49
        # "end" is the commonest word and the last of every text.
        assert splits.train.inputs[0, -3:].tolist() == [1, 1, 1]

    def test_words_are_split_as_the_published_tokenizer_does(self):
        import sys

        words = sys.modules["macc.data.newsgroups"]._words
        assert [w for w in words("It's a C++/C# test,\tof_THIS: 3.5!") if w] == [
            "it's", "a", "c", "c", "test", "of", "this", "3", "5",
        ]  # fmt: skip

    def test_vectors(self, tmp_path):
        trees.write_newsgroups_by_date(tmp_path)
        trees.write_glove(tmp_path)
        splits = load("newsgroups", tmp_path)

        assert splits.vectors.shape == (splits.vocabulary, 5)
        assert splits.vectors[1].tolist() == [0.5] * 5
        assert splits.vectors[3].tolist() == [2.5] * 5
        assert not splits.vectors[0].any()
        assert not splits.vectors[4:].any()
        other = load("newsgroups", tmp_path).digest()
        trees.write_glove(tmp_path, words=("here", "some"))
        assert load("newsgroups", tmp_path).digest() != other

    def test_bad_vectors(self, tmp_path):
        trees.write_newsgroups_by_date(tmp_path, 10, 2)
        path = trees.write_glove(tmp_path)
        path.write_bytes(path.read_bytes()[:20])
        assert "glove.6B.100d.txt.gz is damaged or cut" in refused("newsgroups", tmp_path)
        path.unlink()
        plain = tmp_path / "glove.6B.100d.txt"
        plain.write_text("some 1 2 3\nwords 1 2\n")
        assert "line 2: expected a word and 3 numbers, got 2" in refused("newsgroups", tmp_path)
        plain.write_text("some 1 2 x\n")
        assert "line 1: could not convert" in refused("newsgroups", tmp_path)
        plain.write_text("some 1 nan 3\n")
        assert "not finite" in refused("newsgroups", tmp_path)
        plain.write_text("")
        assert "is empty" in refused("newsgroups", tmp_path)

    def test_the_floor_is_reached_only_by_its_name(self, tmp_path):
        trees.write_newsgroups_by_date(tmp_path, 80, 15)
        right, legacy = load("newsgroups", tmp_path), load("newsgroups_floor", tmp_path)

        assert sizes(right) == (1440, 160, 300)
        assert sizes(legacy) == (1440, 128, 256)  # the last 32 and 44 texts are not scored
        assert torch.equal(legacy.test.labels, right.test.labels[:256])
        # Words that only test texts have, "unseen in training", are known to it.
        assert legacy.vocabulary == right.vocabulary + 3
        assert (legacy.test.inputs[0] > 0).sum() > (right.test.inputs[0] > 0).sum()

    def test_bad_files(self, tmp_path):
        assert "put 20_newsgroups or" in refused("newsgroups", tmp_path)
        path = trees.write_newsgroups_by_date(tmp_path, 5, 2)
        assert "must have (10183, 1131, 7532)" in refused("newsgroups", tmp_path, verify=True)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert "is damaged or cut" in refused("newsgroups", tmp_path)
        with tarfile.open(path, "w:gz") as tar:
            entry = tarfile.TarInfo("20news-bydate-train/../../77")
            tar.addfile(entry)
        refused("newsgroups", tmp_path)
        assert sorted(file.name for file in tmp_path.iterdir()) == [path.name]  # nothing was unpacked
        with tarfile.open(path, "w:gz") as tar:
            tar.addfile(tarfile.TarInfo("readme"))
        assert "holds no messages" in refused("newsgroups", tmp_path)
        path.unlink()
        folder = trees.write_newsgroups(tmp_path, 2)
        (folder / "group.00" / "readme.txt").write_text("foreign")
        assert sizes(load("newsgroups", tmp_path))[2] == 8
        (folder / "group.00" / "99").write_bytes(b"x" * (2**20 + 1))
        assert "a message has less than 1 MB" in refused("newsgroups", tmp_path)


@real
class TestReal:
    def test_features(self):
        assert sizes(data.load("pacs_a_features", root=SHARED)) == (1670, 2048, 6273)
        assert data.load("chest_xray_features", root=SHARED).test.counts(2).tolist() == [234, 390]

    def test_newsgroups(self):
        splits = data.load("newsgroups", root=SHARED)
        assert sizes(splits) == (10_183, 1_131, 7_532)
        assert splits.vectors.shape == (20_000, 100)


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

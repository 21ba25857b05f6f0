"""A user's own arrays: what a file may hold, and what it may not do."""

import io
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.shared_data import SHARED, needs_shared_data
from macc import data, models

rng = np.random.default_rng(0)
FEATURES = rng.normal(3, 2, (100, 5)).astype("float32")
LABELS = np.arange(100) % 4


class TestNpz:
    def test_one_set_is_split_by_a_fixed_seed(self, tmp_path):
        np.savez(tmp_path / "mine.npz", features=FEATURES, labels=LABELS)
        splits = data.load(f"arrays:{tmp_path / 'mine.npz'}")

        assert (len(splits.train), len(splits.val), len(splits.test)) == (72, 8, 20)
        assert splits.name == "mine"
        assert splits.kind == "features"
        assert splits.classes == ("0", "1", "2", "3")
        rows = torch.cat([p.inputs for p in splits.parts().values()])
        np.testing.assert_array_equal(np.sort(rows.numpy(), axis=0), np.sort(FEATURES, axis=0))
        batch, _ = next(iter(splits.batches("train", batch_size=72)))
        torch.testing.assert_close(batch.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
        torch.testing.assert_close(batch.std(0, correction=0), torch.ones(5))

    def test_one_set_can_stay_whole(self, tmp_path):
        np.savez(tmp_path / "mine.npz", features=FEATURES, labels=LABELS)
        splits = data.load(f"arrays:{tmp_path / 'mine.npz'}", cut=False)

        for part in splits.parts().values():
            np.testing.assert_array_equal(part.inputs.numpy(), FEATURES)
            np.testing.assert_array_equal(part.labels.numpy(), LABELS)

    def test_a_relative_path_is_below_root(self, tmp_path, monkeypatch):
        np.savez(tmp_path / "mine.npz", features=FEATURES, labels=LABELS)

        assert len(data.load("arrays:mine.npz", root=tmp_path).train) == 72
        monkeypatch.chdir(tmp_path)
        assert len(data.load("arrays:mine.npz").train) == 72

    def test_named_splits_and_shifts(self, tmp_path):
        named = {
            f"{name}_{what}": value[: 10 * size]
            for size, name in enumerate(["train", "val", "test", "night"], start=1)
            for what, value in (("features", FEATURES), ("labels", LABELS))
        }
        np.savez(tmp_path / "a.npz", **named, classes=np.array(["w", "x", "y", "z"]))
        splits = data.arrays(tmp_path / "a.npz")

        assert {name: len(p) for name, p in splits.parts().items()} == {
            "train": 10,
            "val": 20,
            "test": 30,
            "night": 40,
        }
        assert splits.classes == ("w", "x", "y", "z")
        assert len(data.arrays(tmp_path / "a.npz", train="val", val="train").train) == 20
        with pytest.raises(ValueError, match="a has a split 'train' that is a shifted test set, .*rename it"):
            data.arrays(tmp_path / "a.npz", train="night")

    def test_a_split_cannot_reach_out_of_the_folder_of_predictions(self, tmp_path):
        named = {"../../out_features": FEATURES, "../../out_labels": LABELS}
        np.savez(tmp_path / "a.npz", features=FEATURES, labels=LABELS, **named)
        with pytest.raises(ValueError, match="the split '../../out' of a cannot name a file of predictions"):
            data.arrays(tmp_path / "a.npz")

    @pytest.mark.parametrize("name", ["valid", "validation"])
    def test_validation_goes_by_other_names(self, tmp_path, name):
        parts = {f"{part}_features": FEATURES[:40] for part in ("train", name, "test")}
        np.savez(
            tmp_path / "a.npz", **parts, **{key.replace("features", "labels"): LABELS[:40] for key in parts}
        )
        splits = data.arrays(tmp_path / "a.npz")

        assert {key: len(part) for key, part in splits.parts().items()} == {
            "train": 40,
            "val": 40,
            "test": 40,
        }
        assert len(data.arrays(tmp_path / "a.npz", val="mine").shifts[name]) == 40
        assert not data.arrays(tmp_path / "a.npz", test=name, val="test").shifts
        np.savez(
            tmp_path / "b.npz",
            **{f"{part}_features": FEATURES for part in ("train", "val", name)},
            **{f"{part}_labels": LABELS for part in ("train", "val", name)},
        )
        with pytest.raises(ValueError, match=f"b.npz has the splits 'val' and '{name}', .*keep one"):
            data.arrays(tmp_path / "b.npz")

    def test_a_test_split_is_not_taken_to_validate(self, tmp_path):
        parts = {f"{part}_features": FEATURES[:40] for part in ("train", "valid")}
        np.savez(tmp_path / "a.npz", **parts, train_labels=LABELS[:40], valid_labels=LABELS[:40])
        splits = data.arrays(tmp_path / "a.npz", test="valid")

        assert {key: len(part) for key, part in splits.parts().items()} == {"train": 36, "val": 4, "test": 40}

    def test_labels_may_be_names(self, tmp_path):
        names = np.array(["dog", "cat"])[LABELS % 2]
        np.savez(tmp_path / "a.npz", features=FEATURES, labels=names)
        splits = data.arrays(tmp_path / "a.npz")

        assert splits.classes == ("cat", "dog")
        assert splits.train.counts(2).sum() == 72

    def test_names_may_be_bytes(self, tmp_path):
        names = np.array([b"dog", "Kuh\xe4".encode(), b"\xff"])
        np.savez(tmp_path / "a.npz", features=FEATURES, labels=names[LABELS % 3])
        assert data.arrays(tmp_path / "a.npz").classes == ("Kuh\xe4", "\\xff", "dog")
        np.savez(tmp_path / "b.npz", features=FEATURES, labels=names[LABELS % 3], classes=names)
        splits = data.arrays(tmp_path / "b.npz")
        assert splits.classes == ("dog", "Kuh\xe4", "\\xff")
        assert (
            sum(part.counts(3) for part in splits.parts().values()).tolist()
            == np.bincount(LABELS % 3).tolist()
        )

    def test_a_class_without_samples_needs_a_name(self, tmp_path):
        np.savez(
            tmp_path / "a.npz",
            features=FEATURES,
            labels=LABELS + 1,
            classes=np.array(["n", "w", "x", "y", "z"]),
        )
        assert data.arrays(tmp_path / "a.npz").train.counts(5).tolist() == [0, 18, 18, 18, 18]
        parts = {"train_features": FEATURES, "train_labels": LABELS.astype("uint64")}
        np.savez(tmp_path / "b.npz", **parts, night_features=FEATURES, night_labels=LABELS + 1)
        assert data.arrays(tmp_path / "b.npz").num_classes == 5

    @pytest.mark.parametrize("shape", [(20, 6, 7), (20, 6, 7, 3), (20, 3, 6, 7)])
    def test_images_of_every_layout(self, tmp_path, shape):
        images = rng.integers(0, 256, shape, dtype=np.uint8)
        np.savez(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2)
        splits = data.arrays(tmp_path / "a.npz")

        assert splits.kind == "image"
        assert splits.shape == ((1, 6, 7) if len(shape) == 3 else (3, 6, 7))
        channels_last = (
            images
            if shape[-1] == 3
            else images.transpose(0, 2, 3, 1)
            if len(shape) == 4
            else images[..., None]
        )
        pixels = {
            tuple(image.permute(1, 2, 0).flatten().tolist())
            for p in splits.parts().values()
            for image in p.inputs
        }
        assert pixels == {tuple(image.ravel().tolist()) for image in channels_last}
        assert len(splits.normalisation.mean) == splits.shape[0]

    def test_float_images_and_tokens(self, tmp_path):
        np.savez(tmp_path / "a.npz", images=rng.random((20, 6, 6)), labels=np.arange(20) % 2)
        assert data.arrays(tmp_path / "a.npz").train.inputs.dtype == torch.float32
        np.savez(
            tmp_path / "b.npz", tokens=rng.integers(0, 99, (20, 12), dtype="int32"), labels=np.arange(20) % 2
        )
        splits = data.arrays(tmp_path / "b.npz")
        assert splits.kind == "tokens"
        assert splits.normalisation is None
        assert data.load(f"arrays:{tmp_path / 'a.npz'}").vocabulary is None
        assert next(iter(splits.batches("test", batch_size=2)))[0].dtype == torch.int64

    def test_a_text_model_knows_every_token_of_every_split(self, tmp_path):
        tokens = rng.integers(0, 3000, (20, 30))
        tokens[0, 0] = 5000
        named = {"tokens": tokens % 2500, "night_tokens": tokens}
        np.savez(tmp_path / "a.npz", **named, labels=LABELS[:20], night_labels=LABELS[:20])
        splits = data.arrays(tmp_path / "a.npz")

        assert splits.vocabulary == 5001
        network = models.build("gpcnn", num_classes=4, vocabulary=splits.vocabulary)
        assert network(splits.shifts["night"].inputs).shape == (20, 4)

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"features": FEATURES}, "has `features` and no `labels`; save `features`"),
            ({"x": FEATURES, "y": LABELS}, "a.npz holds 'x', 'y', which macc cannot place; save `features`"),
            (
                {"labels": LABELS, "features": FEATURES, "weights": LABELS},
                "holds 'weights', which macc cannot place",
            ),
            ({"classes": LABELS}, "a.npz holds no inputs; save"),
            ({"features": FEATURES, "labels": LABELS[:-1]}, "100 inputs and 99 labels"),
            (
                {"features": FEATURES, "labels": LABELS - 1},
                "must be class indices from 0 to .*, got -1 at index 0",
            ),
            (
                {"features": FEATURES, "labels": LABELS, "classes": np.array(["a", "b"])},
                r"class indices from 0 to 1, got",
            ),
            ({"features": FEATURES, "labels": LABELS * 0}, "has 1 class; a classifier needs at least two"),
            ({"features": FEATURES, "labels": LABELS * 0.5}, "must be class indices or names, got 0.0"),
            (
                {"features": FEATURES, "labels": LABELS.astype(str), "classes": np.array(["0", "1"])},
                "label '2' in .* is not one of its `classes`",
            ),
            (
                {"features": FEATURES, "labels": LABELS + 1},
                "run from 1 to 4 and 0 never occurs; subtract 1, or name all classes in `classes`",
            ),
            (
                {"features": FEATURES, "labels": np.where(LABELS == 2, 3_000_000, LABELS)},
                "run from 0 to 3000000 and 2 never occurs; number the classes without gaps, or name",
            ),
            (
                {"features": FEATURES, "labels": LABELS, "classes": np.array(["a", "b", "c", "a"])},
                "`classes` in .* has 'a' more than once; give each class its own name",
            ),
            (
                {"features": FEATURES, "labels": LABELS, "classes": np.array("abcd")},
                r"`classes` in .* must be one name for each class \(K,\), got <U4 of shape \(\)",
            ),
            (
                {"features": FEATURES, "labels": LABELS.astype(str)[:, None]},
                r"labels of .* must be one for each sample \(N,\), got <U.* of shape \(100, 1\)",
            ),
            (
                {
                    "features": FEATURES,
                    "labels": LABELS,
                    "b_features": FEATURES,
                    "b_labels": LABELS.astype(str),
                },
                "must be class indices or names, got 0",
            ),
            (
                {"features": FEATURES[0], "labels": LABELS[:5]},
                r"must be numbers \(N, D\), got float32 of shape \(5,\)",
            ),
            ({"features": FEATURES * np.nan, "labels": LABELS}, "hold NaN or infinity"),
            (
                {"tokens": np.arange(-1, 99)[:, None], "labels": LABELS},
                r"`tokens` in .* must be ids from 0 \(padding\) to 10000000, got -1",
            ),
            ({"tokens": FEATURES, "labels": LABELS}, r"`tokens` in .* must be whole numbers"),
            ({"images": FEATURES, "labels": LABELS}, r"`images` in .* must be \(N, H, W\)"),
            (
                {"images": FEATURES.reshape(100, 5, 1), "labels": LABELS},
                r"must be uint8, or floats in \[0, 1\]",
            ),
            (
                {"images": np.zeros((100, 3, 5, 3), "u1"), "labels": LABELS},
                "may have their channels on either axis",
            ),
            ({"features": FEATURES, "tokens": FEATURES, "labels": LABELS}, "and no `labels`|two kinds"),
            (
                {"dog_features": FEATURES, "dog_labels": LABELS},
                "has no split 'train', only dog; .*train='dog'",
            ),
            ({"features": FEATURES[:3], "labels": LABELS[:3]}, "the val split of a is empty"),
        ],
    )
    def test_mistakes(self, tmp_path, arrays, message):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            data.arrays(tmp_path / "a.npz")

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            (
                {"labels": np.uint64(2**64 - 1) - LABELS.astype("uint64")},
                "from 0 to 3, got 18446744073709551615 at",
            ),
            (
                {"labels": np.where(LABELS == 3, 2**62, LABELS)},
                "from 0 to 3, got 4611686018427387904 at index 3",
            ),
            ({"labels": LABELS - 1}, "from 0 to 3, got -1 at index 0"),
            (
                {"tokens": np.full((100, 2), 2**63, "uint64")},
                "to 10000000, got 9223372036854775808; number them",
            ),
            ({"tokens": np.full((100, 2), 10**12)}, "to 10000000, got 1000000000000; number them anew"),
            ({"tokens": np.zeros((100, 0), "int64")}, "hold no values, got int64 of shape"),
            ({"features": np.zeros((100, 0), "float32")}, "hold no values, got float32 of shape"),
            ({"images": np.zeros((100, 0, 4), "uint8")}, "hold no values, got uint8 of shape"),
        ],
    )
    def test_numbers_that_no_memory_holds(self, tmp_path, arrays, message):
        inputs = {} if arrays.keys() - {"labels"} else {"features": FEATURES}
        np.savez(tmp_path / "a.npz", **{"labels": LABELS, "classes": list("abcd"), **inputs, **arrays})
        with pytest.raises(ValueError, match=message):
            data.arrays(tmp_path / "a.npz")

    def test_tokens_in_any_order_of_memory(self, tmp_path):
        tokens = np.arange(100)[:, None] % 7
        np.savez(tmp_path / "a.npz", tokens=np.asfortranarray(tokens), labels=LABELS)
        np.savez(tmp_path / "b.npz", tokens=tokens, labels=LABELS)
        splits = data.arrays(tmp_path / "a.npz", cut=False)
        assert splits.digest() == data.arrays(tmp_path / "b.npz", cut=False).digest()

        column = torch.arange(200).view(100, 2)[:, 1:]
        odd = replace(splits.train, inputs=column.contiguous().as_strided((100, 1), (1, 5)))
        plain = replace(splits.train, inputs=column.contiguous())
        of = [replace(splits, train=part, vocabulary=200).digest() for part in (odd, plain)]
        assert of[0] == of[1]

    def test_the_number_of_tokens_is_part_of_the_digest(self, tmp_path):
        np.savez(tmp_path / "a.npz", tokens=np.arange(100)[:, None] % 7, labels=LABELS)
        splits = data.arrays(tmp_path / "a.npz")
        vectors = torch.zeros(12, 4)
        others = [
            replace(splits, vocabulary=12),
            replace(splits, vocabulary=5000),
            replace(splits, vocabulary=12, vectors=vectors),
            replace(splits, vocabulary=12, vectors=vectors.double()),
            replace(splits, vocabulary=12, vectors=torch.zeros(12, 8)),
        ]

        assert len({each.digest() for each in (splits, *others)}) == 6

    def test_other_files(self, tmp_path):
        with pytest.raises(ValueError, match="there is no file .*none.npz"):
            data.load("arrays:none.npz", root=tmp_path)
        (tmp_path / "a.csv").write_text("1")
        with pytest.raises(ValueError, match="a.csv must be an .npz or a .parquet file"):
            data.load("arrays:a.csv", root=tmp_path)


class TestParquet:
    @pytest.fixture(autouse=True)
    def _needs_pyarrow(self):
        pytest.importorskip("pyarrow")

    def write(self, path, **columns):
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table(columns), path)
        return path

    def test_lists_with_named_splits(self, tmp_path):
        split = ["train"] * 60 + ["test"] * 30 + ["fog"] * 10
        file = self.write(tmp_path / "a.parquet", features=FEATURES.tolist(), label=LABELS, split=split)
        splits = data.load(f"arrays:{file}")

        assert {name: len(p) for name, p in splits.parts().items()} == {
            "train": 54,
            "val": 6,
            "test": 30,
            "fog": 10,
        }
        np.testing.assert_allclose(splits.test.inputs.numpy(), FEATURES[60:90])
        assert splits.test.labels.tolist() == LABELS[60:90].tolist()

    def test_validation_goes_by_other_names(self, tmp_path):
        split = ["train"] * 60 + ["validation"] * 20 + ["test"] * 20
        file = self.write(tmp_path / "a.parquet", features=FEATURES.tolist(), label=LABELS, split=split)

        assert len(data.arrays(file).val) == 20
        assert not data.arrays(file).shifts

    def test_a_table_of_numeric_columns_with_names_as_labels(self, tmp_path):
        columns = {f"x{k}": FEATURES[:, k] for k in range(5)}
        file = self.write(
            tmp_path / "a.parquet", label=np.array(["no", "yes"])[LABELS % 2].tolist(), **columns
        )
        splits = data.arrays(file)

        assert splits.shape == (5,)
        assert splits.classes == ("no", "yes")

    def test_encoded_images(self, tmp_path):
        from PIL import Image

        pixels = rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
        rows = []
        for image in pixels:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "PNG")
            rows.append({"bytes": buffer.getvalue(), "path": None})
        split = ["train"] * 10 + ["val"] * 5 + ["test"] * 5
        file = self.write(tmp_path / "a.parquet", image=rows, label=LABELS[:20] % 2, split=split)
        splits = data.arrays(file)

        assert splits.kind == "image"
        np.testing.assert_array_equal(splits.test.inputs.permute(0, 2, 3, 1).numpy(), pixels[15:])

    def test_a_small_image_file_that_would_fill_the_memory(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        buffer = io.BytesIO()
        image.new("1", (1, 1)).save(buffer, "PNG")
        content = bytearray(buffer.getvalue())
        content[16:24] = struct.pack(">II", 60_000, 60_000)
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
        self.write(tmp_path / "a.parquet", image=[bytes(content)] * 2, label=[0, 1])
        with pytest.raises(
            ValueError, match="an image in column `image` of .* cannot be decoded .*exceeds limit"
        ):
            data.arrays(tmp_path / "a.parquet")

    def test_small_image_files_that_would_fill_the_memory_together(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        buffer = io.BytesIO()
        image.new("1", (8000, 8000)).save(buffer, "PNG")
        self.write(tmp_path / "a.parquet", image=[buffer.getvalue()] * 6, label=[0, 1] * 3)
        with pytest.raises(
            ValueError, match=r"`image` of .* would take 1\.1 GB from [0-9,]+ bytes; they are"
        ):
            data.arrays(tmp_path / "a.parquet")

    def test_encoded_images_of_two_sizes(self, tmp_path):
        image = pytest.importorskip("PIL.Image")
        rows = []
        for size in (8, 9):
            buffer = io.BytesIO()
            image.new("L", (size, size)).save(buffer, "PNG")
            rows.append(buffer.getvalue())
        self.write(tmp_path / "a.parquet", image=rows * 10, label=[0, 1] * 10)
        with pytest.raises(ValueError, match="`image` of .* have 2 sizes and need the same one; `folder:`"):
            data.arrays(tmp_path / "a.parquet")

    def test_encoded_images_of_more_bits(self, tmp_path):
        from PIL import Image

        def encoded(pixels, form):
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, form)
            return buffer.getvalue()

        deep = encoded(np.full((8, 8), 128 * 257, "uint16"), "PNG")
        file = self.write(tmp_path / "a.parquet", image=[deep] * 20, label=LABELS[:20] % 2)
        assert (data.arrays(file).train.inputs == 128).all()
        floats = encoded(np.full((8, 8), 0.5, "float32"), "TIFF")
        file = self.write(tmp_path / "b.parquet", image=[floats] * 20, label=LABELS[:20] % 2)
        with pytest.raises(ValueError, match="`image` of .*b.parquet cannot be decoded .*mode F"):
            data.arrays(file)

    def test_mistakes(self, tmp_path):
        with pytest.raises(ValueError, match="has no column `label`; its columns are features"):
            data.arrays(self.write(tmp_path / "a.parquet", features=FEATURES.tolist()))
        with pytest.raises(ValueError, match="column `features` of .* differ in length"):
            data.arrays(self.write(tmp_path / "b.parquet", features=[[1.0], [1.0, 2.0]], label=[0, 1]))
        with pytest.raises(
            ValueError, match="`features` of .* must hold a list in each row, got double; rename"
        ):
            data.arrays(self.write(tmp_path / "f.parquet", features=[1.0, 2.0], label=[0, 1]))
        with pytest.raises(ValueError, match="1 row of .*g.parquet has no `label`; fill it in or drop it"):
            data.arrays(self.write(tmp_path / "g.parquet", x=[1.0, 2.0, 3.0], label=["a", None, "b"]))
        with pytest.raises(
            ValueError, match="2 rows of .*h.parquet have no `label`; fill them in or drop them"
        ):
            data.arrays(self.write(tmp_path / "h.parquet", x=[1.0, 2.0, 3.0], label=[0, None, None]))
        with pytest.raises(ValueError, match="1 row of .*i.parquet has no `split`"):
            data.arrays(self.write(tmp_path / "i.parquet", x=[1.0, 2.0], label=[0, 1], split=["train", None]))
        with pytest.raises(ValueError, match="columns text of .* are no numbers"):
            data.arrays(self.write(tmp_path / "c.parquet", text=["a", "b"], label=[0, 1]))
        with pytest.raises(ValueError, match="cannot be decoded"):
            data.arrays(self.write(tmp_path / "e.parquet", image=[b"a", b"b"], label=[0, 1]))
        whole = self.write(tmp_path / "d.parquet", features=FEATURES.tolist(), label=LABELS)
        (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-100])
        with pytest.raises(ValueError, match="cut.parquet is damaged, cut or not a .parquet file"):
            data.arrays(tmp_path / "cut.parquet")

    def test_without_pyarrow(self, tmp_path, monkeypatch):
        file = self.write(tmp_path / "a.parquet", features=FEATURES.tolist(), label=LABELS)
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
        with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'macc-torch\[parquet\]'"):
            data.arrays(file)


@needs_shared_data
class TestRealFeatures:
    def test_chest_x_rays(self):
        splits = data.load("arrays:chest_xray-resnet50-features.npz", root=SHARED)

        assert (len(splits.train), len(splits.val), len(splits.test)) == (5216, 16, 624)
        assert splits.test.counts(2).tolist() == [234, 390]
        assert splits.shape == (2048,)

    def test_pacs_domains(self):
        splits = data.arrays(
            SHARED / "pacs-resnet50-features.npz", train="photo", val="art_painting", test="cartoon"
        )

        assert (len(splits.train), len(splits.val), len(splits.test)) == (1670, 2048, 2344)
        assert len(splits.shifts["sketch"]) == 3929
        assert splits.num_classes == 7

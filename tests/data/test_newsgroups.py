"""20 Newsgroups from files in their usual layout: read, split, refused."""

import shutil
import tarfile

import numpy as np
import torch

from helpers import trees
from helpers.data_files import load, refused, sizes
from helpers.shared_data import SHARED, needs_shared_data
from macc import data


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
        # Headers are dropped, and words of the test texts are not counted: some, words, here, 20
        # topics, x, xx.
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
        assert data.Tokeniser.split("It's a C++/C# test,\tof_THIS: 3.5!") == [
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


@needs_shared_data
def test_the_texts_of_the_shared_folder():
    splits = data.load("newsgroups", root=SHARED)

    assert sizes(splits) == (10_183, 1_131, 7_532)
    assert splits.vectors.shape == (20_000, 100)

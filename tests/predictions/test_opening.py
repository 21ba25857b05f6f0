"""Files of predictions: names of classes, arrays, what is checked first, and how errors read."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

import macc
from helpers.command import run
from helpers.predictions import accuracy, npy_bytes, sample, write_csv, zipped
from macc.io import arrays
from macc.predictions import open_source
from macc.words import class_called

NAMES = ["cat", "dog", "owl"]
# Warnings of the command line are printed, and tests look at what was.
pytestmark = pytest.mark.filterwarnings("always:.*no label:UserWarning")


class TestNames:
    """Labels that are text, in every kind of file and in Python."""

    def test_of_an_npz_with_classes(self, folder):
        probs, labels = sample(60, 3)
        for given in (np.array(NAMES)[labels], np.array(NAMES, dtype="S3")[labels], labels):
            np.savez(folder / "p.npz", probs=probs, labels=given, classes=np.array(NAMES))
            code, out, err = run("evaluate", "p.npz", "--json", "out.json")
            assert code == 0, err
            assert "owl" in out
            assert accuracy(folder / "out.json") == pytest.approx(macc.metrics.accuracy(probs, labels))
        np.savez(folder / "p.npz", probs=probs, labels=np.array(NAMES)[labels])
        assert "the labels are text; add an array 'classes' with the 3 names" in run("evaluate", "p.npz")[2]
        np.savez(folder / "p.npz", probs=probs, labels=labels, classes=np.array(NAMES[:2]))
        assert "'classes' must hold 3 names, got shape (2,)" in run("evaluate", "p.npz")[2]

    @pytest.mark.parametrize("words", [("no", "yes"), ("False", "True"), ("NEG", "POS")])
    def test_of_two_classes_in_one_column(self, folder, words):
        p, labels = np.array([0.1, 0.7, 0.8, 0.4]), np.array([0, 1, 0, 1])
        write_csv(folder / "p.csv", p[:, None], np.array(words)[labels], ["label", "prob"])
        np.savez(folder / "p.npz", probs=p, labels=np.array(words)[labels])
        for name in ("p.csv", "p.npz"):
            assert open_source(folder / name).load().labels.tolist() == labels.tolist()

    @pytest.mark.parametrize("words", [("ham", "spam"), ("no", "yes"), ("1", "2")])
    def test_of_two_words_of_which_the_positive_one_is_named(self, folder, small_batches, words):
        p = np.random.default_rng(0).random(40)
        labels = np.arange(40) > 24
        write_csv(folder / "p.csv", p[:, None], np.array(words)[labels.astype(int)], ["label", "prob"])
        source = open_source(folder / "p.csv", positive=words[1])
        assert source.classes == list(words)
        assert source.load().labels.tolist() == labels.tolist()
        shown = [
            run("evaluate", "p.csv", "--positive", words[1], *more)
            for more in ([], ["--max-rows-in-memory", 5])
        ]
        assert all(f"the positive one is {class_called(words[1])}" in out for _, out, _ in shown)

    def test_of_other_words_beside_one_column(self, folder):
        lines = [f"{word},0.{i}" for i, word in enumerate(("ham", "spam", "", "ham"), start=1)]
        (folder / "p.csv").write_text("\n".join(["label,prob", *lines]))
        assert "or name the class that the probability is of with --positive" in run("evaluate", "p.csv")[2]
        assert "there is no label" in run("evaluate", "p.csv", "--positive", "spam")[2]
        found = open_source(folder / "p.csv", positive="spam", drop_missing=True)
        assert found.load().labels.tolist() == [0, 1, 0]
        (folder / "p.csv").write_text("label,prob\nspam,0.5\n,0.4\n")
        only = open_source(folder / "p.csv", positive="spam", drop_missing=True)
        assert only.classes == ["not spam", "spam"]
        (folder / "p.csv").write_text("label,prob\nham,0.5\nspam,0.4\neggs,0.3\n")
        assert (
            "line 4: the label 'eggs' is not the name of a class"
            in run("threshold", "p.csv", "--positive", "spam")[2]
        )
        (folder / "p.csv").write_text("label,prob\n0,0.5\n1,0.4\n")
        assert "no class is called 'spam'" in run("evaluate", "p.csv", "--positive", "spam")[2]
        (folder / "p.csv").write_text("label,a,b,c\n0,0.5,0.2,0.3\n")
        assert (
            "p.csv has 3 classes, and --positive picks one of two"
            in run("evaluate", "p.csv", "--positive", "a")[2]
        )

    def test_in_python(self):
        probs, labels = sample(60, 3)
        expected = macc.evaluate(probs, labels, classes=NAMES, metrics=["accuracy"])
        for given in (np.array(NAMES)[labels], np.array(NAMES)[labels].tolist()):
            assert macc.evaluate(probs, given, classes=NAMES, metrics=["accuracy"]) == expected
        with pytest.raises(
            ValueError, match=r"labels are text; name the classes in their order with classes="
        ):
            macc.evaluate(probs, np.array(NAMES)[labels])
        with pytest.raises(ValueError, match=r"labels\[1\]: the label 'cow' is not the name of a class"):
            macc.evaluate(probs[:2], ["cat", "cow"], classes=NAMES)


class TestCheapChecksFirst:
    """What can be known from a few bytes is looked at before gigabytes are unpacked."""

    @pytest.fixture
    def reads(self, monkeypatch):
        """The arrays that were read."""
        found = []

        def watched(file, size, what):
            found.append(what)
            return read(file, size, what)

        read = arrays._read
        monkeypatch.setattr(arrays, "_read", watched)
        return found

    def test_a_member_that_repeats_is_refused_unread(self, folder, reads):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("probs.npy", npy_bytes(np.eye(3)))
            with pytest.warns(UserWarning, match="Duplicate name"):
                archive.writestr("probs.npy", npy_bytes(np.eye(3)))
        (folder / "p.npz").write_bytes(buffer.getvalue())
        assert "p.npz holds the array 'probs' twice" in run("evaluate", "p.npz")[2]
        assert reads == []

    @pytest.mark.parametrize(
        "labels", [np.array([0, 1]), np.eye(3), np.array([0, 1, 9]), np.array([0.5, 0, 1])]
    )
    def test_labels_come_before_scores(self, folder, reads, labels):
        np.savez(folder / "p.npz", probs=np.eye(3), labels=labels)
        np.save(folder / "p.npy", np.eye(3))
        np.save(folder / "y.npy", labels)
        for words in (["p.npz"], ["p.npy", "y.npy"]):
            assert run("evaluate", *words)[0] == 2
        assert not [what for what in reads if "probs" in what or "p.npy" in what]

    def test_all_arrays_together_fit_into_the_file(self, folder):
        """Entries of a directory may share bytes, and each alone would seem possible."""
        data = zipped(probs=npy_bytes(np.zeros((1000, 1000))))
        buffer = io.BytesIO(data)
        with zipfile.ZipFile(buffer, "a") as archive:
            for i in range(500):
                entry = zipfile.ZipInfo(f"copy{i}.npy")
                first = archive.infolist()[0]
                for name in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                    setattr(entry, name, getattr(first, name))
                archive.filelist.append(entry)
            archive._didModify = True
        (folder / "p.npz").write_bytes(buffer.getvalue())
        with pytest.raises(ValueError, match="more than the file can hold"):
            arrays.read_npz(folder / "p.npz")


class TestNpy:
    """Labels of an .npy can be given wherever an .npy can."""

    def test_in_every_command(self, folder):
        probs, labels = sample(400, 3)
        np.save(folder / "p.npy", probs)
        np.save(folder / "y.npy", labels)
        np.savez(folder / "p.npz", probs=probs, labels=labels)
        for words in (
            ["evaluate", "p.npy", "y.npy"],
            ["check", "p.npy", "y.npy", "--max-ece", 0.9],
            ["compare", "p.npy", "p.npz", "y.npy"],
            ["compare", "p.npz", "p.npy", "y.npy"],
            [
                "calibrate",
                "--fit",
                "p.npy",
                "--fit-labels",
                "y.npy",
                "--apply",
                "p.npy",
                "--apply-labels",
                "y.npy",
            ],
            ["threshold", "p.npy", "y.npy", "--risk", 0.9, "--check", "p.npy", "--check-labels", "y.npy"],
        ):
            code, _, err = run(*words)
            assert code == 0, err

    def test_labels_that_belong_to_nothing_are_refused(self, folder):
        probs, labels = sample(40, 3)
        np.save(folder / "p.npy", probs)
        np.save(folder / "y.npy", labels)
        np.savez(folder / "p.npz", probs=probs, labels=labels)
        fit = "calibrate", "--fit", "p.npz", "--apply", "p.npz"
        assert "more --fit-labels than .npy files" in run(*fit, "--fit-labels", "y.npy")[2]
        assert "holds its labels itself" in run(*fit, "--apply-labels", "y.npy")[2]
        assert "holds its labels itself" in run("compare", "p.npz", "p.npz", "y.npy")[2]


class TestWordsOfErrors:
    """The command line speaks of lines, rows and its own options, Python of indices and
    arguments.
    """

    @pytest.mark.parametrize("streamed", [[], ["--max-rows-in-memory", 1]])
    def test_of_a_csv(self, folder, small_batches, streamed):
        probs, labels = sample(50, 3)
        for change, message in (
            (
                lambda p: p * 2,
                "p.csv, line 2: the probabilities sum to 2, not 1; add --logits if these are logits, or add --normalise",
            ),
            (lambda p: np.log(p), "line 2: the probability of 'cat' is -"),
            (
                lambda p: np.where(np.arange(50)[:, None] == 30, np.nan, p),
                "p.csv, line 33: the probability of 'cat' is nan",
            ),
        ):
            write_csv(folder / "p.csv", change(probs), labels, ["label", *NAMES])
            # An empty line is no sample, and counts as a line.
            lines = (folder / "p.csv").read_text().split("\n")
            (folder / "p.csv").write_text("\n".join([*lines[:6], "", *lines[6:]]))
            code, out, err = run("evaluate", "p.csv", *streamed)
            assert (code, out) == (2, "")
            assert message in err
            assert "=True" not in err
        assert (
            "--normalise applies to probabilities, and --logits already"
            in run("evaluate", "p.csv", "--logits", "--normalise", *streamed)[2]
        )

    def test_of_two_classes(self, folder):
        write_csv(folder / "p.csv", [[0.2], [1.2]], [0, 1], ["label", "prob"])
        assert "p.csv, line 3: the probability is 1.2, and" in run("evaluate", "p.csv")[2]

    def test_python_errors_can_be_sent_to_other_processes(self):
        import pickle

        with pytest.raises(ValueError, match=r"probs\[0\] sums to 2") as caught:
            macc.metrics.ece([[1.0, 1.0]], [0])
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_arrays_are_loaded_without_a_second_copy(tmp_path):
    np.savez(tmp_path / "p.npz", logits=np.zeros((1000, 1000), np.float32), labels=np.zeros(1000, int))
    source = open_source(tmp_path / "p.npz")
    tracemalloc.start()

    source.load()

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # of 4 MB that are there already

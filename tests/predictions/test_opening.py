"""Files of predictions: what labels mean, which columns are classes, what is missing, and how errors read."""

import io
import json
import zipfile

import numpy as np
import pytest

import macc
from helpers.command import run
from helpers.predictions import npy_bytes, sample, write_csv, zipped
from macc.io import arrays
from macc.predictions import open_source
from macc.predictions import source as reading_source
from macc.words import class_called

NAMES = ["cat", "dog", "owl"]
# Warnings of the command line are printed, and tests look at what was.
pytestmark = pytest.mark.filterwarnings("always:.*no label:UserWarning")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(reading_source, "_MOST_ROWS", 10)


def accuracy(path):
    return json.loads(path.read_text())["accuracy"]["value"]


def certain(labels, num_classes=3):
    """Predictions that are all right."""
    return np.eye(num_classes)[labels] * 0.7 + 0.1


class TestMeaningOfLabels:
    """Decided once from the names of the columns: the same in memory, in batches and in parts."""

    def test_columns_that_are_numbers_leave_it_open(self, folder):
        labels = np.array([1, 2, 2, 1, 0, 1])
        write_csv(folder / "p.csv", certain(labels), labels, ["label", "1", "2", "3"])
        for command in (
            ["evaluate", "p.csv"],
            ["check", "p.csv", "--max-ece", 0.9],
            ["compare", "p.csv", "p.csv"],
        ):
            code, out, err = run(*command)
            assert (code, out) == (2, "")
            assert "a label 1 could mean the column '1' or the class of index 1" in err
            assert "--labels-are names or --labels-are indices" in err

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_in_memory_in_batches_and_in_parts(self, folder, small_batches, kind):
        rng = np.random.default_rng(0)
        # No 0 among the first: a batch that could be read as names alone.
        labels = np.concatenate([rng.integers(1, 3, 30), rng.integers(0, 3, 60)])
        names = ["1", "2", "3"]

        def write(name, rows):
            if kind == "csv":
                write_csv(folder / name, certain(labels[rows]), labels[rows], ["label", *names])
                return
            arrow = pytest.importorskip("pyarrow")
            from pyarrow import parquet

            columns = {each: certain(labels[rows])[:, j] for j, each in enumerate(names)}
            parquet.write_table(arrow.table({**columns, "label": labels[rows]}), folder / name)

        write(f"p.{kind}", np.arange(90))
        for i in range(3):
            write(f"part{i}.{kind}", np.arange(30 * i, 30 * i + 30))
            options = "--labels-are", "indices", "--state", f"s{i}"
            assert run("evaluate", f"part{i}.{kind}", *options)[0] == 0
        means = "--labels-are", "indices", "--json"
        assert run("evaluate", f"p.{kind}", *means, "memory.json")[0] == 0
        assert run("evaluate", f"p.{kind}", *means, "batches.json", "--max-rows-in-memory", 1)[0] == 0
        assert run("merge", "s0", "s1", "s2", "--json", "parts.json")[0] == 0

        assert [accuracy(folder / f"{way}.json") for way in ("memory", "batches", "parts")] == [1, 1, 1]
        code, _, err = run("evaluate", f"p.{kind}", "--labels-are", "names")
        assert code == 2
        assert "the label '0' is not the name of a class; the classes are 1, 2, 3" in err

    def test_numbers_that_name_themselves_or_nothing_else_are_clear(self, folder):
        labels = np.array([0, 1, 2, 1])
        write_csv(folder / "own.csv", certain(labels), labels, ["label", "0", "1", "2"])
        write_csv(folder / "years.csv", certain(labels), labels + 2019, ["label", "2019", "2020", "2021"])
        write_csv(
            folder / "some.csv",
            certain(labels),
            np.array(["0", "1", "other", "1"]),
            ["label", "0", "1", "other"],
        )
        for name in ("own.csv", "years.csv", "some.csv"):
            assert open_source(folder / name).load().labels.tolist() == labels.tolist()

    def test_a_mixture_is_refused_in_batches_too(self, folder, small_batches):
        labels = np.arange(60) % 3
        mixed = [NAMES[y] if i < 40 else str(y) for i, y in enumerate(labels)]
        write_csv(folder / "p.csv", certain(labels), mixed, ["label", *NAMES])
        for options in ([], ["--max-rows-in-memory", 1]):
            assert (
                "p.csv, line 42: the label '1' mixes class names and class indices"
                in run("evaluate", "p.csv", *options)[2]
            )

    def test_an_unknown_meaning_is_refused(self, folder):
        write_csv(folder / "p.csv", certain([0, 1]), [0, 1], ["label", *NAMES])
        assert (
            "--labels-are must be names or indices, got 'text'"
            in run("evaluate", "p.csv", "--labels-are", "text")[2]
        )


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


class TestColumns:
    """Which columns are classes."""

    def test_options_about_columns_are_for_files_that_have_some(self, folder):
        p = np.random.default_rng(0).random(60)
        labels = (p > np.random.default_rng(1).random(60)).astype(int)
        words = np.array(["ham", "spam"])[labels]
        np.savez(folder / "val.npz", probs=p, labels=labels)
        rows = [f"{i},{word},{value:.17g}" for i, (word, value) in enumerate(zip(words, p, strict=True))]
        (folder / "t.csv").write_text("\n".join(["id,label,prob", *rows]))
        options = ["--ignore", "id", "--positive", "spam"]
        for command in (
            ["calibrate", "--fit", "val.npz", "--apply", "t.csv", "-o", "out.csv"],
            ["calibrate", "--fit", "t.csv", "--apply", "val.npz", "-o", "out.npz"],
            ["compare", "t.csv", "val.npz", "--metrics", "ece"],
            ["compare", "val.npz", "t.csv", "--metrics", "ece"],
            ["compare", "val.npz", "t.csv", "--metrics", "ece", "--max-rows-in-memory", 10],
            ["threshold", "val.npz", "--check", "t.csv", "--risk", 0.9],
        ):
            code, out, err = run(*command, *options)
            assert code == 0, err
            assert command[0] == "threshold" or "the positive one is class 'spam'" in out
        code, _, err = run("compare", "val.npz", "val.npz", "--ignore", "id")
        assert (code, "--ignore is for a .csv or .parquet" in err) == (2, True)

    def write(self, path, extra, rows=400, name="fold"):
        probs, labels = sample(rows, 3)
        logits = np.log(probs)
        values = np.column_stack([logits, extra[:rows]])
        write_csv(path, values, labels, ["label", *NAMES, name])
        return macc.metrics.accuracy(probs, labels)

    @pytest.mark.parametrize("streamed", [[], ["--max-rows-in-memory", 1]])
    def test_whole_numbers_are_asked_about(self, folder, small_batches, streamed):
        right = self.write(folder / "p.csv", np.arange(400) % 5)
        code, out, err = run("evaluate", "p.csv", "--logits", *streamed)
        assert (code, out) == (2, "")
        assert (
            "the column 'fold' holds whole numbers only, and would count as a class; leave it out with --ignore"
            in err
        )
        for options in (
            ["--ignore", "fold"],
            ["--class-columns", "cat,dog,owl"],
            ["--class-columns", "cat", "--class-columns", "dog", "--class-columns", "o*"],
        ):
            code, _, err = run("evaluate", "p.csv", "--logits", *options, *streamed, "--json", "out.json")
            assert (code, err) == (0, "")
            assert accuracy(folder / "out.json") == pytest.approx(right)

    @pytest.mark.parametrize(
        "command",
        [
            ["check", "p.csv", "--max-ece", 0.9],
            ["compare", "p.csv", "p.csv"],
            ["calibrate", "--fit", "p.csv", "--apply", "p.csv"],
            ["threshold", "p.csv", "--risk", 0.9],
        ],
    )
    def test_every_command_takes_the_options(self, folder, command):
        self.write(folder / "p.csv", np.arange(400) % 5)
        assert "--class-columns" in run(*command, "--logits")[2]
        assert run(*command, "--logits", "--ignore", "fold")[0] == 0

    def test_logits_that_are_all_whole_are_logits(self, folder):
        probs, labels = sample(100, 3)
        write_csv(folder / "p.csv", np.rint(5 * np.log(probs)), labels, ["label", *NAMES])
        assert run("evaluate", "p.csv", "--logits")[::2] == (0, "")

    def test_a_class_without_samples_is_a_warning(self, folder):
        self.write(folder / "p.csv", np.full(400, -30.5))
        code, _, err = run("evaluate", "p.csv", "--logits")
        assert code == 0
        assert err == (
            "macc: warning: p.csv: no label among 400 is fold; what is not a class is left out with --ignore, and "
            "--class-columns names those that are\n"
        )
        assert run("evaluate", "p.csv", "--logits", "--class-columns", "cat,dog,owl,fold")[::2] == (0, "")

    def test_text_is_left_out_by_name(self, folder):
        probs, labels = sample(30, 3)
        rows = [
            f"img{i}.png,{y},{','.join(map(repr, map(float, row)))}"
            for i, (row, y) in enumerate(zip(probs, labels, strict=True))
        ]
        (folder / "p.csv").write_text("\n".join(["file, label,cat,dog,owl", *rows]))
        assert (
            "'img0.png' in column 'file' is not a number; if the column is not a class, leave it out with --ignore"
            in run("evaluate", "p.csv")[2]
        )
        assert run("evaluate", "p.csv", "--ignore", "file")[0] == 0
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(
            arrow.table(
                {"file": ["a"] * 30, "label": labels, **{n: probs[:, j] for j, n in enumerate(NAMES)}}
            ),
            folder / "p.parquet",
        )
        assert (
            "the column 'file' holds string, not numbers; if it is not a class"
            in run("evaluate", "p.parquet")[2]
        )
        assert run("evaluate", "p.parquet", "--ignore", "file")[0] == 0

    def test_names_that_are_not_there_are_told(self, folder):
        self.write(folder / "p.csv", np.arange(400))
        assert (
            "has no column 'flod' for --ignore; its columns are label, cat, dog, owl, fold"
            in run("evaluate", "p.csv", "--ignore", "flod")[2]
        )
        assert (
            "'label' has the labels; take it out of --class-columns"
            in run("evaluate", "p.csv", "--class-columns", "label,cat")[2]
        )
        np.savez(folder / "p.npz", probs=np.eye(2), labels=[0, 1])
        assert "--ignore is for a .csv or .parquet" in run("evaluate", "p.npz", "--ignore", "fold")[2]

    def test_a_name_may_hold_a_comma_and_the_order_is_the_given_one(self, folder):
        (folder / "p.csv").write_text('label,"a,b",c,x\n0,0.9,0.1,7\n1,0.2,0.8,7\n')
        source = open_source(folder / "p.csv", class_columns=["c", "a,b"])
        assert source.classes == ["c", "a,b"]
        assert source.load().scores.tolist() == [[0.1, 0.9], [0.8, 0.2]]

    def test_a_header_of_many_names_is_checked_quickly(self, folder):
        """Each name compared with all others would take minutes."""
        names = [f"n{i}" for i in range(60_000)]
        (folder / "p.csv").write_text(",".join(["label", *names, *names]) + "\n")
        assert "the column 'n0' appears twice" in run("evaluate", "p.csv")[2]


class TestMissingLabels:
    """Samples without a label are refused by place, or left out and counted."""

    @pytest.mark.parametrize("streamed", [[], ["--max-rows-in-memory", 1]])
    @pytest.mark.parametrize("missing", ["", "NaN", "null", "<NA>"])
    def test_of_a_csv(self, folder, small_batches, streamed, missing):
        probs, labels = sample(100, 3)
        given = [missing if i % 10 == 3 else NAMES[y] for i, y in enumerate(labels)]
        write_csv(folder / "p.csv", probs, given, ["label", *NAMES])
        assert (
            "p.csv, line 5: there is no label; --drop-missing leaves such samples out"
            in run("evaluate", "p.csv", *streamed)[2]
        )
        code, out, err = run("evaluate", "p.csv", "--drop-missing", "--json", "out.json", *streamed)
        assert code == 0
        assert err == "macc: warning: p.csv: 10 of 100 samples have no label and were left out\n"
        kept = np.arange(100) % 10 != 3
        assert out.startswith("90 samples")
        assert accuracy(folder / "out.json") == pytest.approx(
            macc.metrics.accuracy(probs[kept], labels[kept])
        )

    def test_whole_numbers_beside_missing_ones_become_floats(self, folder):
        """What pandas and numpy do to a column of indices."""
        probs, labels = sample(20, 3)
        given = labels.astype(float)
        given[4] = np.nan
        np.savez(folder / "p.npz", probs=probs, labels=given)
        write_csv(folder / "p.csv", probs, given, ["label", *NAMES])
        assert "p.npz, row 5: there is no label" in run("evaluate", "p.npz")[2]
        for name in ("p.npz", "p.csv"):
            with pytest.warns(UserWarning, match="1 of 20 samples have no label"):
                loaded = open_source(folder / name, drop_missing=True).load()
            assert loaded.labels.tolist() == np.delete(labels, 4).tolist()
            assert loaded.rows.tolist() == [i for i in range(20) if i != 4]

    def test_of_a_parquet_with_nulls(self, folder):
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        probs, labels = sample(20, 3)
        columns = {n: probs[:, j] for j, n in enumerate(NAMES)}
        parquet.write_table(
            arrow.table({**columns, "label": [None if i == 7 else int(y) for i, y in enumerate(labels)]}),
            folder / "p.parquet",
        )
        assert "p.parquet, row 8: there is no label" in run("evaluate", "p.parquet")[2]
        assert run("evaluate", "p.parquet", "--drop-missing")[1].startswith("19 samples")

    def test_files_that_miss_other_labels_are_not_compared(self, folder, small_batches):
        """Without their rows the samples would be paired one off."""
        probs, labels = sample(40, 3)
        labels[:] = 1
        for name, at in (("a.csv", 5), ("b.csv", 6)):
            write_csv(
                folder / name, probs, ["" if i == at else y for i, y in enumerate(labels)], ["label", *NAMES]
            )
        for streamed in ([], ["--max-rows-in-memory", 1]):
            err = run("compare", "a.csv", "b.csv", "--drop-missing", *streamed)[2]
            assert "a.csv, line 7, and b.csv, line 7, disagree on missing labels" in err
            assert run("compare", "a.csv", "a.csv", "--drop-missing", *streamed)[0] == 0

    def test_a_class_may_be_called_none(self, folder):
        write_csv(folder / "p.csv", certain([0, 1, 2]), ["none", "a", "b"], ["label", "none", "a", "b"])
        assert open_source(folder / "p.csv").load().labels.tolist() == [0, 1, 2]

    def test_no_label_at_all(self, folder):
        write_csv(folder / "p.csv", certain([0, 1]), ["", ""], ["label", *NAMES])
        assert "p.csv has no samples with a label" in run("evaluate", "p.csv", "--drop-missing")[2]


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
    """The command line speaks of lines, rows and its own options, Python of indices and arguments."""

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

"""What the labels of a file mean, and which are missing."""

import numpy as np
import pytest

import macc
from helpers.command import run
from helpers.predictions import accuracy, certain, sample, write_csv
from macc.predictions import open_source

NAMES = ["cat", "dog", "owl"]


# Warnings of the command line are printed, and tests look at what was.
pytestmark = pytest.mark.filterwarnings("always:.*no label:UserWarning")


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

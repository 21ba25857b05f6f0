"""Which columns of a file are classes."""

import numpy as np
import pytest

import macc
from helpers.command import run
from helpers.predictions import accuracy, sample, write_csv
from macc.predictions import open_source

NAMES = ["cat", "dog", "owl"]


# Warnings of the command line are printed, and tests look at what was.
pytestmark = pytest.mark.filterwarnings("always:.*no label:UserWarning")


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

"""A user's own comparison from its file to its tables, and what it would take."""

import numpy as np
import pytest

from helpers.command import run
from macc import experiments, training
from macc.cli import displays
from macc.experiments import estimates


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A user's own five lines, run by two workers."""

    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 8)).astype("float32")
    np.savez(
        folder / "embeddings.npz",
        features=features,
        labels=(features[:, 0] + rng.normal(size=400) > 0).astype(int),
    )
    (folder / "mine.yaml").write_text(
        "datasets: arrays:embeddings.npz\nseeds: 2\nset: {epochs: 2}\nmethods:\n  - CrossEntropy\n"
        "  - CrossEntropy + {1,10}*MACC(warmup=half)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = run("run", "mine.yaml", "--workers", 2)
    assert done.code == 0, done.err
    return folder, done.out


class TestOwnComparison:
    def test_five_lines_of_yaml_make_a_comparison(self, compared):
        folder, text = compared

        assert "CrossEntropy + …*MACC" in text
        assert "files in runs/experiments/mine-full" in text
        result = experiments.load_result(folder / "runs" / "experiments" / "mine-full")
        assert any("its own task loss CrossEntropy" in str(finding) for finding in result.findings)
        assert {run.method for run in result.runs} == {"CrossEntropy", "CrossEntropy + …*MACC"}
        for member in result.runs:
            assert training.open_run(folder / "runs" / member.folder).recipe.seed == member.seed

    def test_what_is_finished_is_not_trained_again(self, compared, monkeypatch, capfd):
        folder, _ = compared
        monkeypatch.chdir(folder)
        before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.json")}
        result = experiments.run("mine.yaml", listener=displays.Trainings())

        assert {run.folder for run in result.runs} <= {path.parent.name for path in before}
        assert {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/metrics.json")} == before
        trained = [path for path in before if training.Run(path.parent).recipe.selection == "val_accuracy"]
        assert f"{len(trained)} of them done" in capfd.readouterr().err

    def test_a_dry_run_counts_and_estimates_and_writes_nothing(self, compared, monkeypatch):
        folder, _ = compared
        monkeypatch.chdir(folder)
        before = sorted(folder.rglob("*"))
        done = run("run", "mine.yaml", "--dry-run").out
        more = run("run", "mine.yaml", "--dry-run", "--seeds", 3).out

        assert done.splitlines()[-1].startswith("all is done: ")
        assert "at most 9 trainings of 2 epochs" in more
        assert "an epoch takes about" in more
        assert sorted(folder.rglob("*")) == before


def test_a_dry_run_without_data_counts_and_names_every_missing_set(tmp_path, monkeypatch):
    monkeypatch.setenv("MACC_OFFLINE", "1")
    # The networks of the paper take a minute to time.
    seconds = {"cifar10": 60.0}
    monkeypatch.setattr(estimates, "seconds_without_data", lambda recipe, _: seconds.get(recipe.dataset))
    text = run("run", "table1", "--dry-run", "--out", tmp_path / "runs", "--data", tmp_path / "data").out
    lines = text.splitlines()
    names = [row.name for row in experiments.load("table1").datasets]

    assert [line.split(":")[0].strip() for line in lines[1:7]] == names
    assert lines[1].startswith(
        "  CIFAR10: at most 156 trainings of 160 epochs of 45 000 training samples; its files are missing; an epoch, "
        "timed on noise of its shape, takes about 1 min 00 s, what is left about 416 h 00 min"
    )
    assert lines[2].endswith("its files are missing; how long is unknown")
    assert [name for name in names if f"  {name} is left out: " in text] == names
    assert "0 done; about 416 h 00 min by one worker without 5 data sets whose time is unknown" in lines[-1]
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_with_some_of_the_data_estimates_those(tmp_path, monkeypatch):
    monkeypatch.setenv("MACC_OFFLINE", "1")
    (tmp_path / "x.yaml").write_text(
        "datasets: [{name: here, recipe: digits}, {name: missing, recipe: svhn}]\n"
        "methods: [CrossEntropy]\nseeds: 1\n"
    )
    monkeypatch.chdir(tmp_path)
    lines = run("run", "x.yaml", "--scale", "smoke", "--dry-run", "--data", "data").out.splitlines()

    assert "an epoch takes about" in lines[1]
    assert lines[2].startswith("  missing: at most 1 training of ")
    assert "its files are missing; an epoch, timed on noise of its shape, takes about " in lines[2]
    assert lines[3].startswith("  missing is left out: recipe svhn: dataset: svhn is not in ")
    assert lines[-1].startswith("at most 2 trainings, 0 done; about ")
    assert " by one worker (" in lines[-1]


def test_timings_are_the_papers():
    experiment = experiments.load("timing", scale="smoke", datasets=["digits"])
    with pytest.raises(ValueError, match="^experiment timing: kind: timing times epochs and compares no"):
        experiments.run(experiment)

"""A run killed at any moment and started again ends as if nothing had happened, to the bit."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from errno import ENOSPC
from pathlib import Path

import pytest
import torch

from helpers import killed
from macc import training
from macc.cli import displays
from macc.io import writing
from macc.training import checkpoints, fitting
from macc.training import loading as recipes

# What must not differ; the rest are seconds and the names of folders.
EXACT = (
    "best.safetensors",
    "calibrator.json",
    "metrics.json",
    "recipe.yaml",
    "checkpoint/3/model.safetensors",
    "checkpoint/3/optimiser.safetensors",
    "checkpoint/3/criterion.safetensors",
)
KILLS = 16


def only_run(out):
    (path,) = [path for path in Path(out).iterdir() if path.is_dir()]
    return path


def result(out):
    """Everything a run leaves that must be the same to the bit."""
    path = only_run(out)
    files = {name: (path / name).read_bytes() for name in EXACT if (path / name).exists()}
    for file in sorted((path / "predictions").rglob("*.npz")):
        files[str(file.relative_to(path))] = file.read_bytes()
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    files["history"] = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    files["names"] = sorted(
        str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.name != ".lock"
    )
    return files


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """The folder with all runs, and what happened to each."""
    draw = random.Random(0)
    folder = tmp_path_factory.mktemp("killed")
    points = [(kind, draw.uniform(0.02, 0.9)) for kind in ("time", "sync") for _ in range(KILLS // 2)]
    found = subprocess.run(
        [sys.executable, killed.__file__, folder, json.dumps(points)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
    return folder, json.loads(found.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_with_sigkill_and_started_again(plan):
    folder, report = plan
    whole = result(folder / "whole")

    assert len(whole["history"]) == 3
    assert "predictions/epochs/test-2.npz" in whole
    assert sum(was_killed for _, was_killed, _ in report) >= 10
    for name, _, _ in report:
        assert result(folder / name) == whole, name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_kills_hit_epochs_and_the_writing_of_files(plan):
    left = {name for _, _, names in plan[1] for name in names}

    assert any("." in name.strip(".") and not name.startswith(".") for name in left), "none within an epoch"
    assert any(name.startswith(writing.TEMPORARY) for name in left), "none while a checkpoint was written"


def small(**changes):
    overrides = ["subset.train=320", "epochs=3", *(f"{key}={value}" for key, value in changes.items())]
    return recipes.load("digits", loss="CrossEntropy", overrides=overrides)


def test_the_same_recipe_and_seed_give_the_same_metrics_and_another_seed_others(tmp_path):
    first, again = training.fit(small(), out=tmp_path / "a"), training.fit(small(), out=tmp_path / "b")
    other = training.fit(small(seed=1), out=tmp_path / "c")

    assert result(tmp_path / "a") == result(tmp_path / "b")
    assert first.path.name == again.path.name != other.path.name
    assert first.metrics != other.metrics


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    run = training.fit(small(), out=tmp_path)
    monkeypatch.setattr("macc.training.engine.train", lambda *_: pytest.fail("trained again"))

    assert training.fit(small(), out=tmp_path) == run


class Stopped(Exception):
    pass


def stop_after(monkeypatch, epochs):
    """Break off after so many epochs, as a crash would."""
    from macc.training.record import Recorder

    whole = Recorder.epoch

    def epoch(self, learner):
        whole(self, learner)
        if learner.epoch == epochs:
            raise Stopped

    monkeypatch.setattr(Recorder, "epoch", epoch)


@pytest.mark.parametrize("written", [False, True])
def test_one_that_stopped_at_its_metrics_ends_like_any_other(tmp_path, monkeypatch, written):
    whole = training.fit(small(), out=tmp_path / "whole")
    write = fitting.write_json

    def stop(path, value):
        if written or path.name != "metrics.json":
            write(path, value)
        if path.name == "metrics.json":
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "write_json", stop)
        with pytest.raises(Stopped):
            training.fit(small(), out=tmp_path / "stopped")
    run = training.fit(small(), out=tmp_path / "stopped")

    assert result(tmp_path / "stopped") == result(tmp_path / "whole")
    assert run.path.name == whole.path.name


@pytest.fixture
def broken_off(tmp_path, monkeypatch):
    """A run with one epoch behind it."""
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Stopped):
            training.fit(small(), out=tmp_path)
    return only_run(tmp_path)


def test_a_half_written_last_line_is_dropped(tmp_path, broken_off):
    with (broken_off / "history.jsonl").open("a") as file:
        file.write('{"epoch": 2, "lr": 0.')
    assert [row["epoch"] for row in training.Run(broken_off).history] == [1]
    run = training.fit(small(), out=tmp_path)

    assert [row["epoch"] for row in run.history] == [1, 2, 3]


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_refused(tmp_path, broken_off, name):
    path = broken_off / "checkpoint" / "1" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"is damaged: {name} does not match its checksum; delete"):
        training.fit(small(), out=tmp_path)

    path.unlink()
    with pytest.raises(ValueError, match="is damaged"):
        training.fit(small(), out=tmp_path)


def tampered(path, change):
    """Change ``state.json`` of a checkpoint, checksum included."""
    state = json.loads((path / "state.json").read_text())
    content = json.dumps(change(state) or state).encode()
    sums = json.loads((path / "complete").read_text())
    sums["state.json"] = hashlib.sha256(content).hexdigest()
    (path / "state.json").write_bytes(content)
    (path / "complete").write_text(json.dumps(sums))


TAMPERED = [
    (lambda _: [1], "state.json cannot be read"),
    (lambda state: state.pop("epoch") and None, "state.json.epoch: Field required"),
    (lambda state: state.update(epoch="1"), "state.json.epoch: Input should be a valid integer"),
    (lambda state: state.update(epoch=-1), "greater than or equal to 0"),
    (lambda state: state.update(epoch=2), "does not hold the epochs 1 to 2"),
    (lambda state: state.update(epoch=0, history=[]), "state.json is that of 0"),
    (lambda state: state.update(step=3), "does not go with 0 states"),
    (lambda state: state.update(processes=0), "greater than or equal to 1"),
    (lambda state: state.update(history=None), "should be a valid array"),
    (lambda state: state["history"][0].pop("val/sce") and None, "lacks 'val/sce'"),
    (lambda state: state["history"][0].update({"val/accuracy": "best"}), "history.0.val/accuracy"),
    (lambda state: state["history"][0].update({"val/accuracy": float("nan")}), "history.0.val/accuracy"),
    (lambda state: state.update(optimiser={"x.exp_avg": None}), "no parameter 'x'"),
    (lambda state: state.update(optimiser={"99.momentum_buffer": None}), "parameter 99"),
    (lambda state: state.update(optimiser={"0.momentum_buffer": 1}), "does not fit parameter 0"),
    (lambda state: state.update(scaler={"scale": 1}), "gradient scaler"),
    (lambda state: state.update(unfinished=[{}]), "Field required"),
    (lambda state: state.update(more=1), "not permitted"),
]


def test_a_state_that_training_did_not_write_is_refused(tmp_path, broken_off):
    path = broken_off / "checkpoint" / "1"
    written = (path / "state.json").read_text()
    for change, reason in TAMPERED:
        (path / "state.json").write_text(written)
        tampered(path, change)
        with pytest.raises(ValueError) as caught:
            training.fit(small(), out=tmp_path)

        assert reason in str(caught.value)
        assert "is damaged" in str(caught.value)
        assert str(caught.value).endswith("to train from the start")
        assert "\n" not in str(caught.value)


def test_an_older_checkpoint_is_used_where_the_newest_is_damaged(tmp_path, monkeypatch, capsys):
    """As they stand where a process was killed before it removed the older one."""
    from macc.training.record import Recorder

    def step(self, learner, _steps):
        if (learner.epoch, learner.step) == (1, 3):
            self._checkpoint(learner)
            raise Stopped

    training.fit(small(), out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "step", step)
        patch.setattr(checkpoints, "remove_others", lambda *_: None)
        with pytest.raises(Stopped):
            training.fit(small(), out=tmp_path / "broken")
    changes = {
        "1.3": lambda state: state["unfinished"][0]["generators"].update(torch="00"),
        "1.4": lambda state: state.update(step=4) or state["unfinished"][0].update(sums={}),
        "1.99": lambda state: state.update(step=99),
    }
    for name, change in changes.items():
        shutil.copytree(tmp_path / "broken", tmp_path / name)
        folder = only_run(tmp_path / name) / "checkpoint"
        assert [path.name for path in checkpoints.complete(folder)] == ["1.3", "1"]
        tampered((folder / "1.3").rename(folder / name), change)

        training.fit(small(), out=tmp_path / name, display=displays.of_training())
        said = capsys.readouterr().out
        assert f"{folder / name} is damaged" in said
        assert "an older checkpoint is used" in said
        assert "resuming after epoch 1\n" in said
        assert result(tmp_path / name) == result(tmp_path / "whole")


def test_a_checkpoint_without_complete_is_ignored(tmp_path, broken_off):
    (broken_off / "checkpoint" / "1" / "complete").unlink()

    assert checkpoints.complete(broken_off / "checkpoint") == []
    assert training.fit(small(), out=tmp_path).finished


def test_a_foreign_checkpoint_is_refused(tmp_path, broken_off):
    with pytest.raises(ValueError, match="belongs to another run"):
        checkpoints.read(broken_off / "checkpoint" / "1", run="0" * 64, processes=1)
    key = json.loads((broken_off / "environment.json").read_text())["run_sha256"]
    with pytest.raises(ValueError, match="written by 1 processes and there are 2; start as many as before"):
        checkpoints.read(broken_off / "checkpoint" / "1", run=key, processes=2)


def test_a_checkpoint_holds_no_code(broken_off):
    files = sorted(path.name for path in (broken_off / "checkpoint" / "1").iterdir())

    assert files == [
        "complete",
        "criterion.safetensors",
        "model.safetensors",
        "optimiser.safetensors",
        "state.json",
    ]


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """Every place in which a file is synced may be the one where the disk is full."""
    training.fit(small(), out=tmp_path / "whole")
    for at in (3, 9, 14, 17, 22):
        fill_the_disk(monkeypatch, at, tmp_path / f"full-{at}")
        assert result(tmp_path / f"full-{at}") == result(tmp_path / "whole"), at


def fill_the_disk(monkeypatch, at, out):
    """Train in ``out`` until the disk is full, try again in vain, and again when there is room."""
    sync, calls = os.fsync, iter(range(10**9))

    def full(handle):
        if next(calls) >= at:
            raise OSError(ENOSPC, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match="is full .* free some space and give the same command again"):
            training.fit(small(), out=out)
    there = only_run(out)
    before = {p: p.read_bytes() for p in there.rglob("*") if p.is_file() and p.name != "history.jsonl"}
    assert not [path for path in before if path.name.startswith(writing.TEMPORARY)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match="is full"):
            training.fit(small(), out=out)
    assert {p: p.read_bytes() for p in before} == before
    training.fit(small(), out=out)


def test_too_little_space_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SPARE_BYTES", 10**18)
    with pytest.raises(ValueError, match="MB are needed and .* MB are free"):
        training.fit(small(), out=tmp_path)


def test_the_second_process_on_a_run_folder_is_refused(tmp_path, broken_off):
    code = (
        "import sys, time\nfrom macc.training.runs import locked\n"
        f"with locked(__import__('pathlib').Path({str(broken_off)!r})):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            ValueError, match="another process is training .*; wait for it, or give another folder"
        ):
            training.fit(small(), out=tmp_path)
        holder.kill()  # a lock must not outlive its process
        holder.wait()

    assert training.fit(small(), out=tmp_path).finished


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_cleanly_and_says_how_to_go_on(tmp_path, number, code):
    command = [sys.executable, "-m", "macc", "train", "digits", "--out", tmp_path, "--set", "epochs=500"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        for line in process.stdout:
            if line.startswith("epoch   2/500"):
                process.send_signal(number)
                break
        _, errors = process.communicate(timeout=60)

    assert process.returncode == code
    assert errors.startswith("macc: stopped after ")
    assert "the same command resumes from there" in errors
    assert len(errors.splitlines()) == 1
    assert checkpoints.complete(only_run(tmp_path) / "checkpoint")


def test_generators_of_the_caller_are_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    training.fit(small(), out=tmp_path)

    assert torch.equal(torch.rand(3), expected)


def test_time_is_the_only_thing_that_may_differ_in_a_row(tmp_path):
    started = time.perf_counter()
    run = training.fit(small(), out=tmp_path)

    assert list(run.history[0]) == [
        "epoch", "lr", "seconds", "train/loss", "train/CrossEntropy", "val/accuracy", "val/nll", "val/refinement", "val/ece",
        "val/sce",
    ]  # fmt: skip
    assert 0 < sum(row["seconds"] for row in run.history) < time.perf_counter() - started

"""Two real processes train like one, write like one, and end together."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import distributed as dist
from torch import nn

from macc import data
from macc.training import engine
from macc.training import loading as recipes

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed"),
    pytest.mark.xdist_group("gloo"),
]
# Sampled masks differ from process to process by design; the closed form has none, so that curves
# can be compared.
SETTINGS = ["--set", "head.estimator=analytic", "--set", "subset={train: 640, val: 41}"]
TOLERANCE = 1e-4  # float32 sums in another order, 30 steps through batch norm; seen: 2e-6


def command(out, *more, processes=1):
    launcher = (
        []
        if processes == 1
        else ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    )
    return [sys.executable, "-m", *launcher, "macc", "train", "digits", "--out", str(out), *SETTINGS, *more]


def only_run(out):
    (path,) = [path for path in Path(out).iterdir() if path.is_dir()]
    return path


def history(out):
    return [json.loads(line) for line in (only_run(out) / "history.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folders of one and of two processes, and what the two printed."""
    folder = tmp_path_factory.mktemp("processes")
    return folder, train_both(folder, seed=0)


def train_both(folder, seed):
    """Train in one and in two processes; what the two printed."""
    short = ["--set", "epochs=3", "--loss", "CrossEntropy + MACC(warmup=15)", "--seed", str(seed)]
    subprocess.run(command(folder / "one", *short), capture_output=True, check=True, timeout=120)
    two = subprocess.run(
        command(folder / "two", *short, processes=2), capture_output=True, text=True, timeout=120
    )
    assert two.returncode == 0, two.stderr
    return two.stdout


def test_there_are_two_processes(trained):
    folder, printed = trained

    assert json.loads((only_run(folder / "two") / "environment.json").read_text())["num_processes"] == 2
    assert "2 processes" in printed


def test_the_loss_curve_is_that_of_one_process_with_the_same_global_batch(trained, tmp_path):
    folder, _ = trained
    apart = [unlike(folder)]
    # On some processors rounding alone moves a curve by 1e-3, one process with two threads as much
    # as two processes (a rectifier that switches, probably); what is wrong in the code is so with
    # every seed.
    for seed in range(1, 5):
        if not apart[-1]:
            break
        train_both(tmp_path / str(seed), seed)
        apart.append(unlike(tmp_path / str(seed)))

    assert not apart[-1], apart


def unlike(folder):
    """What differs between the histories of one and of two processes."""
    one, two = history(folder / "one"), history(folder / "two")
    assert len(one) == len(two) == 3
    return [
        f"epoch {ours['epoch']}: {name} {ours[name]} and {theirs[name]}"
        for ours, theirs in zip(one, two, strict=True)
        for name in ours.keys() - {"seconds"}
        if theirs[name] != pytest.approx(ours[name], rel=TOLERANCE, abs=1e-7)
    ]


def test_one_process_writes_and_prints(trained):
    folder, printed = trained
    files = sorted(p.name for p in only_run(folder / "two").rglob("*") if p.is_file())

    assert files == sorted(p.name for p in only_run(folder / "one").rglob("*") if p.is_file())
    assert sum(line.startswith("epoch 1/3") for line in printed.splitlines()) == 1
    assert printed.count("history.jsonl") == 1


def test_a_process_that_dies_ends_the_other_with_an_error(tmp_path):
    psutil = pytest.importorskip("psutil")
    with subprocess.Popen(
        command(tmp_path, "--set", "epochs=5000", processes=2),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    ) as launcher:
        for line in launcher.stdout:
            if line.startswith("epoch    2/5000"):
                break
        workers = psutil.Process(launcher.pid).children(recursive=True)
        (victim,) = [worker for worker in workers if worker.environ().get("RANK") == "1"]
        os.kill(victim.pid, signal.SIGKILL)
        killed = time.monotonic()
        launcher.communicate(timeout=60)

    assert launcher.returncode != 0
    assert time.monotonic() - killed < 60
    assert not [worker for worker in workers if worker.is_running() and worker.status() != "zombie"]


def together(out, last_step):
    """Two processes of ``pair.py``."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    pair = Path(__file__).parents[1] / "helpers" / "pair.py"
    return subprocess.run(
        [*launch, str(pair), str(out), str(last_step)], capture_output=True, text=True, timeout=120
    )


def test_two_processes_killed_within_an_epoch_go_on_to_the_same_bits(tmp_path):
    """Dropout masks are sampled, so each process has to get its own generator back."""
    unbroken = together(tmp_path / "whole", 0)
    assert unbroken.returncode == 0, unbroken.stderr
    assert together(tmp_path / "killed", 5).returncode != 0
    rest = together(tmp_path / "killed", 0)
    whole, killed = only_run(tmp_path / "whole"), only_run(tmp_path / "killed")

    assert rest.returncode == 0, rest.stderr
    assert re.search("resuming after epoch 0 and [24] steps", rest.stdout)
    for name in ("best.safetensors", "metrics.json", "predictions/test.npz"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    rows = [[{**row, "seconds": 0} for row in history(tmp_path / name)] for name in ("whole", "killed")]
    assert rows[0] == rows[1]


def test_a_signal_to_the_launcher_ends_both_with_a_checkpoint(tmp_path):
    endless = command(tmp_path, "--set", "epochs=5000", processes=2)
    for start in range(2):
        with subprocess.Popen(
            endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        ) as launcher:
            printed = []
            for line in launcher.stdout:
                printed.append(line)
                if line.startswith("epoch ") and "/5000" in line:
                    break
            launcher.send_signal(signal.SIGTERM)
            _, errors = launcher.communicate(timeout=60)

        assert launcher.returncode != 0
        assert errors.count("the same command resumes from there") == 1, errors
        assert any(line.startswith("resuming after epoch") for line in printed) == (start == 1)
    (checkpoint,) = (only_run(tmp_path) / "checkpoint").iterdir()
    assert (checkpoint / "complete").is_file()


def test_a_batch_that_cannot_be_shared_is_refused():
    recipe = recipes.load("digits", overrides=["batch_size=63"]).resolved()
    two = SimpleNamespace(num_processes=2)
    with pytest.raises(
        ValueError, match="digits: batch_size: 63 cannot be shared by 2 processes .* multiple of 2"
    ):
        engine.learner_for(recipe, nn.Linear(64, 10), data.load("digits"), two)

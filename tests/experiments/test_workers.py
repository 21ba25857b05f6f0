"""Several workers, one of them killed: on SQLite, and on a real PostgreSQL server that the test
starts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers.postgres import NoServerError, postgres
from macc import experiments
from macc.cli import displays
from macc.experiments import search, workers
from macc.experiments.ledger import open_ledger

WORKER = Path(__file__).parents[1] / "helpers" / "grid_worker.py"
EPOCHS = 6


GRID = f"""
datasets: digits
seeds: 1
tests: {{test: test}}
set: {{epochs: {EPOCHS}, subset: {{train: 320}}, selection: last}}
methods:
  - {{name: grid, loss: "CrossEntropy + {{1,2,3}}*MACC"}}
"""


@pytest.fixture(scope="module")
def server():
    """A server of our own."""
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed (macc-torch[sweep])")
    with ExitStack() as stack:
        try:
            found = stack.enter_context(postgres())
        except NoServerError as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture
def postgresql(server):
    """The address of a database."""
    return server.address


class TestRestarts:
    """The database goes away in the middle of a training."""

    def worker(self, server, tmp_path, on_epoch):
        file = tmp_path / "grid.yaml"
        file.write_text(GRID.replace(f"epochs: {EPOCHS}", "epochs: 2") + f"name: {tmp_path.name}\n")
        ledger = open_ledger(experiments.load(file), tmp_path / "runs", None)
        told = []

        def tell(event):
            told.append(event)
            if [kind for kind, _ in told].count("epoch") == 1 and event[0] == "epoch":
                on_epoch()

        return ledger, told, workers.Worker(ledger, tmp_path, server.address, tell, heartbeat=1)

    def test_a_restart_is_no_reason_to_stop(self, server, tmp_path, capfd):
        def restart():
            server.stop()
            time.sleep(2)  # a heart beats while nobody listens
            server.start()

        ledger, told, worker = self.worker(server, tmp_path, restart)
        worker.run()

        assert not ledger.is_open()
        assert [kind for kind, _ in told].count("done") == 3
        shown = "".join(capfd.readouterr())
        assert "Traceback" not in shown

    def test_a_restart_before_the_first_point_of_a_grid(self, server, tmp_path, monkeypatch):
        monkeypatch.setattr(workers, "RECONNECT_SECONDS", (0.01, 0.01))
        ledger, told, worker = self.worker(server, tmp_path, lambda: None)
        tell = worker.tell
        worker.tell = lambda event: (tell(event), server.start() if event[0] == "say" else None)
        server.stop()
        try:
            worker.run()
        finally:
            if not any(kind == "say" for kind, _ in told):
                server.start()

        assert not ledger.is_open()

    def test_without_the_database_one_sentence_says_how_to_resume(self, server, tmp_path, monkeypatch, capfd):
        monkeypatch.setattr(workers, "RECONNECT_SECONDS", (0.01, 0.01))
        ledger, told, worker = self.worker(server, tmp_path, server.stop)
        try:
            with pytest.raises(
                ValueError, match="it did not come back; what is done is kept, and the same"
            ) as caught:
                worker.run()
        finally:
            server.start()

        assert "\n" not in str(caught.value)
        assert "s3cr3t-word" not in str(caught.value) + str(told)
        assert "Traceback" not in "".join(capfd.readouterr())
        assert [kind for kind, _ in told].count("say") == 2
        again = workers.Worker(ledger, tmp_path, server.address, told.append, heartbeat=1)
        again.run()
        assert [kind for kind, _ in told].count("done") == 3


def test_a_wrong_address_is_told_before_anything_is_trained(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text("datasets: digits\nset: {epochs: 1}\nmethods: [CrossEntropy, 'Focal(gamma={1,2})']\n")
    with pytest.raises(ValueError, match=r"^postgresql://me@127.0.0.1:1/db does not answer: "):
        experiments.run(file, out=tmp_path / "runs", workers=1, storage="postgresql://me@127.0.0.1:1/db")

    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["experiments"]


def start(file, out, storage, *, hang_after=0):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, WORKER, file, out, storage, str(hang_after)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def events_until(process, kind):
    """Read what a worker tells until it tells this."""
    seen = []
    for line in process.stdout:
        seen.append(tuple(json.loads(line)))
        if seen[-1][0] == kind:
            return seen
    raise AssertionError(f"the worker ended after {seen}")


def test_a_killed_workers_trial_is_taken_over_and_nothing_trains_twice(postgresql, tmp_path):
    file, out = tmp_path / "grid.yaml", tmp_path / "runs"
    file.write_text(GRID)
    killed = start(file, out, postgresql, hang_after=2)
    other = start(file, out, postgresql)
    try:
        survivor = [*events_until(other, "done"), *events_until(other, "done")]
        time.sleep(4)  # longer than the grace of a worker that is alive but slow: it is not robbed
        assert len(list(out.glob("*/metrics.json"))) == 2
        assert other.poll() is None
        killed.send_signal(signal.SIGKILL)
        seen = [tuple(json.loads(line)) for line in killed.stdout]
        rest, _ = other.communicate(timeout=300)
    finally:
        for process in (killed, other):
            process.kill()
            process.stdout.close()
    survivor += [tuple(json.loads(line)) for line in rest.splitlines()]

    assert killed.wait() == -signal.SIGKILL
    assert other.returncode == 0
    begun = [name for kind, name in seen + survivor if kind == "begin"]
    broken_off = {name for kind, name in seen if kind == "begin"} - {
        name for kind, name in seen if kind == "done"
    }
    assert len(broken_off) == 1
    assert sorted(begun) == sorted([*set(begun), *broken_off])  # only what was broken off is begun twice
    assert len(set(begun)) == 3

    ledger = open_ledger(experiments.load(file), out, None)
    dataset, method = ledger.catalog.datasets[0], ledger.experiment.methods[0]
    assert not ledger.is_open()
    for point in ledger.points(dataset, method):
        run = ledger.run(ledger.job(dataset, method, point, 0))
        assert [row["epoch"] for row in run.history] == list(range(1, EPOCHS + 1))
    assert [kind for kind, _ in seen + survivor].count("epoch") == 3 * EPOCHS

    storage = search.open_storage(postgresql, out)
    study = search.GridStudy(ledger, dataset, method, storage, out)
    states, trials = study.states(), study.study.get_trials()
    search.close_storage(storage)
    assert states.count("COMPLETE") == 3
    assert states.count("FAIL") == 1
    assert set(states) <= {"COMPLETE", "FAIL", "PRUNED"}
    returned = [trial for trial in trials if trial.user_attrs.get("deaths")]
    assert [trial.state.name for trial in returned] == ["COMPLETE"]


def test_the_password_is_never_shown(postgresql, tmp_path, capfd):
    file, out = tmp_path / "grid.yaml", tmp_path / "runs"
    file.write_text(GRID.replace(f"epochs: {EPOCHS}", "epochs: 1"))
    experiments.run(file, storage=postgresql, workers=1, out=out, listener=displays.Trainings())
    shown = "".join(capfd.readouterr())

    assert "grids are shared through postgresql://macc:***@127.0.0.1" in shown
    assert "s3cr3t-word" not in shown
    for path in out.rglob("*"):
        assert not path.is_file() or b"s3cr3t-word" not in path.read_bytes(), path
    with pytest.raises(ValueError, match=r"cannot use postgresql://macc:\*\*\*@127.0.0.1") as caught:
        search.open_storage(postgresql.replace("s3cr3t-word", "another-word"), out)
    assert "another-word" not in str(caught.value)
    assert "\n" not in str(caught.value)


class TestFailures:
    """A learning rate with which every training ends at once, in two methods that are one run."""

    TEXT = (
        "datasets: digits\nseeds: 1\nkind: convergence\nset: {epochs: 1, optimiser.lr: 1e30, subset: {train: 320}}\n"
        "tests: {test: test}\nmethods: [CrossEntropy, {name: same, loss: CrossEntropy}]\n"
    )

    @pytest.mark.parametrize("count", [1, 2])
    def test_where_every_training_fails_there_is_one_sentence_and_no_table(self, tmp_path, count, capfd):
        file, out = tmp_path / "fails.yaml", tmp_path / "runs"
        file.write_text(self.TEXT)
        with pytest.raises(ValueError, match=r"^no training of fails finished; digits: ") as caught:
            experiments.run(file, workers=count, out=out, listener=displays.Trainings())
        lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("failed: ")]

        assert "\n" not in str(caught.value)
        names = sorted(line.split(", seed")[0] for line in lines)
        assert names == ["failed: digits: CrossEntropy", "failed: digits: same"]
        assert not list(out.rglob("result.json"))
        assert not list(out.rglob("table.*"))

    def test_what_failed_is_not_tried_by_every_worker(self, tmp_path, monkeypatch):
        file = tmp_path / "fails.yaml"
        file.write_text(self.TEXT)
        ledger = open_ledger(experiments.load(file), tmp_path / "runs", None)
        tried, told = [], []

        def fit(ledger, job, **options):
            tried.append(job)
            raise ValueError("it diverged")

        monkeypatch.setattr(workers, "fit", fit)
        for _ in range(2):
            ledger.failed.clear()
            workers.Worker(ledger, tmp_path, "", told.append, failures=tmp_path / "notes").run()
            assert list(ledger.failed.values()) == ["it diverged"] * 2
        assert len(tried) == 1
        assert [kind for kind, _ in told] == ["begin", *["failed"] * 4]

        ledger.failed.clear()
        workers.execute(ledger, tmp_path, "", 1, told.append)  # the same command, given again
        assert len(tried) == 2


def test_points_that_were_not_tried_are_left_alone(tmp_path):
    file = tmp_path / "few.yaml"
    text = GRID.replace(f"epochs: {EPOCHS}", "epochs: 1")
    file.write_text(text + "search: {sampler: tpe, trials: 2}\n")
    told = []
    ledger = open_ledger(experiments.load(file), tmp_path / "runs", None)
    workers.execute(ledger, tmp_path, f"sqlite:///{tmp_path / 'study.db'}", 1, told.append)

    assert [kind for kind, _ in told].count("begin") <= 2


def test_workers_stop_when_asked_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "datasets: digits\nseeds: 2\nset: {epochs: 200}\nmethods: [CrossEntropy]\n"
    )
    command = [sys.executable, "-m", "macc", "run", "mine.yaml", "--workers", "2"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    until = time.monotonic() + 120
    while time.monotonic() < until and len(list(tmp_path.glob("runs/digits*/checkpoint/*"))) < 2:
        time.sleep(0.2)
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=120)

    assert started.returncode == 128 + signal.SIGTERM
    assert errors.splitlines()[-1] == "macc: stopped; what is done is kept, and the same command resumes"
    assert "Traceback" not in errors
    assert len(list(tmp_path.glob("runs/digits*/checkpoint/*/complete"))) == 2

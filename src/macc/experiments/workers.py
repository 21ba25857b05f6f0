"""Workers: processes that take one open training after another until nothing is left.

What is open is read from the run folders alone, so workers need no leader, may come, go and die,
and an experiment that was stopped resumes with what is missing.
"""

import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from macc import training
from macc.experiments.catalog import LocalDataSet
from macc.experiments.ledger import MOMENTS, Job, Ledger, mc_name
from macc.experiments.search import (
    HEARTBEAT_SECONDS,
    GridStudy,
    NoDatabaseError,
    OnEpoch,
    close_storage,
    database_errors,
    open_storage,
)
from macc.experiments.spec import Method
from macc.io.writing import write_bytes
from macc.training.allocation import keep_freed_memory
from macc.training.runs import Run, locked

if TYPE_CHECKING:
    from macc.experiments._storage import Storage

MIN_RESAMPLES = 100
"""Behind the intervals of a run's own ``metrics.json``; tables have those over seeds, or make
theirs anew.
"""
PAUSE_SECONDS = 0.3
RECONNECT_SECONDS = (1, 2, 5, 10, 20, 30)
"""How long to wait before each attempt to reach a database again that went away."""
GOODBYE = "stopped; what is done is kept, and the same command resumes"
Event = tuple[str, Any]
Tell = Callable[[Event], None]


class _Stop:
    """While entered, SIGINT and SIGTERM wait for a training's end; a second one acts at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number

    def check(self) -> None:
        """Stop here if it was asked for."""
        if self.number is not None:
            raise training.Interrupted(GOODBYE, self.number)


class Worker:
    """One process's share of an experiment.

    Args:
        ledger: The trainings of the experiment.
        folder: The experiment's folder.
        storage: Address of the database for grids.
        tell: Hears what happens: ``("begin", text)``, ``("done", text)``,
            ``("failed", (job, reason))``.
        heartbeat: Seconds between signs of life in the database.
        failures: A folder in which workers note which runs failed and why, so that none is tried by
            each of them.
    """

    def __init__(
        self,
        ledger: Ledger,
        folder: Path,
        storage: str,
        tell: Tell,
        *,
        heartbeat: int = HEARTBEAT_SECONDS,
        failures: Path | None = None,
    ) -> None:
        self.ledger, self.folder, self.address, self.tell = ledger, folder, storage, tell
        self.heartbeat, self.failures = heartbeat, failures
        self.studies: dict[tuple[str, str], GridStudy] = {}
        self.storage: Storage | None = None
        self.stop = _Stop()

    def run(self) -> None:
        """Work until nothing is open, or until SIGINT or SIGTERM asks to stop."""
        try:
            with self.stop:
                self._work()
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        if self.storage is not None:
            close_storage(self.storage)
        self.storage = None
        self.studies.clear()

    def _work(self) -> None:
        while True:
            did, waiting = self._round()
            if not did and not waiting:
                return
            if not did:
                self._pause()

    def _pause(self, seconds: float = PAUSE_SECONDS) -> None:
        self.stop.check()
        time.sleep(seconds)

    def _round(self) -> tuple[bool, bool]:
        """One look at everything: whether something was done, and whether others are at it."""
        did = waiting = False
        for dataset in self.ledger.catalog.datasets:
            for method in self.ledger.trained(dataset):
                if not self.ledger.ready(dataset, method):
                    waiting |= not self.hopeless(dataset, method)
                    continue
                for state in self._method(dataset, method):
                    self.stop.check()
                    did |= state
                    waiting |= not state
            for job, name in self.ledger.predictions_missing(dataset):
                self.stop.check()
                done = self.predict(dataset, job, name)
                did |= done
                waiting |= not done
        return did, waiting

    def hopeless(self, dataset: LocalDataSet, method: Method) -> bool:
        """Whether what a control waits for will never be known: all its trainings failed."""
        target = self.ledger.experiment.method(method.p_of or "")
        return (
            self._searched(dataset, target)
            and self.ledger.chosen(dataset, target, self.ledger.first_rule) is None
        )

    def _searched(self, dataset: LocalDataSet, method: Method) -> bool:
        key = (dataset.name, method.title)
        if key not in self.ledger.searched and not self.ledger.open_points(dataset, method):
            self._note_searched(key)
        return key in self.ledger.searched

    def _note_searched(self, key: tuple[str, str]) -> None:
        self.ledger.searched.add(key)
        self.tell(("searched", key))

    def _method(self, dataset: LocalDataSet, method: Method) -> Iterator[bool]:
        """Try what is open of a method; for each, whether this worker did it."""
        if self.ledger.is_searched(dataset, method) and not self._searched(dataset, method):
            yield self._search(dataset, method)
            return
        search = self.ledger.experiment.search
        some = self.ledger.is_searched(dataset, method) and (search.trials is not None or search.prune)
        # Points that were not to be tried, or were given up, stay as they are.
        jobs = [] if some else self.ledger.open_points(dataset, method)
        for job in jobs or self.ledger.open_repeats(dataset, method):
            yield self._train(job)

    def _search(self, dataset: LocalDataSet, method: Method) -> bool:
        """Try a point of a grid, and again where the database went away; whether there was one."""
        waits = iter(RECONNECT_SECONDS)
        while True:
            try:
                with database_errors(self.address):
                    study = self.study(dataset, method)
                    tried = study.work(self._wait_and_train)
                    if not tried and study.done:
                        self._note_searched((dataset.name, method.title))
                        tried = True
                    return tried
            except NoDatabaseError as error:
                self._disconnect()
                seconds = next(waits, None)
                if seconds is None:
                    raise NoDatabaseError(
                        f"{error}; it did not come back; what is done is kept, and the same command resumes"
                    ) from None
                self.tell(("say", f"{error}; trying again in {seconds} s"))
                self._pause(seconds)

    def study(self, dataset: LocalDataSet, method: Method) -> GridStudy:
        """The trials of a method on a data set."""
        key = (dataset.name, method.title)
        if key not in self.studies:
            if self.storage is None:
                self.storage = open_storage(self.address, self.folder, heartbeat=self.heartbeat)
            self.studies[key] = GridStudy(self.ledger, dataset, method, self.storage, self.folder)
            self.studies[key].enqueue()
        return self.studies[key]

    def _wait_and_train(self, job: Job, on_epoch: OnEpoch | None) -> None:
        """Train, or wait for the worker that is at it."""
        while job not in self.ledger.failed and not self.ledger.run(job).finished:
            if not self._train(job, on_epoch):
                self._pause()

    def _train(self, job: Job, on_epoch: OnEpoch | None = None) -> bool:
        """Train; false if another worker is at it."""
        run = self.ledger.run(job)
        if run.finished:
            return True
        try:
            with locked(run.path):
                pass
        except training.Busy:
            return False
        note = None if self.failures is None else self.failures / run.path.name
        if note is not None and note.is_file():
            self._fail(job, note.read_text("utf-8"))
            return True
        self.tell(("begin", job.text))
        epochs = self.ledger.recipe(job).epochs

        def each(row: Mapping[str, Any]) -> None:
            self.tell(("epoch", (job.text, row["epoch"], epochs)))
            if on_epoch is not None:
                on_epoch(row)

        try:
            found = fit(self.ledger, job, on_epoch=each)
        except training.Busy:
            return False
        except ValueError as error:
            if note is not None:
                with suppress(OSError):  # a full disk is told by what failed, and not by the note of it
                    write_bytes(note, str(error).encode())
            self._fail(job, str(error))
            return True
        if found.path != run.path:
            raise RuntimeError(f"{found.path} was trained where {run.path} was planned")
        self.tell(("done", job.text))
        return True

    def _fail(self, job: Job, reason: str) -> None:
        self.ledger.failed[job] = reason
        self.tell(("failed", (job, reason)))

    def predict(self, dataset: LocalDataSet, job: Job, name: str) -> bool:
        """Predict shifted data with a selected run; false if another worker has it."""
        run = self.ledger.run(job)
        try:
            with locked(run.path):
                catalog = self.ledger.catalog
                predict = partial(training.predict, run, root=catalog.root, verify=catalog.verify)
                if name == MOMENTS:
                    predict(moments=True)
                elif name.startswith("test-"):
                    predict(passes=next(p for p in self._passes(dataset, job) if mc_name(p) == name))
                else:
                    predict(data=catalog.shifted(dataset, name), moments=self.ledger.wants_moments(job))
        except training.Busy:
            return False
        return True

    def _passes(self, dataset: LocalDataSet, job: Job) -> list[int]:
        return self.ledger.passes(dataset, self.ledger.experiment.method(job.method))


def fit(ledger: Ledger, job: Job, **options: Any) -> Run:
    """Train a job, unless it is finished; few resamples, as few points are looked at again."""
    recipe, catalog = ledger.recipe(job), ledger.catalog
    also = [rule for rule in ledger.rules if rule != recipe.selection] if ledger.has_rules(recipe) else []
    return training.fit(
        recipe,
        data=catalog.splits(catalog[job.dataset]),
        out=ledger.out,
        verify=catalog.verify,
        resamples=MIN_RESAMPLES,
        also=also,
        **options,
    )


def execute(
    ledger: Ledger,
    folder: Path,
    storage: str,
    workers: int,
    tell: Tell,
    *,
    heartbeat: int = HEARTBEAT_SECONDS,
) -> None:
    """Do all that is open of an experiment.

    Args:
        ledger: The trainings of the experiment.
        folder: The experiment's folder.
        storage: Address of the database for grids.
        workers: Processes; with one, this process does it.
        tell: Hears what happens.
        heartbeat: Seconds between signs of life in the database.
    """
    if not ledger.is_open():
        return
    if any(ledger.is_searched(d, method) for d in ledger.catalog.datasets for method in ledger.trained(d)):
        # A wrong address is reported now, and not after the trainings of all methods without a
        # grid.
        with database_errors(storage):
            close_storage(open_storage(storage, folder, heartbeat=heartbeat))
    # Outside the folders that are kept: the next time everything that failed is tried again.
    with tempfile.TemporaryDirectory(prefix="macc-failed-") as noted:
        if workers == 1:
            Worker(ledger, folder, storage, tell, heartbeat=heartbeat, failures=Path(noted)).run()
        else:
            _with_processes(ledger, folder, storage, workers, tell, heartbeat, Path(noted))
    if ledger.is_open():
        raise ValueError(
            "some trainings are still open, because their workers died; give the same command again"
        )


def _with_processes(
    ledger: Ledger, folder: Path, storage: str, workers: int, tell: Tell, heartbeat: int, failures: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    with _threads(max(1, (os.cpu_count() or 1) // workers)):
        processes = [
            context.Process(target=_process, args=(ledger, folder, storage, events, heartbeat, failures))
            for _ in range(workers)
        ]
        for process in processes:
            process.start()
    with _forwarded(processes):
        told_dead: set[int | None] = set()
        while True:
            alive = any(process.is_alive() for process in processes)
            _listen(events, ledger, tell)
            for process in processes:
                if process.exitcode not in (None, 0) and process.pid not in told_dead:
                    told_dead.add(process.pid)
                    tell(
                        ("say", f"a worker ended with code {process.exitcode}; the others take over its work")
                    )
            if not alive:
                break
    for process in processes:
        process.join()
    _listen(events, ledger, tell)


def _listen(events: Any, ledger: Ledger, tell: Tell) -> None:
    """Pass on what workers reported, for as long as there is something, half a second at least."""
    try:
        while True:
            kind, content = events.get(timeout=0.3)
            if kind == "error":
                raise ValueError(content)
            if kind == "failed":
                if content[0] in ledger.failed:
                    continue  # every worker tells it
                ledger.failed[content[0]] = content[1]
            if kind == "searched":
                ledger.searched.add(content)
            tell((kind, content))
    except queue.Empty:
        return


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Processes started here compute with this many threads; they must not fight over the cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextmanager
def _forwarded(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """SIGINT and SIGTERM make the workers stop at their next step and write where they are."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise training.Interrupted(GOODBYE, number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            process.join()


def _process(ledger: Ledger, folder: Path, storage: str, events: Any, heartbeat: int, failures: Path) -> None:
    """The life of a worker process."""
    keep_freed_memory()
    if hasattr(os, "setsid"):
        os.setsid()  # the terminal's Ctrl-C is for the process that started it
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        Worker(ledger, folder, storage, events.put, heartbeat=heartbeat, failures=failures).run()
    except KeyboardInterrupt:
        sys.exit(130)
    except ValueError as error:
        events.put(("error", str(error)))
        sys.exit(2)


def _end_with(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)

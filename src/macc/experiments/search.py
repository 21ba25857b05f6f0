"""Grids through Optuna: a record of every point, shared by any number of workers on any number of
machines.

A run's folder decides who trains it; Optuna decides who tries. A worker that dies stops its
heartbeat, and another one gets its trial.
"""

import hashlib
import json
import math
import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote, unquote_plus

from filelock import FileLock

from macc.experiments.catalog import LocalDataSet
from macc.experiments.columns import column
from macc.experiments.grid import Point, Value
from macc.experiments.ledger import Job, Ledger
from macc.experiments.spec import Method
from macc.io.writing import full_disk_explained, write_bytes

if TYPE_CHECKING:
    import sqlite3

    import optuna

    from macc.experiments._storage import Storage

HEARTBEAT_SECONDS = 10
LOCK_SECONDS = 120
MAX_RETRIES = 3
_ADDRESS = re.compile(
    r"(?:(?P<user>[^:/?@]*)(?::(?P<password>[^/?@]*))?@)?"
    r"(?P<place>(?:\[[0-9a-fA-F:.]*\]|[^:/?@\[]*)(?::\d*)?)(?P<database>/[^?@:]*)?(?:\?(?P<query>[^@]*))?"
)
"""The rest of an address, after its kind and slashes, that can be read in one way only, so that its
sole ``@`` ends the password.
"""
_SECRET = re.compile("pass|secret|token|key|cred", re.IGNORECASE)

OnEpoch = Callable[[Mapping[str, Any]], None]
Train = Callable[[Job, OnEpoch | None], None]


class NoDatabaseError(ValueError):
    """The database of the grids does not answer, or not any more."""


class GivenUp(Exception):  # noqa: N818 - no error: the pruner's verdict
    """A point lags behind the others."""


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna's heartbeats are experimental by name; its log is ours to tell."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def hidden(address: str) -> str:
    """A storage address as it may be shown: without its password and its query.

    Where an ``@`` that is not escaped leaves open what the password is, only the kind of database
    is shown.

    Example:
        >>> hidden("postgresql://me:secret@host/grids?sslpassword=secret")
        'postgresql://me:***@host/grids'
        >>> hidden("postgresql://host/grids?password=sec@ret")
        'postgresql://***'
    """
    kind, separator, rest = address.partition("://")
    if not separator:
        return "***"
    if kind.startswith("sqlite"):
        return f"{kind}://{rest.partition('?')[0]}"
    found = _ADDRESS.fullmatch(rest)
    if found is None:
        return f"{kind}://***"
    user = found["user"]
    before = "" if user is None else f"{user}{'' if found['password'] is None else ':***'}@"
    return f"{kind}://{before}{found['place']}{found['database'] or ''}"


def without_secrets(text: str, address: str) -> str:
    """What a driver says, without what is secret in an address."""
    found = _ADDRESS.fullmatch(address.partition("://")[2])
    if found is None:
        return "it cannot be read; in a password write @ as %40, / as %2F and ? as %3F"
    secrets = {found["password"]}
    for key, equals, value in (part.partition("=") for part in (found["query"] or "").split("&")):
        if equals and _SECRET.search(key):
            secrets.add(value)
    plain = {form for word in filter(None, secrets) for form in (word, unquote(word), unquote_plus(word))}
    for word in sorted(plain | {quote(word, safe="") for word in plain}, key=len, reverse=True):
        text = text.replace(word, "***")
    return text


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the experiment's folder while tables are created or points are enqueued."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".study.lock", timeout=LOCK_SECONDS):
        yield


def open_storage(address: str, folder: Path, *, heartbeat: int = HEARTBEAT_SECONDS) -> "Storage":
    """Connect to a database of Optuna, creating its tables if nobody has.

    Args:
        address: ``sqlite:///FILE``, ``postgresql://USER:PASSWORD@HOST/DATABASE`` or ``mysql://…``.
        folder: The experiment's folder, for the lock.
        heartbeat: Seconds between signs of life; after three of them a worker is dead.
    """
    try:
        from sqlalchemy.exc import ArgumentError, SQLAlchemyError

        from macc.experiments._storage import Storage
    except ImportError:
        raise ValueError("a grid needs Optuna: pip install 'macc-torch[sweep]'") from None
    if "://" not in address:
        raise ValueError("--storage must be an address such as postgresql://user@host/database")
    full = address.replace("postgresql://", "postgresql+psycopg://", 1)
    with _quiet(), locked(folder):
        try:
            _create_file(full)
            return Storage(
                full,
                engine_kwargs={"connect_args": {"timeout": 60}}
                if full.startswith("sqlite")
                else {"pool_pre_ping": True},
                heartbeat_interval=heartbeat,
                grace_period=3 * heartbeat,
                heartbeat_stale_trial_callback=_enqueued_again,
            )
        except ImportError as error:
            raise ValueError(
                f"{hidden(address)} needs a driver that is not installed ({error.name}): "
                "pip install 'macc-torch[sweep]' has the one of PostgreSQL"
            ) from None
        except ArgumentError:
            raise ValueError(f"{hidden(address)} is no address of a database") from None
        except SQLAlchemyError as error:
            raise NoDatabaseError(f"cannot use {hidden(address)}: {_reason(error, address)}") from None


def _create_file(address: str) -> None:
    """Write an SQLite file with all tables, if there is none: whole or not at all.

    SQLite commits each table and each index by itself. A process that was killed between them, or
    found the disk full, left tables that may have two studies of one name.
    """
    from optuna.storages import RDBStorage
    from sqlalchemy import make_url

    url = make_url(address)
    path = Path(url.database or ":memory:")
    if not url.drivername.startswith("sqlite") or not path.parent.is_dir() or path.name == ":memory:":
        return
    if path.exists() and path.stat().st_size:
        return
    made = RDBStorage("sqlite://")  # in memory
    tables = cast("sqlite3.Connection", made.engine.raw_connection().driver_connection)
    with full_disk_explained(path.parent):
        write_bytes(path, tables.serialize())
    close_storage(made)


def close_storage(storage: "optuna.storages.RDBStorage") -> None:
    """Give the connections back, if they still are."""
    from sqlalchemy.exc import SQLAlchemyError

    with suppress(SQLAlchemyError):
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def database_errors(address: str) -> Iterator[None]:
    """Turn what is raised when a database goes away into one sentence."""
    try:
        yield
    except Exception as error:
        found = _of_database(error)
        if found is None:
            raise
        raise NoDatabaseError(f"{hidden(address)} does not answer: {_reason(found, address)}") from None


def _of_database(error: BaseException) -> Exception | None:
    """The database error behind another one: Optuna fails when it reports a failure."""
    from sqlalchemy.exc import SQLAlchemyError

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, SQLAlchemyError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def _reason(error: Exception, address: str) -> str:
    """The first line of what the driver says."""
    text = str(getattr(error, "orig", None) or type(error).__name__).strip().splitlines()[0]
    return without_secrets(text, address)


def _enqueued_again(study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
    """Give a dead worker's point to the next one, unless it keeps killing them."""
    point = trial.user_attrs.get("point")
    deaths = trial.user_attrs.get("deaths", 0) + 1
    if point is not None and deaths <= MAX_RETRIES:
        study.enqueue_trial(point, user_attrs={"point": point, "deaths": deaths})


class GridStudy:
    """The trials of one method on one data set.

    Args:
        ledger: The trainings of the experiment.
        dataset: The data set.
        method: The method, with at least two points.
        storage: The database.
        folder: The experiment's folder, for the lock under which points are enqueued.
    """

    def __init__(
        self,
        ledger: Ledger,
        dataset: LocalDataSet,
        method: Method,
        storage: "Storage",
        folder: Path,
    ) -> None:
        import optuna

        self.ledger, self.dataset, self.method, self.folder = ledger, dataset, method, folder
        self.storage = storage
        self.search = ledger.experiment.search
        self.axes = ledger.axes(dataset, method)
        self.points = ledger.points(dataset, method)
        jobs = [
            ledger.job(dataset, method, point, ledger.seeds[0]) for point in (self.points[0], self.points[-1])
        ]
        identity: list[Any] = [[axis.name, list(axis.values)] for axis in self.axes]
        identity += [str(ledger.run(job).path.name) for job in jobs]
        identity += [self.search.model_dump(), ledger.experiment.seeds, ledger.experiment.grid_seeds]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
        self.name = (
            f"{ledger.experiment.name}/{ledger.experiment.scale}/{dataset.name}/{method.title}/{digest}"
        )
        prune = self.search.prune
        with _quiet(), locked(folder):
            self.study = optuna.create_study(
                study_name=self.name,
                storage=storage,
                load_if_exists=True,
                directions=[
                    "maximize" if column(name).better == "higher" else "minimize"
                    for name in self.search.objectives
                ],
                sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=5)
                if self.search.sampler == "tpe"
                else optuna.samplers.RandomSampler(seed=0),
                pruner=optuna.pruners.MedianPruner() if prune else optuna.pruners.NopPruner(),
            )

    def enqueue(self) -> None:
        """Queue every point that is neither queued nor done; under a lock, so that it is once."""
        if self.search.sampler != "grid":
            return
        with locked(self.folder), _quiet():
            trials = self.study.get_trials(deepcopy=False)
            there = [trial.user_attrs.get("point") for trial in trials if trial.state.name != "FAIL"]
            for point in self.points:
                if point not in there:
                    self.study.enqueue_trial(point, user_attrs={"point": point})

    def states(self) -> list[str]:
        """The state of every trial, but of those that tried nothing."""
        trials = self.study.get_trials(deepcopy=False)
        return [trial.state.name for trial in trials if "duplicate" not in trial.user_attrs]

    @property
    def waiting(self) -> bool:
        """Whether there is a point for another worker."""
        states = self.states()
        if self.search.trials is None:
            return "WAITING" in states
        tried = len(states) - states.count("FAIL") + len(self._failed())
        return "WAITING" in states or tried < self._wanted

    @property
    def _wanted(self) -> int:
        return min(self.search.trials or 0, len(self.points))

    def _failed(self) -> list[Point]:
        """The points that cannot be trained."""
        return [point for point in self.points if any(job in self.ledger.failed for job in self._jobs(point))]

    def _jobs(self, point: Point) -> list[Job]:
        seeds = self.ledger.search_seeds(len(self.points))
        return [self.ledger.job(self.dataset, self.method, point, seed) for seed in seeds]

    @property
    def done(self) -> bool:
        """Whether every point has been tried and nobody is at one."""
        return not self.waiting and "RUNNING" not in self.states()

    def return_the_dead(self) -> None:
        """Put the points of workers that have stopped breathing back into the queue."""
        import optuna

        with _quiet():
            self.storage.notice_the_silent(self.study._study_id)
            optuna.storages.fail_stale_trials(self.study)

    def work(self, train: Train) -> bool:
        """Try one point, if one waits; whether there was one."""
        if not self.waiting:
            self.return_the_dead()
            if not self.waiting:
                return False
        with _quiet():
            try:
                self.study.optimize(
                    lambda trial: self._objective(trial, train), n_trials=1, catch=(ValueError,)
                )
            except ValueError as error:
                # Another worker took this one for dead, trained or found the same run, and has
                # reported its result.
                if not str(error).startswith("Cannot tell"):
                    raise
        return True

    def _objective(self, trial: "optuna.Trial", train: Train) -> list[float]:
        import optuna

        if self.search.sampler == "grid" and "point" not in trial.user_attrs:
            trial.set_user_attr("duplicate", True)
            raise optuna.TrialPruned("another worker took the last point")
        point: Point = {
            axis.name: cast("Value", trial.suggest_categorical(axis.name, axis.values)) for axis in self.axes
        }
        if "point" not in trial.user_attrs:
            self._refuse_tried(trial, point)
        jobs = self._jobs(point)
        trial.set_user_attr("point", point)
        trial.set_user_attr("runs", [self.ledger.run(job).path.name for job in jobs])
        found = []
        for index, job in enumerate(jobs):
            on_epoch = self._reporter(trial) if self.search.prune and index == 0 else None
            try:
                train(job, on_epoch)
            except GivenUp:
                raise optuna.TrialPruned("behind the median") from None
            if job in self.ledger.failed:
                raise ValueError(self.ledger.failed[job])
            found.append(self.ledger.scores(job, self.ledger.first_rule))
        return [math.fsum(row[name] for row in found) / len(found) for name in self.search.objectives]

    def _refuse_tried(self, trial: "optuna.Trial", point: Point) -> None:
        """Where a sampler suggests what was tried, queue another point, of those asked for."""
        import optuna

        with locked(self.folder):
            trials = self.study.get_trials(deepcopy=False)
            taken = [each for each in trials if each.state.name != "FAIL" and "point" in each.user_attrs]
            tried = [each.user_attrs["point"] for each in taken] + self._failed()
            if len(tried) < self._wanted:
                if point not in tried:
                    trial.set_user_attr(
                        "point", point
                    )  # under the lock, so that no other worker takes it too
                    return
                left = [each for each in self.points if each not in tried]
                other = random.Random(trial.number).choice(left)  # noqa: S311 - nothing secret
                self.study.enqueue_trial(other, user_attrs={"point": other})
        trial.set_user_attr("duplicate", True)
        raise optuna.TrialPruned("this point was tried, or others took the last")

    def _reporter(self, trial: "optuna.Trial") -> OnEpoch:
        name = self.search.objectives[0]

        def report(row: Mapping[str, Any]) -> None:
            trial.report(row[f"val/{name}"], row["epoch"])
            if trial.should_prune():
                raise GivenUp

        return report

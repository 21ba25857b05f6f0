"""The numbers behind a table: metrics of the predictions in run folders."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from macc import metrics
from macc.experiments.columns import OF_RUNS
from macc.experiments.ledger import mc_name
from macc.experiments.spec import Method
from macc.metrics.comparing import sampled_means
from macc.metrics.intervals import MeanOfSets, Sampled
from macc.posthoc import Calibrator, Temperature, load
from macc.training.runs import SPREAD, Run
from macc.training.selection import chosen_epoch

FLOOR_RESAMPLES = 100
KEPT_BYTES = 2**28
"""Of prediction files that stay in memory; those of a thousand classes and many shifts do not
fit.
"""


class Logits(NamedTuple):
    """Logits and labels of one prediction file, after whatever post-hoc step."""

    logits: Tensor
    labels: Tensor


class Floor(NamedTuple):
    """What chance alone gives an error, and whether the error seen is no larger."""

    value: float
    by_chance: bool


class Measured:
    """One set of predictions; what is measured of it is kept, the predictions are not.

    Args:
        read: Gives the predictions, as often as they are needed.
    """

    def __init__(self, read: Callable[[], Logits]) -> None:
        self.read = read
        self._values: dict[str, dict[str, float]] = {}
        self._sampled: dict[str, MeanOfSets] = {}
        self._floors: dict[str, Floor] = {}

    def values(self, columns: Sequence[str]) -> dict[str, float]:
        """The metrics among the columns; a class-wise one as one entry for each class."""
        wanted = [column for column in columns if column not in OF_RUNS]
        if not set(wanted) <= set(self._values):
            self._values |= _values(self.read(), wanted)
        return {key: value for column in wanted for key, value in self._values[column].items()}

    def floors(self, names: Sequence[str]) -> dict[str, Floor]:
        """The floors of those of the metrics that chance alone makes positive."""
        errors = [name for name in names if metrics.registry()[name].floored]
        if not set(errors) <= set(self._floors):
            logits, labels = self.read()
            report = metrics.evaluate(
                logits, labels, from_logits=True, metrics=errors, resamples=FLOOR_RESAMPLES
            )
            # The interval of an error begins at 0 where chance alone may give as much.
            self._floors |= {
                name: Floor(report[name].noise_floor or 0.0, report[name].low <= 0) for name in errors
            }
        return {name: self._floors[name] for name in errors}

    def sampled(self, names: Sequence[str]) -> dict[str, MeanOfSets]:
        """What resampling the samples shows of some metrics."""
        if not set(names) <= set(self._sampled):
            self._sampled |= sampled_means([self.read()], names, from_logits=True)
        return self._sampled

    def interval(self, metric: str, names: Sequence[str]) -> tuple[float, float]:
        """Ends of the 95 % interval of one of the names, which are resampled together."""
        (part,) = self.sampled(names)[metric].parts
        found = cast("Sampled", part).estimate(0.95)
        return found.low, found.high


class RunPredictions:
    """The predictions of an experiment's runs: each file is read and measured once."""

    def __init__(self) -> None:
        self._measured: dict[tuple[object, ...], Measured] = {}
        self._files: dict[tuple[Path, str], Logits] = {}
        self._bytes = 0

    def of(self, method: Method, runs: Sequence[Run], name: str) -> Measured:
        """What a method makes of one prediction file: of its first run, or of all of them."""
        runs = runs if method.ensemble else runs[:1]
        step = (method.passes, method.posthoc, method.ensemble)
        key = (name, *step, *(run.path for run in runs))
        if key not in self._measured:
            self._measured[key] = Measured(partial(self._after, method, runs, name))
        return self._measured[key]

    def pooled(self, method: Method, runs: Sequence[Run], names: Sequence[str]) -> Measured:
        """All of several prediction files as one set."""
        each = [self.of(method, runs, name) for name in names]
        key = ("pooled", *map(id, each))
        if key not in self._measured:
            self._measured[key] = Measured(lambda: pooled([found.read() for found in each]))
        return self._measured[key]

    def floors(
        self, method: Method, runs: Sequence[Run], names: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, Floor]:
        """The mean of the floors over prediction files; by chance where every file's is."""
        each = [self.of(method, runs, name).floors(wanted) for name in names]
        means = mean_of([{name: floor.value for name, floor in found.items()} for found in each])
        return {
            name: Floor(mean, all(found[name].by_chance for found in each)) for name, mean in means.items()
        }

    def sampled(
        self, method: Method, runs: Sequence[Run], names: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, MeanOfSets]:
        """What resampling shows of the unweighted means of some metrics over prediction files."""
        each = [self.of(method, runs, name).sampled(wanted) for name in names]
        return {
            name: MeanOfSets(tuple(part for found in each for part in found[name].parts)) for name in wanted
        }

    def _read(self, path: Path, name: str) -> Logits:
        """The predictions of a run folder; what was read first goes first where memory is short."""
        if (path, name) not in self._files:
            found = self._files[path, name] = read(path, name)
            self._bytes += size_of(found)
            while len(self._files) > 1 and self._bytes > KEPT_BYTES:
                self._bytes -= size_of(self._files.pop(next(iter(self._files))))
        return self._files[path, name]

    def _after(self, method: Method, runs: Sequence[Run], name: str) -> Logits:
        """The predictions after a method's own step, such as an ensemble or a calibrator."""
        if method.ensemble:
            return ensemble([self._read(run.path, name) for run in runs])
        (run,) = runs
        if method.passes is not None:
            return self._read(run.path, mc_name(method.passes))
        found = self._read(run.path, name)
        if method.posthoc is None:
            return found
        if (scale := temperature_after(method, run)) is not None:
            return Logits(found.logits / scale, found.labels)
        probs = calibrator(run.path)(found.logits.double())
        return Logits(probs.clamp(min=torch.finfo(torch.float64).tiny).log(), found.labels)


def _values(found: Logits, columns: Sequence[str]) -> dict[str, dict[str, float]]:
    """The entries of each column."""
    logits, labels = found
    result: dict[str, dict[str, float]] = {}
    for column in columns:
        if column == "gap":
            continue
        value = getattr(metrics, column)(logits, labels, from_logits=True)
        if column == "classwise_ece":
            result[column] = {f"{column}/{k}": float(each) for k, each in enumerate(value)}
        else:
            result[column] = {column: float(value)}
    if "gap" in columns:
        confidence = float(logits.double().softmax(dim=1).amax(dim=1).mean())
        known = result.get("accuracy")
        accuracy = metrics.accuracy(logits, labels, from_logits=True) if known is None else known["accuracy"]
        result["gap"] = {"gap": confidence - accuracy}
    return result


def read(path: Path, name: str) -> Logits:
    """The predictions of a run folder."""
    return Logits(*Run(path).predictions(name))


def size_of(found: Logits) -> int:
    """The memory of predictions in bytes."""
    return found.logits.nbytes + found.labels.nbytes


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The unweighted mean of every metric over cells, as the paper averages."""
    return {key: math.fsum(row[key] for row in rows) / len(rows) for key in rows[0]}


def pooled(cells: Sequence[Logits]) -> Logits:
    """All cells as one set of predictions."""
    return Logits(torch.cat([cell.logits for cell in cells]), torch.cat([cell.labels for cell in cells]))


def minutes(run: Run) -> float:
    """How long the epochs of a run took to train."""
    return math.fsum(row["seconds"] for row in run.history) / 60


def spread(run: Run) -> float | None:
    """The mean variance of the logits in the epoch that was selected, where a head gave it."""
    rows = run.history
    return rows[chosen_epoch(rows, run.recipe.selection) - 1].get(f"train/{SPREAD}")


@lru_cache(maxsize=4096)
def temperature(path: Path) -> float:
    """The temperature that the paper's grid gives on the validation split of a run."""
    logits, labels = Run(path).predictions("val")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # at a bound: the table shows it
        return float(Temperature.fit(logits, labels, grid=True).temperature)


@lru_cache(maxsize=4096)
def calibrator(path: Path) -> Calibrator:
    """The calibrator that a run ended with."""
    return load(path / "calibrator.json")


def temperature_after(method: Method, run: Run) -> float | None:
    """The temperature of what is made of a run by one."""
    if method.posthoc == "temperature":
        return temperature(run.path)
    found = calibrator(run.path) if method.posthoc == "calibrator" else None
    return found.temperature if isinstance(found, Temperature) else None


def ensemble(members: Sequence[Logits]) -> Logits:
    """Several models as one: the logarithm of their mean probability."""
    logs = torch.stack([member.logits.double().log_softmax(dim=1) for member in members])
    return Logits((logs.logsumexp(dim=0) - math.log(len(members))).float(), members[0].labels)

"""The numbers behind a table: metrics of predictions in run folders, and how tables write them."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from macc import metrics
from macc.experiments._file import Method
from macc.experiments._runs import mc_name
from macc.training.runs import SPREAD, Run
from macc.training.selection import chosen_epoch

FLOOR_RESAMPLES = 100
FLOORED = ("ece", "sce")
"""The errors that chance alone makes positive, and whose floor is measured."""
OF_RUNS = ("temperature", "u", "minutes")
"""Columns that say something of a run and nothing of its predictions."""


@dataclass(frozen=True)
class Shown:
    """How a metric stands in tables."""

    label: str
    scale: float
    unit: str
    digits: int
    better: str
    """``lower``, ``higher``, ``zero`` (nearest to it) or nothing."""


SHOWN: dict[str, Shown] = {
    "accuracy": Shown("Acc.", 100, "%", 2, "higher"),
    "sce": Shown("SCE", 1000, "1e-3", 2, "lower"),
    "ece": Shown("ECE", 100, "%", 2, "lower"),
    "nll": Shown("NLL", 1, "", 3, "lower"),
    "brier": Shown("Brier", 1, "", 3, "lower"),
    "auroc": Shown("AUROC", 1, "", 4, "higher"),
    "gap": Shown("conf.-acc.", 100, "%", 2, "zero"),
    "classwise_ece": Shown("ECE of", 100, "%", 2, "lower"),
    "temperature": Shown("T", 1, "", 1, ""),
    "u": Shown("mean u", 1, "", 2, ""),
    "minutes": Shown("training", 1, "min", 2, ""),
}


def shown(column: str, unit: float | None = None) -> Shown:
    """How a column stands in a table whose file may give it another unit; ``classwise_ece/3`` is class 3."""
    name, _, index = column.partition("/")
    found = SHOWN[name]
    if index:
        found = Shown(f"{found.label} {index}", found.scale, found.unit, found.digits, found.better)
    if unit is None:
        return found
    exponent = round(math.log10(unit))
    text = {0: "", -2: "1e-2", -3: "1e-3"}.get(exponent, f"{unit:g}")
    return Shown(found.label, 1 / unit, text, found.digits, found.better)


class Logits(NamedTuple):
    """Logits and labels of one prediction file, after whatever post-hoc step."""

    logits: Tensor
    labels: Tensor


def read(run: Run, name: str) -> Logits:
    """The predictions of a run."""
    logits, labels = run.predictions(name)
    return Logits(logits, labels)


def read_after(method: Method, run: Run, name: str) -> Logits:
    """The predictions of a run after a method's own step: dropout passes, or a temperature."""
    if method.passes is not None:
        return read(run, mc_name(method.passes))
    found = read(run, name)
    if method.posthoc != "temperature":
        return found
    return Logits(found.logits / temperature(run.path), found.labels)


def values(found: Logits, columns: Sequence[str]) -> dict[str, float]:
    """The metrics among the columns, of one prediction file; a class-wise one as one entry for each class."""
    result: dict[str, float] = {}
    for column in columns:
        if column in OF_RUNS:
            continue
        if column == "gap":
            confidence = float(found.logits.double().softmax(dim=1).amax(dim=1).mean())
            result[column] = confidence - metrics.accuracy(found.logits, found.labels, from_logits=True)
        elif column == "classwise_ece":
            each = metrics.classwise_ece(found.logits, found.labels, from_logits=True)
            result.update({f"classwise_ece/{k}": float(value) for k, value in enumerate(each)})
        else:
            result[column] = float(getattr(metrics, column)(found.logits, found.labels, from_logits=True))
    return result


class Floor(NamedTuple):
    """What chance alone gives an error, and whether the error seen is no larger than chance may give."""

    value: float
    by_chance: bool


def floors(cells: Sequence[Logits]) -> dict[str, Floor]:
    """The floors of the binned errors, as the unweighted mean over cells; by chance where every cell is."""
    reports = [
        metrics.evaluate(
            cell.logits, cell.labels, from_logits=True, metrics=FLOORED, resamples=FLOOR_RESAMPLES
        )
        for cell in cells
    ]
    means = mean_of([{name: report[name].noise_floor or 0.0 for name in FLOORED} for report in reports])
    # The interval of an error begins at 0 where chance alone may give as much.
    return {name: Floor(means[name], all(report[name].low <= 0 for report in reports)) for name in FLOORED}


def mean_of(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The unweighted mean of every metric over cells, as the paper averages domains and corruptions."""
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
    from macc.posthoc import Temperature

    logits, labels = Run(path).predictions("val")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # at a bound: the table shows it
        return float(Temperature.fit(logits, labels, grid=True).temperature)


def ensemble(members: Sequence[Logits]) -> Logits:
    """Several models as one: the logarithm of their mean probability."""
    logs = torch.stack([member.logits.double().log_softmax(dim=1) for member in members])
    return Logits((logs.logsumexp(dim=0) - math.log(len(members))).float(), members[0].labels)

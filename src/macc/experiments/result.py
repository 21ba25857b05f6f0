"""What an experiment found: every cell with its values, the runs behind it, tests, sentences.

It is written as ``result.json``; tables, figures and reports read it back with :func:`load_result`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from macc.experiments.columns import column as column_of
from macc.io.json import read_mapping

FORMAT = 1
LEVEL = 0.05
"""Below this a corrected p-value is significant."""


@dataclass(frozen=True)
class Cell:
    """One number of a table: a metric of a method on a test, over seeds."""

    dataset: str
    test: str
    method: str
    rule: str
    metric: str
    values: tuple[float, ...]
    """One for each seed, in plain units (an ECE of 2 % is 0.02); NaN where the test does not define
    it.
    """
    low: float | None
    high: float | None
    """Ends of the 95 % interval of the mean over seeds; with one seed, of the value over test
    samples.
    """
    paper: float | None
    """The paper's value, in plain units too."""
    pooled: float | None = None
    """Mean over seeds, all cells of a shifted test taken as one set."""
    floor: float | None = None
    """The calibration error that chance alone gives, with labels drawn from the first seed's own
    probabilities.
    """
    by_chance: bool = False
    """Whether the first seed's calibration error is no larger than what chance alone may give."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return math.fsum(self.values) / len(self.values)


@dataclass(frozen=True)
class Member:
    """A run that stands for a method."""

    dataset: str
    method: str
    rule: str
    seed: int
    folder: str
    settings: dict[str, Any]
    minutes: float


@dataclass(frozen=True)
class PairedTest:
    """A paired test of two methods: A minus B of a metric."""

    dataset: str
    test: str
    rule: str
    metric: str
    a: str
    b: str
    why: str
    """What B is to A, one of ``task``, ``dropout``, ``competitor`` and ``temperature``; ``best``
    where A has the best mean.
    """
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    basis: str
    """``seeds`` (paired t-test), ``samples`` (paired bootstrap of one run each) or ``none`` (no
    test is possible).
    """


@dataclass
class Result:
    """What an experiment found."""

    name: str
    title: str
    kind: str
    scale: str
    version: str
    seeds: int
    columns: list[str]
    units: dict[str, float]
    datasets: list[str]
    methods: list[str]
    tests: dict[str, list[str]]
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    runs: list[Member] = field(default_factory=list)
    comparisons: list[PairedTest] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    """Filled by ``kind: convergence``. Rows with dataset, method, seed, epoch and the metrics of
    the test split.
    """
    timings: list[dict[str, Any]] = field(default_factory=list)
    """Filled by ``kind: timing``. Rows with dataset, method, passes, seconds an epoch and
    ratios.
    """
    figure: str | None = None
    """Which of the paper's figures a report draws of it."""
    fronts: list[dict[str, Any]] = field(default_factory=list)
    """The Pareto front of each grid, where there are two objectives."""
    provenance: dict[str, list[str]] = field(default_factory=dict)
    """Commit, versions and processor behind the runs; several values where they differ."""
    calibrated: dict[str, str] = field(default_factory=dict)
    """The methods after the calibrators of their runs, and which method each is made of."""

    def __str__(self) -> str:
        from macc.experiments.tables import render  # it is made of results

        return render(self, "text")

    def _repr_html_(self) -> str:
        from macc.experiments.tables import notebook

        return notebook(self)

    def cell(
        self, dataset: str, test: str, method: str, metric: str, rule: str = "val_accuracy"
    ) -> Cell | None:
        """A cell, or nothing where the table has none."""
        return self._index.get((dataset, test, method, metric, rule))

    @property
    def _index(self) -> Mapping[tuple[str, ...], Cell]:
        # Thousands of lookups go into a table, and cells are only ever added.
        state = (id(self.cells), len(self.cells))
        if self.__dict__.get("_state") != state:
            found = {(c.dataset, c.test, c.method, c.metric, c.rule): c for c in self.cells}
            self.__dict__.update(_state=state, _by_key=found)
        return cast("Mapping[tuple[str, ...], Cell]", self.__dict__["_by_key"])

    def rules(self, dataset: str) -> list[str]:
        """The rules of selection that differ in runs or values: the first of equal ones."""
        found: dict[str, dict[tuple[str | int, ...], Any]] = {}
        for run in self.runs:
            if run.dataset == dataset:
                found.setdefault(run.rule, {})[run.method, run.seed] = run.folder
        for cell in self.cells:
            if cell.dataset == dataset:
                values = [None if math.isnan(value) else value for value in cell.values]  # NaN equals nothing
                found.setdefault(cell.rule, {})[cell.test, cell.method, cell.metric] = values
        different: list[str] = []
        for rule, runs in found.items():
            if not any(found[other] == runs for other in different):
                different.append(rule)
        return different or ["val_accuracy"]

    @property
    def first_seed(self) -> int:
        """The seed that stands for the others where one is shown."""
        return min((run.seed for run in self.runs), default=0)

    def dropout(self, dataset: str, method: str, rule: str) -> float | None:
        """The dropout rate of a method's head, as a rule selected it; none where it has no head."""
        for run in self.runs:
            if (run.dataset, run.method, run.rule) == (dataset, self.calibrated.get(method, method), rule):
                head = run.settings["head"]
                return float(head["p"]) if isinstance(head, dict) else None
        return None

    def blocks(self) -> Iterator[tuple[str, str, str]]:
        """Data set, test and rule of every table to print."""
        for dataset in self.datasets:
            for test in self.tests[dataset]:
                for rule in self.rules(dataset):
                    yield dataset, test, rule

    @property
    def stages(self) -> list[list[str]]:
        """The methods as trained, and after their calibrators; each is tested in its kind."""
        raw = [name for name in self.methods if name not in self.calibrated]
        return [raw, [name for name in self.methods if name in self.calibrated]]

    def best(self, dataset: str, test: str, rule: str, metric: str) -> list[str]:
        """The methods significantly better than every other of their stage: one each at most."""
        block = (dataset, test, rule, metric, "best")
        of_best: dict[str, list[PairedTest]] = {}
        for row in self.comparisons:
            if (row.dataset, row.test, row.rule, row.metric, row.why) == block:
                of_best.setdefault(row.a, []).append(row)
        return [name for name, rows in of_best.items() if all(row.p_holm < LEVEL for row in rows)]

    def second(self, dataset: str, test: str, rule: str, metric: str) -> list[str]:
        """The method with the best mean of the others, in every stage that has a clear best."""
        better = column_of(metric, self.units.get(metric.partition("/")[0])).better
        found = []
        for best in self.best(dataset, test, rule, metric):
            means = {}
            for name in next((names for names in self.stages if best in names), []):
                cell = self.cell(dataset, test, name, metric, rule)
                if name != best and cell is not None and not math.isnan(cell.mean):
                    means[name] = abs(cell.mean) if better == "zero" else cell.mean
            if means:
                found.append((max if better == "higher" else min)(means, key=lambda name: means[name]))
        return found

    def metrics(self, dataset: str) -> list[str]:
        """The columns of a data set's table; a class-wise one is as many as there are classes."""
        there = list(dict.fromkeys(c.metric for c in self.cells if c.dataset == dataset))
        found: list[str] = []
        for column in self.columns:
            found += [name for name in there if name == column or name.startswith(f"{column}/")]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in ``result.json``."""
        cells = [{**asdict(cell), "values": list(cell.values), "mean": cell.mean} for cell in self.cells]
        rest = {key: value for key, value in vars(self).items() if not key.startswith("_")}
        return {
            "format": FORMAT,
            **rest,
            "cells": cells,
            "runs": [asdict(run) for run in self.runs],
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
        }


def load_result(path: str | Path) -> Result:
    """Read what an experiment found.

    Args:
        path: ``result.json``, or the experiment's folder.
    """
    file = Path(path)
    file = file / "result.json" if file.is_dir() else file
    found = read_mapping(file, "`macc run` writes it")
    if found.pop("format", None) != FORMAT:
        raise ValueError(f"{file} is not of result format {FORMAT}, which this version reads; run it again")
    for cell in found["cells"]:
        del cell["mean"]
    found["cells"] = [
        Cell(**{**cell, "values": tuple(map(_number, cell["values"]))}) for cell in found["cells"]
    ]
    found["runs"] = [Member(**run) for run in found["runs"]]
    found["comparisons"] = [
        PairedTest(**{key: _number(value) for key, value in row.items()}) for row in found["comparisons"]
    ]
    return Result(**found)


def _number(value: Any) -> Any:
    """JSON has null for what is not a number."""
    return math.nan if value is None else value

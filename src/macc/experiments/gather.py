"""From finished runs to a result: cells over seeds, curves and fronts."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from macc import __version__
from macc.experiments import measure
from macc.experiments.catalog import LocalDataSet
from macc.experiments.columns import OF_RUNS, column, compared, main
from macc.experiments.findings import add_findings
from macc.experiments.ledger import Job, Ledger
from macc.experiments.measure import Measured, RunPredictions, read
from macc.experiments.result import Cell, Member, Result
from macc.experiments.spec import RULE_TEXT, Experiment, Method, Rule
from macc.metrics.over_runs import interval
from macc.training.runs import Run

Published = Callable[[Sequence[str], str, str, str, str], float | None]
"""Gives what was printed elsewhere for a cell, from names of tables, data set, test, method and
metric, in plain units.
"""


def nothing_published(
    _tables: Sequence[str], _dataset: str, _test: str, _method: str, _metric: str
) -> float | None:
    """Nothing stands beside any cell."""
    return None


def gather(ledger: Ledger, published: Published = nothing_published, *, tested: bool = True) -> Result:
    """Measure the selected runs of an experiment; nothing else of the test data is looked at.

    Args:
        ledger: The trainings of the experiment.
        published: Gives what was printed elsewhere.
        tested: Whether methods are tested against each other; a part that is to be joined with
            others need not be.
    """
    experiment, predictions = ledger.experiment, RunPredictions()
    result = Result(
        name=experiment.name,
        title=experiment.title,
        kind=experiment.kind,
        scale=experiment.scale,
        version=__version__,
        seeds=experiment.seeds,
        columns=list(experiment.columns),
        units={str(key): value for key, value in experiment.units.items()},
        datasets=[dataset.name for dataset in ledger.catalog.datasets],
        methods=[method.title for method in experiment.methods],
        tests={dataset.name: list(dataset.tests) for dataset in ledger.catalog.datasets},
        notes=_notes(ledger),
        figure=experiment.figure,
        left_out=[
            *ledger.catalog.left_out,
            *(f"{job.text} failed: {why}" for job, why in ledger.failed.items()),
        ],
    )
    for dataset in ledger.catalog.datasets:
        cells = _Cells(ledger, dataset, predictions, published)
        for method in ledger.methods(dataset):
            for rule in ledger.rules:
                cells.add(result, method, rule)
        for method in ledger.trained(dataset):
            cells.add_calibrated(result, method)
    result.notes += _selected(result, ledger)
    for name, members in experiment.averages.items():
        _add_average(result, experiment, published, name, members)
    if tested:
        add_findings(result, ledger, predictions)
    result.provenance = _provenance(ledger, result)
    if experiment.kind == "convergence":
        result.curves = _curves(ledger)
    if len(experiment.search.objectives) > 1:
        result.fronts = fronts(ledger)
    return result


def _provenance(ledger: Ledger, result: Result) -> dict[str, list[str]]:
    """What the selected runs were made by; more than one value where they differ."""
    folders = {run.folder for run in result.runs}
    environments = [ledger.run_in(folder).environment for folder in sorted(folders)]
    rows = [{**e, "torch": e.get("packages", {}).get("torch")} for e in environments]
    kept = ("macc", "commit", "torch", "python", "processor", "cores", "threads", "device")
    return {key: sorted({str(row[key]) for row in rows if row.get(key) is not None}) for key in kept}


def _notes(ledger: Ledger) -> list[str]:
    experiment = ledger.experiment
    notes = list(experiment.notes)
    notes += [
        f"{dataset.name}: {text}"
        for dataset in ledger.catalog.datasets
        for text in (*dataset.remarks, *_texts(dataset.spec.note))
    ]
    if experiment.scale != "full":
        notes.insert(0, f"Reduced scale ({experiment.scale}): these are not the paper's settings.")
    searched = [
        m.title for c in ledger.catalog.datasets for m in ledger.trained(c) if ledger.is_searched(c, m)
    ]
    if searched:
        with_seeds = "the first seed" if experiment.grid_seeds == "first" else "all seeds"
        notes.append(
            f"Grids of {', '.join(dict.fromkeys(searched))} were searched with {with_seeds} by validation alone; "
            "of equally good points the one with the smaller weight, then the smaller dropout rate, was taken."
        )
    return notes


def _selected(result: Result, ledger: Ledger) -> list[str]:
    """What validation chose, wherever there was a choice."""
    found = []
    for dataset in ledger.catalog.datasets:
        for rule in (rule for rule in ledger.rules if rule in result.rules(dataset.name)):
            words = []
            for method in ledger.trained(dataset):
                point = ledger.chosen(dataset, method, rule)
                if point and ledger.is_searched(dataset, method):
                    words.append(f"{method.title}: {', '.join(f'{k} {v}' for k, v in point.items())}")
            if words:
                found.append(f"Selected on {dataset.name} by {RULE_TEXT[rule]}: {'; '.join(words)}.")
    return found


def _texts(note: str | None) -> list[str]:
    return [] if note is None else [note]


class _Cells:
    """The cells of one data set."""

    def __init__(
        self, ledger: Ledger, dataset: LocalDataSet, predictions: RunPredictions, published: Published
    ) -> None:
        self.ledger, self.dataset, self.predictions = ledger, dataset, predictions
        self.published = published
        self.columns = list(dict.fromkeys([*ledger.experiment.columns, *main()]))

    def add(self, result: Result, method: Method, rule: Rule) -> None:
        """Put a method's cells into the result, unless its runs are not all there."""
        base = method if method.of is None else self.ledger.experiment.method(method.of)
        jobs = self.ledger.chosen_runs(self.dataset, base, rule)
        jobs = [job for job in jobs if self.ledger.run(job).finished]
        if len(jobs) < len(self.ledger.seeds):
            return
        runs = [self.ledger.run(job) for job in jobs]
        members = [runs] if method.ensemble else [[run] for run in runs]
        of_runs = [self._of_runs(method, member) for member in members]
        for test, names in self.dataset.tests.items():
            if method.passes is not None and names != ["test"]:
                continue
            each = [
                self._values(method, member, names) | extra
                for member, extra in zip(members, of_runs, strict=True)
            ]
            # A run that an earlier version began has no u.
            for metric in [name for name in each[0] if all(name in found for found in each)]:
                values = tuple(found[metric] for found in each)
                result.cells.append(self._cell(method, rule, test, metric, values, members))
        if method.of is None:
            for job, run in zip(jobs, runs, strict=True):
                result.runs.append(self._member(method, rule, job, run))

    def add_calibrated(self, result: Result, method: Method) -> None:
        """Put the cells of a method after its calibrators into the result, if all runs have one."""
        folders = {
            run.folder
            for run in result.runs
            if (run.dataset, run.method) == (self.dataset.name, method.title)
        }
        runs = [self.ledger.run_in(folder) for folder in folders]
        if not runs or not all((run.path / "calibrator.json").is_file() for run in runs):
            return
        then = method.then(runs[0].recipe.calibrate)
        for rule in self.ledger.rules:
            self.add(result, then, rule)
        if then.title not in result.methods:
            result.methods.append(then.title)
            result.calibrated[then.title] = method.title

    def _values(self, method: Method, runs: Sequence[Run], names: Sequence[str]) -> dict[str, float]:
        """The columns of a model on a test, as means over its prediction files."""
        return measure.mean_of(
            [self.predictions.of(method, runs, name).values(self.columns) for name in names]
        )

    def _of_runs(self, method: Method, runs: Sequence[Run]) -> dict[str, float]:
        """The columns that say something of a model's runs."""
        found = {}
        if "minutes" in self.columns:
            found["minutes"] = math.fsum(map(measure.minutes, runs))
        if "u" in self.columns and not method.ensemble and (spread := measure.spread(runs[0])) is not None:
            found["u"] = spread
        scale = measure.temperature_after(method, runs[0])
        if "temperature" in self.columns and scale is not None:
            found["temperature"] = scale
        return found

    def _cell(
        self,
        method: Method,
        rule: Rule,
        test: str,
        metric: str,
        values: tuple[float, ...],
        members: Sequence[Sequence[Run]],
    ) -> Cell:
        names = self.dataset.tests[test]
        ends = interval(values)
        if ends is None and names == ["test"]:
            ends = self._over_samples(method, members[0], metric)
        floor = None
        if not method.ensemble:
            floor = self.predictions.floors(method, members[0], names, compared(self.columns)).get(metric)
        return Cell(
            dataset=self.dataset.name,
            test=test,
            method=method.title,
            rule=rule,
            metric=metric,
            values=values,
            low=None if ends is None else ends[0],
            high=None if ends is None else ends[1],
            paper=self.published(self.ledger.experiment.paper, self.dataset.name, test, method.title, metric),
            pooled=self._pooled(method, members, names, metric),
            floor=None if floor is None else floor.value,
            by_chance=floor is not None and floor.by_chance,
        )

    def _pooled(
        self, method: Method, members: Sequence[Sequence[Run]], names: Sequence[str], metric: str
    ) -> float | None:
        """The mean over seeds of a metric of all prediction files taken as one set."""
        if len(names) == 1 or method.ensemble or metric in OF_RUNS:
            return None
        each = [self.predictions.pooled(method, runs, names).values(self.columns)[metric] for runs in members]
        return math.fsum(each) / len(each)

    def _over_samples(self, method: Method, runs: Sequence[Run], metric: str) -> tuple[float, float] | None:
        """The interval over test samples, for want of seeds."""
        wanted = compared(self.columns)
        if metric not in wanted:
            return None
        found = self.predictions.of(method, runs, "test").interval(metric, wanted)
        return None if math.isnan(found[0]) else found

    def _member(self, method: Method, rule: Rule, job: Job, run: Run) -> Member:
        recipe = self.ledger.recipe(job)
        settings: dict[str, Any] = {"loss": recipe.loss, "head": recipe.to_dict()["head"], **dict(job.point)}
        return Member(
            dataset=self.dataset.name,
            method=method.title,
            rule=rule,
            seed=job.seed,
            folder=run.path.name,
            settings=settings,
            minutes=measure.minutes(run),
        )


def _add_average(
    result: Result, experiment: Experiment, published: Published, name: str, members: Sequence[str]
) -> None:
    """The unweighted mean over data sets, seed by seed; left out where one of them is."""
    missing = [member for member in members if member not in result.datasets]
    if missing:
        result.left_out.append(f"{name} is left out: it needs {', '.join(missing)} too")
        return
    result.datasets.append(name)
    tests = [test for test in result.tests[members[0]] if all(test in result.tests[m] for m in members)]
    result.tests[name] = tests
    for test in tests:
        for method in result.methods:
            for rule in experiment.rules:
                for metric in result.metrics(members[0]):
                    cells = [result.cell(member, test, method, metric, rule) for member in members]
                    present = [cell for cell in cells if cell is not None]
                    if len(present) < len(members):
                        continue
                    values = tuple(
                        math.fsum(each) / len(members)
                        for each in zip(*(c.values for c in present), strict=True)
                    )
                    ends = interval(values)
                    floors = [cell.floor for cell in present if cell.floor is not None]
                    result.cells.append(
                        Cell(
                            dataset=name,
                            test=test,
                            method=method,
                            rule=rule,
                            metric=metric,
                            values=values,
                            low=None if ends is None else ends[0],
                            high=None if ends is None else ends[1],
                            paper=published(experiment.paper, name, test, method, metric),
                            floor=math.fsum(floors) / len(members) if len(floors) == len(members) else None,
                            by_chance=all(cell.by_chance for cell in present),
                        )
                    )


def _curves(ledger: Ledger) -> list[dict[str, Any]]:
    """The main metrics on the test split after each epoch of every run: never selected by."""
    rows = []
    for dataset in ledger.catalog.datasets:
        for method in ledger.trained(dataset):
            for job in ledger.chosen_runs(dataset, method, ledger.first_rule):
                run = ledger.run(job)
                if not run.finished:
                    continue
                for row in run.history:
                    found = Measured(partial(read, run.path, f"epochs/test-{row['epoch']}"))
                    values = found.values(main())
                    rows.append(
                        {
                            "dataset": dataset.name,
                            "method": method.title,
                            "seed": job.seed,
                            "epoch": row["epoch"],
                            **values,
                        }
                    )
    return rows


def fronts(ledger: Ledger) -> list[dict[str, object]]:
    """Of every grid the tried points that no other beats in both objectives."""
    names = ledger.experiment.search.objectives
    found: list[dict[str, object]] = []
    for dataset in ledger.catalog.datasets:
        for method in ledger.trained(dataset):
            if not ledger.is_searched(dataset, method) or not ledger.ready(dataset, method):
                continue
            rows = ledger.tried(dataset, method)
            signs = [-1 if column(name).better == "higher" else 1 for name in names]
            costs = [
                [sign * scores[name] for name, sign in zip(names, signs, strict=True)] for _, scores in rows
            ]
            for (point, scores), own in zip(rows, costs, strict=True):
                if not any(_dominates(other, own) for other in costs):
                    row: dict[str, object] = {"dataset": dataset.name, "method": method.title, "point": point}
                    found.append(row | {name: scores[name] for name in names})
    return found


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)

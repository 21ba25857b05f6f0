"""From finished runs to a result: cells over seeds, beside the paper's values."""

import json
import math
from collections.abc import Sequence
from typing import Any

from macc import __version__, metrics
from macc.experiments import _measure
from macc.experiments._file import RULES, Experiment, Method, Rule
from macc.experiments._findings import MAIN, RULE_TEXT, add_findings
from macc.experiments._measure import Floor, Logits
from macc.experiments._paper import paper_value
from macc.experiments._result import Cell, Member, Result
from macc.experiments._runs import Case, Job, Plan
from macc.metrics._over_runs import interval
from macc.training.runs import Run

Values = dict[str, dict[str, float]]
"""Metrics by test."""


def gather(plan: Plan) -> Result:
    """Measure the selected runs of an experiment; nothing else of the test data is looked at."""
    experiment = plan.experiment
    result = Result(
        name=experiment.name,
        title=experiment.title,
        kind=experiment.kind,
        scale=experiment.scale,
        version=__version__,
        seeds=experiment.seeds,
        columns=list(experiment.columns),
        units={str(key): value for key, value in experiment.units.items()},
        datasets=[case.name for case in plan.cases],
        methods=[method.title for method in experiment.methods],
        tests={case.name: list(case.tests) for case in plan.cases},
        notes=_notes(plan),
        figure=experiment.figure,
        left_out=[*plan.left_out, *(f"{job.text} failed: {why}" for job, why in plan.failed.items())],
    )
    for case in plan.cases:
        measured = _Measured(plan, case)
        for method in plan.methods(case):
            for rule in RULES:
                measured.add(result, method, rule)
    result.notes += _selected(result, plan)
    for name, members in experiment.averages.items():
        _add_average(result, experiment, name, members)
    add_findings(result, plan)
    result.provenance = _provenance(plan, result)
    return result


def _provenance(plan: Plan, result: Result) -> dict[str, list[str]]:
    """What the selected runs were made by; more than one value where they differ."""
    folders = {run.folder for run in result.runs}
    environments = [plan.run_in(folder).environment for folder in sorted(folders)]
    rows = [{**e, "torch": e.get("packages", {}).get("torch")} for e in environments]
    kept = ("macc", "commit", "torch", "python", "processor", "cores", "threads", "device")
    return {key: sorted({str(row[key]) for row in rows if row.get(key) is not None}) for key in kept}


def _notes(plan: Plan) -> list[str]:
    experiment = plan.experiment
    notes = list(experiment.notes)
    notes += [
        f"{case.name}: {text}" for case in plan.cases for text in (*case.remarks, *_texts(case.row.note))
    ]
    if experiment.scale != "full":
        notes.insert(0, f"Reduced scale ({experiment.scale}): these are not the paper's settings.")
    searched = [m.title for c in plan.cases for m in plan.trained(c) if plan.is_searched(m, c)]
    if searched:
        with_seeds = "the first seed" if experiment.grid_seeds == "first" else "all seeds"
        notes.append(
            f"Grids of {', '.join(dict.fromkeys(searched))} were searched with {with_seeds} by validation alone; "
            "of equally good points the one with the smaller weight, then the smaller dropout rate, was taken."
        )
    return notes


def _selected(result: Result, plan: Plan) -> list[str]:
    """What validation chose, wherever there was a choice."""
    found = []
    for case in plan.cases:
        for rule in result.rules(case.name):
            words = []
            for method in plan.trained(case):
                point = plan.chosen(case, method, "val_nll" if rule == "val_nll" else "val_accuracy")
                if point and plan.is_searched(method, case):
                    words.append(f"{method.title}: {', '.join(f'{k} {v}' for k, v in point.items())}")
            if words:
                found.append(f"Selected on {case.name} by {RULE_TEXT[rule]}: {'; '.join(words)}.")
    return found


def _texts(note: str | None) -> list[str]:
    return [] if note is None else [note]


class _Measured:
    """Metrics of the runs of one data set, each measured once."""

    def __init__(self, plan: Plan, case: Case) -> None:
        self.plan, self.case = plan, case
        self.columns = list(dict.fromkeys([*plan.experiment.columns, *MAIN]))
        self.done: dict[tuple[str, str], Values] = {}
        self.whole: dict[tuple[str, str], Values] = {}
        self.reports: dict[tuple[str, str], dict[str, Any]] = {}
        """Intervals over test samples, by method and run."""
        self.floors: dict[tuple[str, str, str], dict[str, Floor]] = {}

    def add(self, result: Result, method: Method, rule: Rule) -> None:
        """Put a method's cells into the result, unless its runs are not all there."""
        base = method if method.of is None else self.plan.experiment.method(method.of)
        jobs = [job for job in self.plan.chosen_runs(self.case, base, rule) if self.plan.run(job).finished]
        if len(jobs) < len(self.plan.seeds):
            return
        runs = [self.plan.run(job) for job in jobs]
        each = [self._ensemble(runs)] if method.ensemble else [self._run(method, run) for run in runs]
        for test in each[0]:
            # A run that an earlier version began has no u.
            for metric in [name for name in each[0][test] if all(name in found[test] for found in each)]:
                result.cells.append(self._cell(method, rule, test, metric, each, runs))
        if method.of is None:
            for job, run in zip(jobs, runs, strict=True):
                result.runs.append(self._member(method, rule, job, run))

    def _cell(
        self, method: Method, rule: Rule, test: str, metric: str, each: Sequence[Values], runs: Sequence[Run]
    ) -> Cell:
        values = tuple(found[test][metric] for found in each)
        ends = interval(values)
        if ends is None and self.case.tests[test] == ["test"]:
            ends = self._over_samples(method, runs, metric)
        whole = None
        if len(self.case.tests[test]) > 1 and (str(runs[0].path), method.title) in self.whole:
            found = [self.whole[str(run.path), method.title][test].get(metric) for run in runs]
            numbers = [value for value in found if value is not None]
            whole = math.fsum(numbers) / len(numbers) if numbers else None
        experiment = self.plan.experiment
        floor = self._floor(method, runs, test, metric)
        return Cell(
            dataset=self.case.name,
            test=test,
            method=method.title,
            rule=rule,
            metric=metric,
            values=values,
            low=None if ends is None else ends[0],
            high=None if ends is None else ends[1],
            paper=paper_value(experiment.paper, self.case.name, test, method.title, metric),
            pooled=whole,
            floor=None if floor is None else floor.value,
            by_chance=floor is not None and floor.by_chance,
        )

    def _floor(self, method: Method, runs: Sequence[Run], test: str, metric: str) -> Floor | None:
        if metric not in _measure.FLOORED or method.ensemble:
            return None
        key = (method.title, str(runs[0].path), test)
        if key not in self.floors:
            cells = [_measure.read_after(method, runs[0], name) for name in self.case.tests[test]]
            self.floors[key] = _measure.floors(cells)
        return self.floors[key][metric]

    def _run(self, method: Method, run: Run) -> Values:
        key = (str(run.path), method.title)
        if key not in self.done:
            extra = {"minutes": _measure.minutes(run)}
            if "u" in self.columns and (spread := _measure.spread(run)) is not None:
                extra["u"] = spread
            if method.posthoc == "temperature":
                extra["temperature"] = _measure.temperature(run.path)
            found: Values = {}
            pooled: Values = {}
            for test, names in self.case.tests.items():
                if method.passes is not None and names != ["test"]:
                    continue
                cells = [_measure.read_after(method, run, name) for name in names]
                found[test] = self._with(_measure.mean_of([self._values(cell) for cell in cells]), extra)
                if len(cells) > 1:
                    pooled[test] = self._values(_measure.pooled(cells))
            self.done[key], self.whole[key] = found, pooled
        return self.done[key]

    def _over_samples(self, method: Method, runs: Sequence[Run], metric: str) -> tuple[float, float] | None:
        """The interval over test samples, for want of seeds."""
        key = (method.title, str(runs[0].path))
        if key not in self.reports:
            if method.ensemble:
                logits, labels = _measure.ensemble([_measure.read(run, "test") for run in runs])
            else:
                logits, labels = _measure.read_after(method, runs[0], "test")
            report = metrics.evaluate(logits, labels, from_logits=True)
            self.reports[key] = json.loads(report.to_json())
        found = self.reports[key].get(metric)
        if not isinstance(found, dict) or found.get("low") is None or isinstance(found["low"], list):
            return None
        return float(found["low"]), float(found["high"])

    def _ensemble(self, runs: Sequence[Run]) -> Values:
        found: Values = {}
        total = {"minutes": math.fsum(_measure.minutes(run) for run in runs)}
        for test, names in self.case.tests.items():
            cells = [_measure.ensemble([_measure.read(run, name) for run in runs]) for name in names]
            found[test] = self._with(_measure.mean_of([self._values(cell) for cell in cells]), total)
        return found

    def _values(self, cell: Logits) -> dict[str, float]:
        return _measure.values(cell, self.columns)

    def _with(self, values: dict[str, float], extra: dict[str, float]) -> dict[str, float]:
        return {**values, **{key: value for key, value in extra.items() if key in self.columns}}

    def _member(self, method: Method, rule: Rule, job: Job, run: Run) -> Member:
        recipe = self.plan.recipe(job)
        settings: dict[str, Any] = {"loss": recipe.loss, "head": recipe.to_dict()["head"], **dict(job.point)}
        return Member(
            dataset=self.case.name,
            method=method.title,
            rule=rule,
            seed=job.seed,
            folder=run.path.name,
            settings=settings,
            minutes=_measure.minutes(run),
        )


def _add_average(result: Result, experiment: Experiment, name: str, members: Sequence[str]) -> None:
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
            for rule in RULES:
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
                            paper=paper_value(experiment.paper, name, test, method, metric),
                            floor=math.fsum(floors) / len(members) if len(floors) == len(members) else None,
                            by_chance=all(cell.by_chance for cell in present),
                        )
                    )

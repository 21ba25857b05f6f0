"""Which trainings an experiment needs, their run folders, and which validation selects."""

import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from macc.experiments import grid
from macc.experiments.catalog import Catalog, LocalDataSet
from macc.experiments.grid import Point
from macc.experiments.spec import RULE_TEXT, RULES, Experiment, Method, Rule, half_of
from macc.training.recipe import (
    LAST_FACTOR_WITH_HEAD,
    HeadSettings,
    MultiStep,
    Recipe,
    Selection,
    criterion_of,
)
from macc.training.runs import Run, run_hash, run_path
from macc.training.selection import chosen_epoch

MOMENTS = "moments"
"""Stands for the validation and test split, predicted again with moments."""


@dataclass(frozen=True)
class Job:
    """One training: a method at a point of its grid, with a seed, on a data set."""

    dataset: str
    method: str
    point: tuple[tuple[str, Any], ...]
    seed: int
    rule: Rule
    """Which epoch it keeps, unless the recipe has a rule that tables are not made by."""

    @property
    def text(self) -> str:
        """What progress calls it."""
        values = ", ".join(f"{name} {value}" for name, value in self.point)
        by = "" if self.rule == "val_accuracy" else f", epoch by {RULE_TEXT[self.rule]}"
        return f"{self.dataset}: {self.method}{f' ({values})' if values else ''}, seed {self.seed}{by}"


def key_of(point: Point) -> tuple[tuple[str, Any], ...]:
    """A point as something that can be looked up."""
    return tuple(sorted(point.items()))


class Ledger:
    """The trainings of an experiment and their state, read from the run folders.

    The recipe of every training is read at once, so that a mistake is known before the first one
    starts.

    Args:
        catalog: The data sets that are here.
        out: The folder of run folders, shared by all experiments.
    """

    def __init__(self, catalog: Catalog, out: Path) -> None:
        self.catalog, self.experiment, self.out = catalog, catalog.experiment, out
        self.failed: dict[Job, str] = {}
        self.searched: set[tuple[str, str]] = set()
        """Grids that Optuna has finished with."""
        self._runs: dict[Job, Run] = {}
        self._recipes: dict[Job, Recipe] = {}
        self._scores: dict[tuple[Job, Selection], dict[str, float]] = {}
        for dataset in catalog.datasets:
            with catalog.named(dataset.name):
                for method in self.trained(dataset):
                    for point in [] if method.p_of else self.points(dataset, method):
                        self.recipe(self.job(dataset, method, point, self.seeds[0]))

    def methods(self, dataset: LocalDataSet) -> list[Method]:
        """The methods of a data set, those that are made of others included."""
        return self.experiment.methods_on(dataset.spec)

    def trained(self, dataset: LocalDataSet) -> list[Method]:
        """The methods that are trained."""
        return [method for method in self.methods(dataset) if method.of is None]

    def grids(self, dataset: LocalDataSet) -> grid.Grids:
        """The named grids, as a data set has them."""
        return {**self.experiment.grids, **dataset.spec.grids}

    def axes(self, dataset: LocalDataSet, method: Method) -> list[grid.Axis]:
        """The grids of a method on a data set."""
        return self.experiment.axes(method, self.grids(dataset))

    def points(self, dataset: LocalDataSet, method: Method) -> list[Point]:
        """Every point of a method's grid."""
        return grid.points(self.axes(dataset, method))

    def job(self, dataset: LocalDataSet, method: Method, point: Point, seed: int) -> Job:
        """One training."""
        return Job(dataset.name, method.title, key_of(point), seed, self.first_rule)

    def recipe(self, job: Job) -> Recipe:
        """What a training is."""
        if job not in self._recipes:
            self._recipes[job] = self._recipe(job)
        return self._recipes[job]

    def _recipe(self, job: Job) -> Recipe:
        dataset, method = self.catalog[job.dataset], self.experiment.method(job.method)
        grids, point = self.grids(dataset), dict(job.point)
        loss = grid.fill("loss", method.loss or "", point, grids)
        changes: dict[str, Any] = {}
        for key, value in method.settings.items():
            if isinstance(value, str) and "{" in value:
                value = grid.literal(grid.fill(key, value, point, grids), key)
            changes[key] = value
        if method.p_of is not None:
            changes |= self._control(dataset, method.p_of)
        if self.experiment.kind == "convergence":
            changes["epoch_predictions"] = ["test"]
        # What is given later counts, and a key stands where it was given last.
        overrides = {key: value for key, value in dataset.overrides.items() if key not in changes} | changes
        try:
            # The recipe's own loss would be checked against settings that are not meant for it.
            found = self.catalog.load_recipe(dataset.recipe, overrides, loss=half_of(loss, 2), seed=job.seed)
            if self.has_rules(found):
                overrides = {**overrides, "selection": job.rule}
                found = self.catalog.load_recipe(
                    dataset.recipe, overrides, loss=half_of(loss, 2), seed=job.seed
                )
            if half_of(loss, 2) != loss:
                steps = _steps(found, found.subset.train or dataset.samples)
                found = self.catalog.load_recipe(
                    dataset.recipe, overrides, loss=half_of(loss, steps), seed=job.seed
                )
        except ValueError as error:
            raise ValueError(f"method {method.title!r}: {error}") from None
        return found.resolved()

    def _control(self, dataset: LocalDataSet, name: str) -> dict[str, Any]:
        """Settings of the paper's table 8: MACC's dropout and schedule, one mask a step."""
        selected = self.chosen(dataset, self.experiment.method(name), self.first_rule)
        assert selected is not None  # noqa: S101 - asked for only when it is
        recipe = self.recipe(self.job(dataset, self.experiment.method(name), selected, self.seeds[0]))
        if not isinstance(recipe.head, HeadSettings):
            raise ValueError(f"method {name!r} has no head whose dropout rate could be taken; set its head.p")
        changes: dict[str, Any] = {"head.p": recipe.head.p, "head.samples": 1}
        if isinstance(recipe.schedule, MultiStep):
            factor = recipe.schedule.last_factor
            changes["schedule.last_factor"] = LAST_FACTOR_WITH_HEAD if factor == "auto" else factor
        return changes

    def run(self, job: Job) -> Run:
        """The folder of a training, whether it exists or not."""
        if job not in self._runs:
            recipe = self.recipe(job)
            key = run_hash(recipe, self.catalog.digest(self.catalog[job.dataset], recipe))
            self._runs[job] = Run(run_path(self.out, recipe, key))
        return self._runs[job]

    def run_in(self, folder: str) -> Run:
        """A run by the name of its folder."""
        return Run(self.out / folder)

    @property
    def rules(self) -> list[Rule]:
        """How epochs and points are selected."""
        return self.experiment.rules

    @property
    def first_rule(self) -> Rule:
        """The rule whose run is trained; the others keep other epochs of the same training."""
        return self.rules[0]

    @property
    def seeds(self) -> range:
        """The seeds of every method."""
        first = self.experiment.first_seed
        return range(first, first + self.experiment.seeds)

    def search_seeds(self, points: int) -> range:
        """The seeds that every point of a grid is trained with."""
        alone = points == 1 or self.experiment.grid_seeds == "all"
        return self.seeds if alone else self.seeds[:1]

    def scores(self, job: Job, rule: Rule) -> dict[str, float]:
        """Accuracy, NLL, ECE and SCE on validation, of the epoch that a rule keeps."""
        kept = self._selection(job, rule)
        if (job, kept) not in self._scores:
            history = self.run(job).history
            self._scores[job, kept] = {
                key.removeprefix("val/"): value
                for key, value in history[chosen_epoch(history, kept) - 1].items()
                if key == "epoch" or key.startswith("val/")
            }
        return self._scores[job, kept]

    def _selection(self, job: Job, rule: Rule) -> Selection:
        """How an epoch is selected: by the rule, unless the recipe has one of its own."""
        recipe = self.recipe(job)
        return rule if self.has_rules(recipe) else recipe.selection

    def has_rules(self, recipe: Recipe) -> bool:
        """Whether the rules of the experiment hold for a recipe: not if it has one of its own."""
        return recipe.selection in RULES or recipe.selection in self.rules

    def ready(self, dataset: LocalDataSet, method: Method) -> bool:
        """Whether a method's trainings are known: the control waits for its dropout rate."""
        if method.p_of is None:
            return True
        return self.chosen(dataset, self.experiment.method(method.p_of), self.first_rule) is not None

    def open_points(self, dataset: LocalDataSet, method: Method) -> list[Job]:
        """The trainings of a grid that are neither finished nor given up."""
        points = self.points(dataset, method)
        jobs = [self.job(dataset, method, p, seed) for p in points for seed in self.search_seeds(len(points))]
        return [job for job in jobs if job not in self.failed and not self.run(job).finished]

    def chosen(self, dataset: LocalDataSet, method: Method, rule: Rule) -> Point | None:
        """The point that a rule selects by validation, once all are done; ties as in the paper.

        The best validation accuracy, NLL or refinement; of equal ones the smaller weight of the
        penalties, then the smaller dropout rate, then the first of the grid.
        """
        if not self.ready(dataset, method):
            return None
        points = self.points(dataset, method)
        if len(points) == 1:
            return points[0]
        if (dataset.name, method.title) not in self.searched and self.open_points(dataset, method):
            return None
        ranked = []
        for index, (point, scores) in enumerate(self.tried(dataset, method, rule)):
            by_accuracy = rule in ("val_accuracy", "last")
            mean = scores["accuracy" if by_accuracy else rule.removeprefix("val_")]
            recipe = self.recipe(self.job(dataset, method, point, self.seeds[0]))
            p = recipe.head.p if isinstance(recipe.head, HeadSettings) else 0.0
            rank = (-mean if by_accuracy else mean, _weight(recipe.loss), p, index)
            ranked.append((rank, point))
        return min(ranked, key=lambda row: row[0])[1] if ranked else None

    def tried(
        self, dataset: LocalDataSet, method: Method, rule: Rule | None = None
    ) -> list[tuple[Point, dict[str, float]]]:
        """The finished points of a grid, with their validation scores over the search's seeds."""
        rule = rule or self.first_rule
        points = self.points(dataset, method)
        found = []
        for point in points:
            jobs = [self.job(dataset, method, point, seed) for seed in self.search_seeds(len(points))]
            if all(self.run(job).finished for job in jobs):
                rows = [self.scores(job, rule) for job in jobs]
                means = {key: math.fsum(row[key] for row in rows) / len(rows) for key in rows[0]}
                found.append((point, means))
        return found

    def chosen_runs(self, dataset: LocalDataSet, method: Method, rule: Rule) -> list[Job]:
        """The trainings that stand for a method, one for each seed; none before they are known."""
        point = self.chosen(dataset, method, rule)
        if point is None:
            return []
        return [self._kept(self.job(dataset, method, point, seed), rule) for seed in self.seeds]

    def _kept(self, job: Job, rule: Rule) -> Job:
        """The training with the epoch that a rule keeps: that of the first rule that keeps it."""
        if not self.run(job).finished:
            return job
        epoch = self.scores(job, rule)["epoch"]
        return replace(
            job, rule=next(each for each in self.rules if self.scores(job, each)["epoch"] == epoch)
        )

    def is_searched(self, dataset: LocalDataSet, method: Method) -> bool:
        """Whether Optuna goes through a method's points: there are several."""
        return grid.count(self.axes(dataset, method)) > 1

    def open_repeats(self, dataset: LocalDataSet, method: Method) -> list[Job]:
        """Trainings of selected points with the seeds that took no part in selection."""
        wanted = dict.fromkeys(job for rule in self.rules for job in self.chosen_runs(dataset, method, rule))
        return [job for job in wanted if job not in self.failed and not self.run(job).finished]

    def finished(self, dataset: LocalDataSet) -> int:
        """How many of the trainings that are known so far are done."""
        jobs: dict[Job, None] = {}
        for method in self.trained(dataset):
            if not self.ready(dataset, method):
                continue
            points = self.points(dataset, method)
            for point in points:
                for seed in self.search_seeds(len(points)):
                    jobs[self.job(dataset, method, point, seed)] = None
            for rule in self.rules:
                selected = self.chosen_runs(dataset, method, rule)
                jobs.update(dict.fromkeys(replace(job, rule=self.first_rule) for job in selected))
        return len({self.run(job).path for job in jobs if self.run(job).finished})

    def is_open(self) -> bool:
        """Whether something is left to train or to predict."""
        for dataset in self.catalog.datasets:
            for method in self.trained(dataset):
                if not self.ready(dataset, method):
                    continue  # what it waits for is open, or failed
                unsearched = (dataset.name, method.title) not in self.searched
                if (unsearched and self.open_points(dataset, method)) or self.open_repeats(dataset, method):
                    return True
            if any(self.predictions_missing(dataset)):
                return True
        return False

    def predictions_missing(self, dataset: LocalDataSet) -> Iterator[tuple[Job, str]]:
        """Selected runs whose predictions on shifted data are not there, with the data set."""
        for method in self.trained(dataset):
            for job in dict.fromkeys(
                job for rule in self.rules for job in self.chosen_runs(dataset, method, rule)
            ):
                run = self.run(job)
                if not run.finished or job in self.failed:
                    continue
                moments = self.wants_moments(job)
                if moments and not _there(run.path / "predictions" / "test.npz", moments):
                    yield job, MOMENTS
                for name, parts in dataset.sets.items():
                    folder = run.path / "predictions" / self.catalog.folder(dataset, name)
                    if not all(_there(folder / f"{part}.npz", moments) for part in parts):
                        yield job, name
                for passes in self.passes(dataset, method):
                    if not (run.path / "predictions" / f"{mc_name(passes)}.npz").is_file():
                        yield job, mc_name(passes)

    def wants_moments(self, job: Job) -> bool:
        """Whether the moments of a training's logits are asked for, and its head gives them."""
        return self.experiment.moments and isinstance(self.recipe(job).head, HeadSettings)

    def passes(self, dataset: LocalDataSet, method: Method) -> list[int]:
        """The numbers of dropout passes that something made of a method asks for."""
        return [
            other.passes
            for other in self.methods(dataset)
            if other.of == method.title and other.passes is not None
        ]


def _there(path: Path, moments: bool) -> bool:
    """Whether predictions are there, with moments if they are wanted."""
    if not path.is_file() or not moments:
        return path.is_file()
    with zipfile.ZipFile(path) as archive:
        return "mean.npy" in archive.namelist()


def mc_name(passes: int) -> str:
    """The predictions of the test split averaged over passes with dropout on."""
    return f"test-{passes}-passes"


def _steps(recipe: Recipe, samples: int) -> int:
    batches = samples / recipe.batch_size
    each = math.floor(batches) if recipe.drop_last else math.ceil(batches)
    return each * recipe.epochs


def _weight(loss: str) -> float:
    penalties = getattr(criterion_of(loss), "penalties", ())
    return math.fsum(float(weighted.weight) for weighted in penalties)


def open_ledger(
    experiment: Experiment,
    out: str | PathLike[str],
    root: str | PathLike[str] | None,
    *,
    verify: bool = True,
) -> Ledger:
    """The ledger of an experiment on the data that are here; an error where none are."""
    catalog = Catalog(experiment, root, verify=verify)
    catalog.check_any()
    return Ledger(catalog, Path(out))

"""Which runs an experiment needs, where they are, and which of them its validation results select."""

import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any

from macc import data as datasets
from macc import losses, models, training
from macc.data import MissingFilesError, Splits
from macc.experiments import _grids
from macc.experiments._file import RULES, Experiment, Method, Row, Rule, half_of
from macc.experiments._grids import Point
from macc.training import loading as recipes
from macc.training.building import splits_for
from macc.training.recipe import LAST_FACTOR_WITH_HEAD, Head, MultiStep, Recipe, Selection
from macc.training.runs import Run, run_hash, run_path
from macc.training.selection import chosen_epoch
from macc.words import slug

MIN_RESAMPLES = 100
"""Behind the intervals of a run's own ``metrics.json``; tables have those over seeds, or make theirs anew."""

OWN_RECIPE = "embeddings"
"""The recipe behind a data set that is given without one."""

MOMENTS = "moments"
"""Stands for the validation and test split, predicted again with moments."""

MODELS = {"image": "small_cnn", "tokens": "gpcnn"}
"""What is trained on a user's own data that are no features."""


@dataclass
class Case:
    """A data set of the experiment that is there."""

    row: Row
    recipe: str
    """The name or path of its recipe."""
    overrides: dict[str, Any]
    """What the experiment sets, by dotted key."""
    samples: int
    """Training samples, before a recipe takes some of them."""
    tests: dict[str, list[str]]
    """The predictions behind each test, by what tables call it."""
    sets: dict[str, list[str]]
    """The data sets that must be predicted, and their shifted parts."""
    remarks: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.row.name


@dataclass(frozen=True)
class Job:
    """One training: a method at a point of its grid, with a seed, on a data set."""

    case: str
    method: str
    point: tuple[tuple[str, Any], ...]
    seed: int
    rule: Rule = "val_accuracy"
    """Which epoch it keeps, where the recipe leaves it to the paper's rule."""

    @property
    def text(self) -> str:
        """What progress calls it."""
        values = ", ".join(f"{name} {value}" for name, value in self.point)
        by = "" if self.rule == "val_accuracy" else ", epoch by validation NLL"
        return f"{self.case}: {self.method}{f' ({values})' if values else ''}, seed {self.seed}{by}"


def key_of(point: Point) -> tuple[tuple[str, Any], ...]:
    """A point as something that can be looked up."""
    return tuple(sorted(point.items()))


class Plan:
    """An experiment on the data that are there, and the state of its runs.

    Args:
        experiment: What to compare.
        out: The folder of run folders, shared by all experiments.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
    """

    def __init__(
        self, experiment: Experiment, out: Path, root: str | PathLike[str] | None, *, verify: bool = True
    ) -> None:
        self.experiment = experiment
        self.out = out
        self.root = root
        self.verify = verify
        self.cases: list[Case] = []
        self.left_out: list[str] = []
        self.failed: dict[Job, str] = {}
        self.searched: set[tuple[str, str]] = set()
        """Grids that Optuna has finished with."""
        self._splits: tuple[str, Splits] | None = None
        self._shifts: dict[str, list[str]] = {}
        self._digests: dict[tuple[str, str], str] = {}
        self._runs: dict[Job, Run] = {}
        self._recipes: dict[Job, Recipe] = {}
        self._scores: dict[tuple[Job, Selection], dict[str, float]] = {}

    # What is there

    def look(self) -> None:
        """Load every data set once and check every training.

        A set whose files are missing is left out. Every other mistake is an error, and so is an experiment of
        which nothing is left.
        """
        for row in self.experiment.datasets:
            try:
                case = self._first_case(row)
                if case is not None:
                    self.cases.append(case)
                    self._check_methods(case)
            except ValueError as error:
                raise ValueError(f"{self.experiment.origin}: datasets: {row.name}: {error}") from None
        if not self.cases:
            raise MissingFilesError("; ".join(self.left_out).replace(" is left out: ", ": "))

    def _check_methods(self, case: Case) -> None:
        """Read the recipe of every training, before the first one starts."""
        for method in self.trained(case):
            if method.p_of is None:
                for point in self.points(case, method):
                    self.recipe(self.job(case, method, point, self.seeds[0]))

    def _first_case(self, row: Row) -> Case | None:
        """A row with the first of its recipes whose data are there."""
        reasons = []
        for name in row.recipe:
            try:
                case = self._case(row, name)
            except MissingFilesError as error:
                reasons.append(str(error))
                continue
            if reasons:
                case.remarks.append(f"trained by recipe {name}, because {reasons[0]}")
            return case
        self.left_out.append(f"{row.name} is left out: {'; '.join(reasons)}")
        return None

    def _case(self, row: Row, name: str) -> Case:
        known = name in recipes.names() or Path(name).suffix in (".yaml", ".yml")
        own = not known and (":" in name or name in datasets.known())
        settings = {**self.experiment.settings, **row.settings}
        if own:
            settings = {"dataset": name, **settings}
        source = OWN_RECIPE if own else name
        recipe = self._base(source, settings)
        if ":" not in recipe.model and recipe.model not in vars(models):
            raise recipe.complaint("model", f"this version of macc has no model {recipe.model!r}")
        if recipe.pretrained not in (None, "hub") and not Path(recipe.pretrained).expanduser().is_file():
            said = recipe.complaint(
                "pretrained", f"there is no file {recipe.pretrained}; give its path with `set`"
            )
            raise said if "pretrained" in settings else MissingFilesError(str(said))
        try:
            splits = datasets.load(recipe.dataset, root=self.root, verify=self.verify)
        except ValueError as error:
            said = error if own else recipe.complaint("dataset", str(error))
            raise MissingFilesError(str(said)) if isinstance(error, MissingFilesError) else said from error
        if own and "model" not in settings and splits.kind in MODELS:
            settings["model"] = MODELS[splits.kind]
            recipe = self._base(source, settings)
        case = Case(
            row=row,
            recipe=source,
            overrides=settings,
            samples=len(splits.train),
            tests={},
            sets={},
        )
        self._splits = (case.name, splits)
        self.digest(case, recipe)  # where its subset cannot be had, say so now
        self._find_tests(case, splits, recipe)
        return case

    def _base(self, name: str, overrides: Mapping[str, Any]) -> Recipe:
        """A recipe without its own loss, which settings for the methods' losses need not suit."""
        return self._load(name, overrides, loss="CrossEntropy")

    def _load(self, name: str, overrides: Mapping[str, Any], **changes: Any) -> Recipe:
        return recipes.load(name, scale=self.experiment.scale, overrides=overrides, **changes)

    def _find_tests(self, case: Case, splits: Splits, recipe: Recipe) -> None:
        """Resolve the patterns of the tests to predictions of the data that are there."""
        folder = slug(splits.name)
        patterns = case.row.tests or self.experiment.tests or _own_tests(splits)
        found: dict[str, list[str]] = {}
        for title, names in patterns.items():
            cells = []
            for name in names:
                if name in ("test", "val"):
                    cells.append(name)
                    continue
                wanted, _, pattern = name.partition("/")
                if wanted in ("own", recipe.dataset, folder):
                    source, place, parts = "own", folder, list(splits.shifts)
                else:
                    other = self._other_set(case, wanted)
                    if other is None:
                        continue
                    source, parts = other
                    place = slug(source)
                matching = [part for part in parts if part == pattern]  # a name may have brackets
                matching = matching or [part for part in parts if fnmatchcase(part, pattern)]
                if not matching:
                    raise ValueError(
                        f"{case.name} has no test set {name!r}; there are {', '.join(parts) or 'no shifted ones'}"
                    )
                known = case.sets.setdefault(source, [])
                known += [part for part in matching if part not in known]
                cells += [f"{place}/{part}" for part in matching]
            if cells:
                found[title] = cells
        case.tests = found

    def _other_set(self, case: Case, names: str) -> tuple[str, list[str]] | None:
        """Name and shifts of the first of some data sets, ``this|or_that``, whose files are there."""
        reasons = []
        for name in names.split("|"):
            try:
                if name not in self._shifts:
                    self._shifts[name] = list(datasets.load(name, root=self.root, verify=self.verify).shifts)
            except MissingFilesError as error:
                reasons.append(str(error))
                continue
            if reasons:
                remark = f"tested on {name}, because {reasons[0]}"
                case.remarks += [remark] if remark not in case.remarks else []
            return name, self._shifts[name]
        text = f"{case.name} under {names.partition('|')[0]} is left out: {reasons[0]}"
        if text not in self.left_out:
            self.left_out.append(text)
        return None

    def without_data(self, row: Row) -> tuple[Recipe, int | None]:
        """The first recipe of a data set whose files are missing, and how many samples it trains on, if that is known."""
        recipe = self._base(row.recipe[0], {**self.experiment.settings, **row.settings})
        known = datasets.known().get(recipe.dataset)
        sizes = None if known is None else known.sizes
        return recipe, recipe.subset.train or (None if sizes is None else sizes[0])

    def case(self, name: str) -> Case:
        """A case by what tables call it."""
        return next(case for case in self.cases if case.name == name)

    def splits(self, case: Case) -> Splits:
        """The whole data of a case; the last one asked for is kept in memory."""
        if self._splits is None or self._splits[0] != case.name:
            self._splits = None  # before the next one is loaded
            recipe = self.base_recipe(case)
            self._splits = (case.name, datasets.load(recipe.dataset, root=self.root, verify=self.verify))
        return self._splits[1]

    def digest(self, case: Case, recipe: Recipe) -> str:
        """The hash of what a recipe takes of a data set."""
        key = (case.name, recipe.subset.model_dump_json())
        if key not in self._digests:
            self._digests[key] = splits_for(recipe, self.splits(case), self.root).digest()
        return self._digests[key]

    def __getstate__(self) -> dict[str, Any]:
        """What other processes get: everything but the data."""
        return {**vars(self), "_splits": None}

    def base_recipe(self, case: Case) -> Recipe:
        """The recipe of a data set, before a method changes it."""
        return self._base(case.recipe, case.overrides)

    # Methods, points, runs

    def methods(self, case: Case) -> list[Method]:
        """The methods of a data set, those that are made of others included."""
        return self.experiment.of_row(case.row)

    def trained(self, case: Case) -> list[Method]:
        """The methods that are trained."""
        return [method for method in self.methods(case) if method.of is None]

    def grids(self, case: Case) -> _grids.Grids:
        """The named grids, as a data set has them."""
        return {**self.experiment.grids, **case.row.grids}

    def axes(self, case: Case, method: Method) -> list[_grids.Axis]:
        """The grids of a method on a data set."""
        return self.experiment.axes(method, self.grids(case))

    def points(self, case: Case, method: Method) -> list[Point]:
        """Every point of a method's grid."""
        return _grids.points(self.axes(case, method))

    def job(self, case: Case, method: Method, point: Point, seed: int) -> Job:
        """One training."""
        return Job(case.name, method.title, key_of(point), seed)

    def recipe(self, job: Job) -> Recipe:
        """What a training is."""
        if job not in self._recipes:
            self._recipes[job] = self._recipe(job)
        return self._recipes[job]

    def _recipe(self, job: Job) -> Recipe:
        case, method = self.case(job.case), self.experiment.method(job.method)
        grids, point = self.grids(case), dict(job.point)
        loss = _grids.fill("loss", method.loss or "", point, grids)
        changes: dict[str, Any] = {}
        for key, value in method.settings.items():
            if isinstance(value, str) and "{" in value:
                value = _grids.literal(_grids.fill(key, value, point, grids), key)
            changes[key] = value
        if method.p_of is not None:
            changes |= self._control(case, method.p_of)
        if job.rule == "val_nll":
            changes["selection"] = "val_nll"
        if self.experiment.kind == "convergence":
            changes["epoch_predictions"] = ["test"]
        # What is given later counts, and a key stands where it was given last.
        overrides = {key: value for key, value in case.overrides.items() if key not in changes} | changes
        try:
            # The recipe's own loss would be checked against settings that are not meant for it.
            found = self._load(case.recipe, overrides, loss=half_of(loss, 2), seed=job.seed)
            if half_of(loss, 2) != loss:
                steps = _steps(found, found.subset.train or case.samples)
                found = self._load(case.recipe, overrides, loss=half_of(loss, steps), seed=job.seed)
        except ValueError as error:
            raise ValueError(f"method {method.title!r}: {error}") from None
        return found.resolved()

    def _control(self, case: Case, name: str) -> dict[str, Any]:
        """Settings of the paper's table 8: the dropout selected for MACC, one mask a step, MACC's schedule."""
        selected = self.chosen(case, self.experiment.method(name), "val_accuracy")
        assert selected is not None  # noqa: S101 - asked for only when it is
        recipe = self.recipe(self.job(case, self.experiment.method(name), selected, self.seeds[0]))
        if not isinstance(recipe.head, Head):
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
            key = run_hash(recipe, self.digest(self.case(job.case), recipe))
            self._runs[job] = Run(run_path(self.out, recipe, key))
        return self._runs[job]

    def run_in(self, folder: str) -> Run:
        """A run by the name of its folder."""
        return Run(self.out / folder)

    @property
    def seeds(self) -> range:
        """The seeds of every method."""
        first = self.experiment.first_seed
        return range(first, first + self.experiment.seeds)

    def search_seeds(self, points: int) -> range:
        """The seeds that every point of a grid is trained with."""
        alone = points == 1 or self.experiment.grid_seeds == "all"
        return self.seeds if alone else self.seeds[:1]

    # What validation says

    def scores(self, job: Job, rule: Rule = "val_accuracy") -> dict[str, float]:
        """Accuracy, NLL, ECE and SCE on validation, of the epoch that a rule keeps of a finished training."""
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
        """How an epoch is selected: by the rule, unless the recipe departs from the paper's."""
        own = self.recipe(job).selection
        return rule if own == "val_accuracy" else own

    def ready(self, case: Case, method: Method) -> bool:
        """Whether it is known what a method's trainings are: the control waits for the dropout rate it takes."""
        if method.p_of is None:
            return True
        return self.chosen(case, self.experiment.method(method.p_of), "val_accuracy") is not None

    def open_points(self, case: Case, method: Method) -> list[Job]:
        """The trainings of a grid that are neither finished nor given up."""
        points = self.points(case, method)
        jobs = [self.job(case, method, p, seed) for p in points for seed in self.search_seeds(len(points))]
        return [job for job in jobs if job not in self.failed and not self.run(job).finished]

    def chosen(self, case: Case, method: Method, rule: Rule) -> Point | None:
        """The point that a rule selects by validation alone, once every point is done; ties as in the paper.

        The best validation accuracy or NLL; of equal ones the smaller weight of the penalties, then the smaller
        dropout rate, then the first of the grid.
        """
        if not self.ready(case, method):
            return None
        points = self.points(case, method)
        if len(points) == 1:
            return points[0]
        if (case.name, method.title) not in self.searched and self.open_points(case, method):
            return None
        ranked = []
        for index, (point, scores) in enumerate(self.tried(case, method, rule)):
            mean = scores[rule.removeprefix("val_")]
            recipe = self.recipe(self.job(case, method, point, self.seeds[0]))
            p = recipe.head.p if isinstance(recipe.head, Head) else 0.0
            rank = (-mean if rule == "val_accuracy" else mean, _weight(recipe.loss), p, index)
            ranked.append((rank, point))
        return min(ranked, key=lambda row: row[0])[1] if ranked else None

    def tried(
        self, case: Case, method: Method, rule: Rule = "val_accuracy"
    ) -> list[tuple[Point, dict[str, float]]]:
        """The points of a grid whose trainings are finished, with their validation scores over the seeds of the search."""
        points = self.points(case, method)
        found = []
        for point in points:
            jobs = [self.job(case, method, point, seed) for seed in self.search_seeds(len(points))]
            if all(self.run(job).finished for job in jobs):
                rows = [self.scores(job, rule) for job in jobs]
                means = {key: math.fsum(row[key] for row in rows) / len(rows) for key in rows[0]}
                found.append((point, means))
        return found

    def chosen_runs(self, case: Case, method: Method, rule: Rule) -> list[Job]:
        """The trainings that stand for a method, one for each seed; none before they are known."""
        point = self.chosen(case, method, rule)
        if point is None:
            return []
        return [self._kept(self.job(case, method, point, seed), rule) for seed in self.seeds]

    def _kept(self, job: Job, rule: Rule) -> Job:
        """The training with the epoch that a rule keeps: the same one where it keeps the same epoch."""
        if rule == "val_accuracy" or not self.run(job).finished:
            return job
        if self.scores(job, rule)["epoch"] == self.scores(job)["epoch"]:
            return job
        return replace(job, rule=rule)

    def is_searched(self, method: Method, case: Case) -> bool:
        """Whether Optuna goes through a method's points: there are several."""
        return _grids.count(self.axes(case, method)) > 1

    def open_repeats(self, case: Case, method: Method) -> list[Job]:
        """Trainings of selected points with the seeds that took no part in selection."""
        wanted = dict.fromkeys(job for rule in RULES for job in self.chosen_runs(case, method, rule))
        return [job for job in wanted if job not in self.failed and not self.run(job).finished]

    def finished(self, case: Case) -> int:
        """How many of the trainings that are known so far are done."""
        jobs: dict[Job, None] = {}
        for method in self.trained(case):
            if not self.ready(case, method):
                continue
            points = self.points(case, method)
            for point in points:
                for seed in self.search_seeds(len(points)):
                    jobs[self.job(case, method, point, seed)] = None
            for rule in RULES:
                selected = self.chosen_runs(case, method, rule)
                jobs.update(dict.fromkeys(replace(job, rule="val_accuracy") for job in selected))
        return len({self.run(job).path for job in jobs if self.run(job).finished})

    def is_open(self) -> bool:
        """Whether something is left to train or to predict."""
        for case in self.cases:
            for method in self.trained(case):
                if not self.ready(case, method):
                    continue  # what it waits for is open, or failed
                unsearched = (case.name, method.title) not in self.searched
                if (unsearched and self.open_points(case, method)) or self.open_repeats(case, method):
                    return True
            if any(self.predictions_missing(case)):
                return True
        return False

    def predictions_missing(self, case: Case) -> Iterator[tuple[Job, str]]:
        """Selected runs whose predictions on shifted data are not there, with the data set."""
        for method in self.trained(case):
            for job in dict.fromkeys(job for rule in RULES for job in self.chosen_runs(case, method, rule)):
                run = self.run(job)
                if not run.finished or job in self.failed:
                    continue
                moments = self.wants_moments(job)
                if moments and not _there(run.path / "predictions" / "test.npz", moments):
                    yield job, MOMENTS
                for name, parts in case.sets.items():
                    folder = run.path / "predictions" / self.folder(case, name)
                    if not all(_there(folder / f"{part}.npz", moments) for part in parts):
                        yield job, name
                for passes in self.passes(case, method):
                    if not (run.path / "predictions" / f"{mc_name(passes)}.npz").is_file():
                        yield job, mc_name(passes)

    def wants_moments(self, job: Job) -> bool:
        """Whether the moments of a training's logits are asked for, and it has a head that gives them."""
        return self.experiment.moments and isinstance(self.recipe(job).head, Head)

    def passes(self, case: Case, method: Method) -> list[int]:
        """The numbers of dropout passes that something made of a method asks for."""
        return [
            other.passes
            for other in self.methods(case)
            if other.of == method.title and other.passes is not None
        ]

    def folder(self, case: Case, name: str) -> str:
        """Where the predictions of a data set lie in a run."""
        return slug(self.splits(case).name if name == "own" else name)

    def shifted(self, case: Case, name: str) -> Splits:
        """The parts of a data set to predict, as small as the recipe's subset says."""
        recipe = self.base_recipe(case)
        if name == "own":
            found = splits_for(recipe, self.splits(case), self.root)
        else:
            found = datasets.load(name, root=self.root, verify=self.verify)
        parts = {part: found.shifts[part] for part in case.sets[name]}
        size = recipe.subset.test if name != "own" else None  # its own were cut with the data set
        if size is not None:
            parts = {
                key: part.subset(min(size, len(part)), seed=recipe.subset.seed) for key, part in parts.items()
            }
        return replace(found, shifts=parts)


def _there(path: Path, moments: bool) -> bool:
    """Whether predictions are there, with moments if they are wanted."""
    if not path.is_file() or not moments:
        return path.is_file()
    with zipfile.ZipFile(path) as archive:
        return "mean.npy" in archive.namelist()


def mc_name(passes: int) -> str:
    """The predictions of the test split averaged over passes with dropout on."""
    return f"test-{passes}-passes"


def fit(plan: Plan, job: Job, **options: Any) -> Run:
    """Train a job, unless it is finished; few resamples, as most are points of a grid that nobody looks at again."""
    recipe, data = plan.recipe(job), plan.splits(plan.case(job.case))
    also = [rule for rule in RULES if rule != "val_accuracy"] if recipe.selection == "val_accuracy" else []
    return training.fit(
        recipe,
        data=data,
        out=plan.out,
        verify=plan.verify,
        resamples=MIN_RESAMPLES,
        also=also,
        **options,
    )


def _own_tests(splits: Splits) -> dict[str, list[str]]:
    """In domain, and one test for each kind of shift, over its levels."""
    found = {"test": ["test"]}
    for name in splits.shifts:
        kind = re.sub(r"-\d+$", "", name)
        found.setdefault(name if kind in ("test", "val") else kind, []).append(f"own/{name}")
    return found


def _steps(recipe: Recipe, samples: int) -> int:
    batches = samples / recipe.batch_size
    each = math.floor(batches) if recipe.drop_last else math.ceil(batches)
    return each * recipe.epochs


def _weight(loss: str) -> float:
    criterion = losses.parse(loss)
    penalties = getattr(criterion, "penalties", ())
    return math.fsum(float(weighted.weight) for weighted in penalties)

"""Which data sets of an experiment are on this machine, and what their tests are."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any

from macc import data, models
from macc.data import MissingFilesError, Splits
from macc.experiments.spec import DataSet, Experiment
from macc.training import loading as recipes
from macc.training.building import splits_for
from macc.training.recipe import Recipe, Subset
from macc.words import slug

OWN_RECIPE = "embeddings"
"""The recipe behind a data set that is given without one."""

MODELS = {"image": "small_cnn", "tokens": "gpcnn"}
"""What is trained on a user's own data that are no features."""


@dataclass
class LocalDataSet:
    """A data set of the experiment as it is found on this machine."""

    spec: DataSet
    recipe: str
    """The name or path of its recipe."""
    overrides: dict[str, Any]
    """What the experiment sets, by dotted key."""
    samples: int
    """Training samples, before a recipe takes some of them."""
    tests: dict[str, list[str]] = field(default_factory=dict)
    """The predictions behind each test, by what tables call it."""
    sets: dict[str, list[str]] = field(default_factory=dict)
    """The data sets that must be predicted, and their shifted parts."""
    remarks: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.spec.name


class Catalog:
    """The data sets of an experiment that are here; each is loaded once to see.

    A set whose files are missing is left out. Every other mistake is an error.

    Args:
        experiment: What to compare.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
    """

    def __init__(
        self, experiment: Experiment, root: str | PathLike[str] | None, *, verify: bool = True
    ) -> None:
        self.experiment, self.root, self.verify = experiment, root, verify
        self.datasets: list[LocalDataSet] = []
        self.left_out: list[str] = []
        self._splits: tuple[str, Splits] | None = None
        self._shifts: dict[str, list[str]] = {}
        self._digests: dict[tuple[str, Subset], str] = {}
        for spec in experiment.datasets:
            with self.named(spec.name):
                found = self._first(spec)
            if found is not None:
                self.datasets.append(found)

    def __getstate__(self) -> dict[str, Any]:
        """What other processes get: everything but the data."""
        return {**vars(self), "_splits": None}

    def _load(self, name: str) -> Splits:
        return data.load(name, root=self.root, verify=self.verify)

    @contextmanager
    def named(self, dataset: str) -> Iterator[None]:
        """Say of an error where it comes from: the experiment's file and the data set."""
        try:
            yield
        except ValueError as error:
            raise ValueError(f"{self.experiment.origin}: datasets: {dataset}: {error}") from None

    def check_any(self) -> None:
        """Refuse an experiment of which nothing is left."""
        if not self.datasets:
            raise MissingFilesError("; ".join(self.left_out).replace(" is left out: ", ": "))

    @property
    def missing(self) -> list[DataSet]:
        """The data sets whose files are not here."""
        return [spec for spec in self.experiment.datasets if spec.name not in [d.name for d in self.datasets]]

    def __getitem__(self, name: str) -> LocalDataSet:
        return next(dataset for dataset in self.datasets if dataset.name == name)

    def __contains__(self, name: str) -> bool:
        return any(dataset.name == name for dataset in self.datasets)

    def _first(self, spec: DataSet) -> LocalDataSet | None:
        """A data set with the first of its recipes whose data are there."""
        reasons = []
        for name in spec.recipe:
            try:
                found = self._with_recipe(spec, name)
            except MissingFilesError as error:
                reasons.append(str(error))
                continue
            if reasons:
                found.remarks.append(f"trained by recipe {name}, because {reasons[0]}")
            return found
        self.left_out.append(f"{spec.name} is left out: {'; '.join(reasons)}")
        return None

    def _with_recipe(self, spec: DataSet, name: str) -> LocalDataSet:
        known = name in recipes.names() or Path(name).suffix in (".yaml", ".yml")
        own = not known and (":" in name or name in data.known())
        settings = {**self.experiment.settings, **spec.settings}
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
            splits = self._load(recipe.dataset)
        except ValueError as error:
            said = error if own else recipe.complaint("dataset", str(error))
            raise MissingFilesError(str(said)) if isinstance(error, MissingFilesError) else said from error
        if own and "model" not in settings and splits.kind in MODELS:
            settings["model"] = MODELS[splits.kind]
            recipe = self._base(source, settings)
        found = LocalDataSet(spec=spec, recipe=source, overrides=settings, samples=len(splits.train))
        self._splits = (found.name, splits)
        self.digest(found, recipe)  # where its subset cannot be had, say so now
        self._find_tests(found, splits, recipe)
        return found

    def _base(self, name: str, overrides: Mapping[str, Any]) -> Recipe:
        """A recipe without its own loss, which settings for the methods' losses need not suit."""
        return self.load_recipe(name, overrides, loss="CrossEntropy")

    def load_recipe(self, name: str, overrides: Mapping[str, Any], **changes: Any) -> Recipe:
        """A recipe at the experiment's scale."""
        return recipes.load(name, scale=self.experiment.scale, overrides=overrides, **changes)

    def base_recipe(self, dataset: LocalDataSet) -> Recipe:
        """The recipe of a data set, before a method changes it."""
        return self._base(dataset.recipe, dataset.overrides)

    def without_data(self, spec: DataSet) -> tuple[Recipe, int | None]:
        """The first recipe of a data set without files, and its training samples, if known."""
        recipe = self._base(spec.recipe[0], {**self.experiment.settings, **spec.settings})
        known = data.known().get(recipe.dataset)
        sizes = None if known is None else known.sizes
        return recipe, recipe.subset.train or (None if sizes is None else sizes[0])

    def _find_tests(self, dataset: LocalDataSet, splits: Splits, recipe: Recipe) -> None:
        """Resolve the patterns of the tests to predictions of the data that are there."""
        folder = slug(splits.name)
        patterns = dataset.spec.tests or self.experiment.tests or _own_tests(splits)
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
                    other = self._other_set(dataset, wanted)
                    if other is None:
                        continue
                    source, parts = other
                    place = slug(source)
                matching = [part for part in parts if part == pattern]  # a name may have brackets
                matching = matching or [part for part in parts if fnmatchcase(part, pattern)]
                if not matching:
                    raise ValueError(
                        f"{dataset.name} has no test set {name!r}; there are {', '.join(parts) or 'no shifted ones'}"
                    )
                known = dataset.sets.setdefault(source, [])
                known += [part for part in matching if part not in known]
                cells += [f"{place}/{part}" for part in matching]
            if cells:
                dataset.tests[title] = cells

    def _other_set(self, dataset: LocalDataSet, names: str) -> tuple[str, list[str]] | None:
        """Name and shifts of the first of some data sets, ``this|or_that``, that is there."""
        reasons = []
        for name in names.split("|"):
            try:
                if name not in self._shifts:
                    self._shifts[name] = list(self._load(name).shifts)
            except MissingFilesError as error:
                reasons.append(str(error))
                continue
            if reasons:
                remark = f"tested on {name}, because {reasons[0]}"
                dataset.remarks += [remark] if remark not in dataset.remarks else []
            return name, self._shifts[name]
        text = f"{dataset.name} under {names.partition('|')[0]} is left out: {reasons[0]}"
        if text not in self.left_out:
            self.left_out.append(text)
        return None

    def splits(self, dataset: LocalDataSet) -> Splits:
        """The whole data of a data set; the last one asked for is kept in memory."""
        if self._splits is None or self._splits[0] != dataset.name:
            self._splits = None  # before the next one is loaded
            recipe = self.base_recipe(dataset)
            self._splits = (dataset.name, self._load(recipe.dataset))
        return self._splits[1]

    def digest(self, dataset: LocalDataSet, recipe: Recipe) -> str:
        """The hash of what a recipe takes of a data set."""
        key = (dataset.name, recipe.subset)
        if key not in self._digests:
            self._digests[key] = splits_for(recipe, self.splits(dataset), self.root).digest()
        return self._digests[key]

    def folder(self, dataset: LocalDataSet, name: str) -> str:
        """Where the predictions of shifted data lie in a run."""
        return slug(self.splits(dataset).name if name == "own" else name)

    def shifted(self, dataset: LocalDataSet, name: str) -> Splits:
        """The shifted data to predict, as small as the recipe's subset says."""
        recipe = self.base_recipe(dataset)
        own = name == "own"
        found = splits_for(recipe, self.splits(dataset), self.root) if own else self._load(name)
        parts = {part: found.shifts[part] for part in dataset.sets[name]}
        size = None if own else recipe.subset.test  # its own were cut with the data set
        if size is not None:
            parts = {
                key: part.subset(min(size, len(part)), seed=recipe.subset.seed) for key, part in parts.items()
            }
        return replace(found, shifts=parts)


def _own_tests(splits: Splits) -> dict[str, list[str]]:
    """In domain, and one test for each kind of shift, over its levels."""
    found = {"test": ["test"]}
    for name in splits.shifts:
        kind = re.sub(r"-\d+$", "", name)
        found.setdefault(name if kind in ("test", "val") else kind, []).append(f"own/{name}")
    return found

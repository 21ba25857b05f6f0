"""An experiment: data sets, methods, seeds, tests and what to show, as plain checked values.

It is written in YAML; the paper's tables and the demo are such files, and so is a user's own
comparison.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)

from macc.experiments import columns, grid
from macc.experiments.methods import flat, library, spelled_out
from macc.training.recipe import Calibrate, Count, Scale, criterion_of
from macc.words import did_you_mean

Rule = Literal["val_accuracy", "val_nll", "val_refinement", "last"]
RULES: tuple[Rule, ...] = ("val_accuracy", "val_nll", "val_refinement")
"""The rules of selection that every table can be had by, unless an experiment names its own; the
paper's is the first.
"""
RULE_TEXT = {
    "val_accuracy": "validation accuracy, the paper's rule",
    "val_nll": "validation NLL",
    "val_refinement": "validation NLL after temperature scaling",
    "last": "no rule: the last epoch",
}
Figure = Literal["samples", "certainty", "gap", "confidence", "mistakes", "convergence"]
PaperTable = Literal["table1", "table2", "table3", "table4", "table5", "table6", "table7", "table8"]
MAX_TRAININGS = 1000
MAX_NAME = 60


class _SpecValues(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        populate_by_name=True,
        hide_input_in_errors=False,
    )


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _tests(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {str(key): _listed(names) for key, names in value.items()}


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=r"^[^\x00-\x1f]+$")]


def _settable(settings: dict[str, Any]) -> dict[str, Any]:
    """Refuse what an experiment decides itself."""
    for key, instead in {"seed": "`seeds` and `first_seed`", "loss": "the methods' losses"}.items():
        if key in settings:
            raise ValueError(f"`set` cannot give the {key}, which comes from {instead}")
    return settings


def _power_of_ten(unit: float) -> float:
    if float(f"{unit:.0e}") != unit or not f"{unit:.0e}".startswith("1e"):
        raise ValueError("a unit is a power of ten, as 1e-2 or 1e-3")
    return unit


def _column_name(name: str) -> str:
    if name not in columns.names():
        raise ValueError(f"no column is called {name!r}; {did_you_mean(name, columns.names())}")
    return name


def _objective(name: str) -> str:
    if name not in columns.main():
        raise ValueError(
            f"no metric of the validation split is called {name!r}; {did_you_mean(name, columns.main())}"
        )
    return name


Settings = Annotated[dict[str, Any], BeforeValidator(flat), AfterValidator(_settable)]
Number = Annotated[int | float | str, Field(union_mode="smart")]
PowerOfTen = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_power_of_ten)]
ColumnName = Annotated[str, AfterValidator(_column_name)]
Objective = Annotated[str, AfterValidator(_objective)]
Grids = dict[str, Annotated[list[Number], Field(min_length=1)]]
Tests = Annotated[dict[str, Annotated[list[str], Field(min_length=1)]], BeforeValidator(_tests)]


class Method(_SpecValues):
    """One thing to compare: a loss, maybe with grids in it, or made of another method's runs."""

    name: Annotated[Name | None, Field(description="What tables call it; the paper's name if not given.")] = (
        None
    )
    loss: Annotated[str | None, Field(description="A loss, with grids as {1,5,10} or {weight}.")] = None
    settings: Annotated[
        Settings, Field(alias="set", description="Recipe values, by dotted key; may hold grids.")
    ] = {}
    p_of: Annotated[
        str | None,
        Field(description="The dropout rate selected for this method, with one mask a step: the control."),
    ] = None
    of: Annotated[str | None, Field(description="Made of this method's runs, without training.")] = None
    posthoc: Annotated[
        Literal["temperature", "calibrator"] | None,
        Field(description="temperature: by the paper's grid; calibrator: the one each run ends with."),
    ] = None
    ensemble: Annotated[bool, Field(description="Average the probabilities of all seeds.")] = False
    passes: Annotated[Count | None, Field(description="Average over this many passes with dropout on.")] = (
        None
    )
    note: Annotated[str | None, Field(description="A remark for the table.")] = None

    @property
    def title(self) -> str:
        """What tables call it."""
        return self.name or _label(self.loss or "")

    def then(self, calibrate: Calibrate) -> "Method":
        """The method after the calibrator that each of its runs ends with."""
        what = "temperature" if calibrate == "temperature" else "its calibrator"
        return Method(name=f"{self.title}, then {what}", of=self.title, posthoc="calibrator")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.loss is None) == (self.of is None):
            raise ValueError("a method has a `loss`, or is made `of` another one; write one of the two")
        made = [self.posthoc is not None, self.ensemble, self.passes is not None]
        if self.of is not None and sum(made) != 1:
            raise ValueError(
                f"say what to make of {self.of!r}: posthoc: temperature, ensemble: true or passes: 10"
            )
        if self.of is None and any(made):
            raise ValueError("posthoc, ensemble and passes are made `of` a method; write of: NAME")
        if self.of is not None and (self.settings or self.p_of):
            raise ValueError(f"what is made of {self.of!r} is not trained, so it has no `set` and no `p_of`")
        if self.of is not None and self.name is None:
            raise ValueError(f"what is made of {self.of!r} needs a `name`")
        return self


def _label(loss: str) -> str:
    """A loss as it is written, without what makes it long: the values of grids and the warm-up."""
    return re.sub(r"\(warmup\s*=\s*half\)", "", grid.with_gaps(loss))


class DataSet(_SpecValues):
    """A data set with the recipe that trains on it."""

    name: Name
    recipe: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)]
    settings: Annotated[Settings, Field(alias="set")] = {}
    grids: Grids = {}
    tests: Tests = {}
    methods: list[str] | None = None
    note: str | None = None


class Search(_SpecValues):
    """How Optuna goes through the grids."""

    sampler: Annotated[Literal["grid", "tpe"], Field(description="grid: every point, as in the paper.")] = (
        "grid"
    )
    trials: Annotated[Count | None, Field(description="With tpe: how many points to try.")] = None
    prune: Annotated[bool, Field(description="Give up points that lag behind the median of the others.")] = (
        False
    )
    objectives: Annotated[
        list[Objective],
        Field(min_length=1, max_length=2, description="Of the validation split; two give a Pareto front."),
    ] = ["accuracy"]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sampler == "tpe" and self.trials is None:
            raise ValueError("`sampler: tpe` needs `trials`: how many points to try")
        if self.sampler == "grid" and self.trials is not None:
            raise ValueError("`trials` belongs to `sampler: tpe`; a grid tries every point")
        if self.prune and len(self.objectives) > 1:
            raise ValueError("`prune` compares one number, and there are two objectives; drop one of the two")
        return self


class Experiment(_SpecValues):
    """Everything a comparison is made of.

    Example:
        >>> experiment = Experiment.model_validate({"name": "mine", "datasets": ["digits"],
        ...     "methods": ["CrossEntropy", "CrossEntropy + {1,10}*MACC"]})
        >>> [method.title for method in experiment.methods]
        ['CrossEntropy', 'CrossEntropy + …*MACC']
    """

    name: Name
    title: str = ""
    kind: Literal["table", "convergence", "timing"] = "table"
    datasets: Annotated[list[DataSet], Field(min_length=1)]
    methods: Annotated[list[Method], Field(min_length=1)]
    settings: Annotated[Settings, Field(alias="set")] = {}
    grids: Grids = {}
    seeds: Annotated[int, Field(strict=True, ge=1, le=1000)] = 3
    first_seed: Annotated[int, Field(strict=True, ge=0, lt=2**31, description="The others follow it.")] = 0
    grid_seeds: Annotated[
        Literal["first", "all"], Field(description="first: points are compared with the first seed only.")
    ] = "first"
    show: Annotated[
        Literal["selected", "points"], Field(description="points: every point of a grid is a row of its own.")
    ] = "selected"
    search: Search = Search()
    rules: Annotated[
        list[Rule],
        Field(
            min_length=1, description="How epochs and points are selected; one training serves all of them."
        ),
    ] = list(RULES)
    tests: Tests = {}
    averages: Annotated[
        dict[Name, Annotated[list[str], Field(min_length=2)]],
        Field(description="Unweighted means over data sets."),
    ] = {}
    columns: Annotated[
        list[ColumnName], Field(min_length=1, default_factory=lambda: [*columns.main(), "gap"])
    ]
    units: Annotated[
        dict[ColumnName, PowerOfTen], Field(description="1e-2 prints hundredths, and so on.")
    ] = {}
    figure: Annotated[
        Figure | None, Field(description="Draw this of the paper's figures, for the methods in pairs.")
    ] = None
    moments: Annotated[
        bool, Field(description="Predict mean and variance of the logits too, of methods with a head.")
    ] = False
    paper: Annotated[
        list[PaperTable],
        BeforeValidator(lambda value: [] if value is None else _listed(value)),
        Field(description="Tables of the paper to stand beside; the first that has a value gives it."),
    ] = []
    passes: Annotated[list[Count], Field(description="With kind timing: numbers of dropout masks.")] = []
    limit: Annotated[Count, Field(description="More trainings than this are an error.")] = MAX_TRAININGS
    notes: list[str] = []
    next: Annotated[list[str], Field(description="What to try after it.")] = []
    scale: Scale = "full"
    _origin: str = PrivateAttr(default="")

    @property
    def origin(self) -> str:
        """What errors call it, which is its file or its name."""
        return self._origin or f"experiment {self.name}"

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        known = library()
        grids = values.get("grids") or {}
        if not isinstance(grids, Mapping):
            raise ValueError(
                f"grids must map names to lists of values, as in {{weight: [1, 10]}}, got {grids!r}"
            )
        values["grids"] = {**known["grids"], **known["cut"].get(str(values.get("scale")), {}), **grids}
        if isinstance(values.get("datasets"), str | dict):
            values["datasets"] = [values["datasets"]]
        if isinstance(values.get("methods"), str | dict):
            values["methods"] = [values["methods"]]
        if isinstance(values.get("datasets"), list):
            values["datasets"] = [_data_set(value) for value in values["datasets"]]
        if isinstance(values.get("methods"), list):
            values["methods"] = [spelled_out(method, known["methods"]) for method in values["methods"]]
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._check_names()
        twice = next((rule for rule, times in Counter(self.rules).items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"rules: {twice!r} is there twice; leave one out")
        for dataset in self.datasets:
            grids = {**self.grids, **dataset.grids}
            for name in dataset.methods or ():
                self.method(name)
            for method in self.methods_on(dataset):
                self._check_method(method, grids)
                for other in (method.of, method.p_of):
                    if other is not None and self.method(other) not in self.methods_on(dataset):
                        raise ValueError(
                            f"datasets: {dataset.name}: {method.title!r} needs {other!r} among the methods of this data set"
                        )
        for average, names in self.averages.items():
            if average in [dataset.name for dataset in self.datasets]:
                raise ValueError(
                    f"averages.{average}: a data set is called {average!r} too; name the average otherwise"
                )
            for name in names:
                if name not in [dataset.name for dataset in self.datasets]:
                    raise ValueError(
                        f"averages.{average}: no data set is called {name!r}; {did_you_mean(name, [dataset.name for dataset in self.datasets])}"
                    )
        wanted = self.trainings()
        if wanted > self.limit:
            raise ValueError(
                f"this asks for {wanted} trainings, more than the limit of {self.limit}: cut a grid, or write "
                f"limit: {wanted} if you mean it"
            )
        if self.show == "points":
            self._spread()
        return self

    def _spread(self) -> None:
        """Make every point of every grid a method of its own, on each data set by its own grids."""
        several = self._several()
        made: dict[str, dict[str, Method]] = {method.title: {} for method in self.methods}
        datasets = []
        for dataset in self.datasets:
            titles = []
            for method in self.methods_on(dataset):
                found = self._at_points(method, {**self.grids, **dataset.grids}, several[method.title])
                made[method.title].update({each.title: each for each in found})
                titles += [each.title for each in found]
            datasets.append(dataset.model_copy(update={"methods": titles}))
        for method in self.methods:
            for key, other in (("of", method.of), ("p_of", method.p_of)):
                if other is not None and several[other]:
                    raise ValueError(
                        f"method {method.title!r}: {key}: with show: points {other!r} is {len(made[other])} methods; "
                        "write their losses one by one under names of their own, or show: selected"
                    )
        # The values are frozen for everybody else, and a validator may not return another object.
        object.__setattr__(self, "methods", [each for found in made.values() for each in found.values()])
        object.__setattr__(self, "datasets", datasets)
        self._check_names()

    def _several(self) -> dict[str, set[str]]:
        """The axes of each method that take several values, which names of points must tell."""
        seen: dict[str, dict[str, set[grid.Value]]] = {method.title: {} for method in self.methods}
        for dataset in self.datasets:
            for method in self.methods_on(dataset):
                for axis in self.axes(method, {**self.grids, **dataset.grids}):
                    seen[method.title].setdefault(axis.name, set()).update(axis.values)
        return {
            title: {name for name, values in axes.items() if len(values) > 1} for title, axes in seen.items()
        }

    def _at_points(self, method: Method, grids: grid.Grids, named: set[str]) -> list[Method]:
        """A method at each of its points, called by those values that are to be named."""
        found = []
        for point in grid.points(self.axes(method, grids)):
            settings = {
                key: grid.literal(grid.fill(key, value, point, grids), key)
                if isinstance(value, str) and "{" in value
                else value
                for key, value in method.settings.items()
            }
            loss = None if method.loss is None else grid.fill("loss", method.loss, point, grids)
            name = ", ".join([method.title, *(f"{axis} {point[axis]}" for axis in point if axis in named)])
            found.append(method.model_copy(update={"name": name, "loss": loss, "settings": settings}))
        return found

    def _check_names(self) -> None:
        for kind, titles in (
            ("data sets", [dataset.name for dataset in self.datasets]),
            ("methods", [method.title for method in self.methods]),
        ):
            twice = next((title for title, times in Counter(titles).items() if times > 1), None)
            if twice is not None:
                raise ValueError(f"two {kind} are called {twice!r}; give one of them another `name`")

    def _check_method(self, method: Method, grids: grid.Grids) -> None:
        where = f"method {method.title!r}"
        for other in (method.of, method.p_of):
            if other is not None and self.method(other).of is not None:
                raise ValueError(f"{where}: {other!r} is not trained itself; name a method with a loss")
        if method.of is not None:
            return
        if "dataset" in method.settings:
            raise ValueError(f"{where}: `set` cannot change the data set; write it under `datasets`")
        for point in grid.points(_one_each(self.axes(method, grids))):
            text = grid.fill("loss", method.loss or "", point, grids)
            try:
                criterion = criterion_of(half_of(text, 2))
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            if method.p_of is not None and criterion.needs_moments:
                raise ValueError(f"{where}: p_of trains with one dropout mask, and {text!r} needs a variance")
        if method.p_of is not None and not _sets_dropout(self.method(method.p_of)):
            raise ValueError(f"{where}: {method.p_of!r} sets no head.p whose selected value could be taken")

    def method(self, title: str) -> Method:
        """A method by what tables call it."""
        for method in self.methods:
            if method.title == title:
                return method
        raise ValueError(
            f"no method is called {title!r}; {did_you_mean(title, [method.title for method in self.methods])}"
        )

    def methods_on(self, dataset: DataSet) -> list[Method]:
        """The methods of a data set."""
        return [
            method for method in self.methods if dataset.methods is None or method.title in dataset.methods
        ]

    def axes(self, method: Method, grids: grid.Grids) -> list[grid.Axis]:
        """The grids in a method's loss and settings."""
        texts = {"loss": method.loss or ""}
        texts |= {key: value for key, value in method.settings.items() if isinstance(value, str)}
        return grid.axes(texts, grids)

    def trainings(self, datasets: Sequence[DataSet] | None = None) -> int:
        """How many trainings it takes at most, from nothing."""
        total = 0
        for dataset in self.datasets if datasets is None else datasets:
            for method in self.methods_on(dataset):
                if method.of is not None:
                    continue
                size = grid.count(self.axes(method, {**self.grids, **dataset.grids}))
                if self.search.trials is not None and size > 1 and self.show == "selected":
                    size = min(size, self.search.trials)
                if size == 1 or self.grid_seeds == "all" or self.show == "points":
                    total += size * self.seeds
                else:
                    total += size + min(len(self.rules), size) * (self.seeds - 1)
        return total


def _sets_dropout(method: Method) -> bool:
    return "head.p" in method.settings or method.settings.get("head", "none") != "none"


def _one_each(axes: Sequence[grid.Axis]) -> list[grid.Axis]:
    """Axes short enough that all of their points can be checked: first and last value."""
    return [grid.Axis(axis.name, tuple(dict.fromkeys((axis.values[0], axis.values[-1])))) for axis in axes]


def half_of(loss: str, steps: int) -> str:
    """A loss whose ``warmup=half`` is half of the steps of training.

    Example:
        >>> half_of("CrossEntropy + MACC(warmup=half)", 480)
        'CrossEntropy + MACC(warmup=240)'
    """
    return re.sub(r"\bwarmup\s*=\s*half\b", f"warmup={steps // 2}", loss)


def _data_set(value: Any) -> Any:
    if isinstance(value, str):
        return {"name": Path(value.partition(":")[2] or value).stem, "recipe": [value]}
    return value

"""A recipe: everything that decides what a training gives, as plain checked values."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    model_validator,
)

from macc.words import did_you_mean, quoted, shown

if TYPE_CHECKING:
    from macc.losses import Criterion, Task

Scale = Literal["smoke", "cpu", "full"]


Count = Annotated[int, Field(strict=True, ge=1)]


Fraction = Annotated[float, Field(ge=0, le=1)]


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


BelowOne = Annotated[float, Field(ge=0, lt=1)]


NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


DROPOUT = 0.2


LAST_FACTOR = 0.1


LAST_FACTOR_WITH_HEAD = 0.02


class _RecipeValues(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class HeadSettings(_RecipeValues):
    """The MC-dropout head put onto the classifier; see :func:`macc.attach`."""

    p: BelowOne = DROPOUT
    samples: Count = 10
    estimator: Literal["sampled", "analytic"] = "sampled"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.estimator == "analytic" and self.samples == 1:
            raise ValueError(
                "`samples: 1` is ordinary dropout and has no closed form; write `estimator: sampled`"
            )
        return self


class AugmentationSettings(_RecipeValues):
    """Random changes of training images; see :class:`macc.data.Augmentation`."""

    pad: Annotated[int, Field(strict=True, ge=0)] = 0
    flip: bool = False
    rotate: bool = False


class SGD(_RecipeValues):
    """Stochastic gradient descent with momentum."""

    name: Literal["sgd"]
    lr: Positive
    momentum: Fraction = 0.9
    weight_decay: NotNegative = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("`nesterov: true` needs a momentum above 0, got 0")
        return self


class Adam(_RecipeValues):
    """Adam; weight decay is L2."""

    name: Literal["adam"]
    lr: Positive
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: NotNegative = 0.0


class AdamW(_RecipeValues):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"]
    lr: Positive
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    weight_decay: NotNegative = 0.01


class Constant(_RecipeValues):
    """The learning rate stays as it is."""

    name: Literal["constant"]


class MultiStep(_RecipeValues):
    """The rate times ``factor`` at each milestone (an epoch), at the last ``last_factor``."""

    name: Literal["multistep"]
    milestones: Annotated[list[Count], Field(min_length=1)]
    factor: Positive = 0.1
    last_factor: Annotated[Positive | Literal["auto"], Field(union_mode="left_to_right")] = "auto"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sorted(set(self.milestones)) != self.milestones:
            raise ValueError("`milestones` must rise from each epoch to the next")
        return self


class Cosine(_RecipeValues):
    """Half a cosine from the rate to ``final`` times it, after a rise of ``warmup`` epochs."""

    name: Literal["cosine"]
    final: Fraction = 0.0
    warmup: NotNegative = 0.0


class OneCycle(_RecipeValues):
    """A cosine up to the learning rate over the share ``rise`` of training, and one down."""

    name: Literal["onecycle"]
    rise: Annotated[float, Field(gt=0, lt=1)] = 0.3
    start: Annotated[float, Field(gt=0, le=1)] = 0.04
    final: Fraction = 4e-6


class Subset(_RecipeValues):
    """How many samples of each split to use, drawn by class with ``seed``; by default all."""

    train: Count | None = None
    val: Count | None = None
    test: Count | None = None
    seed: Annotated[int, Field(strict=True, ge=0)] = 0


def _kind_of_head(value: object) -> str:
    return "<word>" if isinstance(value, str) else "<settings>"


Optimiser = Annotated[SGD | Adam | AdamW, Field(discriminator="name")]


Schedule = Annotated[Constant | MultiStep | Cosine | OneCycle, Field(discriminator="name")]


HeadSetting = Annotated[
    Annotated[Literal["auto", "none"], Tag("<word>")] | Annotated[HeadSettings, Tag("<settings>")],
    Discriminator(_kind_of_head),
    BeforeValidator(lambda value: "none" if value is None else value),
]


class Stage(_RecipeValues):
    """A further stage, which trains the classifier again from the weights selected before it.

    Reference:
        Jordahn and Olmos, *Decoupling Feature Extraction and Classification Layers for Calibrated
        Neural Networks*, ICML 2024.
    """

    epochs: Count
    loss: Annotated[str | None, Field(description="That of the recipe if not given.")] = None
    head: HeadSetting = "auto"
    freeze: Annotated[
        Literal["none", "backbone"], Field(description="backbone: the body stays as it is.")
    ] = "backbone"
    fresh_classifier: Annotated[
        bool, Field(description="Whether the classifier starts from new weights.")
    ] = True
    optimiser: Annotated[Optimiser | None, Field(description="That of the recipe if not given.")] = None
    schedule: Schedule = Cosine(name="cosine")


Selection = Literal["val_accuracy", "val_nll", "val_refinement", "val_sce", "last"]


Calibrate = Literal["temperature", "auto", "none"]


_UNIONS = ("optimiser", "schedule", "head")
"""Keys after which pydantic puts the name of a variant into the place of an error."""


class Recipe(_RecipeValues):
    """Everything that decides the result of a training run.

    Example:
        >>> recipe = Recipe(dataset="digits", model="small_cnn", loss="CrossEntropy + MACC", epochs=3,
        ...                 batch_size=64, optimiser={"name": "sgd", "lr": 0.05})
        >>> recipe.resolved().head
        HeadSettings(p=0.2, samples=10, estimator='sampled')
    """

    dataset: Annotated[
        str, Field(min_length=1, description="A data set of `macc data list`, or arrays:PATH.")
    ]
    model: Annotated[str, Field(min_length=1, description="A model of macc.models, or hf:…, timm:…, …")]
    pretrained: Annotated[str | None, Field(description="A file with weights to start from.")] = None
    image_size: Annotated[
        Count | None, Field(description="Enlarge or shrink square images to this many pixels.")
    ] = None
    text_length: Annotated[
        Count | None, Field(description="Read the last of a text's words only, this many.")
    ] = None
    augmentation: Annotated[
        AugmentationSettings | None,
        Field(description="Of training images, in place of the data set's own: {pad: 4, flip: true}."),
    ] = None
    loss: Annotated[str, Field(description="For example Focal(gamma=3) + 10*MACC(warmup=500).")]
    class_weight: Annotated[
        Literal["none", "balanced"],
        Field(description="balanced: weigh classes by 1/frequency; the loss then names no weights."),
    ] = "none"
    head: Annotated[HeadSetting, Field(description="auto: an MC-dropout head if a term needs variance.")] = (
        "auto"
    )
    freeze: Annotated[
        Literal["none", "backbone"], Field(description="backbone: train the classifier only.")
    ] = "none"
    freeze_bn: Annotated[
        bool, Field(description="Whether a frozen backbone's batch-norm statistics are frozen too.")
    ] = True
    optimiser: Optimiser
    schedule: Schedule = Constant(name="constant")
    epochs: Count
    stages: Annotated[
        list[Stage], Field(max_length=10, description="Stages after the first, for example [{epochs: 5}].")
    ] = []
    batch_size: Annotated[Count, Field(description="Samples a step, over all processes.")]
    drop_last: Annotated[
        bool, Field(description="Leave out a last, smaller batch: its statistics are noise.")
    ] = True
    accumulate: Annotated[Count, Field(description="Parts in which a batch is computed.")] = 1
    penalty_batch: Annotated[
        Literal["global", "micro"], Field(description="micro: batch statistics of each part alone.")
    ] = "global"
    eval_batch_size: Count = 512
    clip: Annotated[Positive | None, Field(description="Largest norm of the gradient.")] = None
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: Annotated[
        bool, Field(strict=True, description="Train what torch.compile makes of the model; needs a compiler.")
    ] = False
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)] = 0
    selection: Annotated[Selection, Field(description="Which epoch's weights are kept.")] = "val_refinement"
    calibrate: Annotated[
        Calibrate,
        Field(
            description="What is fitted to the validation logits at the end; auto: the best of all calibrators."
        ),
    ] = "temperature"
    epoch_predictions: Annotated[
        list[str], Field(description="Splits whose logits are written after every epoch.")
    ] = []
    subset: Subset = Subset()
    trackers: list[Literal["tensorboard", "mlflow"]] = []
    scale: Annotated[Scale, Field(description="Which of the file's scales this is.")] = "full"

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    _origin: str = PrivateAttr(default="recipe")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(sentence(error, "recipe", values, {})) from error

    @property
    def sources(self) -> Mapping[str, str]:
        """Where each value comes from, by dotted key, as far as it is known."""
        return self._sources

    def complaint(self, key: str, text: str) -> ValueError:
        """An error that names the file and the key."""
        return ValueError(f"{self._origin}: {key}: {text}")

    @property
    def label(self) -> str:
        """Data set and model, and the scale where it is not the full one."""
        return f"{self.dataset}, {self.model}" + ("" if self.scale == "full" else f" (scale: {self.scale})")

    @model_validator(mode="after")
    def _check(self) -> Self:
        from macc import losses

        try:
            criterion = criterion_of(self.loss)
        except ValueError as error:
            raise ValueError(f"loss: {error}") from None
        if criterion.task.independent_labels:
            raise ValueError(
                f"loss: {self.loss!r} is for independent labels and data sets of recipes have one class a sample; "
                "write CrossEntropy or Focal"
            )
        if self.class_weight == "balanced" and criterion.task.weight is not None:
            raise ValueError(
                f"class_weight: {self.loss!r} has class weights of its own, which 'balanced' would replace; "
                "leave out one of the two"
            )
        if criterion.needs_moments and self.head == "none":
            raise ValueError(
                f"head: {self.loss!r} needs the variance of an MC-dropout head, got 'none'; write head: auto"
            )
        if criterion.needs_moments and isinstance(self.head, HeadSettings) and self.head.samples == 1:
            raise ValueError(
                f"head.samples: {self.loss!r} needs a variance and one dropout mask has none, got 1; write 10"
            )
        batch_statistics = [
            type(module).__name__ for module in criterion.modules() if isinstance(module, losses.BatchPenalty)
        ]
        if self.accumulate > 1 and batch_statistics and self.penalty_batch != "micro":
            raise ValueError(
                f"accumulate: {batch_statistics[0]} is made of the statistics of a whole batch, which "
                f"{self.accumulate} parts do not have; write accumulate: 1, or penalty_batch: micro to accept "
                "the statistics of each part"
            )
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate: a batch of {self.batch_size} cannot be computed in {self.accumulate} equal parts; "
                "choose a divisor of batch_size"
            )
        if isinstance(self.schedule, MultiStep) and self.schedule.milestones[-1] >= self.epochs:
            raise ValueError(
                f"schedule.milestones: epoch {self.schedule.milestones[-1]} is never reached in {self.epochs} "
                "epochs; lower it or raise epochs"
            )
        if isinstance(self.schedule, Cosine) and self.schedule.warmup >= self.epochs:
            raise ValueError(
                f"schedule.warmup: {self.schedule.warmup:g} epochs do not fit into {self.epochs}; lower it"
            )
        for index in range(len(self.stages)):
            values = {**self.model_dump(), **self._values_of(index)}
            try:
                Recipe(**values)
            except ValueError as error:
                raise ValueError(f"stages.{index}.{str(error).removeprefix('recipe: ')}") from None
        return self

    def _values_of(self, index: int) -> dict[str, Any]:
        """What a stage puts in the place of the recipe's values."""
        stage = self.stages[index]
        values: dict[str, Any] = {"stages": [], "freeze_bn": True}
        values |= {key: getattr(stage, key) for key in ("epochs", "head", "freeze", "schedule")}
        return values | {
            key: value for key in ("loss", "optimiser") if (value := getattr(stage, key)) is not None
        }

    def final(self) -> Self:
        """The recipe of the last stage; the recipe itself where it has no stages."""
        if not self.stages:
            return self
        return self.model_copy(update=self._values_of(len(self.stages) - 1)).resolved()

    def earlier(self) -> Self:
        """The recipe without its last stage. Refinement selects the epochs of those before it."""
        changes = {"stages": self.stages[:-1], "selection": "val_refinement", "epoch_predictions": []}
        return self.model_copy(update=changes)

    def resolved(self) -> Self:
        """The recipe with every ``auto`` replaced by what it stands for."""
        needs_head = criterion_of(self.loss).needs_moments
        changes: dict[str, Any] = {}
        sources = dict(self.sources)
        if self.head == "auto":
            changes["head"] = HeadSettings() if needs_head else "none"
            reason = "auto: a term needs variance" if needs_head else "auto: no term needs variance"
            for key in ("head", "head.p", "head.samples", "head.estimator"):
                sources[key] = reason
        if isinstance(self.schedule, MultiStep) and self.schedule.last_factor == "auto":
            factor = LAST_FACTOR_WITH_HEAD if needs_head else LAST_FACTOR
            changes["schedule"] = self.schedule.model_copy(update={"last_factor": factor})
            reason = "the paper's MACC setting" if needs_head else "the baselines' setting"
            sources["schedule.last_factor"] = f"auto: {reason}"
        copy = self.model_copy(update=changes)
        copy._sources = sources
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in YAML."""
        return self.model_dump(mode="json")

    def deciding(self) -> dict[str, Any]:
        """The values that decide the result, as they enter the hash of a run.

        Who watches the training and how many samples are predicted at once change nothing, nor does
        the spelling of the loss. A run without a calibrator is what it was before there were any.
        """
        values = self.model_dump(mode="json", exclude={"trackers", "eval_batch_size"})
        if self.calibrate == "none":
            del values["calibrate"]
        for key in ("stages", "compile"):
            if not values[key]:
                del values[key]  # the hash of runs from before there were any
        if self.augmentation is None:
            del values["augmentation"]
        return {**values, "loss": str(criterion_of(self.loss))}

    def to_yaml(self) -> str:
        """The whole recipe as YAML, every value with its source as a comment."""
        return "".join(_lines(self.to_dict(), self.sources, "", ""))


def _lines(values: Mapping[str, Any], sources: Mapping[str, str], prefix: str, indent: str) -> Iterable[str]:
    for key, value in values.items():
        source = sources.get(f"{prefix}{key}") or sources.get(prefix.removesuffix(".")) or "default"
        if isinstance(value, dict):
            yield f"{indent}{key}:\n"
            yield from _lines(value, sources, f"{prefix}{key}.", indent + "  ")
        else:
            # In quotation marks YAML escapes what a terminal would obey or hide.
            safe = shown(value, None) == str(value)
            text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=safe)
            text = text.removesuffix("\n").removesuffix("\n...")
            yield f"{indent}{key}: {text}  # {shown(source, None)}\n"


def sentence(error: ValidationError, path: str, values: Mapping[str, Any], spelled: Mapping[str, str]) -> str:
    """The first complaint of pydantic as one sentence with file, key, value and cure."""
    first = error.errors(include_url=False)[0]
    keys = _keys(first["loc"], values)
    key = ".".join(keys)
    where = f"{path}, {spelled[key]}" if key in spelled else path
    kind, context = first["type"], first.get("ctx", {})
    if kind == "invalid_key":
        return (
            f"{where}: a key must be text, got {shown(repr(first['input']))} in {shown('.'.join(keys[:-1]))}"
        )
    if kind == "extra_forbidden":
        return f"{where}: unknown key {quoted(key)}; {_nearest(keys, values)}"
    if kind == "missing":
        named = spelled.get(".".join([*keys[:-1], "name"]))
        if named is not None:
            return f"{path}, {named}: the key {key!r} is missing; the old one went with the old name: add --set {key}=..."
        return (
            f"{where}: the key {key!r} is missing; every recipe needs it (`macc recipe show digits` has one)"
        )
    if kind == "union_tag_not_found":
        tags = context.get("discriminator", "'name'").strip("'")
        return f"{where}: the key '{key}.{tags}' is missing; `macc recipe show digits` has one"
    if kind == "union_tag_invalid":
        return (
            f"{where}: {key}.name must be one of {context['expected_tags'].replace(chr(39), '')}, "
            f"got {quoted(context['tag'])}"
        )
    if kind == "value_error":
        reason = str(context["error"])
        return f"{where}: {key}: {reason}" if key else f"{where}: {reason}"
    reason = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{where}: {key} must be {reason}, got {shown(repr(first['input']))}"


def _keys(place: tuple[int | str, ...], values: Any) -> list[str]:
    """The keys that lead to an error, without pydantic's names for variants of a value."""
    parts = [*place]
    if parts and parts[0] in _UNIONS:
        del parts[1:2]
    keys: list[str] = []
    for part in parts:
        if not isinstance(values, dict | list | tuple):
            break
        keys.append(str(part))
        values = values.get(part) if isinstance(values, dict) else values[int(part)]
    return keys


def _nearest(keys: Sequence[str], values: Any) -> str:
    """What the unknown last key may have meant, among the keys its place has."""
    model: Any = Recipe
    for key in keys[:-1]:
        values = values[int(key)] if isinstance(values, list) else values.get(key, {})
        if isinstance(values, list):
            model = Stage
            continue
        variants = {
            "optimiser": {"sgd": SGD, "adam": Adam, "adamw": AdamW},
            "schedule": {
                "constant": Constant,
                "multistep": MultiStep,
                "cosine": Cosine,
                "onecycle": OneCycle,
            },
        }
        model = {"head": HeadSettings, "subset": Subset}.get(key) or variants.get(key, {}).get(
            str(values.get("name")), model
        )
    return did_you_mean(keys[-1], model.model_fields)


@lru_cache(maxsize=1024)
def criterion_of(loss: str) -> "Task | Criterion":
    """A loss to look at, parsed once; who trains with it takes a copy."""
    from macc import losses

    return losses.parse(loss)

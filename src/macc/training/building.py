"""What a recipe is made of: its data and its model, with a head where one is needed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional as F

from macc import data as datasets
from macc import heads, models
from macc.data import Augmentation, Kind, Part, Splits, vocabulary
from macc.models.classifier import trained_name
from macc.models.hub import from_configuration
from macc.training.inputs import Inputs
from macc.training.randomness import kept_generators, seed_everything
from macc.training.recipe import HeadSettings, Recipe, criterion_of

Tensors = tuple[Tensor, Tensor]


def splits_for(
    recipe: Recipe,
    data: Splits | Mapping[str, Tensors] | None,
    root: str | PathLike[str] | None,
    *,
    verify: bool = True,
) -> Splits:
    """The data of a recipe, cut down as it says."""
    if data is None:
        try:
            splits = datasets.load(recipe.dataset, root=root, verify=verify)
        except ValueError as error:
            raise recipe.complaint("dataset", str(error)) from error
    elif isinstance(data, Splits):
        splits = data
    else:
        splits = own_splits(recipe.dataset, data)
    subset = recipe.subset
    try:
        splits = splits.subset(train=subset.train, val=subset.val, test=subset.test, seed=subset.seed)
    except ValueError as error:
        raise recipe.complaint("subset", str(error)) from error
    if recipe.augmentation is not None:
        if splits.kind != "image":
            raise recipe.complaint("augmentation", f"{splits.name} has no images; leave it out")
        splits = replace(splits, augmentation=Augmentation(**recipe.augmentation.model_dump()))
    unknown = [name for name in recipe.epoch_predictions if name not in splits.parts()]
    if unknown:
        raise recipe.complaint(
            "epoch_predictions",
            f"{splits.name} has no split {unknown[0]!r}; there are {', '.join(splits.parts())}",
        )
    return splits


def own_splits(name: str, data: Mapping[str, Tensors]) -> Splits:
    """A user's own tensors as the splits of a data set."""
    missing = {"train", "val", "test"} - set(data)
    if missing:
        raise ValueError(
            f"`data` must have train, val and test as (inputs, labels), {min(missing)!r} is missing; "
            "selection needs val, and test is only read at the end"
        )
    parts = {key: Part(inputs=inputs, labels=labels) for key, (inputs, labels) in data.items()}
    inputs = parts["train"].inputs
    highest = max(int(part.labels.max()) for part in parts.values())
    kind: Kind = "image" if inputs.ndim == 4 else "features" if inputs.is_floating_point() else "tokens"
    return Splits(
        name=name,
        kind=kind,
        vocabulary=vocabulary(parts.values()) if kind == "tokens" else None,
        classes=tuple(str(k) for k in range(highest + 1)),
        train=parts.pop("train"),
        val=parts.pop("val"),
        test=parts.pop("test"),
        shifts=parts,
    )


def model_for(
    recipe: Recipe, data: Splits, model: nn.Module | None, *, fresh_classifier: bool = False
) -> nn.Module:
    """The model to train, with its head; backbone and classifier are as the recipe says."""
    model = build_model(recipe, data) if model is None else with_head(recipe, model)
    if fresh_classifier:
        with kept_generators():
            seed_everything(recipe.seed, "classifier")
            for module in model.get_submodule(trained_name(model)).modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
    if criterion_of(recipe.loss).needs_moments and not has_head(model):
        raise recipe.complaint("head", f"{recipe.loss!r} needs an MC-dropout head; write head: auto")
    if recipe.freeze == "backbone":
        models.freeze(model, bn=recipe.freeze_bn)
    return model


def rebuilt(recipe: Recipe, inputs: Inputs) -> nn.Module:
    """The recipe's model with its head, to load weights into; no data are needed."""
    return build_model(recipe.final().model_copy(update={"pretrained": None}), inputs)


def build_model(recipe: Recipe, data: Splits | Inputs) -> nn.Module:
    """The recipe's model with its head, freshly initialised from its seed."""
    if recipe.pretrained not in (None, "hub") and not Path(recipe.pretrained).expanduser().is_file():
        raise recipe.complaint(
            "pretrained",
            f"there is no weight file {recipe.pretrained}; put it there, say where it is with "
            "--set pretrained=PATH, or start fresh with --set pretrained=null",
        )
    flat = recipe.model in ("mlp", "linear") or data.kind != "image"
    with kept_generators():
        seed_everything(recipe.seed, "model")
        model: nn.Module
        try:
            if isinstance(data, Inputs) and data.network is not None:
                model = from_configuration(data.network, num_classes=data.num_classes)
            else:
                model = models.build(
                    recipe.model,
                    num_classes=data.num_classes,
                    in_channels=math.prod(data.shape) if flat else data.shape[0],
                    pretrained=recipe.pretrained,
                    vocabulary=data.vocabulary,
                    vectors=data.vectors,
                )
        except ValueError as error:
            raise recipe.complaint("model", str(error)) from error
    if recipe.image_size is not None:
        model.register_forward_pre_hook(_resize_to(recipe.image_size))
    if recipe.text_length is not None:
        if data.kind != "tokens":
            raise recipe.complaint("text_length", f"{recipe.dataset} has no texts; leave it out")
        model.register_forward_pre_hook(_last_words(recipe.text_length))
    return with_head(recipe, model)


def _resize_to(size: int) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """Images enter the model at ``size`` pixels; a hook, so that parameters keep their names."""

    def resize(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        if inputs[0].shape[-2:] == (size, size):
            return inputs
        return (F.interpolate(inputs[0], size=(size, size), mode="bicubic", antialias=True),)

    return resize


def _last_words(count: int) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """Texts enter the model with their last words; they are padded in front."""
    return lambda _, inputs: (inputs[0][:, -count:],)


def with_head(recipe: Recipe, model: nn.Module) -> nn.Module:
    """The model with the head a recipe asks for, put onto it unless it has one."""
    head = recipe.head
    if not isinstance(head, HeadSettings) or has_head(model):
        return model
    return heads.attach(model, p=head.p, samples=head.samples, estimator=head.estimator)


def has_head(model: nn.Module) -> bool:
    """Whether a model has an MC-dropout head already."""
    return any(isinstance(module, heads.Head) for module in model.modules())

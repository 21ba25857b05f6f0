"""What a model takes: the part of its data that it needs, as a small JSON file in the run."""

import json
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn

from macc import data as datasets
from macc.data import Kind, Normalisation, Resizing, Splits
from macc.models.hub import HubModel
from macc.training.recipe import Count
from macc.words import shown

FILE = "inputs.json"

Dtype = Literal["uint8", "int32", "int64", "float32"]

_DTYPES: dict[torch.dtype, Dtype] = {torch.uint8: "uint8", torch.int32: "int32", torch.int64: "int64"}


class _InputValues(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Scaling(_InputValues):
    """Mean and standard deviation of each channel or feature."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Inputs(_InputValues):
    """What a model was trained on, without samples: enough to build it and prepare inputs.

    Example:
        >>> from macc import data
        >>> Inputs.of(data.load("digits"), dataset="digits")
        Inputs(digits: image (1, 8, 8) of uint8, 10 classes)
    """

    dataset: str
    kind: Kind
    shape: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3)]
    dtype: Dtype
    classes: Annotated[tuple[str, ...], Field(min_length=2)]
    normalisation: Scaling | None = None
    resizing: Annotated[Resizing, Field(description="How image files get their size.")] = "fit"
    vocabulary: Annotated[Count | None, Field(description="Of tokens: the number of ids.")] = None
    dimensions: Annotated[Count | None, Field(description="Of tokens: the length of a word's vector.")] = None
    words: Annotated[tuple[str, ...] | None, Field(description="Of tokens: the word of each id.")] = None
    counts: Annotated[
        dict[str, list[int]], Field(description="Samples of each class in train, val and test.")
    ] = {}
    licence: Annotated[str | None, Field(description="Of the data, where it is known.")] = None
    network: Annotated[
        dict[str, Any] | None, Field(description="The configuration of a transformers network.")
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.normalisation is not None:
            values = Normalisation(self.normalisation.mean, self.normalisation.std)
            if len(values.mean) != self.shape[0]:
                raise ValueError(f"the normalisation has {len(values.mean)} values for {self.shape[0]}")
        if self.words is not None and len(self.words) != self.vocabulary:
            raise ValueError(f"there are {len(self.words)} words for {self.vocabulary} token ids")
        return self

    @classmethod
    def of(cls, data: Splits, *, dataset: str, model: nn.Module | None = None) -> "Inputs":
        """What a model takes that is trained on some data.

        Args:
            data: The data.
            dataset: The name by which they were loaded.
            model: The model.
        """
        part, scaling, known = data.train.inputs, data.normalisation, datasets.known().get(dataset)
        three = {"train": data.train, "val": data.val, "test": data.test}
        return cls(
            dataset=data.name,
            kind=data.kind,
            shape=data.shape,
            dtype=_DTYPES.get(part.dtype, "float32"),
            classes=data.classes,
            normalisation=None if scaling is None else Scaling(mean=scaling.mean, std=scaling.std),
            resizing=data.resizing,
            vocabulary=data.vocabulary,
            dimensions=None if data.vectors is None else data.vectors.shape[1],
            words=data.words,
            counts={name: each.counts(data.num_classes).tolist() for name, each in three.items()},
            licence=None if known is None or known.needs_path else known.licence,
            network=model.configuration if isinstance(model, HubModel) else None,
        )

    @classmethod
    def parse(cls, content: Any, where: object) -> "Inputs":
        """The value that a file holds, or an error that names the file."""
        if not isinstance(content, dict):
            raise ValueError(f"{where} is damaged: it holds no mapping")
        try:
            return cls(**content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = shown(".".join(map(str, first["loc"])))
            raise ValueError(f"{where} is damaged: {key}: {first['msg']}") from None

    @property
    def num_classes(self) -> int:
        """``K``."""
        return len(self.classes)

    @property
    def vectors(self) -> Tensor | None:
        """Zero word vectors of the right size, for the weights of a text model."""
        if self.vocabulary is None or self.dimensions is None:
            return None
        return torch.zeros(self.vocabulary, self.dimensions)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in JSON."""
        return dict(json.loads(self.model_dump_json()))

    def __repr__(self) -> str:
        return f"Inputs({self.dataset}: {self.kind} {self.shape} of {self.dtype}, {self.num_classes} classes)"

    __str__ = __repr__

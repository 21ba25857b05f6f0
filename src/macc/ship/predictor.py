"""A trained model in use: raw inputs in, calibrated answers out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from macc.data import Tokeniser, read_images
from macc.metrics import Report, evaluate
from macc.posthoc import Calibrator, Sets, Threshold
from macc.ship import files
from macc.ship.files import Trained
from macc.ship.network import Answers, Network
from macc.tables import Table, html_of, thousands
from macc.training.inputs import Inputs
from macc.words import listed, shown

# More predictions than this are not read in a notebook.
_MOST_ROWS = 50


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of ``N`` inputs.

    Args:
        labels: Index of the predicted class, ``(N,)``.
        confidence: Its calibrated probability, ``(N,)``.
        probs: Calibrated probabilities of all classes, ``(N, K)``.
        certainty: The paper's ``1 - tanh(variance)`` of the predicted class, ``(N,)``; it does not
            rank right above wrong predictions. ``None`` where the model does not end in a linear
            layer.
        accepted: Whether the confidence reaches the threshold; the others are for a person to
            decide, ``(N,)``.
        classes: Names of the classes.
        in_set: Whether each class is in the set of the input, ``(N, K)``; ``None`` without
            :meth:`Predictor.sets`.
    """

    labels: Tensor
    confidence: Tensor
    probs: Tensor
    certainty: Tensor | None
    accepted: Tensor
    classes: tuple[str, ...]
    in_set: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        """The predicted class of each input, by its name."""
        return [self.classes[label] for label in self.labels.tolist()]

    @property
    def sets(self) -> list[list[str]]:
        """The classes in the set of each input, by their names, the most probable first."""
        if self.in_set is None:
            raise ValueError("this model has no sets; call predictor.sets(coverage=0.9) before predicting")
        order = self.probs.argsort(dim=1, descending=True, stable=True)
        held = self.in_set.gather(1, order).tolist()
        return [
            [self.classes[k] for k, inside in zip(row, inside_row, strict=True) if inside]
            for row, inside_row in zip(order.tolist(), held, strict=True)
        ]

    def of(self, name: str) -> Tensor:
        """The probability of one class, by its name, ``(N,)``."""
        return self.probs[:, _index(name, self.classes)]

    def _repr_html_(self) -> str:
        kept = min(len(self), _MOST_ROWS)
        columns = [
            self.names[:kept],
            [f"{100 * each:.1f} %" for each in self.confidence[:kept].tolist()],
            ["accepted" if each else "for a person" for each in self.accepted[:kept].tolist()],
        ]
        header = ["class", "confidence", "decision"]
        if self.in_set is not None:
            header.append("set")
            columns.append([", ".join(held) for held in self.sets[:kept]])
        hidden = f"{thousands(len(self) - kept)} more are left out." if len(self) > kept else ""
        return html_of(Table.of(header, list(zip(*columns, strict=True))), hidden)

    def __str__(self) -> str:
        rows = zip(self.names, self.confidence.tolist(), self.accepted.tolist(), strict=True)
        lines = [
            f"{shown(name)}  {100 * confidence:.1f} %  {'accepted' if accepted else 'for a person'}"
            for name, confidence, accepted in rows
        ]
        if self.in_set is not None:
            lines = [
                f"{line}  {{{', '.join(map(shown, held))}}}"
                for line, held in zip(lines, self.sets, strict=True)
            ]
        return "\n".join(lines)


class Predictor:
    """A trained model that takes what its data set took and answers with calibrated probabilities.

    It may be called from several threads at once.

    Args:
        trained: The model and what belongs to it.
        model: The module, where it was a user's own.
    """

    def __init__(self, trained: Trained, model: nn.Module | None = None) -> None:
        self.trained = trained
        self.network = Network(trained, model)
        _lay_out(self.network)
        self.device = torch.device("cpu")
        self.rule = trained.rule
        words = self.inputs.words
        self._tokeniser = None if words is None else Tokeniser(words, self.inputs.shape[0])

    @property
    def inputs(self) -> Inputs:
        """What the model takes."""
        return self.trained.inputs

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of ``probs``."""
        return self.trained.inputs.classes

    @property
    def calibrator(self) -> Calibrator:
        """What turns logits into probabilities."""
        return self.trained.calibrator

    @property
    def rule(self) -> Threshold:
        """From which confidence on predictions are accepted; ``print`` says it in words."""
        return self._rule

    @rule.setter
    def rule(self, found: Threshold) -> None:
        self._rule = found
        self.network.accept(found)

    def threshold(self, risk: float = files.RISK, confidence: float = 0.95) -> Threshold:
        """Choose the confidence from which on predictions are accepted, by the validation
        predictions.

        Args:
            risk: The largest share of accepted predictions that may be wrong.
            confidence: The chance with which this has to hold for new samples of the same kind.

        Returns:
            The threshold with what was seen above it; where no threshold can promise the risk,
            nothing is accepted.
        """
        trained = self.trained
        self.rule = files.rule_for(
            trained.calibrator, trained.logits, trained.labels, risk=risk, confidence=confidence
        )
        return self.rule

    @property
    def set_rule(self) -> Sets | None:
        """Which classes are in a set; ``print`` says it in words. None until :meth:`sets` chose."""
        return self.network.sets

    @set_rule.setter
    def set_rule(self, found: Sets | None) -> None:
        if found is not None and found.num_classes != len(self.classes):
            raise ValueError(
                f"these sets are of {found.num_classes} classes, and the model has {len(self.classes)}"
            )
        self.network.hold(found)

    def sets(
        self,
        coverage: float = 0.9,
        *,
        method: str = "lac",
        per_class: bool = False,
        penalty: float | None = None,
        rank: int | None = None,
    ) -> Sets:
        """Answer with a set of classes for each input too, chosen by the validation predictions.

        Args:
            coverage: How often the right class has to be in the set, for new samples of the same
                kind.
            method: ``"lac"``, ``"aps"`` or ``"raps"``, as for :class:`macc.posthoc.Sets`.
            per_class: Promise the coverage for each class.
            penalty: Of ``raps``, with ``rank``.
            rank: Of ``raps``.

        Returns:
            The sets, which are not randomised: a model answers the same whenever it is asked.
        """
        found = files.sets_for(
            self.trained, coverage=coverage, method=method, per_class=per_class, penalty=penalty, rank=rank
        )
        self.set_rule = found
        return found

    def to(self, device: torch.device | str) -> Self:
        """Compute on another device from now on."""
        self.network.to(device)
        self.device = torch.device(device)
        return self

    def __call__(self, inputs: Any, *, batch_size: int | None = None) -> Prediction:
        """Predict.

        Args:
            inputs: What the data set had: images ``(N, C, H, W)``, ``(N, H, W, C)`` or grey
                ``(N, H, W)``, uint8 or floats in ``[0, 1]``, or a list of image files of any size;
                features ``(N, D)``; token ids ``(N, L)`` or, where the words are known, a list of
                texts.
            batch_size: Samples that are computed at once; the recipe's ``eval_batch_size`` if not
                given.

        Returns:
            Labels, confidence, probabilities, certainty, whether each is accepted and the sets, on
            the model's device.
        """
        rows = self._rows(inputs)
        size = self.trained.recipe.eval_batch_size if batch_size is None else batch_size
        if size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {size}")
        if len(rows) <= size:
            return self._said(self._batch(rows))
        found = [self._batch(rows[start : start + size]) for start in range(0, len(rows), size)]
        joined = [None if parts[0] is None else torch.cat(parts) for parts in zip(*found, strict=True)]
        return self._said(Answers(*joined))  # type: ignore[arg-type]

    def evaluate(
        self, inputs: Any, labels: Sequence[str] | Sequence[int] | Tensor, *, resamples: int = 1000
    ) -> Report:
        """How well it does on labelled samples: every metric with its interval.

        Args:
            inputs: As for a prediction.
            labels: Names of classes, or their indices.
            resamples: Behind the intervals.
        """
        named = not isinstance(labels, Tensor) and any(isinstance(label, str) for label in labels)
        indices = [_index(label, self.classes) for label in labels] if named else labels
        return evaluate(self(inputs).probs.cpu(), indices, resamples=resamples)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the model, its threshold and its sets as one file for :func:`macc.load`."""
        return files.ship(self.shipped(), path)

    def shipped(self) -> Trained:
        """The model with its present threshold and sets."""
        return replace(self.trained, rule=self.rule, sets=self.set_rule)

    def __repr__(self) -> str:
        return (
            f"Predictor({self.trained.recipe.model} on {self._expected()}, {type(self.calibrator).__name__})"
        )

    def _said(self, answers: Answers) -> Prediction:
        labels, confidence, probs, certainty, accepted, in_set = answers
        return Prediction(labels, confidence, probs, certainty, accepted, self.classes, in_set)

    def _batch(self, rows: Tensor) -> Answers:
        # No parameter has a gradient; where the inputs have none either, torch keeps nothing.
        rows = rows.detach().to(self.device, non_blocking=True)
        if rows.ndim == 4:
            rows = rows.contiguous(memory_format=torch.channels_last)
        return self.network(rows)  # type: ignore[no-any-return]

    def _rows(self, inputs: Any) -> Tensor:
        """Inputs as one tensor of the form that the data set had, or an error saying which."""
        if not isinstance(inputs, Tensor):
            inputs = self._tensor(inputs)
        if self.inputs.kind == "image":
            return self._images(inputs)
        return self._tokens(inputs) if self.inputs.kind == "tokens" else self._features(inputs)

    def _tensor(self, inputs: Any) -> Tensor:
        """Anything else than a tensor as one."""
        if isinstance(inputs, str | PathLike):
            inputs = [inputs]
        if isinstance(inputs, list | tuple) and inputs and _is_one_thing(inputs[0]):
            return self._read(inputs)
        try:
            array = np.asarray(inputs)
            # torch warns of memory that it may not write to.
            return torch.as_tensor(array if array.flags.writeable else array.copy())
        except (TypeError, ValueError):
            raise self._refusal(f"a {type(inputs).__name__}") from None

    def _read(self, things: Sequence[Any]) -> Tensor:
        """Texts or image files as what stands for them in the data set."""
        if self._tokeniser is not None and isinstance(things[0], str):
            return self._tokeniser(things)
        if self.inputs.kind != "image":
            raise self._refusal(f"a list of {type(things[0]).__name__}")
        return read_images(things, self.inputs.shape, resizing=self.inputs.resizing)

    def _images(self, images: Tensor) -> Tensor:
        wanted, given = self.inputs.shape, tuple(images.shape[1:])
        if given == wanted[1:] and wanted[0] == 1:
            images = images[:, None]
        elif given == (*wanted[1:], wanted[0]) and given != wanted:
            images = images.permute(0, 3, 1, 2)
        elif given != wanted:
            raise self._refusal(_form(images))
        if images.dtype == torch.uint8:
            return images
        if not images.is_floating_point():
            raise self._refusal(_form(images))
        if images.device.type == "cpu" and images.numel():
            low, high = (float(end) for end in images.aminmax())
            if not (low >= 0 and high <= 1):
                raise self._refusal(f"floats from {low:g} to {high:g}")
        return images

    def _tokens(self, tokens: Tensor) -> Tensor:
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise self._refusal(_form(tokens))
        if tokens.device.type == "cpu" and tokens.numel():
            low, high = (int(end) for end in tokens.aminmax())
            if low < 0 or high >= (self.inputs.vocabulary or high + 1):
                raise self._refusal(f"ids from {low} to {high}")
        return tokens

    def _features(self, features: Tensor) -> Tensor:
        if (
            tuple(features.shape[1:]) != self.inputs.shape
            or features.dtype == torch.bool
            or features.is_complex()
        ):
            raise self._refusal(_form(features))
        return features

    def _refusal(self, got: str) -> ValueError:
        return ValueError(f"this model was trained on {self._expected()}, got {got}")

    def _expected(self) -> str:
        """What the model takes, in words."""
        inputs = self.inputs
        sides = ", ".join(map(str, inputs.shape))
        if inputs.kind == "image":
            return (
                f"{inputs.dataset}: images (N, {sides}), uint8 or floats in [0, 1], or a list of image files"
            )
        if inputs.kind == "features":
            return f"{inputs.dataset}: features (N, {sides})"
        texts = "" if self._tokeniser is None else ", or a list of texts"
        return f"{inputs.dataset}: token ids (N, L) from 0 to {(inputs.vocabulary or 0) - 1}{texts}"


def load(path: str | PathLike[str], *, model: nn.Module | None = None) -> Predictor:
    """A trained model, ready to be used.

    Nothing in the file or folder is executed: weights are safetensors, everything else is JSON and
    YAML.

    Args:
        path: A finished run folder, or a file that :meth:`Predictor.save` or ``macc export`` wrote.
        model: The module of a run that was trained on a module of your own; changed in place.

    Returns:
        The predictor, on the CPU. It accepts predictions that are wrong in at most 5 % of cases,
        unless the file says otherwise; :meth:`Predictor.threshold` changes that.

    Example:
        >>> import tempfile, macc
        >>> from macc import data, training
        >>> recipe = training.load("digits", scale="smoke", loss="CrossEntropy", overrides=["epochs=2"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = training.fit(recipe, out=folder)
        ...     predictor = macc.load(run.path)
        >>> prediction = predictor(data.load("digits").test.inputs[:3])
        >>> prediction.probs.shape, len(prediction.names)
        (torch.Size([3, 10]), 3)
        >>> predictor(data.load("synthetic").test.inputs)
        Traceback (most recent call last):
        ValueError: this model was trained on digits: images (N, 1, 8, 8), uint8 or floats in [0, 1], ...
    """
    return Predictor(files.read(path), model)


def _lay_out(network: nn.Module) -> None:
    """Weights lie as is fastest; a ReLU overwrites what a linear layer gave."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in list(network.modules()):
        if type(module) is nn.Linear:
            module.weight.data = module.weight.data.mT.contiguous().mT
        if type(module) is nn.Sequential:
            for index, (layer, after) in enumerate(pairwise(module), start=1):
                if type(layer) is nn.Linear and type(after) is nn.ReLU and not layer._forward_hooks:
                    module[index] = nn.ReLU(inplace=True)


def _is_one_thing(value: object) -> bool:
    """Whether something is one input by itself: a text, the path of a file, an open image."""
    return isinstance(value, str | PathLike) or hasattr(value, "convert")


def _index(name: object, classes: tuple[str, ...]) -> int:
    if name not in classes:
        raise ValueError(f"there is no class {shown(name)}; there are {listed(classes)}")
    return classes.index(str(name))


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"

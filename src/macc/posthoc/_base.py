"""What every calibrator is: fitted, frozen, logits in, probabilities out, JSON on disk."""

import json
import math
import types
import typing
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from macc.io.json import read_json
from macc.io.writing import write_whole
from macc.metrics.inputs import Array, counted, like, predictions, score_rows
from macc.metrics.temperature import blocks, float64_copy
from macc.tables import Table, html_of
from macc.words import documented, shown

Floats: TypeAlias = npt.NDArray[np.float64]

# A matrix of 1 000 classes takes 20 MB.
_LARGEST_FILE = 2**28
# Times any logit, this is still far from overflow.
_LARGEST_NUMBER = 1e12
_FORMAT = 1
OBJECTIVES = ("nll", "brier")
# Mean change of the losses, in nats, below which a fit is no other one.
_NO_CHANGE = 1e-3


def parameter(*shape: int | str, fitted: bool = True) -> Any:
    """A dataclass field that holds a float64 array of this shape; "K" is the number of classes, "*"
    anything.

    ``fitted=False`` says that it is no free parameter of the fit; without a shape it is a number.
    """
    return field(metadata={"fitted": fitted} | ({"shape": shape} if shape else {}))


@dataclass(frozen=True, eq=False)
class Calibrator(ABC):
    """A fitted map from logits to probabilities; see the methods of :mod:`macc.posthoc`.

    It is a function and no ``nn.Module``: in an ``nn.Sequential`` use :meth:`module`. ``notes``
    says what was unusual about the fit, a sentence each.
    """

    num_classes: int
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    keeps_argmax: ClassVar[bool] = False
    """Whether the predicted class, the first of the largest, is the same before and after."""
    holds_identity: ClassVar[bool] = False
    """Whether some choice of parameters leaves the model's probabilities as they are."""
    two_classes: ClassVar[bool] = False
    """Whether it is for two classes only."""

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _checked(type(self).__name__, item, self))
        self._check()

    @documented
    def _repr_html_(self) -> str:
        rows = [
            [item.name, _brief(getattr(self, item.name))]
            for item in fields(self)
            if item.name not in ("notes", "num_classes")
        ]
        heading = f"{type(self).__name__}, {self.num_classes} classes"
        return html_of(heading, *([Table.of(["", "value"], rows)] if rows else []), *self.notes)

    def __call__(self, logits: Array) -> Any:
        """Calibrated probabilities.

        Returns:
            Probabilities of the same shape, kind and precision (float32 where half was given), a
            vector holding those of class 1.
        """
        return self._apply(logits)

    def module(self, *, double: bool = True) -> nn.Module:
        """The calibrator as a layer that ends a network; see
        :class:`macc.posthoc.CalibratorModule`.

        Args:
            double: Compute in double precision, as a call of the calibrator does.

        Example:
            >>> import torch
            >>> from torch import nn
            >>> from macc import posthoc
            >>> fitted = posthoc.Temperature(3, 2.0)
            >>> model = nn.Sequential(nn.Linear(8, 3), fitted.module())
            >>> torch.allclose(model(torch.zeros(2, 8)).sum(1), torch.ones(2))
            True
        """
        from macc.posthoc._module import CalibratorModule

        return CalibratorModule(self, double=double)

    @property
    def num_parameters(self) -> int:
        """How many numbers the fit has found, which says how simple the calibrator is."""
        values = (getattr(self, item.name) for item in fields(self) if item.metadata.get("fitted", True))
        return sum(int(np.size(value)) for value in values if isinstance(value, float | np.ndarray))

    def save(self, path: Path | str, *, classes: Sequence[str] | None = None) -> None:
        """Write the calibrator as JSON, whole or not at all; :func:`load` reads it.

        Args:
            path: The file.
            classes: Names of the classes in the order of the fit, for ``macc apply`` to compare.
        """
        names = {} if classes is None else {"classes": list(classes)}
        text = json.dumps({**self.to_dict(), **names}, allow_nan=False)
        with write_whole(Path(path)) as file:
            file.write(text.encode() + b"\n")

    def to_dict(self) -> dict[str, Any]:
        """The calibrator as what JSON can hold."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}
        for name, value in values.items():
            if isinstance(value, tuple) and any(isinstance(each, Calibrator) for each in value):
                plain[name] = [each.to_dict() for each in value]
        return {"macc_calibrator": _FORMAT, "method": type(self).__name__, **plain}

    @abstractmethod
    def _log_probs(self, logits: Tensor, *more: Tensor) -> Tensor:
        """Log-probabilities of some rows, float64 ``(N, K)`` in and out; may overwrite them."""

    def _check(self) -> None:  # noqa: B027
        """Refuse values of the fields that cannot come from a fit; by default nothing more."""

    def _rows(self, logits: Array) -> Tensor:
        """Logits ``(N, K)``, refused where they do not fit or are no numbers (:func:`visible`)."""
        return self._visible(logits)[0]

    def _visible(self, logits: Array) -> tuple[Tensor, Tensor | None]:
        rows = score_rows(logits, from_logits=True)
        if rows.shape[1] != self.num_classes:
            raise ValueError(
                f"logits has {rows.shape[1]} classes, and this {type(self).__name__} was fitted to {self.num_classes}"
            )
        return visible(rows)

    def _apply(self, logits: Array, *more: Tensor) -> Any:
        """Map rows a block at a time; ``more`` holds tensors ``(N, …)`` beside the rows."""
        rows, hidden = self._visible(logits)
        single = torch.float64 if rows.dtype == torch.float64 else torch.float32
        result = torch.empty(rows.shape, dtype=single, device=rows.device)
        for part in blocks(rows):
            done = result[part]
            done.copy_(self._log_probs(rows[part].double(), *(each[part] for each in more)).exp_())
            if hidden is not None:
                done.masked_fill_(hidden[part], 0.0)
                done /= done.sum(1, keepdim=True)
            if self.keeps_argmax:
                keep_argmax(rows[part], done)
        vector = (logits.ndim if isinstance(logits, Tensor) else np.ndim(logits)) == 1
        return like(result[:, 1] if vector else result, logits)


Fitted = TypeVar("Fitted", bound=Calibrator)


@dataclass(frozen=True)
class Sample:
    """Checked logits ``(N, K)`` and labels ``(N,)`` to fit to, and tensors beside the rows."""

    logits: Tensor
    labels: Tensor
    more: tuple[Tensor, ...] = ()
    weights: Tensor | None = None

    @property
    def num_samples(self) -> int:
        return len(self.logits)

    @property
    def size(self) -> float:
        """The number of samples; of those with weights the effective one, which is their sum."""
        return self.num_samples if self.weights is None else float(self.weights.sum())

    @property
    def num_classes(self) -> int:
        return self.logits.shape[1]

    @property
    def counts(self) -> Tensor:
        """How many samples each class has, ``(K,)``."""
        return torch.bincount(self.labels, minlength=self.num_classes)

    @property
    def absent(self) -> list[int]:
        """The classes without samples."""
        return [int(j) for j in (self.counts == 0).nonzero()[:, 0]]

    @property
    def present(self) -> list[int]:
        """The classes with samples."""
        return [int(j) for j in self.counts.nonzero()[:, 0]]

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of logits, as float64 copies that may be overwritten, and their labels."""
        for part in blocks(self.logits):
            yield float64_copy(self.logits[part]), self.labels[part]

    def map(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """What a function gives for each block of rows, all in one tensor on the CPU."""
        return torch.cat([function(rows).cpu() for rows, _ in self.blocks()])

    def nll(self, calibrator: Calibrator | None = None) -> float:
        """Mean negative log-likelihood of the labels, of the model itself or after a calibrator."""
        return self.mean(self.losses(calibrator))

    def mean(self, values: Tensor) -> float:
        """The mean of a number of each sample, ``(N,)``, by the weights if there are any."""
        if self.weights is None:
            return float(values.mean())
        return float(values @ self.weights / self.weights.sum())

    def brier(self, calibrator: Calibrator | None = None) -> float:
        """Mean Brier score (summed over classes), of the model itself or after a calibrator."""
        parts = []
        for log_probs, labels in self._log_probs(calibrator):
            own = log_probs.gather(1, labels[:, None])[:, 0].exp_()
            parts.append(log_probs.exp_().square().sum(1) - 2 * own + 1)
        return self.mean(torch.cat(parts))

    def losses(self, calibrator: Calibrator | None = None, *, among: Sequence[int] | None = None) -> Tensor:
        """Negative log-likelihood of each label, ``(N,)``, or of it among some classes."""
        parts = []
        for log_probs, labels in self._log_probs(calibrator):
            losses = -log_probs.gather(1, labels[:, None])[:, 0]
            parts.append(losses if among is None else losses + log_probs[:, among].logsumexp(1))
        return torch.cat(parts)

    def _log_probs(self, calibrator: Calibrator | None) -> Iterator[tuple[Tensor, Tensor]]:
        for (rows, labels), part in zip(self.blocks(), blocks(self.logits), strict=True):
            more = (each[part] for each in self.more)
            yield rows.log_softmax(1) if calibrator is None else calibrator._log_probs(rows, *more), labels


def sample(logits: Array, labels: Array, weights: Array | None = None) -> Sample:
    """Check what a calibrator is fitted to; whole weights repeat samples, others stay weights."""
    given = predictions(logits, labels, from_logits=True)
    scores, hidden = visible(given.scores)
    if hidden is not None:
        lost = hidden.gather(1, given.labels[:, None])[:, 0].nonzero()
        if len(lost):
            row = int(lost[0])
            raise ValueError(
                f"logits[{row}, {int(given.labels[row])}] is -inf and the label of the sample; "
                "remove the sample or repair what masked its class"
            )
    counts = counted(weights, given.num_samples)
    if counts is None:
        return Sample(scores, given.labels)
    each = None if counts.weights is None else counts.weights.to(scores.device)
    return Sample(counts.of(scores), counts.of(given.labels), weights=each)


def whole_only(what: str, weights: Tensor | None) -> None:
    """Refuse relative weights where a promise is for samples that count alike."""
    if weights is not None:
        raise ValueError(
            f"{what} takes whole weights only, which are repeated samples: what it promises is for samples that count "
            "alike"
        )


def visible(logits: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits without infinities, and where classes were masked by ``-inf``, if any were.

    A masked class gets probability 0. Until then it counts as far below the least logit of its row
    as that is below the largest, so that it neither has weight nor spoils a map of all logits.
    """
    low, high = logits.aminmax()
    if math.isfinite(low) and math.isfinite(high):
        return logits, None
    hidden = logits.isneginf()
    wrong = ~(logits.isfinite() | hidden) | hidden.all(1, keepdim=True)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"logits[{row}, {column}] is {logits[row, column].item()}; remove the sample or repair what wrote it"
        )
    least = logits.masked_fill(hidden, torch.inf).amin(1, keepdim=True)
    return torch.where(hidden, 2 * least - logits.amax(1, keepdim=True), logits), hidden


def check_objective(objective: str) -> None:
    """Refuse what is no objective of a fit."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be {' or '.join(map(repr, OBJECTIVES))}, got {objective!r}")


def accept(
    fitted: Fitted, data: Sample, *, objective: str = "nll", around: Calibrator | None = None
) -> Fitted:
    """Give a fit back with its notes as warnings, or refuse it where doing nothing would be better.

    Args:
        fitted: The fit.
        data: What it was fitted to.
        objective: What was minimised.
        around: The simpler calibrator around which it was fitted; where the fit ends there, a note
            says so.
    """
    found = ""
    if fitted.holds_identity:
        plain, own = data.losses(), data.losses(fitted)
        before, after = data.mean(plain), data.mean(own)
        if objective == "brier":
            before, after = data.brier(), data.brier(fitted)
        # Sums of many terms differ in their last digits.
        if after > before + 1e-9 * (1 + abs(before)):
            name = "NLL" if objective == "nll" else "Brier score"
            raise ValueError(
                f"{type(fitted).__name__} makes its own validation data worse ({name} {before:.6g} before, "
                f"{after:.6g} after) and is refused; use Temperature, or more validation samples"
            )
        if data.mean((own - plain).abs()) < _NO_CHANGE:
            found = "the fit leaves the probabilities as they are: the samples ask for no change"
        elif around is not None and data.mean((own - data.losses(around)).abs()) < _NO_CHANGE:
            found = f"the fit ends at the one of {type(around).__name__}: the samples ask for no more"
    for note in fitted.notes:
        warnings.warn(f"{type(fitted).__name__}: {note}", stacklevel=3)
    # That nothing had to be done is worth a note and no warning.
    return replace(fitted, notes=(*fitted.notes, found)) if found else fitted


def load(path: Path | str) -> Calibrator:
    """Read a calibrator that :meth:`Calibrator.save` wrote; nothing in the file can run code.

    Args:
        path: The JSON file.

    Returns:
        The calibrator, equal to the one saved to the last digit.

    Example:
        >>> from macc import posthoc
        >>> fitted = posthoc.Temperature.fit([[4.0, 0.0], [0.0, 5.0], [3.0, 0.0]], [0, 1, 1])
        >>> folder = getfixture("tmp_path")
        >>> fitted.save(folder / "calibrator.json")
        >>> posthoc.load(folder / "calibrator.json").temperature == fitted.temperature
        True
    """
    return load_with_classes(path)[0]


def load_with_classes(path: Path | str) -> tuple[Calibrator, list[str] | None]:
    """The calibrator of a file, and the names of its classes where the file has them."""
    content = read_json(Path(path), "a calibrator", largest=_LARGEST_FILE)
    try:
        calibrator = from_dict(content)
        classes = content.get("classes")
        if classes is not None and not are_names(classes, calibrator.num_classes):
            raise ValueError(f"'classes' must name its {calibrator.num_classes} classes")
    except ValueError as error:
        raise ValueError(f"{path} is not a calibrator: {error}") from None
    return calibrator, classes


def are_names(classes: Any, num_classes: int) -> bool:
    """Whether a value of a file is a list of so many names."""
    return (
        isinstance(classes, list)
        and len(classes) == num_classes
        and all(isinstance(name, str) for name in classes)
    )


def from_dict(content: Any) -> Calibrator:
    """The calibrator that :meth:`Calibrator.to_dict` described."""
    if isinstance(content, dict) and "macc_grouped" in content:
        raise ValueError("it is of groups, which posthoc.Grouped.load and macc apply --by read")
    if not isinstance(content, dict) or content.get("macc_calibrator") != _FORMAT:
        raise ValueError(f"it does not say 'macc_calibrator': {_FORMAT}")
    known = methods()
    name = content.get("method")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"no method is called {_short(name)}; there are {', '.join(known)}")
    names = {item.name for item in fields(known[name])}
    given = set(content) - {"macc_calibrator", "method", "classes"}
    if given - names:
        raise ValueError(f"{name} has no field {_short(min(given - names))}")
    if names - given:
        raise ValueError(f"{name} lacks the field {min(names - given)!r}")
    return known[name](**{key: content[key] for key in names})


def methods() -> dict[str, type[Calibrator]]:
    """Every calibrator of the namespace by its name."""
    from macc import posthoc

    return {
        name: value
        for name, value in vars(posthoc).items()
        if isinstance(value, type) and issubclass(value, Calibrator) and value is not Calibrator
    }


def _checked(owner: str, item: Field[Any], values: object) -> Any:
    """The value of a field in the type it is declared to have, or an error that names it."""
    value, name = getattr(values, item.name), f"{owner}.{item.name}"
    if "shape" in item.metadata:
        return _array(name, value, item.metadata["shape"], vars(values))
    wanted = item.type
    optional = isinstance(wanted, types.UnionType)
    if optional:
        if value is None:
            return None
        wanted = next(each for each in typing.get_args(wanted) if each is not type(None))
    if wanted is float and isinstance(value, float | int) and not isinstance(value, bool):
        if abs(value) <= _LARGEST_NUMBER:
            return float(value)
        raise ValueError(f"{name} must be a finite number, and not a huge one")
    if wanted is int and isinstance(value, int) and not isinstance(value, bool):
        if item.name == "num_classes" and not 2 <= value <= 10**7:
            raise ValueError(f"{name} must lie between 2 and 10 million, got {_short(value)}")
        return value
    if wanted in (bool, str) and isinstance(value, typing.cast("type", wanted)):
        return value
    texts = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if wanted == tuple[str, ...] and texts:
        return tuple(value)
    nested = isinstance(value, list | tuple) and any(
        isinstance(each, dict) and each.get("method") == owner for each in value
    )
    if wanted == tuple[Calibrator, ...] and isinstance(value, list | tuple) and not nested:
        return tuple(each if isinstance(each, Calibrator) else from_dict(each) for each in value)
    raise ValueError(f"{name} cannot be {_short(value)}")


def _array(name: str, value: Any, shape: tuple[int | str, ...], values: Mapping[str, Any]) -> Floats:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} must be a rectangular array of numbers") from None
    if array.dtype.kind not in "iuf":
        # An empty list says nothing of its type; booleans and texts are not numbers.
        raise ValueError(f"{name} must be an array of numbers")
    array = np.array(array, dtype=np.float64)
    expected = tuple(values["num_classes"] if side == "K" else side for side in shape)
    if array.ndim != len(expected) or any(
        side not in ("*", size) for side, size in zip(expected, array.shape, strict=True)
    ):
        raise ValueError(f"{name} must have shape {expected}, got {array.shape}".replace("'", ""))
    if not (np.abs(array) <= _LARGEST_NUMBER).all():
        raise ValueError(f"{name} must hold finite numbers, and no huge ones")
    array.flags.writeable = False
    return array


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def keep_argmax(logits: Tensor, probs: Tensor) -> None:
    """Make the class of the largest logit the most probable one, where rounding hid it."""
    before, after = logits.argmax(1, keepdim=True), probs.argmax(1, keepdim=True)
    rows = (before != after).nonzero()[:, 0]
    if len(rows):
        top = probs[rows].gather(1, after[rows])
        probs[rows] = probs[rows].scatter(1, before[rows], torch.nextafter(top, torch.ones_like(top)))


def _brief(value: Any) -> str:
    """A parameter in a few characters: a number, how many numbers, or names of calibrators."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple) and value and all(isinstance(each, Calibrator) for each in value):
        return " and ".join(type(each).__name__ for each in value)
    shape = () if isinstance(value, str | Mapping) else np.shape(value)
    return f"{' × '.join(map(str, shape))} numbers" if shape else shown(value, 60)

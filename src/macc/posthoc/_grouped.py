"""A calibrator for groups: one common map, and own ones for those groups for which they pay."""

import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.io.json import read_json
from macc.io.writing import write_whole
from macc.metrics.folds import dealt
from macc.metrics.groups import SMALL
from macc.metrics.inputs import Array, counted, like, score_rows
from macc.posthoc._base import (
    Calibrator,
    Floats,
    Sample,
    are_names,
    from_dict,
    keep_argmax,
    sample,
    whole_only,
)
from macc.posthoc._best import Candidate, named
from macc.posthoc._optimise import minimise
from macc.tables import Displayed, Table, thousands
from macc.words import documented, listed, quoted, shown

_FORMAT = 1
_LARGEST_FILE = 2**28
# How many standard errors a group has to gain. With one, a quarter of the fits to groups that were
# alike gave some group a map of its own, by chance.
_ERRORS = 2
# What half a squared distance from the common map costs against a sum of losses: about as many
# samples.
_PENALTIES = (1.0, 8.0, 64.0, 512.0)
_LEAST_LOG = math.log(1e-300)
_LEAST_SLOPE = 1e-3


@dataclass(frozen=True)
class GroupScore:
    """What cross-validation showed of one group."""

    name: str
    samples: int
    gain: float
    """How much less NLL its own map had on held-out samples than the common one, on average."""
    error: float
    """Standard error of the gain, over samples."""
    own: bool
    """Whether it has a map of its own."""

    @property
    def small(self) -> bool:
        """Whether it has too few samples for a map of its own."""
        return self.samples < SMALL


@dataclass(frozen=True, eq=False, repr=False)
class Grouped(Displayed):
    r"""A calibrator that knows the group of each sample: a common map, and own ones where they
    pay.

    The common map is any calibrator, fitted to all samples. The map of a group g begins with its
    result q:

    .. math:: \operatorname{softmax}(a_g \log q + b_g), \qquad
        a_g, b_g = \arg\min -\sum_{i \in g} \log p_{i y_i}
        + \frac\lambda2 \bigl( (a_g - 1)^2 + \lVert b_g \rVert^2 \bigr)

    The penalty λ shrinks it towards the common map. Cross-validation chooses one λ for all groups,
    and gives a group its own map only where that has a lower NLL on held-out samples, by more than
    two standard errors. Small groups and those that the fit has not seen get the common map. Where
    the common map keeps the predicted class, b is 0, and the own maps keep it too.

    Args:
        common: The common map.
        slopes: The factor a of each group with an own map.
        offsets: Its offsets b, ``(K,)`` each.
        penalty: The penalty λ.
        scores: What cross-validation showed of each group.

    Example:
        >>> import numpy as np
        >>> from macc import posthoc
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.normal(size=(4000, 3))
        >>> site = rng.choice(["north", "south"], 4000)
        >>> noise = rng.gumbel(size=logits.shape) * np.where(site == "south", 3, 1)[:, None]
        >>> fitted = posthoc.Grouped.fit(logits, (logits + noise).argmax(1), site)
        >>> sorted(fitted.slopes)
        ['north', 'south']
        >>> fitted(logits[:2], ["north", "south"]).shape
        (2, 3)
    """

    common: Calibrator
    slopes: dict[str, float]
    offsets: dict[str, Floats]
    penalty: float
    scores: tuple[GroupScore, ...]

    def __post_init__(self) -> None:
        if set(self.slopes) != set(self.offsets):
            raise ValueError("slopes and offsets must be of the same groups")
        for name, slope in self.slopes.items():
            if not (isinstance(slope, float | int) and 0 < slope <= sys.float_info.max):
                raise ValueError(f"the slope of {quoted(name)} must be a number above 0, got {shown(slope)}")
            offset = np.asarray(self.offsets[name])
            if (
                offset.shape != (self.num_classes,)
                or offset.dtype.kind not in "iuf"
                or not np.isfinite(offset).all()
            ):
                raise ValueError(f"the offsets of {quoted(name)} must be {self.num_classes} finite numbers")

    @classmethod
    @documented
    def fit(
        cls,
        logits: Array,
        labels: Array,
        groups: Sequence[Any] | npt.NDArray[Any],
        *,
        method: Candidate = "temperature",
        folds: int = 5,
        seed: int = 0,
        weights: Array | None = None,
    ) -> "Grouped":
        """Fit the common map, and own maps of the groups for which they pay.

        Args:
            method: The common map: a name, a calibrator, or a function of logits and labels.
            folds: Number of folds of the cross-validation, at least 2.
            seed: Of the folds.

        Returns:
            The fitted calibrator; ``print`` shows what cross-validation said of each group.
        """
        data = sample(logits, labels, weights)
        whole_only("Grouped", data.weights)
        names, which = _indices(groups, len(labels))
        repeated = counted(weights)
        which = which if repeated is None else repeated.of(which)
        if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
            raise ValueError(f"folds must be an integer of at least 2, got {folds!r}")
        _, fit = named(method)
        common = fit(data.logits, data.labels)
        counts = np.bincount(which, minlength=len(names))
        large = [index for index, count in enumerate(counts) if count >= SMALL]
        gains = _held_out_gains(data, which, large, fit, dealt(data.labels, folds, seed))
        total = [float(sum(gain[which == index].sum() for index in large)) for gain in gains]
        chosen = int(np.argmax(total))
        scores, slopes, offsets = [], {}, {}
        for index, name in enumerate(names):
            gain, error = 0.0, 0.0
            if index in large:
                own = gains[chosen][which == index]
                gain, error = float(own.mean()), float(own.std(ddof=1) / math.sqrt(len(own)))
            pays = gain > _ERRORS * error
            scores.append(GroupScore(name, int(counts[index]), gain, error, pays))
            if pays:
                there = _part(data, which == index)
                slopes[name], offsets[name] = _own_map(
                    _logs(there, common), there.labels, _PENALTIES[chosen], offsets=not common.keeps_argmax
                )
        return cls(common, slopes, offsets, _PENALTIES[chosen], tuple(scores))

    @property
    def num_classes(self) -> int:
        """Of the common map."""
        return self.common.num_classes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was unusual about the fit, a sentence each."""
        small = [score.name for score in self.scores if score.small]
        if not small:
            return self.common.notes
        return (
            *self.common.notes,
            f"few samples (below {SMALL}), so that the common map is used: {listed(small)}",
        )

    @documented
    def __call__(self, logits: Array, groups: Sequence[Any] | npt.NDArray[Any]) -> Any:
        """Calibrated probabilities; a warning names groups that the fit has not seen, which get the
        common map.

        Returns:
            Probabilities of the same shape, kind and precision.
        """
        self.warn_of_unknown(groups)
        return self.mapped(logits, groups)

    def warn_of_unknown(self, groups: Sequence[Any] | npt.NDArray[Any]) -> None:
        """Say which groups the fit has not seen."""
        known = {score.name for score in self.scores}
        unknown = [name for name in sorted({str(group) for group in groups}) if name not in known]
        if unknown:
            warnings.warn(
                f"the fit has not seen the group{'s' * (len(unknown) > 1)} {listed(unknown)}; the common map is used",
                stacklevel=3,
            )

    def mapped(self, logits: Array, groups: Sequence[Any] | npt.NDArray[Any]) -> Any:
        """What a call gives, without a word about unknown groups."""
        rows = score_rows(logits, from_logits=True)
        names, which = _indices(groups, len(rows))
        probs = self.common(rows)
        for index, name in enumerate(names):
            if name in self.slopes:
                at = torch.from_numpy(np.flatnonzero(which == index)).to(probs.device)
                own = _moved(
                    self.common(rows[at].double()).log(), self.slopes[name], self.offsets[name]
                ).exp()
                own = own.to(probs.dtype)
                if self.common.keeps_argmax:
                    keep_argmax(rows[at], own)
                probs[at] = own
        vector = (logits.ndim if isinstance(logits, Tensor) else np.ndim(logits)) == 1
        return like(probs[:, 1] if vector else probs, logits)

    def save(self, path: Path | str, *, classes: Sequence[str] | None = None) -> None:
        """Write the calibrator as JSON, whole or not at all; :meth:`load` reads it.

        Args:
            path: The file.
            classes: Names of the classes in the order of the fit, for ``macc apply`` to compare.
        """
        names = {} if classes is None else {"classes": list(classes)}
        with write_whole(Path(path)) as file:
            file.write(json.dumps({**self.to_dict(), **names}, allow_nan=False).encode() + b"\n")

    @classmethod
    def load(cls, path: Path | str) -> "Grouped":
        """Read what :meth:`save` wrote; nothing in the file can run code."""
        return load_grouped(path)[0]

    def to_dict(self) -> dict[str, Any]:
        """The calibrator as what JSON can hold."""
        return {
            "macc_grouped": _FORMAT,
            "common": self.common.to_dict(),
            "slopes": self.slopes,
            "offsets": {name: np.asarray(offset).tolist() for name, offset in self.offsets.items()},
            "penalty": self.penalty,
            "scores": [asdict(score) for score in self.scores],
        }

    def _parts(self) -> list[Table | str]:
        rows = []
        for score in self.scores:
            gain = "–" if score.small else f"{score.gain:+.4f} ± {score.error:.4f}"
            kept = "common: few samples" if score.small else "own" if score.own else "common"
            rows.append([score.name, thousands(score.samples), gain, kept])
        table = Table.of(["group", "samples", "gain in NLL, held out", "map"], rows)
        own = sum(score.own for score in self.scores)
        if own:
            said = f"{own} of {len(self.scores)} groups have a map of their own."
            if any(not score.own and not score.small for score in self.scores):
                said += " It does not pay for others: they gain less than two standard errors."
        else:
            said = (
                "No group gains more than two standard errors by a map of its own: all have the common one."
            )
        return [table, said]

    __repr__ = Displayed.__str__


def load_grouped(path: Path | str) -> tuple[Grouped, list[str] | None]:
    """The calibrator of groups of a file, and the names of the classes where the file has them."""
    content = read_json(Path(path), "a calibrator of groups", largest=_LARGEST_FILE)
    try:
        if not isinstance(content, dict) or content.get("macc_grouped") != _FORMAT:
            raise ValueError(f"it does not say 'macc_grouped': {_FORMAT}")
        wanted = {"common": dict, "slopes": dict, "offsets": dict, "penalty": float, "scores": list}
        for name, kind in wanted.items():
            if not isinstance(content.get(name), kind):
                raise ValueError(f"it lacks {name!r}, or that is of another kind")
        try:
            scores = tuple(map(_score, content["scores"]))
            known = [score.name for score in scores if score.own]
            found = Grouped(
                from_dict(content["common"]),
                content["slopes"],
                {name: np.asarray(offset) for name, offset in content["offsets"].items()},
                content["penalty"],
                scores,
            )
        except TypeError as error:
            raise ValueError(shown(error)) from None
        if set(known) != set(found.slopes):
            raise ValueError("'scores' and 'slopes' disagree on which groups have a map of their own")
        classes = content.get("classes")
        if classes is not None and not are_names(classes, found.num_classes):
            raise ValueError(f"'classes' must name its {found.num_classes} classes")
    except ValueError as error:
        raise ValueError(f"{shown(path)} is not a calibrator of groups: {error}") from None
    return found, classes


def _score(content: Any) -> GroupScore:
    kinds = {"name": str, "samples": int, "gain": float | int, "error": float | int, "own": bool}
    if (
        not isinstance(content, dict)
        or set(content) != set(kinds)
        or not all(isinstance(content[name], kind) for name, kind in kinds.items())
    ):
        raise ValueError(f"each of its 'scores' must hold {listed(list(kinds))}")
    return GroupScore(**content)


def is_grouped(path: Path) -> bool:
    """Whether a file says that it is a calibrator of groups."""
    content = read_json(path, "a calibrator", largest=_LARGEST_FILE)
    return isinstance(content, dict) and "macc_grouped" in content


def _indices(groups: Any, size: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The names of the groups, in order, and the index of each sample's."""
    given = np.asarray(groups)
    if given.shape != (size,):
        raise ValueError(f"groups must name one group for each of {size} samples, got shape {given.shape}")
    names, which = np.unique(given.astype(str), return_inverse=True)
    return [str(name) for name in names], which.reshape(-1)


def _part(data: Sample, kept: npt.NDArray[np.bool_]) -> Sample:
    at = torch.from_numpy(np.flatnonzero(kept)).to(data.logits.device)
    return Sample(data.logits[at], data.labels[at])


def _held_out_gains(
    data: Sample,
    which: npt.NDArray[np.int64],
    large: list[int],
    fit: Callable[[Any, Any], Calibrator],
    held_out: Tensor,
) -> list[Floats]:
    """For each penalty the loss that the own map of its group saves each held-out sample."""
    gains = [np.zeros(data.num_samples) for _ in _PENALTIES]
    folds = held_out.numpy()
    for fold in range(int(held_out.max()) + 1 if large else 0):
        with warnings.catch_warnings():
            # The fit to all samples says what is worth saying.
            warnings.simplefilter("ignore", UserWarning)
            rest = _part(data, folds != fold)
            common = fit(rest.logits, rest.labels)
        for index in large:
            out = (folds == fold) & (which == index)
            if not out.any():
                continue
            there = _part(data, out)
            seen = _part(data, (folds != fold) & (which == index))
            logs, to_fit = _logs(there, common), _logs(seen, common)
            before = _losses(logs, there.labels)
            for gain, penalty in zip(gains, _PENALTIES, strict=True):
                own = _own_map(to_fit, seen.labels, penalty, offsets=not common.keeps_argmax)
                moved = _moved(logs, *own)
                gain[out] = (before - _losses(moved, there.labels)).cpu().numpy()
    return gains


def _own_map(logs: Tensor, labels: Tensor, penalty: float, *, offsets: bool) -> tuple[float, Floats]:
    """Slope and offsets of a group after the common map, shrunk towards 1 and 0."""
    classes = logs.shape[1]
    hits = torch.zeros_like(logs).scatter_(1, labels[:, None], 1.0)
    start = np.concatenate([[1.0], np.zeros(classes)])

    def objective(at: Floats) -> tuple[float, Floats]:
        scores = _moved(logs, float(at[0]), at[1:])
        residual = scores.exp() - hits
        slope = np.concatenate(
            [[float((residual * logs).sum())], residual.sum(0).cpu().numpy() * offsets], dtype=np.float64
        )
        away = at - start
        loss = float(_losses(scores, labels).sum()) + penalty * float(away @ away) / 2
        return loss / len(logs), (slope + penalty * away) / len(logs)

    bounds: list[tuple[float | None, float | None]] = [(_LEAST_SLOPE, None), *[(None, None)] * classes]
    found = minimise(objective, start, bounds=bounds).at
    return float(found[0]), found[1:]


def _logs(data: Sample, common: Calibrator) -> Tensor:
    """Logarithms of the common map's probabilities, of which none is infinite."""
    probs: Tensor = common(data.logits.double())
    return probs.log().clamp_(min=_LEAST_LOG)


def _moved(logs: Tensor, slope: float, offset: Floats) -> Tensor:
    return (slope * logs + logs.new_tensor(offset)).log_softmax(1)


def _losses(logs: Tensor, labels: Tensor) -> Tensor:
    return -logs.gather(1, labels[:, None])[:, 0]

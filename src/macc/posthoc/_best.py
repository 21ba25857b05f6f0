"""Which calibrator? Cross-validation answers, by the likelihood of labels the fit has not seen."""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from macc.metrics.folds import dealt
from macc.metrics.inputs import Array
from macc.posthoc._base import Calibrator, methods, sample
from macc.posthoc._mixture import (
    FOLDS,
    MOST_MATRIX_CLASSES,
    Mixture,
    held_out_losses,
    learned_weight,
    mixed_kinds,
    mixed_losses,
    weighing,
)
from macc.tables import Displayed, Table, thousands
from macc.words import did_you_mean, documented

Candidate: TypeAlias = str | type[Calibrator] | Callable[[Any, Any], Calibrator]

# Curves that follow the data class by class are far behind where classes have fewer samples than
# this.
_FEW_FOR_CURVES = 1000
# Each pair of classes has a curve of its own.
_MOST_PAIRED_CLASSES = 2
# Of many candidates, one is ahead by one standard error now and then by chance alone.
_ERRORS = 2


@dataclass(frozen=True)
class Score:
    """What cross-validation showed of a candidate; a refused one has a reason, no numbers."""

    name: str
    nll: float
    nll_error: float
    """Standard error of the mean NLL, over samples."""
    behind: float
    """How far its mean NLL is above the least."""
    error: float
    """Standard error of that distance, over samples."""
    num_parameters: int
    """How many numbers a fit to one fold less found, the most of all folds."""
    reason: str = ""

    @property
    def within_error(self) -> bool:
        """Whether it lies behind by at most one standard error, which chance alone may explain."""
        return self.behind <= self.error


@dataclass(frozen=True, repr=False)
class Best(Displayed):
    """The result of :func:`best`: ``calibrator`` is fitted to all samples; ``print`` shows the
    scores.

    ``scores`` has the least NLL first; ``chosen`` is the name of the one that was taken, and
    ``why`` a sentence.
    """

    calibrator: Calibrator
    scores: tuple[Score, ...]
    folds: int
    chosen: str

    @property
    def why(self) -> str:
        """Why this candidate was chosen."""
        if self.chosen != self.scores[0].name:
            return f"{self.chosen} is chosen: {self.scores[0].name} has the least NLL, but by less than two standard errors."
        near = sum(score.within_error for score in self.scores[1:])
        if not near:
            return f"{self.chosen} is chosen: its NLL is the least, by more than one standard error."
        others = "another candidate is" if near == 1 else f"{near} other candidates are"
        return f"{self.chosen} is chosen: its NLL is the least; {others} within one standard error of it."

    def _parts(self) -> list[Table | str]:
        return [self._table(), self.why]

    __repr__ = Displayed.__str__

    def _table(self) -> Table:
        rows = []
        for i, score in enumerate(self.scores):
            if score.reason:
                rows.append([score.name, "", "–", "", score.reason])
                continue
            behind = f"+{score.behind:.4f} ± {score.error:.4f}" if i else ""
            nll = f"{score.nll:.4f} ± {score.nll_error:.4f}"
            rows.append([score.name, thousands(score.num_parameters), nll, behind, ""])
        header = ["", "parameters", f"NLL, {self.folds} folds", "behind the least", ""]
        kept = 5 if any(row[4] for row in rows) else 4
        return Table.of(header[:kept], [row[:kept] for row in rows])


@documented
def best(
    logits: Array,
    labels: Array,
    candidates: Iterable[Candidate] | None = None,
    *,
    folds: int = FOLDS,
    seed: int = 0,
    weights: Array | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Best:
    """Choose a calibrator by cross-validated negative log-likelihood and fit it to all samples.

    The least mean NLL of held-out samples decides, and the number of parameters where two are
    equal. If no candidates are given, :class:`Mixture` is one of them, and it is taken unless
    another one is better by more than two standard errors: those of the difference between the two
    on the same samples. (Folds cannot show smaller differences, and over real networks the
    mixture ranks first.) Its NLL is that of weights which other folds told. Each class is
    dealt evenly over the folds. A candidate that refuses a fold is out, and the reason is kept;
    :class:`Identity` is a good candidate to have, so that the choice may be to do nothing.

    Args:
        candidates: Names (``"temperature"``), calibrators, or functions of logits and labels such
            as ``functools.partial(posthoc.MatrixScaling.fit, off_diagonal=100)``. By default all
            that suit the number of classes and samples, except ``MetaCal``, which pays likelihood
            for its bound.
        folds: Number of folds, at least 2.
        seed: Of the folds.

    Returns:
        The fitted ``calibrator``, the ``scores`` with the least NLL first, and ``why`` it was
        chosen.

    Example:
        >>> import torch
        >>> from macc import posthoc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator)
        >>> labels = torch.multinomial((2 * logits).softmax(1), 1, generator=generator)[:, 0]
        >>> chosen = posthoc.best(logits, labels, ["identity", "temperature", "histogram"])
        >>> round(chosen.calibrator.temperature, 1)
        0.5
        >>> print(chosen)
                     parameters     NLL, 5 folds  behind the least
        ──────────────────────────────────────────────────────────
        Temperature           1  0.5952 ± 0.0163
        Histogram            87  0.6048 ± 0.0162  +0.0096 ± 0.0035
        Identity              0  0.6744 ± 0.0094  +0.0792 ± 0.0076
        <BLANKLINE>
        Temperature is chosen: its NLL is the least, by more than one standard error.
    """
    data = sample(logits, labels, weights)
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise ValueError(f"folds must be an integer of at least 2, got {folds!r}")
    if data.num_samples < 2 * folds:
        raise ValueError(f"{data.num_samples} samples are too few for {folds} folds")
    if len(data.present) < 2:
        raise ValueError(
            f"all labels are of class {data.present[0]}, which no calibrator can be compared by; "
            "give validation samples of two classes at least"
        )
    if isinstance(candidates, str):
        candidates = [candidates]
    chosen = suitable(data.num_classes, data.num_samples) if candidates is None else list(candidates)
    fits: dict[str, Callable[..., Calibrator]] = {}
    for candidate in chosen:
        name, fit = named(candidate)
        same = sum(other == name or other.startswith(f"{name}, ") for other in fits)
        fits[f"{name}, {same + 1}" if same else name] = fit
    if not fits:
        raise ValueError("candidates is empty; name at least one calibrator")
    held_out = dealt(data.labels, folds, seed)
    each = None if data.weights is None else data.weights.cpu()
    losses: dict[str, Tensor] = {}
    sizes: dict[str, int] = {}
    refused: dict[str, str] = {}
    for turn, (name, fit) in enumerate(fits.items()):
        try:
            if each is not None and "weights" not in inspect.signature(fit).parameters:
                raise ValueError("takes no weights")
            losses[name], sizes[name] = held_out_losses(data, fit, held_out)
        except ValueError as error:
            refused[name] = str(error)
        if on_progress is not None:
            on_progress((turn + 1) / (len(fits) + 1))
    mixed = [kind.__name__ for kind in mixed_kinds(data.num_classes)]
    if candidates is None and all(name in losses for name in mixed):
        pair = [losses[name] for name in mixed]
        losses[Mixture.__name__] = mixed_losses(pair[0], pair[1], held_out, each)
        sizes[Mixture.__name__] = 1 + sum(sizes[name] for name in mixed)
        fits[Mixture.__name__] = lambda *_, **__: Mixture.of(data, learned_weight(pair[0], pair[1], each))
    if not losses:
        name, reason = next(iter(refused.items()))
        raise ValueError(f"no candidate could be fitted; {name}: {reason}")
    means = {name: _mean_and_error(found, each) for name, found in losses.items()}
    order = sorted(losses, key=lambda name: (means[name][0], sizes[name]))
    least = losses[order[0]]
    scores = [
        Score(name, *means[name], *_mean_and_error(losses[name] - least, each), sizes[name]) for name in order
    ]
    winner = order[0]
    if candidates is None and any(
        score.name == Mixture.__name__ and score.behind <= _ERRORS * score.error for score in scores
    ):
        winner = Mixture.__name__
    nothing = (math.nan,) * 4
    scores += [Score(name, *nothing, 0, reason) for name, reason in refused.items()]
    fitted = fits[winner](data.logits, data.labels, **weighing(data.weights))
    result = Best(fitted, tuple(scores), folds, winner)
    if on_progress is not None:
        on_progress(1.0)
    return result


def by_name(name: str) -> type[Calibrator]:
    """The calibrator of a name as people write it: ``vector-scaling``, ``VectorScaling``."""
    known = {kind.lower(): value for kind, value in methods().items()}
    plain = str(name).lower().replace("-", "").replace("_", "")
    if plain not in known:
        raise ValueError(f"no calibrator is called {name!r}; {did_you_mean(name, map(written, methods()))}")
    return known[plain]


def written(name: str) -> str:
    """A calibrator's name as the command line writes it: ``vector-scaling``."""
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def suitable(num_classes: int, num_samples: int) -> list[str]:
    """Names of the calibrators worth comparing for a number of classes and samples."""
    left_out = {"MetaCal", Mixture.__name__}
    left_out |= {"MatrixScaling", "Dirichlet"} if num_classes > MOST_MATRIX_CLASSES else set()
    left_out |= {"VennAbers"} if num_classes > _MOST_PAIRED_CLASSES else set()
    if num_classes > 2 and num_samples < _FEW_FOR_CURVES * num_classes:
        left_out |= {"Beta", "Isotonic", "Histogram"}
    return [
        name
        for name, kind in methods().items()
        if name not in left_out and (num_classes == 2 or not kind.two_classes)
    ]


def named(candidate: Candidate) -> tuple[str, Callable[..., Calibrator]]:
    """What a candidate is called, and how it is fitted."""
    kind = by_name(candidate) if isinstance(candidate, str) else candidate
    if isinstance(kind, type) and issubclass(kind, Calibrator):
        return kind.__name__, kind.fit  # type: ignore[attr-defined]
    if isinstance(kind, type) or not callable(kind):
        raise ValueError(f"a candidate is a name, a calibrator or a function, got {candidate!r}")
    if isinstance(kind, partial):
        given = ", ".join(f"{key}={value!r}" for key, value in kind.keywords.items())
        owner = getattr(kind.func, "__self__", None)
        return f"{getattr(owner, '__name__', kind.func)}({given})", kind
    return getattr(kind, "__qualname__", repr(kind)), kind


def _mean_and_error(losses: Tensor, weights: Tensor | None) -> tuple[float, float]:
    """The mean, and its standard error."""
    if weights is None:
        return float(losses.mean()), float(losses.std()) / math.sqrt(len(losses))
    mean = losses @ weights / weights.sum()
    return float(mean), float(((losses - mean) * weights).norm() / weights.sum())

"""Which calibrator? Cross-validation answers, by the likelihood of labels the fit has not seen."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from macc.metrics.folds import dealt
from macc.metrics.inputs import Array
from macc.posthoc._base import Calibrator, Sample, methods, sample
from macc.tables import Table, html_paragraph, thousands

Candidate: TypeAlias = str | type[Calibrator] | Callable[[Any, Any], Calibrator]

# A matrix of more classes than this takes minutes, and wins seldom.
_MOST_MATRIX_CLASSES = 100
# Each pair of classes has a curve of its own.
_MOST_PAIRED_CLASSES = 2


@dataclass(frozen=True)
class Score:
    """What cross-validation showed of one candidate; one that was refused has a reason and no numbers."""

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
class Best:
    """The result of :func:`best`: ``calibrator`` is fitted to all samples; ``print`` shows the scores.

    ``scores`` has the least NLL first; ``chosen`` is the name of the one that was taken, and ``why`` a sentence.
    """

    calibrator: Calibrator
    scores: tuple[Score, ...]
    folds: int
    chosen: str

    @property
    def why(self) -> str:
        """Why this candidate was chosen."""
        near = sum(score.within_error for score in self.scores[1:])
        if not near:
            return f"{self.chosen} is chosen: its NLL is the least, by more than one standard error."
        others = "another candidate is" if near == 1 else f"{near} other candidates are"
        return f"{self.chosen} is chosen: its NLL is the least; {others} within one standard error of it."

    def __str__(self) -> str:
        return f"{self._table().text()}\n\n{self.why}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{self._table().html()}{html_paragraph(self.why)}"

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


def best(
    logits: Array,
    labels: Array,
    candidates: Iterable[Candidate] | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
    on_progress: Callable[[float], None] | None = None,
) -> Best:
    """Choose a calibrator by cross-validated negative log-likelihood and fit it to all samples.

    The least mean NLL of held-out samples decides, and the number of parameters where two are equal. The table and
    ``why`` say which others are within a standard error, which is that of the difference between the two on the same
    samples: where a simpler one is, chance may have chosen. Each class is dealt evenly over the folds. A candidate that
    refuses a fold is out, and the reason is kept; :class:`Identity` is a good candidate to have, so that the choice may be to do nothing.

    Args:
        logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        candidates: Names (``"temperature"``), calibrators, or functions of logits and labels such as
            ``functools.partial(posthoc.MatrixScaling.fit, off_diagonal=100)``. By default all that suit
            the number of classes, except ``MetaCal``, which pays likelihood for its bound.
        folds: Number of folds, at least 2.
        seed: Of the folds.
        on_progress: Called with the share of the work done.

    Returns:
        The fitted ``calibrator``, the ``scores`` with the least NLL first, and ``why`` it was chosen.

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
    data = sample(logits, labels)
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
    chosen = suitable(data.num_classes) if candidates is None else list(candidates)
    fits: dict[str, Callable[[Any, Any], Calibrator]] = {}
    for candidate in chosen:
        name, fit = named(candidate)
        same = sum(other == name or other.startswith(f"{name}, ") for other in fits)
        fits[f"{name}, {same + 1}" if same else name] = fit
    if not fits:
        raise ValueError("candidates is empty; name at least one calibrator")
    held_out = dealt(data.labels, folds, seed)
    losses: dict[str, Tensor] = {}
    sizes: dict[str, int] = {}
    refused: dict[str, str] = {}
    for turn, (name, fit) in enumerate(fits.items()):
        try:
            losses[name], sizes[name] = _held_out_losses(data, fit, held_out)
        except ValueError as error:
            refused[name] = str(error)
        if on_progress is not None:
            on_progress((turn + 1) / (len(fits) + 1))
    if not losses:
        name, reason = next(iter(refused.items()))
        raise ValueError(f"no candidate could be fitted; {name}: {reason}")
    order = sorted(losses, key=lambda name: (float(losses[name].mean()), sizes[name]))
    least = losses[order[0]]
    scores = [
        Score(name, *_mean_and_error(losses[name]), *_mean_and_error(losses[name] - least), sizes[name])
        for name in order
    ]
    winner = order[0]
    nothing = (math.nan,) * 4
    scores += [Score(name, *nothing, 0, reason) for name, reason in refused.items()]
    result = Best(fits[winner](data.logits, data.labels), tuple(scores), folds, winner)
    if on_progress is not None:
        on_progress(1.0)
    return result


def by_name(name: str) -> type[Calibrator]:
    """The calibrator of a name as people write it: ``vector-scaling``, ``VectorScaling``."""
    known = {kind.lower(): value for kind, value in methods().items()}
    plain = name.lower().replace("-", "").replace("_", "")
    if plain not in known:
        raise ValueError(f"no calibrator is called {name!r}; there are {', '.join(map(written, methods()))}")
    return known[plain]


def written(name: str) -> str:
    """A calibrator's name as the command line writes it: ``vector-scaling``."""
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def suitable(num_classes: int) -> list[str]:
    """Names of the calibrators worth comparing for a number of classes."""
    left_out = {"MetaCal"}
    left_out |= {"MatrixScaling", "Dirichlet"} if num_classes > _MOST_MATRIX_CLASSES else set()
    left_out |= {"VennAbers"} if num_classes > _MOST_PAIRED_CLASSES else set()
    return [
        name
        for name, kind in methods().items()
        if name not in left_out and (num_classes == 2 or not kind.two_classes)
    ]


def named(candidate: Candidate) -> tuple[str, Callable[[Any, Any], Calibrator]]:
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


def _mean_and_error(losses: Tensor) -> tuple[float, float]:
    """The mean, and its standard error."""
    return float(losses.mean()), float(losses.std()) / math.sqrt(len(losses))


def _held_out_losses(
    data: Sample, fit: Callable[[Any, Any], Calibrator], held_out: Tensor
) -> tuple[Tensor, int]:
    """The loss of each sample when it is held out, and the most parameters that a fit had."""
    size = 0
    losses = torch.empty(data.num_samples, dtype=torch.float64, device="cpu")
    # That a class has no samples is no merit of a calibrator that takes it to be rare.
    among = data.present if data.absent else None
    for fold in range(int(held_out.max()) + 1):
        out = held_out == fold
        here, there = out.to(data.logits.device), (~out).to(data.logits.device)
        with warnings.catch_warnings():
            # The fit to all samples says what is worth saying.
            warnings.simplefilter("ignore", UserWarning)
            fitted = fit(data.logits[there], data.labels[there])
        size = max(size, fitted.num_parameters)
        losses[out] = Sample(data.logits[here], data.labels[here]).losses(fitted, among=among).cpu()
    return losses, size

"""Which calibrator? Cross-validation answers, by the likelihood of labels the fit has not seen."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from macc.metrics._inputs import Array
from macc.metrics._tables import text_table
from macc.posthoc._base import Calibrator, Sample, methods, sample

Candidate: TypeAlias = str | type[Calibrator] | Callable[[Any, Any], Calibrator]

# A matrix of more classes than this takes minutes, and wins seldom.
_MOST_MATRIX_CLASSES = 100


@dataclass(frozen=True)
class Score:
    """What cross-validation showed of one candidate; one that was refused has a reason and no numbers."""

    name: str
    nll: float
    behind: float
    """How far its mean NLL is above the best one's."""
    error: float
    """Standard error of that distance, over samples."""
    reason: str = ""


@dataclass(frozen=True)
class Best:
    """The result of :func:`best`: ``calibrator`` is fitted to all samples; ``print`` shows the scores."""

    calibrator: Calibrator
    scores: tuple[Score, ...]
    folds: int

    def __str__(self) -> str:
        rows = [
            [
                score.name,
                *(
                    ("–", "", score.reason)
                    if score.reason
                    else (f"{score.nll:.4f}", f"+{score.behind:.4f} ± {score.error:.4f}", "")
                ),
            ]
            for score in self.scores
        ]
        rows[0][2] = ""
        header = ["", f"NLL, {self.folds} folds", "behind the best", ""]
        kept = 4 if any(row[3] for row in rows) else 3
        return text_table(header[:kept], [row[:kept] for row in rows])


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

    Each class is dealt evenly over the folds. A candidate that refuses a fold is out, and the reason is
    kept; :class:`Identity` is a good candidate to have, so that the choice may be to do nothing.

    Args:
        logits: ``(N, K)``, or ``(N,)`` of class 1 of two.
        labels: Class indices ``(N,)``.
        candidates: Names (``"temperature"``), calibrators, or functions of logits and labels such as
            ``functools.partial(posthoc.MatrixScaling.fit, off_diagonal=100)``. By default all that suit
            the number of classes, but for ``MetaCal``, which pays likelihood for its bound.
        folds: Number of folds, at least 2.
        seed: Of the folds.
        on_progress: Called with the share of the work done.

    Returns:
        The fitted ``calibrator`` and the ``scores``, best first.

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
                     NLL, 5 folds   behind the best
        ───────────────────────────────────────────
        Temperature        0.5952
        Histogram          0.6048  +0.0096 ± 0.0035
        Identity           0.6744  +0.0792 ± 0.0076
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
        name, fit = _named(candidate)
        same = sum(other == name or other.startswith(f"{name}, ") for other in fits)
        fits[f"{name}, {same + 1}" if same else name] = fit
    if not fits:
        raise ValueError("candidates is empty; name at least one calibrator")
    held_out = _folds(data, folds, seed)
    losses: dict[str, Tensor] = {}
    refused: dict[str, str] = {}
    for turn, (name, fit) in enumerate(fits.items()):
        try:
            losses[name] = _held_out_losses(data, fit, held_out)
        except ValueError as error:
            refused[name] = str(error)
        if on_progress is not None:
            on_progress((turn + 1) / (len(fits) + 1))
    if not losses:
        name, reason = next(iter(refused.items()))
        raise ValueError(f"no candidate could be fitted; {name}: {reason}")
    order = sorted(losses, key=lambda name: float(losses[name].mean()))
    winner = losses[order[0]]
    scores = [
        Score(
            name,
            float(losses[name].mean()),
            float((losses[name] - winner).mean()),
            float((losses[name] - winner).std()) / math.sqrt(len(winner)),
        )
        for name in order
    ]
    scores += [Score(name, math.nan, math.nan, math.nan, reason) for name, reason in refused.items()]
    result = Best(fits[order[0]](data.logits, data.labels), tuple(scores), folds)
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
    left_out |= {"Platt"} if num_classes > 2 else set()
    left_out |= {"MatrixScaling", "Dirichlet"} if num_classes > _MOST_MATRIX_CLASSES else set()
    return [name for name in methods() if name not in left_out]


def _named(candidate: Candidate) -> tuple[str, Callable[[Any, Any], Calibrator]]:
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


def _folds(data: Sample, folds: int, seed: int) -> Tensor:
    """The fold in which each sample is held out, each class dealt out evenly."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(data.num_samples, generator=generator, device="cpu")
    order = shuffled[data.labels.cpu()[shuffled].argsort(stable=True)]
    result = torch.empty(data.num_samples, dtype=torch.int64, device="cpu")
    result[order] = torch.arange(data.num_samples, device="cpu") % folds
    return result


def _held_out_losses(data: Sample, fit: Callable[[Any, Any], Calibrator], held_out: Tensor) -> Tensor:
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
        losses[out] = Sample(data.logits[here], data.labels[here]).losses(fitted, among=among).cpu()
    return losses

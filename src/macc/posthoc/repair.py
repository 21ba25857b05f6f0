"""What ``macc calibrate`` does: fit on one file, apply to another, show both."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.metrics import Report, evaluate, metrics_of, registry
from macc.metrics.comparing import Comparison, compare
from macc.metrics.correctness import metrics_of_answers
from macc.metrics.inputs import counted, predictions
from macc.posthoc._base import Calibrator
from macc.posthoc._best import Best, best, by_name
from macc.posthoc._grouped import Grouped
from macc.predictions import Loaded
from macc.tables import Table, interval, number, thousands
from macc.words import class_called, documented

DOUBT = 0.001
"""The least doubt that answers are taken to have where a map is fitted to their logits. People and
language models say 100 % and are wrong; at full length the logits of such claims leave no room for
any others.
"""


@dataclass(frozen=True)
class Repair:
    """A fitted calibrator, what it gives for the other samples, and what that is worth."""

    calibrator: Calibrator | Grouped
    probs: npt.NDArray[Any]
    labels: npt.NDArray[Any]
    before: Report
    after: Report
    difference: Comparison
    choice: Best | None
    fitted_to: int
    same_samples: bool

    def __str__(self) -> str:
        rows = []
        for name in self.after.metrics:
            metric = registry()[name]
            label, unit = metric.title(two_classes=self.after.positive is not None), metric.unit
            one, two, gap = self.before[name], self.after[name], self.difference[name]
            cells = [
                f"{number(part.value, unit, part.high - part.low, suffix=True)}  "
                f"({interval(part.low, part.high, unit)})"
                for part in (one, two)
            ]
            width = gap.high - gap.low
            # After minus before; taken from 0, nothing stays 0 and does not become minus 0.
            change, low, high = (
                number(0.0 - value, unit, width, sign=True) for value in (gap.value, gap.high, gap.low)
            )
            rows.append([label, *cells, change, "–" if math.isnan(gap.low) else f"{low} … {high}"])
        level = f"{100 * self.after.confidence:g} % interval"
        header = ["", f"before ({level})", f"after ({level})", "change", level]
        parts = [f"{self.choice}\n"] if self.choice is not None else []
        positive = self.after.positive
        parts.append(f"{described(self.calibrator)}, fitted to {thousands(self.fitted_to)} samples")
        parts += [f"note: {note}" for note in self.calibrator.notes]
        if isinstance(self.calibrator, Grouped):
            parts.append(f"\n{self.calibrator}\n")
        if self.same_samples:
            parts.append("the same samples, before and after: other ones will show a little less\n")
        else:
            parts.append(f"{thousands(self.after.num_samples)} other samples, before and after\n")
        if positive is not None:
            parts[-1] = f"{parts[-1].rstrip()}; the positive one is {class_called(positive.name)}\n"
        return "\n".join([*parts, Table.of(header, rows).text()])

    def to_dict(self) -> dict[str, Any]:
        """The numbers of the table."""
        return {
            "calibrator": self.calibrator.to_dict(),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "before_minus_after": self.difference.to_dict(),
        }


@documented
def repair(
    val: Loaded,
    test: Loaded,
    *,
    method: str | None = None,
    grid: bool = False,
    normalise: bool = False,
    positive: str | None = None,
    bins: int = 15,
    confidence: float = 0.95,
    resamples: int = 1000,
    groups: tuple[Sequence[str], Sequence[str]] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Repair:
    """Fit a calibrator to some predictions and apply it to others.

    Args:
        val: What to fit to.
        test: What to apply to.
        method: A calibrator's name, or ``"auto"`` for :func:`best`; by default ``"temperature"``,
            and ``"platt"`` of answers: their confidence may be too high at one half too, where a
            temperature changes nothing.
        grid: The paper's grid of temperatures.
        positive: The positive class of two; class 1 by default.
        groups: The group of each sample of ``val`` and of ``test``, for own maps of groups.
    """
    if method is None:
        method = "platt" if val.answers and not grid else "temperature"
    if grid and method != "temperature":
        raise ValueError(f"--grid is of the method temperature, not of {method}")
    check_classes(val.classes, test.classes)
    progress = on_progress or (lambda _: None)
    logits, labels = as_logits(val, "to fit to", normalise=normalise), val.labels
    choice = None
    fitted: Calibrator | Grouped
    if method == "auto":
        choice = best(logits, labels, weights=val.weights, on_progress=lambda share: progress(share / 2))
        method = choice.chosen
    kind: Any = by_name(method)
    fit = partial(kind.fit, grid=True) if grid else kind.fit
    counts = counted(val.weights)
    given = as_logits(test, "to apply to", normalise=normalise)
    if groups is not None:
        fitted = Grouped.fit(logits, labels, groups[0], method=fit, weights=val.weights)
        # Whoever writes the result says which groups are unknown.
        probs = fitted.mapped(given, groups[1])
    else:
        fitted = fit(logits, labels, weights=val.weights) if choice is None else choice.calibrator
        probs = fitted(given)
    progress(0.5)
    original = predictions(given, test.labels, from_logits=True).matrix().numpy()
    options: dict[str, Any] = {
        "metrics": metrics_of_answers()
        if test.answers
        else [name for name, each in metrics_of(original.shape[1]).items() if each.prominence <= 2],
        "classes": test.classes or val.classes,
        "positive": positive,
        "bins": bins,
        "confidence": confidence,
        "resamples": resamples,
        "weights": test.weights,
    }
    before = evaluate(original, test.labels, **options)
    progress(0.65)
    after = evaluate(probs, test.labels, **options)
    progress(0.8)
    difference = compare(original, probs, test.labels, **options)
    progress(1.0)
    same = np.array_equal(labels, test.labels) and np.array_equal(logits, given)
    fitted_to = len(labels) if counts is None else len(counts.rows)
    return Repair(fitted, probs, test.labels, before, after, difference, choice, fitted_to, same)


def check_classes(fitted: Sequence[str] | None, applied: Sequence[str] | None) -> None:
    """Refuse to apply a fit to classes with other names than those it was fitted to."""
    if fitted is not None and applied is not None and list(fitted) != list(applied):
        raise ValueError(
            f"the classes are {_some(fitted)} in the fit and {_some(applied)} where it is applied; "
            "give both the same columns in the same order, for example with --class-columns"
        )


def _some(classes: Sequence[str]) -> str:
    return ", ".join(classes[:5]) + (", …" if len(classes) > 5 else "")


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files meant: a folder stands for the ``.npz`` files in it."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not found:
            raise ValueError(f"{path} has no .npz files; name files of predictions")
        files += found
    return files


def pooled(paths: Sequence[Path], loaded: Sequence[Loaded]) -> Loaded:
    """The samples of several files as one."""
    first = loaded[0]
    for path, part in zip(paths[1:], loaded[1:], strict=True):
        if part.scores.shape[1:] != first.scores.shape[1:] or part.classes != first.classes:
            raise ValueError(f"{paths[0]} and {path} have other classes; they cannot be pooled")
        if part.from_logits != first.from_logits:
            raise ValueError(f"{paths[0]} and {path} are logits and probabilities; they cannot be pooled")
    scores, labels = (
        np.concatenate(parts) for parts in zip(*((p.scores, p.labels) for p in loaded), strict=True)
    )
    weights = [part.weights for part in loaded if part.weights is not None]
    return Loaded(
        scores,
        labels,
        first.from_logits,
        first.classes,
        answers=first.answers,
        weights=np.concatenate(weights) if weights else None,
    )


def as_logits(loaded: Loaded, purpose: str, *, normalise: bool = False) -> npt.NDArray[Any]:
    """Logits as they are; of probabilities their logarithms, which mean the same. A warning says
    for which ``purpose`` they are.
    """
    if loaded.from_logits:
        return loaded.scores
    logs, zeros = logarithms(loaded.scores, normalise=normalise, answers=loaded.answers)
    warn_of_zeros(zeros, purpose, answers=loaded.answers)
    return logs


def logarithms(scores: npt.NDArray[Any], *, normalise: bool, answers: bool) -> tuple[npt.NDArray[Any], int]:
    """Logarithms of probabilities, ``(N, K)``, and how many of these are too small and count as the
    least number there is, or as :data:`DOUBT` of answers.
    """
    anything = np.zeros(len(scores), dtype=np.int64)
    probs = predictions(scores, anything, normalise=normalise).matrix().numpy()
    if probs.dtype.itemsize < 4:
        probs = probs.astype(np.float32)
    least = DOUBT if answers else np.finfo(probs.dtype).tiny
    return np.log(np.maximum(probs, least)), int((probs < least).sum())


def warn_of_zeros(count: int, purpose: str, *, answers: bool) -> None:
    """Say that probabilities of 0 were taken to be larger ones."""
    if not count:
        return
    one = "s" if count == 1 else ""
    if answers:
        what = (
            f"{thousands(count)} of the answers {purpose} claim{one} more than {100 * (1 - DOUBT):g} % or less than "
            f"{100 * DOUBT:g} % and count{one} as that much, because a claim of 100 % would outweigh all others"
        )
    else:
        what = (
            f"{thousands(count)} of the probabilities {purpose} {'is' if one else 'are'} 0, of which no logarithm "
            f"exists, and count{one} as the least number above 0: logits would say more"
        )
    warnings.warn(what, stacklevel=3)


def described(calibrator: Calibrator | Grouped) -> str:
    """A calibrator in a few words."""
    if isinstance(calibrator, Grouped):
        own, every = len(calibrator.slopes), len(calibrator.scores)
        return f"{described(calibrator.common)} with own maps of {own} of {every} groups"
    name, parts = type(calibrator).__name__, []
    for key in ("temperature", "weight", "slope", "intercept", "threshold"):
        value = vars(calibrator).get(key)
        # The weight of linear maps is a matrix.
        if isinstance(value, float):
            parts.append(f"{key} {value:.4g}")
    return f"{name} ({', '.join(parts)})" if parts else name

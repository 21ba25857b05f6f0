"""Independent labels: the calibration of each, and the mean over labels.

Every label is a problem of two classes, measured as such. Intervals of the mean over labels come
from resampled *rows*: a sample brings all its labels along, so that labels which go together are
not taken for independent evidence.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from macc.io.json import finite
from macc.metrics._metric import Metric, headline_error, registry
from macc.metrics._resampling import Draws, Resampling
from macc.metrics.groups import entry
from macc.metrics.inputs import (
    Array,
    check_bins,
    check_confidence,
    check_resamples,
    counted,
    predictions,
)
from macc.metrics.intervals import Estimate, Gaps, Ordinary, Sampled
from macc.metrics.refusals import InputError
from macc.tables import PERCENT, Displayed, Table, number, thousands
from macc.words import did_you_mean, documented, quoted

# More labels than this are printed as the worst of them.
_LABELS_SHOWN = 20


@dataclass(frozen=True)
class LabelRow:
    """One label: how often it occurs, how often it is predicted to, and its metrics."""

    name: str
    frequency: float
    mean_probability: float
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class LabelReport(Displayed):
    """The result of :func:`evaluate_labels`; ``print`` shows it as a table.

    ``report["positive_ece"]`` is the mean over labels, and
    ``report.labels[0].metrics["positive_ece"]`` that of one.
    """

    metrics: dict[str, Estimate]
    labels: tuple[LabelRow, ...]
    num_samples: int
    confidence: float

    def __getitem__(self, metric: str) -> Estimate:
        if metric not in self.metrics:
            raise KeyError(f"no metric {metric!r} in this report; there are {', '.join(self.metrics)}")
        return self.metrics[metric]

    def to_dict(self) -> dict[str, Any]:
        """The mean over labels, and each label: ``{metric: {value, low, high, …}}``."""
        return {
            "mean": _shown(self.metrics),
            "labels": {
                row.name: {
                    "frequency": row.frequency,
                    "mean_probability": row.mean_probability,
                    **_shown(row.metrics),
                }
                for row in self.labels
            },
        }

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON; what is not finite becomes null."""
        return json.dumps(finite(self.to_dict()), indent=2)

    def _parts(self) -> list[Table | str]:
        return [self._heading(), self._table(), self._note()]

    def _heading(self) -> str:
        return f"{thousands(self.num_samples)} samples, {thousands(len(self.labels))} labels"

    def _note(self) -> str:
        level = f"{100 * self.confidence:g} %"
        note = f"In brackets {level} intervals; behind ECE what a perfectly calibrated model would show."
        hidden = len(self.labels) - _LABELS_SHOWN
        return note if hidden <= 0 else f"The {_LABELS_SHOWN} labels with the largest ECE are shown. {note}"

    def _table(self) -> Table:
        shown = list(self.labels)
        if len(shown) > _LABELS_SHOWN:
            error = headline_error(self.metrics)
            shown = sorted(shown, key=lambda row: -row.metrics[error].value)
        titles = [registry()[name].label.removesuffix(", positive class") for name in self.metrics]
        rows = [["mean over labels", "", "", *_texts(self.metrics)]]
        for row in shown[:_LABELS_SHOWN]:
            shares = (number(v, PERCENT, 0.01, suffix=True) for v in (row.frequency, row.mean_probability))
            rows.append([row.name, *shares, *_texts(row.metrics)])
        return Table.of(["label", "frequency", "mean probability", *titles], rows)


@documented
def evaluate_labels(
    probs: Array,
    labels: Array,
    *,
    names: Sequence[str] | None = None,
    metrics: Iterable[str] | None = None,
    bins: int = 15,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    from_logits: bool = False,
    weights: Array | None = None,
) -> LabelReport:
    r"""Measure independent labels: each of them, and the mean over labels, all with intervals.

    The calibration error of a label is its class-wise ECE over all of ``[0, 1]``,
    :func:`positive_ece`. NLL and Brier score are those of its two outcomes. Intervals of the mean
    are made of resampled rows: labels of one sample are not independent.

    Args:
        probs: Probabilities ``(N, K)`` of the labels; rows need not sum to 1. ``(N,)`` or
            ``(N, 1)`` is one label.
        labels: 0 or 1 for each of them, as floats, whole numbers or booleans, of the same shape.
        names: Names of the K labels; their numbers by default.
        metrics: Some of ``nll``, ``positive_brier`` and ``positive_ece``; all by default. ``brier``
            and ``ece`` mean those of the label.
        from_logits: ``probs`` holds logits, one for each label.

    Returns:
        The report: ``report["positive_ece"]`` is the mean over labels, ``report.labels`` has a row
        for each.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> probs = rng.uniform(size=(2000, 2))
        >>> labels = rng.random((2000, 2)) < probs * [1.0, 0.7]  # the second occurs less often than predicted
        >>> report = evaluate_labels(probs, labels, names=["cat", "dog"], metrics=["positive_ece"])
        >>> [row.metrics["positive_ece"].low > 0 for row in report.labels]
        [False, True]
    """
    check_bins(bins)
    check_confidence(confidence)
    check_resamples(resamples)
    wanted = _wanted(metrics)
    scores, targets = label_columns(probs, labels, from_logits=from_logits)
    called = label_names(names, scores.shape[1])
    counts = counted(weights, len(scores))
    each_counts = None
    if counts is not None:
        scores, targets, each_counts = counts.of(scores), counts.of(targets), counts.weights
    resampling = Resampling(len(scores), resamples, seed, each_counts)
    found: dict[str, list[Sampled]] = {name: [] for name in wanted}
    rows = []
    for column, name in enumerate(called):
        given = predictions(scores[:, column], targets[:, column], from_logits=from_logits)
        given = replace(given, weights=each_counts)
        with torch.device("cpu"):  # whatever the default device is
            draws = Draws(given, bins=bins, resampling=resampling)
            for metric in wanted:
                found[metric].append(registry()[metric].sample(draws))
        each = {metric: sampled[-1].estimate(confidence) for metric, sampled in found.items()}
        positive = draws.sample.positive
        rows.append(LabelRow(name, given.mean(positive.correct), given.mean(positive.confidence), each))
    means = {metric: _mean(sampled).estimate(confidence) for metric, sampled in found.items()}
    return LabelReport(means, tuple(rows), len(scores), confidence)


@documented
def label_columns(
    probs: Array, labels: Array, *, from_logits: bool = False
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Probabilities (or logits) and labels of independent labels as checked arrays ``(N, K)``.

    Args:
        probs: ``(N, K)``, or ``(N,)`` of one label.
        labels: 0 or 1, of the same shape.
    """
    called = "logits" if from_logits else "probs"
    scores, truth = _array(probs, called), _array(labels, "labels")
    if scores.dtype.kind != "f":
        raise ValueError(
            f"{called} must be floating-point, got {scores.dtype}; convert them with .astype(float)"
        )
    if truth.dtype.kind not in "biuf":
        raise ValueError(f"labels must be 0 or 1, got values of type {truth.dtype}")
    scores, truth = (given[:, None] if given.ndim == 1 else given for given in (scores, truth))
    if scores.ndim != 2 or scores.size == 0 or scores.shape != truth.shape:
        raise ValueError(
            f"{called} and labels must have the same shape (N, K), a column for each label, got {scores.shape} and "
            f"{truth.shape}; for one class index a sample use macc.evaluate"
        )
    for name, given, good in (
        (called, scores, np.isfinite(scores) if from_logits else (scores >= 0) & (scores <= 1)),
        ("labels", truth, (truth == 0) | (truth == 1)),
    ):
        if not good.all():
            row, column = np.argwhere(~good)[0]
            allowed = "0 or 1" if name == "labels" else "finite" if from_logits else "in [0, 1]"
            raise _refusal(name, int(row), int(column), float(given[row, column]), allowed)
    return scores, truth.astype(np.int64)


def _refusal(name: str, row: int, column: int, value: float, allowed: str) -> InputError:
    """What is wrong with one number."""
    return InputError(
        lambda words: (
            f"{words.entry(name, row, column)} must be {allowed}, got {value:.6g}"
            + (f"; {words.declare_logits} if these are logits" if allowed == "in [0, 1]" else "")
        )
    )


def label_names(names: Sequence[str] | None, count: int) -> list[str]:
    """The names of the labels, their numbers if there are none."""
    called = [str(name) for name in (range(count) if names is None else names)]
    if len(called) != count:
        raise ValueError(f"names has {len(called)} labels and there are {count}; name each of them")
    if len(set(called)) != count:
        twice = next(name for name in called if called.count(name) > 1)
        raise ValueError(f"names has {quoted(twice)} twice; give each label a name of its own")
    return called


def _array(values: Array, name: str) -> npt.NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
    try:
        return np.asarray(values)
    except ValueError as error:  # ragged lists
        raise ValueError(f"{name} must be a rectangular array of numbers: {error}") from None


def of_label(name: str) -> str:
    """The metric of a label that a name means: ``ece`` is that of its probability.

    Example:
        >>> of_label("ece"), of_label("nll")
        ('positive_ece', 'nll')
    """
    return f"positive_{name}" if f"positive_{name}" in metrics_of_labels() else name


def metrics_of_labels() -> dict[str, Metric[Any]]:
    """The metrics that each of several independent labels has.

    Example:
        >>> list(metrics_of_labels())
        ['nll', 'positive_brier', 'positive_ece']
    """
    return {name: metric for name, metric in registry().items() if metric.of_labels}


def _wanted(metrics: Iterable[str] | None) -> list[str]:
    there = list(metrics_of_labels())
    wanted = there if metrics is None else [metrics] if isinstance(metrics, str) else list(metrics)
    wanted = [of_label(name) for name in wanted]
    for name in wanted:
        if name not in there:
            raise ValueError(f"no metric of labels is called {name!r}; {did_you_mean(name, there)}")
    if not wanted:
        raise ValueError(f"metrics is empty; name some of {', '.join(there)}, or leave it out")
    return [name for name in there if name in wanted]


def _mean(parts: Sequence[Sampled]) -> Sampled:
    """The mean over labels in each resample, which holds the same rows for all labels."""
    if all(isinstance(part, Gaps) for part in parts):
        return Gaps(*(torch.stack(each).mean(0) for each in zip(*parts, strict=True)))
    scores = [part for part in parts if isinstance(part, Ordinary)]
    value, size, least, most = (
        float(np.mean([getattr(score, field) for score in scores]))
        for field in ("value", "size", "least", "most")
    )
    return Ordinary(value, torch.stack([score.resampled for score in scores]).mean(0), size, least, most)


def _shown(metrics: dict[str, Estimate]) -> dict[str, dict[str, float]]:
    return {
        name: {key: value for key, value in asdict(estimate).items() if value is not None}
        for name, estimate in metrics.items()
    }


def _texts(estimates: dict[str, Estimate]) -> list[str]:
    return [entry(name, estimate).line for name, estimate in estimates.items()]

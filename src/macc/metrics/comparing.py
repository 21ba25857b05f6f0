"""Is one model better calibrated than another? Differences on the same samples or over runs."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macc.io.json import finite
from macc.metrics._metric import Metric, registry
from macc.metrics._report import check_names, weights_note
from macc.metrics._resampling import Draws, Resampling
from macc.metrics.inputs import (
    Array,
    check_bins,
    check_confidence,
    check_resamples,
    counted,
    predictions,
    score_rows,
)
from macc.metrics.intervals import Deviating, MeanOfSets, Sampled, quantile
from macc.metrics.naming import class_names, positive_index
from macc.metrics.over_runs import interval, paired_p
from macc.tables import Displayed, Table, data_frame, number, thousands
from macc.words import class_called, documented

_NOT_TESTED = "A metric without a p-value differs by the same amount in all runs, which says nothing about how much runs vary."


@dataclass(frozen=True)
class Difference:
    """One metric of A and of B, and A minus B with its interval and p-values."""

    a: float
    b: float
    value: float
    low: float
    high: float
    p: float
    p_holm: float


@dataclass(frozen=True)
class Comparison(Displayed):
    """The differences of all metrics; ``print`` shows them as a table."""

    differences: dict[str, Difference]
    num_samples: int
    num_runs: int
    confidence: float
    notes: tuple[str, ...] = ()
    positive: str | None = None

    def __getitem__(self, metric: str) -> Difference:
        return self.differences[metric]

    def to_dict(self) -> dict[str, dict[str, float]]:
        """``{metric: {a, b, value, low, high, p, p_holm}}``."""
        return {name: asdict(row) for name, row in self.differences.items()}

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON; what is not finite becomes null."""
        return json.dumps(finite(self.to_dict()), indent=2)

    def to_pandas(self) -> Any:
        """A data frame with a row a metric and the columns of :class:`Difference`."""
        return data_frame(self.to_dict())

    def _parts(self) -> list[Table | str]:
        return [self._heading(), self._table(), *self.notes]

    def _heading(self) -> str:
        if self.num_runs > 1:
            basis = f"{self.num_runs} pairs of runs, paired t-test"
        else:
            basis = f"{thousands(self.num_samples)} samples, the same for both"
        if self.positive is not None:
            basis += f"; the positive one is {class_called(self.positive)}"
        return f"{basis}; p (Holm) is corrected for the {len(self.differences)} metrics shown"

    def _table(self) -> Table:
        header = ["", "A", "B", "A − B", f"{100 * self.confidence:g} % interval", "p", "p (Holm)", ""]
        rows = []
        for name, row in self.differences.items():
            metric = registry()[name]
            label, unit = metric.title(two_classes=self.positive is not None), metric.unit
            width = row.high - row.low
            better = ""
            if row.p_holm < 1 - self.confidence:
                better = "A better" if (row.value > 0) == (metric.better == "higher") else "B better"
            ends = f"{number(row.low, unit, width, sign=True)} … {number(row.high, unit, width, sign=True)}"
            rows.append(
                [
                    label,
                    number(row.a, unit, width, suffix=True),
                    number(row.b, unit, width, suffix=True),
                    number(row.value, unit, width, sign=True),
                    "–" if math.isnan(row.low) else ends,
                    _p(row.p),
                    _p(row.p_holm),
                    better,
                ]
            )
        return Table.of(header, rows)


@documented
def compare(
    probs_a: Array | Sequence[Array],
    probs_b: Array | Sequence[Array],
    labels: Array | Sequence[Array],
    *,
    metrics: Iterable[str] | None = None,
    classes: Sequence[str] | None = None,
    positive: int | str | None = None,
    bins: int = 15,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    from_logits: bool = False,
    normalise: bool = False,
    weights: Array | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Comparison:
    r"""Difference of each metric between two models on the same samples, with a paired interval.

    Both models are resampled together, so what makes a sample hard for both cancels. With
    :math:`\Delta` the difference seen and :math:`q` quantiles of its resampled deviation from the
    truth, the interval is :math:`[\Delta - q_{1-\alpha/2}, \Delta - q_{\alpha/2}]`, and always
    contains :math:`\Delta`; ``p`` is the smallest :math:`\alpha` whose interval excludes 0, by the
    normal approximation where it is too small to be counted. The deviation of a calibration error
    contains its upward bias, which is known only within limits and which the two models need not
    share: the interval allows for both. The test that the errors are equal is sharper: biases of
    equal errors are alike, so it allows for the least and the most of one model, against a bias
    halfway of the other. Where it says that the errors differ, the interval ends at 0 at the
    latest.

    Lists of arrays are runs of two methods (one per seed): run ``i`` of A and of B form a pair, and
    interval and p-value come from a paired t-test over the pairs, which speaks of the methods and
    not only of the models at hand. Where all pairs differ by the same amount other than 0, both are
    NaN.

    Args:
        probs_a: Probabilities ``(N, K)`` of model A, or a list of them, one for each run.
        probs_b: The same of model B.
        labels: Class indices ``(N,)``; for runs with test sets of their own, a list of them.
        metrics: Names to compare; all of them by default. ``ece`` of two classes brings
            ``positive_ece`` along.
        classes: Names of the K classes.
        positive: The positive class of two, by its index or name; class 1 by default.
        from_logits: ``probs_a`` and ``probs_b`` hold logits.
        weights: How often each sample counts, ``(N,)``, at least 0; see :func:`evaluate`. Runs have
            the same samples then.

    Returns:
        The differences A minus B; ``p_holm`` is corrected for the number of metrics compared.

    Example:
        >>> import torch
        >>> from macc import metrics
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(2000, 3, generator=generator) * 2
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        >>> result = metrics.compare((3 * logits).softmax(1), logits.softmax(1), labels, metrics=["ece"])
        >>> result["ece"].value > 0.1, result["ece"].low > 0, result["ece"].p < 0.01
        (True, True, True)
    """
    check_bins(bins)
    check_confidence(confidence)
    check_resamples(resamples)
    first = probs_a[0] if _is_runs(probs_a) else probs_a
    num_classes = score_rows(first, from_logits=from_logits).shape[1]
    wanted = check_names(metrics, num_classes)
    names = class_names(classes, num_classes)
    one = positive_index(positive, names)
    options: dict[str, Any] = {"from_logits": from_logits, "normalise": normalise}
    progress = on_progress or (lambda _: None)
    notes: tuple[str, ...] = ()
    if _is_runs(probs_a) or _is_runs(probs_b):
        options |= {"bins": bins, "positive": one, "weights": weights}
        rows, num_samples, num_runs = _over_runs(
            probs_a, probs_b, labels, wanted, confidence, options, progress
        )
    else:
        sampled: list[dict[str, Sampled]] = []
        a, b = (predictions(probs, labels, **options) for probs in (probs_a, probs_b))
        if a.num_classes != b.num_classes:
            raise ValueError(f"A has {a.num_classes} classes and B has {b.num_classes}; they must agree")
        counts = counted(weights, a.num_samples)
        a, b = a.chosen(counts), b.chosen(counts)
        num_samples = a.num_samples
        notes = weights_note(num_samples, None if a.weights is None else a.total)
        with torch.device("cpu"):  # whatever the default device is
            for turn, given in enumerate((a, b)):
                resampling = Resampling.of(given, resamples, seed)
                draws = Draws(given, bins=bins, resampling=resampling, positive=one, metrics=wanted.values())
                sampled.append({name: metric.sample(draws) for name, metric in wanted.items()})
                progress((turn + 1) / 2)
            rows = {name: paired(sampled[0][name], sampled[1][name], confidence) for name in wanted}
        num_runs = 1
    return comparison(
        rows, num_samples, num_runs, confidence, notes, positive=None if one is None else names[one]
    )


def sampled_means(
    sets: Sequence[tuple[Array, Array]],
    metrics: Sequence[str],
    *,
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    from_logits: bool = False,
) -> dict[str, MeanOfSets]:
    """Unweighted means of metrics over several sets of predictions, resampled, for :func:`paired`.

    Sets of the same size get the same resamples: the copies of an image under several corruptions
    stay together.
    """
    found = []
    wanted = {name: registry()[name] for name in metrics}
    with torch.device("cpu"):  # whatever the default device is
        for probs, labels in sets:
            given = predictions(probs, labels, from_logits=from_logits, normalise=False)
            resampling = Resampling(given.num_samples, resamples, seed)
            draws = Draws(given, bins=bins, resampling=resampling, metrics=wanted.values())
            found.append({name: metric.sample(draws) for name, metric in wanted.items()})
    return {name: MeanOfSets(tuple(each[name] for each in found)) for name in metrics}


def comparison(
    rows: dict[str, Difference],
    num_samples: int,
    num_runs: int,
    confidence: float,
    notes: tuple[str, ...] = (),
    positive: str | None = None,
) -> Comparison:
    """The differences with p-values corrected for their number."""
    if num_runs > 1 and any(math.isnan(row.p) and math.isfinite(row.value) for row in rows.values()):
        notes = (*notes, _NOT_TESTED)
    corrected = holm([row.p for row in rows.values()])
    rows = {name: replace(row, p_holm=p) for (name, row), p in zip(rows.items(), corrected, strict=True)}
    return Comparison(rows, num_samples, num_runs, confidence, notes, positive)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, so that the chance of any false discovery stays
    controlled.

    The smallest of m is multiplied by m, the next by m - 1, and so on; a corrected value is never
    below that of a smaller p-value. Undefined ones stay undefined and do not count.

    Args:
        p_values: The p-values.

    Returns:
        The corrected p-values, in the same order.

    Example:
        >>> from macc import metrics
        >>> [round(p, 6) for p in metrics.holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]

    Reference:
        Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, 1979.
    """
    corrected = [math.nan] * len(p_values)
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        corrected[i] = largest
    return corrected


def paired(a: Deviating, b: Deviating, confidence: float) -> Difference:
    """The difference of one metric, both resampled together."""
    value = a.value - b.value
    of_a, of_b = a.deviation(), b.deviation()
    (least, most), *near = (
        (low[~low.isnan()], high[~high.isnan()]) for low, high in (of_a.minus(of_b), *of_a.near(of_b))
    )
    if not math.isfinite(value) or len(least) == 0:
        return Difference(a.value, b.value, value, math.nan, math.nan, math.nan, math.nan)
    tail = (1 - confidence) / 2
    low, high = value - quantile(most, 1 - tail), value - quantile(least, tail)
    p = max(_two_sided(value, most) if value > 0 else _two_sided(-value, -least) for least, most in near)
    if p < 1 - confidence:  # that they are equal is not among what the interval has to contain
        low, high = (max(low, 0.0), high) if value > 0 else (low, min(high, 0.0))
    return Difference(a.value, b.value, value, min(low, value), max(high, value), p, math.nan)


def _two_sided(value: float, deviation: Tensor) -> float:
    """Chance of a deviation of at least a positive value, if the truth were 0, doubled."""
    beyond = int((deviation >= value).sum())
    counted = min(1.0, 2 * (beyond + 1) / (len(deviation) + 1))
    if beyond >= 10:
        return counted
    # Counting cannot go below 2 / resamples, which a correction for many metrics would make too
    # much.
    spread = float(deviation.std())
    if spread == 0:
        return counted
    distance = (value - float(deviation.mean())) / spread
    return min(counted, 2 * NormalDist().cdf(-distance))


def _is_runs(probs: Array | Sequence[Array]) -> bool:
    """Whether this is a list of arrays; nested lists of numbers are one array."""
    return isinstance(probs, list | tuple) and len(probs) > 0 and isinstance(probs[0], Tensor | np.ndarray)


def _over_runs(
    probs_a: Array | Sequence[Array],
    probs_b: Array | Sequence[Array],
    labels: Array | Sequence[Array],
    wanted: Mapping[str, Metric[Any]],
    confidence: float,
    options: dict[str, Any],
    progress: Callable[[float], None],
) -> tuple[dict[str, Difference], int, int]:
    if not (_is_runs(probs_a) and _is_runs(probs_b) and len(probs_a) == len(probs_b)):
        raise ValueError("runs of A and of B must pair up: pass two lists of equally many arrays")
    num_runs = len(probs_a)
    if num_runs < 2:
        raise ValueError(
            "one pair of runs says nothing about others; pass two or more, or the arrays themselves"
        )
    targets = labels if _is_runs(labels) else [labels] * num_runs
    if len(targets) != num_runs:
        raise ValueError(f"there are {num_runs} pairs of runs and {len(targets)} arrays of labels")
    values = []
    num_samples = 0
    for i, (a, b, y) in enumerate(zip(probs_a, probs_b, targets, strict=True)):
        values.append(
            [{name: metric.value(probs, y, **options) for name, metric in wanted.items()} for probs in (a, b)]
        )
        counts = counted(options["weights"], len(y))
        num_samples += len(y) if counts is None else len(counts.rows)
        progress((i + 1) / num_runs)
    rows = {}
    for name in wanted:
        a_values, b_values = (
            torch.tensor([pair[side][name] for pair in values], device="cpu") for side in (0, 1)
        )
        rows[name] = _t_test(a_values.double(), b_values.double(), confidence)
    return rows, num_samples, num_runs


def _t_test(a: Tensor, b: Tensor, confidence: float) -> Difference:
    differences = a - b
    means = float(a.mean()), float(b.mean()), float(differences.mean())
    p = paired_p(differences.tolist()) if math.isfinite(means[2]) else math.nan
    ends = None if math.isnan(p) else interval(differences.tolist(), confidence)
    return Difference(*means, *(ends or (math.nan, math.nan)), p, math.nan)


def _p(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"

r"""Every metric of every group, and whether all groups are equally calibrated.

Intervals hold for all G groups at once: each is at the level
:math:`1 - (1 - \text{confidence}) / G` (Bonferroni).

The test supposes that one map leads from probabilities to frequencies, the same in all groups: in
each of 5 bins of equal mass the probabilities are wrong by the same amount,
:math:`m_i = p_i + \text{gap}_b`. The statistic sums, over groups and bins, the squared difference
between the outcomes and what the map says, over its variance :math:`\sum m_i (1 - m_i)`. What it
would be by chance is simulated: outcomes are drawn from the map, the map is fitted to them anew,
and the statistic is computed again. Groups that are all miscalibrated in the same way are therefore
equal.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from macc.metrics._evaluate import measured
from macc.metrics._metric import Metric, headline_error, registry
from macc.metrics._report import Report
from macc.metrics.binning import class_labels, top_labels
from macc.metrics.inputs import (
    Array,
    Predictions,
    check_bins,
    check_confidence,
    check_resamples,
    counted,
    predictions,
)
from macc.metrics.intervals import Estimate
from macc.metrics.naming import class_names, named_labels, positive_index
from macc.tables import Column, Displayed, Entry, Table, thousands, with_interval
from macc.words import documented, listed, quoted

SMALL = 100
"""Groups of fewer samples are said to be small."""
_BINS = 5
_SIMULATIONS = 499
# More metrics than this do not fit beside each other; those that are left out are in ``to_dict``.
_MOST_SHOWN = 4


@dataclass(frozen=True)
class GroupReport(Displayed):
    """The result of :func:`evaluate_groups`: the worst group first; ``print`` shows a table."""

    all: Report
    groups: dict[str, Report]
    p_value: float
    confidence: float

    @property
    def small(self) -> list[str]:
        """The groups of few samples."""
        return [name for name, report in self.groups.items() if report.num_samples < SMALL]

    def to_dict(self) -> dict[str, Any]:
        """All metrics of all groups, and the p-value of equal calibration."""
        return {
            "equal_calibration": {"p_value": self.p_value},
            "all": self.all.to_dict(),
            "groups": {
                name: {"samples": report.num_samples, **report.to_dict()}
                for name, report in self.groups.items()
            },
        }

    @property
    def equal(self) -> bool:
        """Whether the groups may be equally calibrated, as far as these samples can say."""
        return self.p_value >= 1 - self.confidence

    def verdict(self) -> str:
        """Whether the groups are equally calibrated, in a sentence."""
        return (
            f"The groups {'may be' if self.equal else 'are not'} equally calibrated (p = {self.p_value:.2g})."
        )

    def table(self, names: Iterable[str] | None = None) -> Table:
        """All samples, then the worst group first.

        Args:
            names: The metrics to show; accuracy, NLL and the calibration error of the verdict by
                default, or all where they are few.
        """
        if names is None:
            few = len(self.all.metrics) <= _MOST_SHOWN
            names = [name for name in self.all.metrics if few or self._is_usual(registry()[name])]
        shown = [registry()[name] for name in names]
        two = self.all.positive is not None
        columns = [Column("group", left=True), Column("samples")]
        for metric in shown:
            top = f"{metric.noun}, top label" if two and metric.top_label else metric.noun
            columns.append(Column(top, better=metric.better))
        rows = []
        for group, report in ({"all": self.all} | self.groups).items():
            count = Entry(thousands(report.num_samples), report.num_samples)
            rows.append((Entry(group), count, *(entry(each.name, report[each.name]) for each in shown)))
        return Table(tuple(columns), tuple(rows), notes=self._notes())

    def _is_usual(self, metric: Metric[Any]) -> bool:
        doubled = metric.top_label and self.all.positive is not None
        return (metric.prominence == 0 and not doubled) or metric.name == headline_error(self.all.metrics)

    def _notes(self) -> tuple[str, ...]:
        held = (
            "The worst group, by how far its error is above chance, is first. Intervals of groups hold "
            f"for all {len(self.groups)} at once with {100 * self.confidence:g} % confidence; after a calibration error and its interval stands what a perfectly "
            "calibrated model would show."
        )
        few = f"Few samples (below {SMALL}), so that little can be said of them: {listed(self.small)}."
        return (held, few) if self.small else (held,)

    def _parts(self) -> list[Table | str]:
        return [self.table(), "\n".join([*self._notes(), self.verdict()])]


@documented
def evaluate_groups(
    probs: Array,
    labels: Array,
    groups: Sequence[Any] | npt.NDArray[Any],
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
) -> GroupReport:
    """Measure every group, with intervals that hold for all of them at once.

    Args:
        labels: Class indices ``(N,)``, or names of ``classes``.
        metrics: Names to measure; all of them by default.
        classes: Names of the K classes in their order.
        positive: The positive class of two, by its index or name; class 1 by default.
        confidence: Level of the intervals, of all groups together.
        seed: Seed of the resamples and of the simulations.
        weights: How often each sample counts, ``(N,)``, at least 0; see :func:`evaluate`.

    Returns:
        A report for each group, the one whose ECE is furthest above its noise floor first, and the
        p-value of a test that all groups are equally calibrated.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> probs = rng.uniform(0.05, 0.95, 3000)
        >>> site = rng.choice(["north", "south"], 3000)
        >>> labels = rng.random(3000) < np.where(site == "south", 0.7 * probs, probs)
        >>> found = evaluate_groups(probs, labels.astype(int), site, metrics=["ece"], resamples=100)
        >>> list(found.groups), found.p_value < 0.01
        (['south', 'north'], True)
    """
    check_bins(bins)
    check_confidence(confidence)
    check_resamples(resamples)
    given = predictions(probs, named_labels(labels, classes), from_logits=from_logits, normalise=normalise)
    given, of_each = given.check(), _one_each(groups, given.num_samples)
    counts = counted(weights, given.num_samples)
    if counts is not None:
        given, of_each = given.chosen(counts), counts.of(of_each)
    names, which = _named(of_each)
    level = 1 - (1 - confidence) / len(names)

    def report(some: Predictions, confidence: float) -> Report:
        return measured(
            some,
            metrics=metrics,
            classes=classes,
            positive=positive,
            bins=bins,
            confidence=confidence,
            resamples=resamples,
            seed=seed,
        )

    metrics = None if metrics is None else list(metrics)
    every = report(given, confidence)
    found = {}
    for index, name in enumerate(names):
        if on_progress is not None:
            on_progress((index + 1) / (len(names) + 1))
        found[name] = report(given.part(torch.from_numpy(which == index)), level)
    one = positive_index(positive, class_names(classes, given.num_classes))
    top = top_labels(given.blocks()) if one is None else class_labels(given.blocks(), one)
    claimed, right = (part.cpu().numpy() for part in top)
    each = None if given.weights is None else given.weights.numpy()
    p_value = equal_calibration(claimed, right, which, seed=seed, weights=each)
    worst = dict(sorted(found.items(), key=lambda item: -_excess(item[1])))
    return GroupReport(every, worst, p_value, confidence)


def equal_calibration(
    probs: npt.NDArray[np.float64],
    outcomes: npt.NDArray[np.float64],
    groups: npt.NDArray[np.int64],
    *,
    simulations: int = _SIMULATIONS,
    seed: int = 0,
    weights: npt.NDArray[np.float64] | None = None,
) -> float:
    """The p-value of one map from probabilities to frequencies for all groups; see the top.

    Args:
        probs: Probabilities ``(N,)``.
        outcomes: 0 or 1 ``(N,)``.
        groups: The index of the group of each sample ``(N,)``.
        simulations: How often outcomes are drawn.
        seed: Of the draws.
        weights: Relative weights ``(N,)``; with them sums are weighted, and variances by squared
            weights.
    """
    each = np.ones(len(probs)) if weights is None else weights
    edges = np.unique(np.quantile(probs, np.arange(1, _BINS) / _BINS))
    cut = np.searchsorted(edges, probs)
    count = len(edges) + 1
    cells = groups * count + cut
    in_bin = np.bincount(cut, each, count)
    in_bin[in_bin == 0] = 1
    claimed = np.bincount(cut, each * probs, count)

    def statistic(right: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        gaps = (np.bincount(cut, each * right, count) - claimed) / in_bin
        said = np.clip(probs + gaps[cut], 1e-6, 1 - 1e-6)
        off = np.bincount(cells, each * (right - said))
        variance = np.bincount(cells, each**2 * said * (1 - said))
        filled = variance > 0
        return float((off[filled] ** 2 / variance[filled]).sum()), said

    seen, said = statistic(outcomes)
    rng = np.random.default_rng(seed)
    drawn = [statistic((rng.random(len(said)) < said).astype(np.float64))[0] for _ in range(simulations)]
    return float((1 + np.sum(np.array(drawn) >= seen)) / (simulations + 1))


def _one_each(groups: Any, size: int) -> npt.NDArray[Any]:
    """The group of each sample."""
    given = np.asarray(groups)
    if given.shape != (size,):
        raise ValueError(f"groups must name one group for each of {size} samples, got shape {given.shape}")
    return given


def _named(given: npt.NDArray[Any]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The names of the groups, in order, and the index of each sample's."""
    names, which, counts = np.unique(given.astype(str), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"all samples are of one group, {quoted(names[0])}; there is nothing to compare")
    if counts.min() < 2:
        alone = names[int(counts.argmin())]
        raise ValueError(
            f"the group {quoted(alone)} has one sample; leave it out, or put small groups together"
        )
    return [str(name) for name in names], which.reshape(-1)


def _excess(report: Report) -> float:
    """How far the error is above its noise floor."""
    name = headline_error(report.metrics)
    estimate = report[name]
    value = estimate.value - (estimate.noise_floor or 0.0)
    return -value if registry()[name].better == "higher" else value


def entry(name: str, estimate: Estimate) -> Entry:
    """A metric as it stands in a table: the value, its interval and its noise floor."""
    unit = registry()[name].unit
    return with_interval(estimate.value, estimate.low, estimate.high, unit, estimate.noise_floor)

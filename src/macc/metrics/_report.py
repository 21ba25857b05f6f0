"""Everything about one set of predictions: every metric with its interval, each class, each bin."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from statistics import NormalDist
from typing import Any

from torch import Tensor

from macc.io.json import finite
from macc.metrics._metric import Metric, metrics_of, registry
from macc.metrics._significance import NAMES
from macc.metrics.binning import TopBins
from macc.metrics.intervals import Estimate
from macc.tables import PERCENT, Displayed, Table, data_frame, interval, number, thousands
from macc.words import class_called, did_you_mean

# More classes than this are printed as the worst of them.
_CLASSES_SHOWN = 10


@dataclass(frozen=True)
class ClassRow:
    """One class: how often it occurs, how often it is predicted to, and its calibration error."""

    name: str
    samples: int
    frequency: float
    mean_probability: float
    ece: Estimate


@dataclass(frozen=True)
class Bin:
    """One bin of the reliability diagram; an empty one has ``nan`` for all but its edges and count.

    ``samples`` is a whole number, or the weight of the samples where these have relative weights.
    """

    low: float
    high: float
    samples: float
    confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


@dataclass(frozen=True)
class Positive:
    """The class of two that verdicts are about, and the bins of its probability.

    In these bins ``confidence`` is the mean probability of the class, and ``accuracy`` the share of
    samples of it.
    """

    name: str
    bins: tuple[Bin, ...]

    @property
    def mean_probability(self) -> float:
        """Mean probability of the class."""
        return _means(self.bins)[0]

    @property
    def frequency(self) -> float:
        """Share of samples of the class."""
        return _means(self.bins)[1]


@dataclass(frozen=True)
class Report(Displayed):
    """The result of :func:`evaluate`; ``print`` shows it as a table.

    ``bins`` are those of the confidence of the predicted class. With two classes, ``positive`` has
    the bins of the probability of the positive class; otherwise it is None. ``p_values`` are those
    of perfect calibration, where all metrics were asked for; see :func:`calibration_tests`.
    ``answers`` says that samples are answers, of which each has a confidence and is right or wrong;
    the positive class is then that of right ones.
    """

    metrics: dict[str, Estimate]
    classes: tuple[ClassRow, ...]
    bins: tuple[Bin, ...]
    num_samples: int
    num_classes: int
    confidence: float
    notes: tuple[str, ...] = ()
    positive: Positive | None = None
    p_values: dict[str, float] = field(default_factory=dict)
    answers: bool = False

    def __getitem__(self, metric: str) -> Estimate:
        if metric not in self.metrics:
            raise KeyError(f"no metric {metric!r} in this report; there are {', '.join(self.metrics)}")
        return self.metrics[metric]

    @property
    def mean_confidence(self) -> float:
        """Mean probability of the predicted class, or confidence of answers."""
        return _means(self._claimed)[0]

    @property
    def mean_accuracy(self) -> float:
        """Share of right predictions."""
        return _means(self._claimed)[1]

    @property
    def _claimed(self) -> tuple[Bin, ...]:
        """The bins of what the model claims."""
        return self.positive.bins if self.answers and self.positive is not None else self.bins

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """``{metric: {value, low, high}}``, with ``noise_floor`` where chance alone gives an error.

        ``classwise_ece`` has lists, one entry for each class.
        """
        result: dict[str, dict[str, Any]] = {
            name: {key: value for key, value in asdict(estimate).items() if value is not None}
            for name, estimate in self.metrics.items()
        }
        if self.classes:
            estimates = [asdict(row.ece) for row in self.classes]
            result["classwise_ece"] = {key: [estimate[key] for estimate in estimates] for key in estimates[0]}
        return result

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON; what is not finite becomes null."""
        return json.dumps(finite(self.to_dict()), indent=2)

    def to_pandas(self) -> Any:
        """A data frame with a row a metric: ``value``, ``low``, ``high`` and ``noise_floor``."""
        return data_frame({name: asdict(estimate) for name, estimate in self.metrics.items()})

    def plot(self) -> Any:
        """The reliability diagram, as a matplotlib figure that notebooks show by themselves.

        Example:
            >>> import macc
            >>> report = macc.evaluate([0.9, 0.3, 0.6], [1, 0, 0], metrics=["ece"])
            >>> report.plot().savefig("reliability.png")  # doctest: +SKIP
        """
        # Figures are made of reports and know them; found at the call, they need not be known here.
        return import_module("macc.report.figures").reliability_diagram(self)

    def verdict(self) -> str:
        """What the expected calibration error says in words, or nothing when it was not asked for.

        With two classes it is about the positive class.
        """
        if self.positive is not None and not self.answers and "positive_ece" in self.metrics:
            return self._verdict_of_two(self.positive)
        ece = self.metrics.get("positive_ece" if self.answers else "ece")
        if ece is None:
            return ""
        floor = ece.noise_floor or 0.0
        means = (
            f"mean confidence {100 * self.mean_confidence:.1f} %, accuracy {100 * self.mean_accuracy:.1f} %"
        )
        seen, chance = (number(v, PERCENT, ece.high - ece.low, suffix=True) for v in (ece.value, floor))
        if ece.low == 0:
            return (
                f"ECE {seen} is not significantly different from the {chance} that a perfectly calibrated model "
                f"would show on {thousands(self.num_samples)} samples ({means})."
            )
        gap = self.mean_confidence - self.mean_accuracy
        kind = "over-confident" if gap > 0 else "under-confident"
        if abs(gap) < ece.value / 2:
            kind = "over-confident in some bins and under-confident in others"
        return (
            f"ECE {seen} is more than the {chance} that a perfectly calibrated model would show: "
            f"the model is {kind} ({means})."
        )

    def _verdict_of_two(self, positive: Positive) -> str:
        ece = self.metrics["positive_ece"]
        width = ece.high - ece.low
        seen, chance = (number(v, PERCENT, width, suffix=True) for v in (ece.value, ece.noise_floor or 0.0))
        said, happened = positive.mean_probability, positive.frequency
        means = f"{100 * said:.1f} % on average, and {100 * happened:.1f} % happen"
        error = f"ECE of the positive class {seen}"
        beside = ""
        if "ece" in self.metrics:
            top = self.metrics["ece"]
            beside = f" (ECE of the top label {number(top.value, PERCENT, top.high - top.low, suffix=True)})"
        subject = f"P({class_called(positive.name)})"
        if ece.low == 0:
            return (
                f"{error} is not significantly different from the {chance} that a perfectly calibrated model would show on "
                f"{thousands(self.num_samples)} samples; {subject} is {means}{beside}."
            )
        # How far probabilities lie too near 0 and 1, and not too near one half.
        extreme = sum(
            b.samples * math.copysign(b.confidence - b.accuracy, (b.confidence - b.accuracy) * (b.low + b.high - 1))
            for b in positive.bins
            if b.samples
        ) / sum(b.samples for b in positive.bins)  # fmt: skip
        kind = "too high in some bins and too low in others"
        if abs(said - happened) >= ece.value / 2:
            kind = "too high" if said > happened else "too low"
        elif abs(extreme) >= ece.value / 2:
            kind = "too close to 0 and 1" if extreme > 0 else "too close to one half"
        return (
            f"{subject} is {kind}: {means}. {error} is more than the {chance} that a perfectly calibrated "
            f"model would show{beside}."
        )

    def _parts(self) -> list[Table | str]:
        classes = (self._class_heading(), self._class_table()) if self.classes else ()
        ends = [self.tests(), self.verdict(), "\n".join(self.notes)]
        return [self._heading(), self._metric_table(), *classes, *ends]

    def tests(self) -> str:
        """P-values of perfect calibration in a sentence; nothing where not asked for."""
        if not self.p_values:
            return ""
        each = (f"{NAMES[name]} {_p_value(p)}" for name, p in self.p_values.items())
        return f"Tests of perfect calibration, p-values: {', '.join(each)}."

    def _heading(self) -> str:
        text = f"{thousands(self.num_samples)} samples, {thousands(self.num_classes)} classes"
        return (
            text
            if self.positive is None
            else f"{text}; the positive one is {class_called(self.positive.name)}"
        )

    def _metric_table(self) -> Table:
        rows = []
        for name, estimate in self.metrics.items():
            metric = registry()[name]
            label, unit = metric.title(two_classes=self.positive is not None), metric.unit
            width = estimate.high - estimate.low
            floor = (
                "" if estimate.noise_floor is None else number(estimate.noise_floor, unit, width, suffix=True)
            )
            value = number(estimate.value, unit, width, suffix=True)
            rows.append([label, value, interval(estimate.low, estimate.high, unit), floor])
        return Table.of(["", "value", f"{100 * self.confidence:g} % interval", "noise floor"], rows)

    def _class_heading(self) -> str:
        if len(self.classes) <= _CLASSES_SHOWN:
            return "Each class"
        return f"The {_CLASSES_SHOWN} classes with the largest calibration error"

    def _class_table(self) -> Table:
        shown = list(self.classes)
        if len(shown) > _CLASSES_SHOWN:
            shown = sorted(shown, key=lambda row: -row.ece.value)[:_CLASSES_SHOWN]
        rows = []
        for row in shown:
            width = row.ece.high - row.ece.low
            rows.append(
                [
                    row.name,
                    thousands(row.samples),
                    number(row.frequency, PERCENT, math.nan, suffix=True),
                    number(row.mean_probability, PERCENT, math.nan, suffix=True),
                    number(row.ece.value, PERCENT, width, suffix=True),
                    interval(row.ece.low, row.ece.high, PERCENT),
                    number(row.ece.noise_floor or 0.0, PERCENT, width, suffix=True),
                ]
            )
        level = f"{100 * self.confidence:g} % interval"
        header = ["class", "samples", "frequency", "mean probability", "class-wise ECE", level, "noise floor"]
        return Table.of(header, rows)


def check_names(
    metrics: Iterable[str] | None, num_classes: int, *, certainty: bool = False
) -> dict[str, Metric[Any]]:
    """The metrics asked for, in the order of the table."""
    there = metrics_of(num_classes, certainty=certainty)
    if metrics is None:
        return there
    wanted = [metrics] if isinstance(metrics, str) else list(metrics)
    for name in wanted:
        if name in there:
            continue
        if name not in registry():
            raise ValueError(f"no metric is called {name!r}; {did_you_mean(name, there)}")
        if registry()[name].of == "certainty":
            raise ValueError(f"{name} needs the variance of the logits; pass it to evaluate as variance=")
        raise ValueError(f"{name} is a metric of two classes, and there are {num_classes}; leave it out")
    # What verdicts and diagrams of two classes are about.
    wanted += ["positive_ece"] if num_classes == 2 and "ece" in wanted else []
    return {name: metric for name, metric in there.items() if name in wanted}


def reliability_bins(
    binned: TopBins, bins: int, confidence: float, sizes: Tensor | None = None
) -> tuple[Bin, ...]:
    """The bins of the reliability diagram.

    Args:
        binned: Sums over the samples of each bin.
        bins: Number of bins.
        confidence: Level of the intervals.
        sizes: ``(bins,)`` how many samples of equal weights say as much as those of each bin, where
            samples have weights.
    """
    rows = []
    whole = sizes is None
    parts = (part.tolist() for part in (*binned, binned.samples if sizes is None else sizes))
    for i, (samples, claimed, correct, size) in enumerate(zip(*parts, strict=True)):
        edges = i / bins, (i + 1) / bins
        if samples == 0:
            rows.append(Bin(*edges, 0, math.nan, math.nan, math.nan, math.nan))
        else:
            limits = _wilson(correct / samples, size, confidence)
            held = round(samples) if whole else samples
            rows.append(Bin(*edges, held, claimed / samples, correct / samples, *limits))
    return tuple(rows)


def weights_note(num_samples: int, size: float | None) -> tuple[str, ...]:
    """A sentence: how many samples of equal weights say as much as these."""
    if size is None:
        return ()
    equal = thousands(round(size))
    return (
        f"Weights are relative: {thousands(num_samples)} samples say as much as {equal} of equal weights.",
    )


def _p_value(p: float) -> str:
    """A p-value as it is printed."""
    return "–" if math.isnan(p) else "< 0.0001" if p < 1e-4 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def _means(bins: Sequence[Bin]) -> tuple[float, float]:
    """Mean confidence and mean accuracy over the samples of all bins."""
    filled = [b for b in bins if b.samples]
    count = sum(b.samples for b in filled)
    return sum(b.samples * b.confidence for b in filled) / count, sum(
        b.samples * b.accuracy for b in filled
    ) / count


def _wilson(share: float, samples: float, confidence: float) -> tuple[float, float]:
    """Wilson's limits of a share."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (share + z * z / (2 * samples)) / (1 + z * z / samples)
    half = z * math.sqrt(share * (1 - share) / samples + (z / (2 * samples)) ** 2) / (1 + z * z / samples)
    return max(0.0, centre - half), min(1.0, centre + half)

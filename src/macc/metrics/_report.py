"""Everything about one set of predictions: every metric with its interval, each class, each bin."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from statistics import NormalDist
from typing import Any

import torch

from macc.io.json import finite
from macc.metrics._metric import Metric, metrics_of, registry
from macc.metrics._resampling import Draws, Resampling
from macc.metrics._significance import NAMES, p_values
from macc.metrics.binning import TopBins
from macc.metrics.correctness import CLASSES, NOTE, metrics_of_answers
from macc.metrics.frames import read_columns
from macc.metrics.inputs import (
    Array,
    Predictions,
    check_bins,
    check_confidence,
    check_resamples,
    class_names,
    named_labels,
    positive_index,
    predictions,
)
from macc.metrics.intervals import Estimate
from macc.tables import PERCENT, Table, data_frame, html_paragraph, interval, number, thousands
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
    """One bin of the reliability diagram; an empty one has ``nan`` for all but its edges and count."""

    low: float
    high: float
    samples: int
    confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float


@dataclass(frozen=True)
class Positive:
    """The class of two that verdicts are about, and the bins of its probability.

    In these bins ``confidence`` is the mean probability of the class, and ``accuracy`` the share of samples of it.
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
class Report:
    """The result of :func:`evaluate`; ``print`` shows it as a table.

    ``bins`` are those of the confidence of the predicted class. With two classes, ``positive`` has the bins of the
    probability of the positive class; otherwise it is None. ``p_values`` are those of perfect calibration, where all
    metrics were asked for; see :func:`calibration_tests`.
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

    def __getitem__(self, metric: str) -> Estimate:
        if metric not in self.metrics:
            raise KeyError(f"no metric {metric!r} in this report; there are {', '.join(self.metrics)}")
        return self.metrics[metric]

    @property
    def mean_confidence(self) -> float:
        """Mean probability of the predicted class."""
        return _means(self.bins)[0]

    @property
    def mean_accuracy(self) -> float:
        """Share of right predictions."""
        return _means(self.bins)[1]

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
        """A data frame with a row for each metric: ``value``, ``low``, ``high`` and ``noise_floor``."""
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
        if self.positive is not None and "positive_ece" in self.metrics:
            return self._verdict_of_two(self.positive)
        if "ece" not in self.metrics:
            return ""
        ece = self.metrics["ece"]
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
        ) / self.num_samples  # fmt: skip
        kind = "too high in some bins and too low in others"
        if abs(said - happened) >= ece.value / 2:
            kind = "too high" if said > happened else "too low"
        elif abs(extreme) >= ece.value / 2:
            kind = "too close to 0 and 1" if extreme > 0 else "too close to one half"
        return (
            f"{subject} is {kind}: {means}. {error} is more than the {chance} that a perfectly calibrated "
            f"model would show{beside}."
        )

    def __str__(self) -> str:
        parts = [self._heading(), self._metric_table().text()]
        if self.classes:
            parts += [self._class_heading(), self._class_table().text()]
        ends = (self._tests(), self.verdict(), "\n".join(self.notes))
        return "\n\n".join(part for part in (*parts, *ends) if part)

    def _repr_html_(self) -> str:
        parts = [html_paragraph(self._heading()), self._metric_table().html()]
        if self.classes:
            parts += [html_paragraph(self._class_heading()), self._class_table().html()]
        return "".join([*parts, *map(html_paragraph, (self._tests(), self.verdict(), *self.notes))])

    def _tests(self) -> str:
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


def evaluate(
    data: Any = None,
    labels: Array | str | None = None,
    *,
    probs: Any = None,
    variance: Array | None = None,
    metrics: Iterable[str] | None = None,
    classes: Sequence[str] | None = None,
    positive: int | str | None = None,
    bins: int = 15,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    from_logits: bool = False,
    normalise: bool = False,
    answers: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Report:
    """Measure everything: each metric with an interval, each class, and the bins of a reliability diagram.

    Calibration errors come with their noise floor, the value that a perfectly calibrated model with
    these confidences would show on this many samples. The interval of a binned error is about the
    error of the whole population with the same bins.

    With two classes the verdict and the diagram are about the positive class: ``positive_ece`` and its like measure
    its probability over all of ``[0, 1]``. ``ece`` and its like are about the predicted class, where errors of the
    two classes can cancel.

    Args:
        data: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two. Or a data frame of pandas, polars or pyarrow, or a data
            set of Hugging Face, of which ``labels`` and ``probs`` name columns.
        labels: Class indices ``(N,)``, or names of ``classes``; of a frame the name of a column.
        probs: Of a frame, the columns of the classes in their order, or one column with the probability of class 1
            or with lists; by default every column of numbers but the labels. The report says which were taken.
        variance: Variance ``(N, K)`` of the logits under dropout, as :func:`macc.moments` gives it. The report then says
            how well the paper's certainty of the predicted class ranks right above wrong predictions
            (``failure_auroc_by_certainty``), beside confidence.
        metrics: Names to measure; all of them by default. ``ece`` of two classes brings ``positive_ece`` along.
        classes: Names of the K classes in their order, for the table and for labels that are names.
        positive: The positive class of two, by its index or name; class 1 by default.
        bins: Number of bins.
        confidence: Level of the intervals, in ``(0, 1)``.
        resamples: Number of bootstrap resamples, at least 100.
        seed: Seed of the resamples; the same seed gives the same report.
        from_logits: The scores are logits.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        answers: The scores ``(N,)`` are the confidence of answers, and ``labels`` says which were right: for language
            models, judges and retrieval, where no probability of every class is known. Only metrics that need none
            are measured.
        on_progress: Called with the share of the work done.

    Returns:
        The report: ``report["ece"].value``, ``.low``, ``.high``, ``.noise_floor``; ``to_dict()``,
        ``to_json()``, ``classes``, ``bins`` and, of two classes, ``positive``.

    Example:
        >>> import torch, macc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(1000, 3, generator=generator)
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        >>> report = macc.evaluate((2 * logits).softmax(1), labels, metrics=["accuracy", "ece"])
        >>> print(report)
        1 000 samples, 3 classes
        <BLANKLINE>
                   value  95 % interval  noise floor
        ────────────────────────────────────────────
        accuracy  59.5 %    56.4 – 62.6
        ECE       15.8 %    11.8 – 18.6        3.1 %
        <BLANKLINE>
        ECE 15.8 % is more than the 3.1 % that a perfectly calibrated model would show: ...
    """
    check_bins(bins)
    check_confidence(confidence)
    check_resamples(resamples)
    notes: tuple[str, ...] = ()
    if isinstance(labels, str):
        data, labels, classes, note = read_columns(data, labels, probs, classes)
        notes = (note,)
    elif probs is not None:
        if data is not None:
            raise ValueError(
                "probs names columns of a data frame whose column of labels is named too: labels='label'"
            )
        data = probs
    if data is None or labels is None:
        raise ValueError("evaluate needs probabilities and labels: evaluate(probs, labels)")
    if answers:
        metrics, classes, notes = metrics_of_answers(metrics), CLASSES, (*notes, NOTE)
    labels = named_labels(labels, classes)
    given = on_cpu(predictions(data, labels, from_logits=from_logits, normalise=normalise))
    checked = None if variance is None else _check_variance(given, variance)
    wanted = check_names(metrics, given.num_classes, certainty=checked is not None)
    names = class_names(classes, given.num_classes)
    one = positive_index(positive, names)
    draws = Draws(
        given,
        bins=bins,
        resampling=Resampling(given.num_samples, resamples, seed),
        positive=one,
        confidence=confidence,
        variance=checked,
        whole=metrics is None,
    )
    estimates = {}
    with torch.device("cpu"):  # whatever the default device is
        for done, (name, metric) in enumerate(wanted.items()):
            if on_progress is not None:
                on_progress(done / len(wanted))
            estimates[name] = metric.sample(draws).estimate(confidence)
    if on_progress is not None:
        on_progress(1.0)

    def diagram(binned: TopBins) -> tuple[Bin, ...]:
        return reliability_bins(binned, bins, confidence)

    return Report(
        estimates,
        _class_rows(given, names, draws) if "sce" in wanted else (),
        diagram(draws.cells.binned),
        given.num_samples,
        given.num_classes,
        confidence,
        notes=(*notes, *_certainty_note(estimates)),
        positive=None if one is None else Positive(names[one], diagram(draws.positive.cells.binned)),
        p_values=p_values(draws.sample.top if one is None else draws.sample.positive)
        if metrics is None
        else {},
    )


def on_cpu(given: Predictions) -> Predictions:
    """Resampling draws its numbers on the CPU, so that a seed means the same everywhere."""
    return replace(given, scores=given.scores.cpu(), labels=given.labels.cpu())


def _check_variance(given: Predictions, variance: Array) -> torch.Tensor:
    """Refuse what cannot be the variance of the logits."""
    values = torch.as_tensor(variance).detach().cpu().double()
    if tuple(values.shape) != tuple(given.scores.shape):
        raise ValueError(
            f"variance must have the shape of the scores, {tuple(given.scores.shape)}, got {tuple(values.shape)}"
        )
    if not bool((values >= 0).all() & values.isfinite().all()):
        raise ValueError("variance must be finite and at least 0; repair what wrote it")
    return values


def _certainty_note(estimates: dict[str, Estimate]) -> tuple[str, ...]:
    """A sentence where certainty ranks worse than confidence."""
    if not {"failure_auroc", "failure_auroc_by_certainty"} <= set(estimates):
        return ()
    by_confidence, by_certainty = (
        estimates[name].value for name in ("failure_auroc", "failure_auroc_by_certainty")
    )
    if not by_certainty < by_confidence:
        return ()
    how = "backwards" if by_certainty < 0.5 else "worse than confidence does"
    return (
        f"Certainty ranks right and wrong predictions {how} (failure AUROC {by_certainty:.3f}, by confidence "
        f"{by_confidence:.3f}): choose the cases to hand to a person by confidence.",
    )


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


def _class_rows(given: Predictions, names: list[str], draws: Draws) -> tuple[ClassRow, ...]:
    samples = torch.bincount(given.labels, minlength=given.num_classes).tolist()
    means = (draws.sample.totals / given.num_samples).tolist()
    return tuple(
        ClassRow(name, count, count / given.num_samples, mean, estimate)
        for name, count, mean, estimate in zip(names, samples, means, draws.classes.each, strict=True)
    )


def reliability_bins(binned: TopBins, bins: int, confidence: float) -> tuple[Bin, ...]:
    """The bins of the reliability diagram."""
    rows = []
    for i, (samples, claimed, correct) in enumerate(zip(*(part.tolist() for part in binned), strict=True)):
        edges = i / bins, (i + 1) / bins
        if samples == 0:
            rows.append(Bin(*edges, 0, math.nan, math.nan, math.nan, math.nan))
        else:
            limits = _wilson(correct / samples, samples, confidence)
            rows.append(Bin(*edges, round(samples), claimed / samples, correct / samples, *limits))
    return tuple(rows)


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

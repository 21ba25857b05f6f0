"""Tables of a page: numbers as people read them, with what a browser sorts by."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from macc.metrics import Estimate, Report, registry
from macc.tables import interval, number, thousands

MOST_CLASSES = 100


@dataclass(frozen=True)
class Cell:
    """One field: what is read, what is sorted by, and its remarks."""

    text: str
    value: float | None = None
    interval: str = ""
    floor: str = ""
    best: bool = False
    """Whether it is clearly the best of its column."""
    paper: str = ""

    @property
    def key(self) -> str:
        """What a browser sorts by; empty sorts last."""
        return "" if self.value is None or not math.isfinite(self.value) else repr(self.value)


@dataclass(frozen=True)
class Column:
    """A heading; ``better`` is ``"lower"``, ``"higher"``, ``"zero"`` or nothing."""

    title: str
    better: str = ""

    @property
    def first(self) -> str:
        """The direction in which the first click sorts, so that the best comes first."""
        return "descending" if self.better in ("", "higher") else "ascending"

    @property
    def hint(self) -> str:
        """Which end is good, in words."""
        words = {"lower": "lower is better", "higher": "higher is better", "zero": "0 is best"}
        return words.get(self.better, "")


@dataclass(frozen=True)
class Table:
    """A table that can be sorted."""

    key: str
    caption: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)


def comparison(key: str, caption: str, reports: Mapping[str, Report]) -> Table:
    """Every report on a row, the best of a column marked where it is clear."""
    columns = [Column("run"), Column("confidence −\u00a0accuracy", "zero")]
    rows = [[Cell(name), _gap(report)] for name, report in reports.items()]
    first = next(iter(reports.values()))
    for name in first.metrics:
        metric = registry()[name]
        # Of two classes the table has the ECE of the positive one more, and no room for its other errors.
        if metric.prominence > (1 if metric.of == "two classes" else 2):
            continue
        columns.append(Column(metric.title(two_classes=first.positive is not None).strip(), metric.better))
        found = [report[name] for report in reports.values()]
        best = _apart(found, metric.better)
        for i, (row, each) in enumerate(zip(rows, found, strict=True)):
            row.append(replace(_estimate(each, metric.unit.symbol), best=i == best))
    notes = [
        f"Under each value stands its {100 * first.confidence:g} % interval over test samples. “Chance” is the error "
        "that a perfectly calibrated model with these confidences would show on as many samples.",
    ]
    if len(reports) > 1:
        notes.append(
            "Best: its interval lies apart from all others. A column without a mark has no clear best."
        )
    return Table(key, caption, columns, rows, notes)


def classes(key: str, report: Report, recalls: Sequence[float]) -> Table:
    """Every class on a row, the worst calibrated first."""
    order = sorted(range(len(report.classes)), key=lambda k: -report.classes[k].ece.value)
    columns = [
        Column("class"),
        Column("samples"),
        Column("recall", "higher"),
        Column("frequency"),
        Column("mean probability"),
        Column("class-wise ECE", "lower"),
    ]
    rows = []
    for k in order[:MOST_CLASSES]:
        row = report.classes[k]
        rows.append(
            [
                Cell(row.name),
                Cell(thousands(row.samples), row.samples),
                Cell(number(recalls[k], "%", 0.05, suffix=True), recalls[k]),
                Cell(number(row.frequency, "%", 0.05, suffix=True), row.frequency),
                Cell(number(row.mean_probability, "%", 0.05, suffix=True), row.mean_probability),
                _estimate(row.ece, "%"),
            ]
        )
    notes = []
    if len(order) > MOST_CLASSES:
        notes.append(f"The {MOST_CLASSES} worst calibrated of {len(order)} classes.")
    return Table(key, "Each class, the worst calibrated first", columns, rows, notes)


def _apart(estimates: Sequence[Estimate], better: str) -> int | None:
    """Which of several is best, where its interval lies apart from all others; none otherwise."""
    known = [
        (each, i) for i, each in enumerate(estimates) if math.isfinite(each.low) and math.isfinite(each.high)
    ]
    if len(known) < max(2, len(estimates)):
        return None
    if better == "higher":
        best = max(known, key=lambda pair: pair[0].value)
        alone = all(best[0].low > each.high for each, i in known if i != best[1])
    else:
        best = min(known, key=lambda pair: pair[0].value)
        alone = all(best[0].high < each.low for each, i in known if i != best[1])
    return best[1] if alone else None


def _estimate(estimate: Estimate, unit: str) -> Cell:
    width = estimate.high - estimate.low
    floor = ""
    if estimate.noise_floor is not None:
        floor = number(estimate.noise_floor, unit, width, suffix=True)
    return Cell(
        number(estimate.value, unit, width, suffix=True),
        estimate.value,
        interval(estimate.low, estimate.high, unit),
        floor,
    )


def _gap(report: Report) -> Cell:
    value = report.mean_confidence - report.mean_accuracy
    return Cell(number(value, "%", 0.05, sign=True, suffix=True), value)

"""Tables of a page: numbers as people read them, with what a browser sorts by."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from macc.metrics import Estimate, Report
from macc.metrics._compare import HIGHER_IS_BETTER
from macc.metrics._tables import interval, named, number, thousands

COLUMNS = (
    "accuracy",
    "gap",
    "ece",
    "sce",
    "smooth_ece",
    "mce",
    "nll",
    "brier",
    "auroc",
    "failure_auroc",
    "risk_at_coverage",
)
"""What the comparison shows; ``gap`` is mean confidence minus accuracy."""
MOST_CLASSES = 100


@dataclass(frozen=True)
class Cell:
    """One field: what is read, what is sorted by, and its remarks."""

    text: str
    value: float | None = None
    interval: str = ""
    floor: str = ""
    rank: int = 0
    """1 is the best of its column, 2 the second best."""
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
    """Every report on a row, the best and second best of each column marked."""
    columns = [Column("run")]
    rows = [[Cell(name)] for name in reports]
    first = next(iter(reports.values()))
    for metric in COLUMNS if first.positive is None else (*COLUMNS[:2], "positive_ece", *COLUMNS[2:]):
        if metric == "gap":
            columns.append(Column("confidence −\u00a0accuracy", "zero"))
            cells = [_gap(report) for report in reports.values()]
        else:
            better = "higher" if metric in HIGHER_IS_BETTER else "lower"
            label = named(metric, two_classes=first.positive is not None)[0].strip()
            columns.append(Column(label, better))
            cells = [_estimate(report[metric], named(metric)[1]) for report in reports.values()]
        for row, cell in zip(rows, ranked(cells, columns[-1].better), strict=True):
            row.append(cell)
    notes = [
        f"Under each value stands its {100 * first.confidence:g} % interval over test samples. “Chance” is the error "
        "that a perfectly calibrated model with these confidences would show on as many samples.",
    ]
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


def ranked(cells: Sequence[Cell], better: str) -> list[Cell]:
    """Mark the best and the second best; values that read alike share a mark, and one alone has none."""
    if not better or len(cells) < 2:
        return list(cells)

    def goodness(cell: Cell) -> float:
        value = cell.value or 0.0
        return abs(value) if better == "zero" else -value if better == "higher" else value

    finite = [cell for cell in cells if cell.key]
    levels: list[str] = []
    for cell in sorted(finite, key=goodness):
        if _read(cell, better) not in levels:
            levels.append(_read(cell, better))
    if len(levels) < 2:
        return list(cells)
    marks = {text: rank for rank, text in enumerate(levels[:2], start=1)}
    return [
        Cell(c.text, c.value, c.interval, c.floor, marks.get(_read(c, better), 0) if c.key else 0, c.paper)
        for c in cells
    ]


def _read(cell: Cell, better: str) -> str:
    return cell.text.lstrip("+−") if better == "zero" else cell.text


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

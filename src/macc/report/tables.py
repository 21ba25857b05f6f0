"""The tables of a page that are about reports: runs beside each other, and the classes of one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from macc.metrics import Estimate, Report, registry
from macc.tables import PERCENT, Column, Entry, Table, Unit, number, thousands, with_interval

MOST_CLASSES = 100


def comparison_table(caption: str, reports: Mapping[str, Report]) -> Table:
    """Every report on a row, the best of a column marked where it is clear."""
    columns = [Column("run", left=True), Column("confidence −\u00a0accuracy", better="zero")]
    rows = [[Entry(name), _gap(report)] for name, report in reports.items()]
    first = next(iter(reports.values()))
    two = first.positive is not None
    for name in shown_metrics(first):
        metric = registry()[name]
        title = f"{metric.noun}, top label" if two and metric.top_label else metric.noun
        columns.append(Column(title, better=metric.better))
        found = [report[name] for report in reports.values()]
        best = _apart(found, metric.better)
        for i, (row, each) in enumerate(zip(rows, found, strict=True)):
            row.append(replace(_estimate(each, metric.unit), best=i == best))
    notes = [
        f"Under each value stands its {100 * first.confidence:g} % interval over test samples. “Chance” is the error "
        "that a perfectly calibrated model with these confidences would show on as many samples.",
    ]
    if len(reports) > 1:
        notes.append(
            "Best: its interval lies apart from all others. A column without a mark has no clear best."
        )
    return Table(tuple(columns), tuple(map(tuple, rows)), caption, tuple(notes))


def shown_metrics(report: Report) -> list[str]:
    """The metrics that tables of a page have room for."""
    two = report.positive is not None

    def most(name: str) -> int:
        # Of two classes there is the ECE of the positive one and of the top label, and no room for
        # their other errors.
        metric = registry()[name]
        return 1 if two and not report.answers and (metric.of == "two classes" or metric.top_label) else 2

    return [name for name in report.metrics if registry()[name].prominence <= most(name)]


def class_table(report: Report, recalls: Sequence[float]) -> Table:
    """Every class on a row, the worst calibrated first."""
    order = sorted(range(len(report.classes)), key=lambda k: -report.classes[k].ece.value)
    columns = (
        Column("class", left=True),
        Column("samples"),
        Column("recall", better="higher"),
        Column("frequency"),
        Column("mean probability"),
        Column("class-wise ECE", better="lower"),
    )
    rows = []
    for k in order[:MOST_CLASSES]:
        row = report.classes[k]
        rows.append(
            (
                Entry(row.name),
                Entry(thousands(row.samples), row.samples),
                *(
                    Entry(number(share, PERCENT, 0.05, suffix=True), share)
                    for share in (recalls[k], row.frequency, row.mean_probability)
                ),
                _estimate(row.ece, PERCENT),
            )
        )
    notes: tuple[str, ...] = ()
    if len(order) > MOST_CLASSES:
        notes = (f"The {MOST_CLASSES} worst calibrated of {len(order)} classes.",)
    return Table(columns, tuple(rows), "Each class, the worst calibrated first", notes)


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


def _estimate(estimate: Estimate, unit: Unit) -> Entry:
    return with_interval(estimate.value, estimate.low, estimate.high, unit, estimate.noise_floor)


def _gap(report: Report) -> Entry:
    value = report.mean_confidence - report.mean_accuracy
    return Entry(number(value, PERCENT, 0.05, sign=True, suffix=True), value)

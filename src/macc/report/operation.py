"""What a page shows of predictions in operation: groups, sets of classes, and rows over time."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from macc import words
from macc.metrics import Estimate, GroupReport, evaluate_groups, headline_error, registry
from macc.metrics.correctness import metrics_of_answers
from macc.monitor import Monitor, report
from macc.monitor.logs import count_log, open_log
from macc.posthoc.applying import load_sets
from macc.posthoc.repair import check_classes
from macc.report import figures
from macc.report.building import Builder
from macc.report.html import Section, SectionPart
from macc.report.sources import ReportSource
from macc.report.tables import MOST_CLASSES, shown_metrics
from macc.tables import Table, thousands

MOST_LINES = 30
"""More lines than this in one figure cannot be read."""


@dataclass(frozen=True)
class Operation:
    """What else a page is asked to show of its sources.

    Args:
        by: Columns whose values are groups.
        groups: The file that has them, a row for each sample; the file of predictions itself by
            default.
        sets: Fitted sets of classes, as ``macc sets`` writes them: one for all sources, or one for
            each.
        time: The column of times of files that are logs.
        window: How long a window of time is.
        monitors: States, as ``macc monitor update`` writes them.
    """

    by: Sequence[str] = ()
    groups: Path | None = None
    sets: Sequence[Path] = ()
    time: str | None = None
    window: str = "1d"
    monitors: Sequence[Path] = ()

    def __post_init__(self) -> None:
        if self.groups is not None and not self.by:
            raise ValueError(f"--groups {self.groups} needs --by COLUMN, a column of it")

    @property
    def reading(self) -> dict[str, Any]:
        """How to read prediction files with these columns; a log may lack labels."""
        own = self.by if self.groups is None else ()
        if self.time is None:
            return {"carry": own}
        return {"carry": [*own, self.time], "drop_missing": True}

    def check(self, sources: Sequence[ReportSource]) -> None:
        """Refuse, before the work and not after it, what these sources do not have."""
        if len(self.sets) > 1 and len(self.sets) != len(sources):
            raise ValueError(
                f"there are {len(self.sets)} --sets for {len(sources)} runs or files; give one for all, or one for each in "
                "their order"
            )
        for source in sources:
            if source.run is not None and self.by and self.groups is None:
                raise ValueError(
                    f"{source.path} is a run folder, which has no columns; give its groups with --groups FILE"
                )
            if source.run is not None and self.time is not None:
                raise ValueError(
                    f"{source.path} is a run folder, which has no times; leave --time out, or give a log"
                )


def sections(builder: Builder, asked: Operation) -> list[Section]:
    """The sections of a page, each only where it has something."""
    found = (
        Section("groups", "Groups", list(_groups(builder, asked))),
        Section("sets", "Sets of classes", list(_sets(builder, asked))),
        Section("time", "Over time", list(_over_time(builder, asked))),
    )
    return [section for section in found if section.parts]


def _groups(builder: Builder, asked: Operation) -> Iterator[SectionPart]:
    if not asked.by:
        return
    for source in builder.sources:
        loaded = builder.loaded[source.name]
        found = evaluate_groups(
            loaded.scores,
            loaded.labels,
            source.groups(asked.by, asked.groups, loaded),
            metrics=metrics_of_answers() if loaded.answers else None,
            classes=builder.class_names(source),
            positive=source.positive,
            from_logits=loaded.from_logits,
        )
        title = f"{source.name} by {words.listed(list(asked.by))}"
        name = headline_error(found.all.metrics)
        metric = registry()[name]
        error = metric.noun
        worst = list(found.groups)[:MOST_LINES]
        lines = {"all": found.all[name], **{group: found.groups[group][name] for group in worst}}
        drawn = builder.draw(
            error,
            f"{error} of each group, the worst first, with intervals that hold for all groups at once. "
            f"A grey mark is what chance alone would show.{_cut(len(found.groups), 'groups')}",
            False,
            lambda lines=lines, error=error, unit=metric.unit: figures.estimates(  # type: ignore[misc]
                lines, label=error, unit=unit
            ),
        )
        table = replace(
            _first(found.table(shown_metrics(found.all))), caption=f"{thousands(len(found.groups))} groups"
        )
        finding = f"{found.verdict()} {_worst(found, name, error)}"
        yield SectionPart(
            title, finding, table, drawn, next_step="" if found.equal else _own_maps(source, asked)
        )


def _own_maps(source: ReportSource, asked: Operation) -> str:
    """What to do where groups are not equally calibrated."""
    columns = " ".join(f"--by {shlex.quote(name)}" for name in asked.by)
    apart = "" if asked.groups is None else f" --apply-groups {shlex.quote(str(asked.groups))}"
    return (
        f"Give groups of {source.name} maps of their own where that pays: "
        f"`macc calibrate --fit {source.validation()} --apply {source.file()} {columns}{apart}{source.options(asked.by)}`"
    )


def _worst(found: GroupReport, name: str, error: str) -> str:
    group, own = next(iter(found.groups.items()))
    entry = found.table([name]).rows[1][2]
    few = f", on {thousands(own.num_samples)} samples only" if group in found.small else ""
    by_chance = "" if own[name].noise_floor is None else f", {entry.below[-1]}"
    return f"The worst is {words.quoted(group)}: {error} {entry.text} ({entry.below[0]}{by_chance}){few}."


def _sets(builder: Builder, asked: Operation) -> Iterator[SectionPart]:
    if not asked.sets:
        return
    each = list(asked.sets) * len(builder.sources) if len(asked.sets) == 1 else asked.sets
    for source, path in zip(builder.sources, each, strict=True):
        sets, names = load_sets(path)
        loaded, classes = builder.loaded[source.name], builder.class_names(source)
        if loaded.answers:
            raise ValueError(
                f"{source.path} has answers without classes, which have no sets; leave --sets out"
            )
        check_classes(names, classes)
        seen = sets.measure(
            loaded.scores, loaded.labels, from_logits=loaded.from_logits, classes=classes or names
        )
        if len(seen.classes) > MOST_LINES:
            seen = replace(seen, classes=tuple(sorted(seen.classes, key=lambda row: row.coverage)))
        title = f"{source.name}, sets of {words.shown(path.name)}"
        rows = [row for row in (seen.all, *seen.classes[:MOST_LINES]) if row.samples]
        lines = {row.name: Estimate(row.coverage, row.low, row.high) for row in rows}
        drawn = builder.draw(
            "Coverage",
            f"How often the set contains the right class, with exact 95 % intervals.{_cut(len(seen.classes), 'classes')}",
            False,
            lambda lines=lines, wanted=sets.coverage: figures.estimates(  # type: ignore[misc]
                lines, label="coverage", asked=wanted
            ),
        )
        found = (
            f"They contain the right class of {rows[0].row()[2].text} of the samples "
            f"({rows[0].row()[2].below[0]}) with {seen.mean_size:.2f} classes on average, and "
            f"{thousands(seen.all.empty)} sets are empty. {seen.verdict()}"
        )
        table = replace(_first(seen.table()), caption=str(sets))
        yield SectionPart(title, found, table, drawn)


def _over_time(builder: Builder, asked: Operation) -> Iterator[SectionPart]:
    watched = []
    if asked.time is not None:
        watched += [(source.name, _watched(source, asked.time, asked)) for source in builder.sources]
    watched += [(words.shown(path.name), Monitor.load(path)) for path in asked.monitors]
    for name, monitor in watched:
        drawn = builder.draw(
            "Confidence, accuracy and calibration error",
            "Confidence of all rows, accuracy of those with labels and, hollow, the accuracy estimated for those without. Below is "
            "the calibration error. A line shows when the alarm was raised, and a dotted one where the change seems to have begun.",
            True,
            lambda monitor=monitor: figures.over_time(monitor),  # type: ignore[misc]
        )
        table = replace(report.table(monitor), caption=f"Windows of {_length(monitor.settings.window)}")
        yield SectionPart(
            f"{name} over time", report.verdict(monitor), table, drawn, report.supposed(monitor)
        )


def _watched(source: ReportSource, time: str, asked: Operation) -> Monitor:
    reading = {name: value for name, value in source.reading.items() if name not in ("labels", "carry")}
    reading["ignore"] = [*reading.get("ignore", ()), *(asked.by if asked.groups is None else ())]
    log, labelled = open_log(
        source.path, {"label_column": "label", "labels_are": None, **reading}, time=time, row_id=None
    )
    monitor = Monitor(log.num_classes, classes=log.classes, window=asked.window)
    adding = monitor.begin(source.name)
    count_log(adding, log, time=time, labelled=labelled, labels_are=reading.get("labels_are"))
    adding.finish()
    return monitor


def _length(seconds: float) -> str:
    """A span of time as it is shown."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= unit and seconds % unit == 0:
            count = int(seconds // unit)
            return f"{count} {name if count > 1 else name[:-1]}"
    return f"{seconds:g} seconds"


def _first(table: Table) -> Table:
    """A table of at most as many lines as people read."""
    hidden = len(table.rows) - 1 - MOST_CLASSES
    if hidden <= 0:
        return table
    note = f"{thousands(hidden)} more lines are left out."
    return replace(table, rows=table.rows[: 1 + MOST_CLASSES], notes=(*table.notes, note))


def _cut(count: int, what: str) -> str:
    return "" if count <= MOST_LINES else f" Shown are {MOST_LINES} of {thousands(count)} {what}."

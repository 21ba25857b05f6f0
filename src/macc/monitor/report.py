"""What a monitor has to say: a table of windows, numbers for programs, and text for Prometheus."""

import math
from typing import Any

from macc.monitor.state import Monitor
from macc.monitor.times import moment
from macc.monitor.windows import Window
from macc.tables import PERCENT, Column, Entry, Table, html_of, number, thousands, with_interval

_MOST_ROWS = 30


def summary(monitor: Monitor, *, level: float = 0.95) -> str:
    """The last windows as a table, and the verdict in words."""
    shown = table(monitor, level=level)
    return f"{shown.text()}\n\n{_notes(monitor, shown)}"


def as_html(monitor: Monitor) -> str:
    """The same for notebooks."""
    shown = table(monitor)
    return html_of(shown, _notes(monitor, shown))


def _notes(monitor: Monitor, shown: Table) -> str:
    return "\n".join([*shown.notes, supposed(monitor), verdict(monitor)])


def table(monitor: Monitor, *, level: float = 0.95) -> Table:
    """The last windows, and the whole life."""
    windows = list(monitor.windows().items())
    hidden = len(windows) - _MOST_ROWS
    columns = (
        Column("", left=True),
        *map(Column, ("rows", "labels", "confidence")),
        Column("accuracy", better="higher"),
        Column("estimated, without labels", better="higher"),
        Column("ECE", better="lower"),
    )
    rows = [_row(moment(start), window, monitor, level) for start, window in windows[-_MOST_ROWS:]]
    if len(windows) > 1:
        rows.append(_row("all", monitor.total(), monitor, level))
    notes = [f"{hidden} earlier windows are left out; --json has them."] if hidden > 0 else []
    if any(window.labelled for _, window in windows):
        notes.append("After the ECE and its interval stands what a perfectly calibrated model would show.")
    if any(window.rows > window.labelled for _, window in windows):
        notes.append(
            "The estimated accuracy is that of rows without labels, if their confidences are as right as the alarm "
            f"supposes{'' if monitor.alarm is None else '. It was raised, so do not rely on them'}."
        )
    return Table(columns, tuple(rows), notes=tuple(notes))


def supposed(monitor: Monitor) -> str:
    """What the alarm tests, and how often it is false, in a sentence."""
    settings = monitor.settings
    between = f"between {100 * settings.low:+.2g} and {100 * settings.high:+.2g} points"
    return (
        f"The alarm supposes that accuracy minus confidence is {between} on average, and is raised by mistake with "
        f"probability {settings.alpha:g} at most over the whole life."
    )


def verdict(monitor: Monitor) -> str:
    """Whether the alarm was raised, in a sentence."""
    alarm = monitor.alarm
    count = thousands(int(monitor.total().labelled))
    strength = f"evidence {math.exp(min(monitor.log_evidence, 700)):.3g} of {monitor.settings.limit:g}"
    if alarm is None:
        return f"No alarm after {count} labels ({strength})."
    return (
        f"ALARM: the model is {alarm.direction}, seen at {moment(alarm.time)} (label {thousands(alarm.row)}); "
        f"it seems to have begun at {moment(alarm.change_time)} (label {thousands(alarm.change_row)})."
    )


def numbers(monitor: Monitor, *, level: float = 0.95) -> dict[str, Any]:
    """The same as numbers."""
    alarm = monitor.alarm
    return {
        "alarm": None
        if alarm is None
        else {
            **vars(alarm),
            "when": moment(alarm.time),
            "change_when": moment(alarm.change_time),
        },
        "log_evidence": monitor.log_evidence,
        "alpha": monitor.settings.alpha,
        "null": [monitor.settings.low, monitor.settings.high],
        "model": monitor.settings.model,
        "level": level,
        "all": _numbers(monitor.total(), monitor, level),
        "windows": [
            {"start": start, "when": moment(start), **_numbers(window, monitor, level)}
            for start, window in monitor.windows().items()
        ],
    }


def prometheus(monitor: Monitor) -> str:
    r"""The state in the text format of Prometheus; numbers of the last window carry its start.

    Example:
        >>> print(prometheus(Monitor(2, model="a\"b")).splitlines()[2])
        macc_monitor_alarm{model="a\"b"} 0
    """
    total = monitor.total()
    label = _escaped(monitor.settings.model or "")
    lines: list[str] = []

    def add(name: str, kind: str, text: str, value: float, more: str = "") -> None:
        if not math.isnan(value):
            lines.append(f"# HELP macc_monitor_{name} {text}")
            lines.append(f"# TYPE macc_monitor_{name} {kind}")
            lines.append(f'macc_monitor_{name}{{model="{label}"{more}}} {value:.10g}')

    add("alarm", "gauge", "1 once the alarm was raised.", float(monitor.alarm is not None))
    add("log_evidence", "gauge", "Logarithm of the evidence that confidence is wrong.", monitor.log_evidence)
    add(
        "log_evidence_limit",
        "gauge",
        "Logarithm of the evidence at which the alarm is raised.",
        math.log(monitor.settings.limit),
    )
    add("rows_total", "counter", "Rows counted.", total.rows)
    add("labels_total", "counter", "Labels counted.", total.labelled)
    windows = monitor.windows()
    if windows:
        start, last = list(windows.items())[-1]
        more = f',window="{moment(start)}"'
        found = _numbers(last, monitor, 0.95)
        for name in ("confidence", "accuracy", "estimated_accuracy", "ece"):
            value = found[name]["value"] if isinstance(found[name], dict) else found[name]
            add(
                f"window_{name}",
                "gauge",
                f"The {name.upper() if name == 'ece' else name.replace('_', ' ')} of the last window.",
                value,
                more,
            )
    return "\n".join(lines) + "\n"


def _numbers(window: Window, monitor: Monitor, level: float) -> dict[str, Any]:
    settings = monitor.settings
    return {
        "rows": int(window.rows),
        "labels": int(window.labelled),
        "confidence": window.mean_confidence,
        "accuracy": vars(window.accuracy(level)),
        "estimated_accuracy": vars(window.estimated_accuracy(settings.low, settings.high, level)),
        "ece": vars(window.ece(level)),
    }


def _row(name: str, window: Window, monitor: Monitor, level: float) -> tuple[Entry, ...]:
    settings = monitor.settings
    confidence = window.mean_confidence
    estimates = (
        window.accuracy(level),
        window.estimated_accuracy(settings.low, settings.high, level),
        window.ece(level),
    )
    return (
        Entry(name),
        *(Entry(thousands(int(count)), count) for count in (window.rows, window.labelled)),
        Entry(number(confidence, PERCENT, 0.01, suffix=True), confidence),
        *(with_interval(each.value, each.low, each.high, PERCENT, each.noise_floor) for each in estimates),
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

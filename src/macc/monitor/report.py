"""What a monitor has to say: a table of windows, numbers for programs, and text for Prometheus."""

import math
from typing import Any

from macc.metrics import Estimate
from macc.monitor.state import Monitor
from macc.monitor.times import moment
from macc.monitor.windows import Window
from macc.tables import PERCENT, Table, interval, number, thousands

_MOST_ROWS = 30


def summary(monitor: Monitor, *, level: float = 0.95) -> str:
    """The last windows as a table, and the verdict in words."""
    settings = monitor.settings
    windows = list(monitor.windows().items())
    hidden = len(windows) - _MOST_ROWS
    header = ["", "rows", "labels", "confidence", "accuracy", "estimated, without labels", "ECE"]
    rows = [_row(moment(start), window, monitor, level) for start, window in windows[-_MOST_ROWS:]]
    if len(windows) > 1:
        rows.append(_row("all", monitor.total(), monitor, level))
    notes = [f"{hidden} earlier windows are left out; --json has them\n"] if hidden > 0 else []
    if any(window.rows > window.labelled for _, window in windows):
        notes.append(
            "The estimated accuracy is that of rows without labels, if their confidences are as right as the alarm "
            f"supposes{'' if monitor.alarm is None else '. It was raised, so do not rely on them'}.\n"
        )
    between = f"between {100 * settings.low:+.2g} and {100 * settings.high:+.2g} points"
    notes.append(
        f"The alarm supposes that accuracy minus confidence is {between} on average, and is raised by mistake with "
        f"probability {settings.alpha:g} at most over the whole life."
    )
    return f"{Table.of(header, rows).text()}\n\n" + "\n".join([*notes, verdict(monitor)])


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
    add("log_evidence", "gauge", "Logarithm of the evidence against the null.", monitor.log_evidence)
    add("log_evidence_limit", "gauge", "At which the alarm is raised.", math.log(monitor.settings.limit))
    add("rows_total", "counter", "Rows counted.", total.rows)
    add("labels_total", "counter", "Labels counted.", total.labelled)
    windows = monitor.windows()
    if windows:
        start, last = list(windows.items())[-1]
        more = f',window="{moment(start)}"'
        found = _numbers(last, monitor, 0.95)
        for name in ("confidence", "accuracy", "estimated_accuracy", "ece"):
            value = found[name]["value"] if isinstance(found[name], dict) else found[name]
            add(f"window_{name}", "gauge", f"The {name.replace('_', ' ')} of the last window.", value, more)
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


def _row(name: str, window: Window, monitor: Monitor, level: float) -> list[str]:
    settings = monitor.settings
    return [
        name,
        thousands(int(window.rows)),
        thousands(int(window.labelled)),
        number(window.mean_confidence, PERCENT, 0.01, suffix=True),
        _cell(window.accuracy(level)),
        _cell(window.estimated_accuracy(settings.low, settings.high, level)),
        _cell(window.ece(level)),
    ]


def _cell(found: Estimate) -> str:
    if math.isnan(found.value):
        return "–"
    width = found.high - found.low
    return f"{number(found.value, PERCENT, width, suffix=True)}  ({interval(found.low, found.high, PERCENT)})"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""Results as tables: for a terminal, Markdown, LaTeX, CSV and JSON. Names of users are escaped in each."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from macc.experiments.columns import Shown
from macc.experiments.columns import shown as shown_as
from macc.experiments.findings import RULE_TEXT
from macc.experiments.result import LEVEL, Cell, Result
from macc.io.json import finite
from macc.tables import text_table

Format = Literal["text", "md", "latex", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Entry:
    """One field of a printed table."""

    text: str
    best: bool = False
    """Whether the method is significantly better than every other one of its column."""


@dataclass(frozen=True)
class Sheet:
    """One printed table."""

    title: str
    header: list[str]
    rows: list[list[Entry]]


def check_format(name: str) -> Format:
    """A format by name."""
    for known in FORMATS:
        if name == known:
            return known
    raise ValueError(f"`--format` must be one of {', '.join(FORMATS)}, got {name!r}")


def render(result: Result, form: Format) -> str:
    """A result in one of the formats."""
    writers: dict[Format, Callable[[Result], str]] = {
        "text": _text,
        "md": _markdown,
        "latex": _latex,
        "csv": _csv,
        "json": _json,
    }
    return writers[form](result)


def caption(result: Result) -> str:
    """What the tables are of: title, scale, seeds."""
    scale = "" if result.scale == "full" else f" Reduced scale: {result.scale}."
    seeds = f"{result.seeds} seeds: mean and half of its 95 % interval" if result.seeds > 1 else "One seed"
    if result.kind == "timing":
        return f"{result.title}.{scale}"
    if result.seeds == 1:
        seeds += ": the intervals are over test samples"
    return f"{result.title or result.name}.{scale} {seeds}."


def sheets(result: Result) -> Iterator[Sheet]:
    """The printed tables of a result."""
    if result.timings:
        yield from _rows_sheets(result.timings, "dataset")
    if result.curves:
        yield from _curve_sheets(result)
    if result.kind != "table":
        return
    for dataset, test, rule in result.blocks():
        sheet = _sheet(result, dataset, test, rule)
        if sheet.rows:
            yield sheet
    yield from _front_sheets(result)


def _sheet(result: Result, dataset: str, test: str, rule: str) -> Sheet:
    title = dataset if test == "test" else f"{dataset}, {test}"
    if len(result.rules(dataset)) > 1:
        title += f" (selected by {RULE_TEXT[rule]})"
    names = [name for name in result.methods if _has(result, dataset, test, name, rule)]
    header, columns = ["method"], []
    for metric in result.metrics(dataset):
        found = {name: result.cell(dataset, test, name, metric, rule) for name in names}
        cells = {name: cell for name, cell in found.items() if cell is not None}
        shown = shown_as(metric, result.units.get(metric.partition("/")[0]))
        best = result.best(dataset, test, rule, metric)
        header.append(f"{shown.label} {shown.unit}".strip())
        columns.append([_entry(cells.get(name), shown, best=name == best) for name in names])
        if any(cell.paper is not None for cell in cells.values()):
            header += ["paper", "diff."]
            columns.append([Entry(_paper(cells.get(name), shown)) for name in names])
            columns.append([Entry(_difference(cells.get(name), shown)) for name in names])
    rows = [[Entry(name), *(column[i] for column in columns)] for i, name in enumerate(names)]
    return Sheet(title, header, rows)


def _has(result: Result, dataset: str, test: str, name: str, rule: str) -> bool:
    return any(result.cell(dataset, test, name, metric, rule) for metric in result.metrics(dataset))


def _entry(cell: Cell | None, shown: Shown, *, best: bool) -> Entry:
    if cell is None:
        return Entry("")
    if math.isnan(cell.mean):
        return Entry("–")
    text = f"{shown.scale * cell.mean:{'+' if shown.better == 'zero' else ''}.{shown.digits}f}"
    if cell.low is None or cell.high is None or not shown.better:
        return Entry(text, best)
    if len(cell.values) > 1:
        text += f" ±{shown.scale * (cell.high - cell.low) / 2:.{shown.digits}f}"
    else:
        text += f" [{shown.scale * cell.low:.{shown.digits}f}, {shown.scale * cell.high:.{shown.digits}f}]"
    return Entry(text, best)


def _paper(cell: Cell | None, shown: Shown) -> str:
    return "" if cell is None or cell.paper is None else f"{shown.scale * cell.paper:.{shown.digits}f}"


def _difference(cell: Cell | None, shown: Shown) -> str:
    if cell is None or cell.paper is None or math.isnan(cell.mean):
        return ""
    return f"{shown.scale * (cell.mean - cell.paper):+.{shown.digits}f}"


def _rows_sheets(rows: Sequence[dict[str, Any]], by: str) -> Iterator[Sheet]:
    for name in dict.fromkeys(row[by] for row in rows):
        mine = [row for row in rows if row[by] == name]
        header = [key for key in mine[0] if key != by]
        yield Sheet(str(name), header, [[Entry(_plain(row[key])) for key in header] for row in mine])


def _plain(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _curve_sheets(result: Result) -> Iterator[Sheet]:
    """For each data set and metric, an epoch a row and a method a column: means over seeds."""
    for dataset in dict.fromkeys(row["dataset"] for row in result.curves):
        rows = [row for row in result.curves if row["dataset"] == dataset]
        for metric in ("sce", "ece"):
            shown = shown_as(metric, result.units.get(metric))
            methods = list(dict.fromkeys(row["method"] for row in rows))
            epochs = sorted({row["epoch"] for row in rows})
            body = []
            for epoch in epochs:
                line = [Entry(str(epoch))]
                for method in methods:
                    found = [r[metric] for r in rows if (r["epoch"], r["method"]) == (epoch, method)]
                    mean = shown.scale * sum(found) / len(found) if found else None
                    line.append(Entry("" if mean is None else f"{mean:.{shown.digits}f}"))
                body.append(line)
            title = f"{dataset}: test {shown.label} {shown.unit} after each epoch"
            yield Sheet(title, ["epoch", *methods], body)


def _front_sheets(result: Result) -> Iterator[Sheet]:
    """For each grid with two objectives, the points that no other beats in both."""
    for dataset, method in dict.fromkeys((row["dataset"], row["method"]) for row in result.fronts):
        rows = [row for row in result.fronts if (row["dataset"], row["method"]) == (dataset, method)]
        knobs = list(rows[0]["point"])
        shown = {key: shown_as(key) for key in rows[0] if key not in ("dataset", "method", "point")}
        body = [
            [
                *(Entry(str(row["point"][knob])) for knob in knobs),
                *(Entry(f"{how.scale * row[key]:.{how.digits}f}") for key, how in shown.items()),
            ]
            for row in rows
        ]
        header = [*knobs, *(f"{how.label} {how.unit}".strip() for how in shown.values())]
        yield Sheet(f"{dataset}, {method}: the Pareto front on validation", header, body)


def marked(result: Result, mark: str) -> str:
    """What a mark in a table means; nothing where methods are not compared."""
    tested = {(c.dataset, c.test, c.rule, c.metric) for c in result.comparisons if c.why == "best"}
    if not tested:
        return ""
    how = f"significantly better than every other method (paired tests, p < {LEVEL:g}, Holm)"
    if not any(result.best(*column) for column in tested):
        return f"There is no clear best in any column: no method is {how}."
    return f"{mark}: {how}. A column without a mark has no clear best."


def _remarks(result: Result) -> list[str]:
    return [*result.notes, *(f"Left out: {text}" for text in result.left_out)]


def _text(result: Result) -> str:
    parts = [caption(result)]
    for sheet in sheets(result):
        rows = [[entry.text + "*" * entry.best for entry in row] for row in sheet.rows]
        parts.append(f"{sheet.title}\n{text_table(sheet.header, rows)}")
    if legend := marked(result, "*"):
        parts.append(legend)
    if _remarks(result):
        parts.append("\n".join(_remarks(result)))
    if result.findings:
        parts.append("Findings\n" + "\n".join(f"- {text}" for text in result.findings))
    return "\n\n".join(parts)


def _markdown(result: Result) -> str:
    def cell(entry: Entry) -> str:
        text = escape_markdown(entry.text)
        return f"**{text}**" if entry.best else text

    parts = [escape_markdown(" ".join(filter(None, [caption(result), marked(result, "Bold")])))]
    for sheet in sheets(result):
        lines = [
            f"### {escape_markdown(sheet.title)}",
            "",
            "| " + " | ".join(map(escape_markdown, sheet.header)) + " |",
            "|---" + "|--:" * (len(sheet.header) - 1) + "|",
            *("| " + " | ".join(map(cell, row)) + " |" for row in sheet.rows),
        ]
        parts.append("\n".join(lines))
    listed = [f"- {escape_markdown(text)}" for text in (*_remarks(result), *result.findings)]
    return "\n\n".join([*parts, "\n".join(listed)]).rstrip()


def _latex(result: Result) -> str:
    def cell(entry: Entry) -> str:
        text = escape_latex(entry.text)
        return rf"\textbf{{{text}}}" if entry.best else text

    parts = []
    for sheet in sheets(result):
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(f'{caption(result)} {sheet.title}.')}}}",
            r"\begin{tabular}{l" + "r" * (len(sheet.header) - 1) + "}",
            r"\hline",
            " & ".join(map(escape_latex, sheet.header)) + r" \\",
            r"\hline",
            *(" & ".join(map(cell, row)) + r" \\" for row in sheet.rows),
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
        ]
        parts.append("\n".join(lines))
    legend = filter(None, [marked(result, "Bold")])
    said = [f"% {escape_latex(text)}" for text in (*legend, *_remarks(result), *result.findings)]
    return "\n\n".join([*parts, "\n".join(said)]).rstrip()


def _csv(result: Result) -> str:
    """One line a number; in plain units, so that nobody has to parse a heading."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    if result.kind != "table":
        rows = result.timings or result.curves
        writer.writerow(rows[0] if rows else ())
        writer.writerows([escape_csv(str(value)) for value in row.values()] for row in rows)
        return file.getvalue().rstrip("\n")
    head = ("dataset", "test", "rule", "method", "metric", "mean", "low", "high", "seeds", "pooled", "paper")
    writer.writerow(head)
    for cell in result.cells:
        names = [cell.dataset, cell.test, cell.rule, cell.method, cell.metric]
        numbers = [cell.mean, cell.low, cell.high, len(cell.values), cell.pooled, cell.paper]
        writer.writerow([*map(escape_csv, names), *("" if n is None else repr(n) for n in numbers)])
    return file.getvalue().rstrip("\n")


def _json(result: Result) -> str:
    return json.dumps(finite(result.to_dict()), indent=1)


def escape_markdown(text: str) -> str:
    r"""A text that Markdown shows as it is, in a field of a table too.

    Example:
        >>> print(escape_markdown("a|b *c* <d>"))
        a\|b \*c\* &lt;d&gt;
    """
    flat = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|#])", r"\\\1", flat)


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "…": r"\ldots{}",
    "−": "$-$",
    "<": "$<$",
    ">": "$>$",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    r"""A text that LaTeX prints as it is.

    Example:
        >>> print(escape_latex("50 % of a_b ±1"))
        50 \% of a\_b $\pm$1
    """
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def escape_csv(text: str) -> str:
    """A text that a spreadsheet does not take for a formula.

    Example:
        >>> escape_csv("=1+1")
        "'=1+1"
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

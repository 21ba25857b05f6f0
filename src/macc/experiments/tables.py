"""Results as tables: for a terminal, Markdown, LaTeX, CSV and JSON."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from macc.experiments.columns import column as column_of
from macc.experiments.result import LEVEL, Cell, Result
from macc.experiments.spec import RULE_TEXT
from macc.io.json import finite
from macc.metrics import headline_errors
from macc.tables import SECOND, Column, Entry, Table, Unit, escape_latex, escape_markdown, html_of

Format = Literal["text", "md", "latex", "csv", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


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


def tables(result: Result) -> Iterator[Table]:
    """The tables of a result."""
    if result.timings:
        yield from _timing_tables(result.timings)
    if result.curves:
        yield from _curve_tables(result)
    if result.kind != "table":
        return
    for block in result.blocks():
        table = block_table(result, *block)
        if table.rows:
            yield table
    yield from _front_tables(result)


def block_table(result: Result, dataset: str, test: str, rule: str) -> Table:
    """Every method that has results on a test, on a row."""
    title = dataset if test == "test" else f"{dataset}, {test}"
    if len(result.rules(dataset)) > 1:
        title += f" (selected by {RULE_TEXT[rule]})"
    metrics = result.metrics(dataset)
    found = {
        name: [result.cell(dataset, test, name, metric, rule) for metric in metrics]
        for name in result.methods
    }
    found = {name: cells for name, cells in found.items() if any(cells)}
    columns, rows = [Column("method", left=True)], [[Entry(name)] for name in found]
    for index, metric in enumerate(metrics):
        column = column_of(metric, result.units.get(metric.partition("/")[0]))
        cells = {name: cells[index] for name, cells in found.items()}
        best = result.best(dataset, test, rule, metric)
        second = result.second(dataset, test, rule, metric)
        columns.append(column)
        for row, (name, cell) in zip(rows, cells.items(), strict=True):
            row.append(replace(_entry(cell, column), best=name in best, second=name in second))
        if any(cell is not None and cell.paper is not None for cell in cells.values()):
            columns += [Column(heading, on_page=False) for heading in ("paper", "diff.")]
            for row, cell in zip(rows, cells.values(), strict=True):
                row += _beside(cell, column.unit)
    return Table(tuple(columns), tuple(map(tuple, rows)), title)


def _entry(cell: Cell | None, column: Column) -> Entry:
    if cell is None:
        return Entry()
    sign, unit = column.better == "zero", column.unit
    spread, ends = "", []
    if cell.low is not None and cell.high is not None and column.better:
        ends = [f"{unit.write(cell.low, sign=sign)} … {unit.write(cell.high, sign=sign)}"]
        if len(cell.values) > 1:
            spread = f"±{unit.write((cell.high - cell.low) / 2)}"
        else:
            spread = f"[{unit.write(cell.low)}, {unit.write(cell.high)}]"
    more = {"chance": cell.floor, "paper": cell.paper}
    below = [f"{name} {unit.write(value, sign=sign)}" for name, value in more.items() if value is not None]
    if math.isnan(cell.mean):
        return Entry("–", below=tuple(below))
    return Entry(unit.write(cell.mean, sign=sign), cell.mean, spread, (*ends, *below))


def _beside(cell: Cell | None, unit: Unit) -> list[Entry]:
    """The paper's value, and how far ours lies above it."""
    if cell is None or cell.paper is None:
        return [Entry(), Entry()]
    difference = "" if math.isnan(cell.mean) else unit.write(cell.mean - cell.paper, sign=True)
    return [Entry(unit.write(cell.paper)), Entry(difference)]


def _timing_tables(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    for name in dict.fromkeys(row["dataset"] for row in rows):
        mine = [
            {key: value for key, value in row.items() if key != "dataset"}
            for row in rows
            if row["dataset"] == name
        ]
        yield _numbers(list(mine[0]), [list(row.values()) for row in mine], str(name))


def _numbers(header: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> Table:
    """A table of plain values; those that are numbers can be sorted by."""

    def entry(value: Any) -> Entry:
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        return Entry(text, float(value) if isinstance(value, int | float) else None)

    columns = tuple(Column(text, left=index == 0) for index, text in enumerate(header))
    return Table(columns, tuple(tuple(map(entry, row)) for row in rows), caption)


def _curve_tables(result: Result) -> Iterator[Table]:
    """Of each data set and error a table: an epoch a row, a method a column, means over seeds."""
    for dataset in dict.fromkeys(row["dataset"] for row in result.curves):
        rows = [row for row in result.curves if row["dataset"] == dataset]
        methods = list(dict.fromkeys(row["method"] for row in rows))
        for metric in headline_errors():
            column = column_of(metric, result.units.get(metric))
            body = []
            for epoch in sorted({row["epoch"] for row in rows}):
                line = [Entry(str(epoch))]
                for method in methods:
                    found = [r[metric] for r in rows if (r["epoch"], r["method"]) == (epoch, method)]
                    mean = sum(found) / len(found) if found else None
                    line.append(Entry() if mean is None else Entry(column.unit.write(mean), mean))
                body.append(tuple(line))
            columns = (Column("epoch", left=True), *(Column(method, better="lower") for method in methods))
            yield Table(columns, tuple(body), f"{dataset}: test {column.title} after each epoch")


def _front_tables(result: Result) -> Iterator[Table]:
    """For each grid with two objectives, the points that no other beats in both."""
    for dataset, method in dict.fromkeys((row["dataset"], row["method"]) for row in result.fronts):
        rows = [row for row in result.fronts if (row["dataset"], row["method"]) == (dataset, method)]
        knobs = list(rows[0]["point"])
        found = {key: column_of(key) for key in rows[0] if key not in ("dataset", "method", "point")}
        body = [
            (
                *(Entry(str(row["point"][knob])) for knob in knobs),
                *(Entry(column.unit.write(row[key]), row[key]) for key, column in found.items()),
            )
            for row in rows
        ]
        columns = (*(Column(knob, left=index == 0) for index, knob in enumerate(knobs)), *found.values())
        yield Table(columns, tuple(body), f"{dataset}, {method}: the Pareto front on validation")


def marked(result: Result, mark: str, second: str) -> str:
    """What a mark in a table means; nothing where methods are not compared."""
    tested = {(c.dataset, c.test, c.rule, c.metric) for c in result.comparisons if c.why == "best"}
    if not tested:
        return ""
    how = f"significantly better than every other method (paired tests, p < {LEVEL:g}, Holm)"
    if not any(result.best(*column) for column in tested):
        return f"There is no clear best in any column: no method is {how}."
    return f"{mark}: {how}. {second}: the best mean of the others. A column without a mark has no clear best."


def _remarks(result: Result) -> list[str]:
    return [*result.notes, *(f"Left out: {text}" for text in result.left_out)]


def _text(result: Result) -> str:
    parts = [caption(result)]
    parts += [f"{table.caption}\n{table.text()}" for table in tables(result)]
    if legend := marked(result, "*", SECOND):
        parts.append(legend)
    if _remarks(result):
        parts.append("\n".join(_remarks(result)))
    if result.findings:
        parts.append("Findings\n" + "\n".join(f"- {text}" for text in result.findings))
    return "\n\n".join(parts)


def notebook(result: Result) -> str:
    """A result as a notebook shows it."""
    parts: list[Table | str] = [caption(result)]
    for table in tables(result):
        parts += [table.caption, table]
    return html_of(*parts, marked(result, "*", SECOND), *_remarks(result), *result.findings)


def _markdown(result: Result) -> str:
    legend = marked(result, "Bold", SECOND)
    parts = [escape_markdown(" ".join(filter(None, [caption(result), legend])))]
    parts += [f"### {escape_markdown(table.caption)}\n\n{table.markdown()}" for table in tables(result)]
    listed = [f"- {escape_markdown(text)}" for text in (*_remarks(result), *result.findings)]
    return "\n\n".join([*parts, "\n".join(listed)]).rstrip()


def _latex(result: Result) -> str:
    parts = [
        replace(table, caption=f"{caption(result)} {table.caption}.").latex() for table in tables(result)
    ]
    legend = filter(None, [marked(result, "Bold", "Underlined")])
    said = [f"% {escape_latex(text)}" for text in (*legend, *_remarks(result), *result.findings)]
    return "\n\n".join([*parts, "\n".join(said)]).rstrip()


def _csv(result: Result) -> str:
    """One line a number; in plain units, so that nobody has to parse a heading."""
    if result.kind != "table":
        rows = result.timings or result.curves
        return Table.of(list(rows[0]) if rows else [], [list(map(str, row.values())) for row in rows]).csv()
    header = [
        "dataset",
        "test",
        "rule",
        "method",
        "metric",
        "mean",
        "low",
        "high",
        "seeds",
        "pooled",
        "paper",
    ]
    body = []
    for cell in result.cells:
        numbers = [cell.mean, cell.low, cell.high, len(cell.values), cell.pooled, cell.paper]
        written = ["" if number is None else repr(number) for number in numbers]
        body.append([cell.dataset, cell.test, cell.rule, cell.method, cell.metric, *written])
    return Table.of(header, body).csv()


def _json(result: Result) -> str:
    return json.dumps(finite(result.to_dict()), indent=1)

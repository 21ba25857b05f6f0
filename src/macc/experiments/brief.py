"""An experiment on one screen: the tables that fit, three short findings, and where the rest is."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from macc.experiments.columns import column, main
from macc.experiments.findings import BETTER, SAME, WORSE, Wording, limit, named, verdict_of
from macc.experiments.result import LEVEL, Cell, PairedTest, Result
from macc.experiments.tables import block_table, caption, marked, tables
from macc.tables import SECOND, Table
from macc.words import shown

WIDTH, HEIGHT = 80, 30
MOST_TABLES = 2
MOST_FINDINGS = 3
FEWEST_ROWS = 3
LONGEST_NAME = 30
SHORTEST_NAME = 24
"""What a name is cut to in a finding."""
JUDGED, AFTER = "ece", "nll"
"""What the short findings judge methods by, as they were trained and after calibration."""


def brief(result: Result, *, width: int = WIDTH, height: int = HEIGHT) -> str:
    """At most two tables with as many rows and columns as fit, three findings, where the rest is.

    Args:
        result: What an experiment found.
        width: Columns of the terminal; nothing is wider.
        height: Lines to fill at most. Where they are very few, each table still has three rows.
    """
    firsts = list(_first_tables(result))
    found = short_findings(result)
    before = [_wrapped(caption(result), width)]
    after = [_wrapped(text, width) for text in _marks(result)]
    if found:
        after.append("\n".join(["Findings", *(_wrapped(text, width, "- ") for text in found)]))
    rest = len(result.findings) - len(found)

    def end(tables_shown: int) -> list[str]:
        counted = (
            (len(firsts) - tables_shown if result.kind == "table" else 0, "data set"),
            (_number_of_tables(result) - tables_shown, "table"),
            (rest, "finding"),
            (len(result.notes), "note"),
        )
        more = [f"{count} more {what}{'s' * (count != 1)}" for count, what in counted if count > 0]
        return [_wrapped(f"{', '.join(more)}: in the report, or with --verbose", width)] if more else []

    for wanted in (firsts[:MOST_TABLES], firsts[:1]):
        fixed = "\n\n".join([*before, *after, *end(len(wanted))]).count("\n") + 1
        room = height - fixed - sum(_lines_beside_rows(table, width) for table, _ in wanted)
        if room >= sum(min(FEWEST_ROWS, len(table.rows)) for table, _ in wanted):
            break
    parts, left = [], room
    for index, (table, order) in enumerate(wanted):
        rows = max(FEWEST_ROWS, left // (len(wanted) - index))
        parts.append(_fitted(table, order[:rows], width))
        left -= min(rows, len(table.rows))
    return "\n\n".join([*before, *parts, *after, *end(len(wanted))])


def short_findings(result: Result) -> list[str]:
    """Three sentences at most: which method is best calibrated, which is best after calibration,
    and how often MACC does better than its own task loss and than dropout.

    Where nothing of that was tested, the first findings, cut to two lines.
    """
    raw, calibrated = result.stages
    said = [
        best_in_short(result, raw, JUDGED),
        best_in_short(result, calibrated, AFTER),
        macc_in_short(result),
        best_in_short(result, raw, "accuracy"),
    ]
    found = [text for text in said if text]
    return (found or [_cut(text) for text in result.findings])[:MOST_FINDINGS]


def verdict_in_short(rows: Sequence[PairedTest]) -> str:
    """How the best method stands to the others, in numbers of methods."""
    better = [row for row in rows if row.p_holm < LEVEL]
    same = [row for row in rows if row not in better]
    if len(rows) == 1:
        return f"{BETTER if better else SAME} {_short(rows[0].b)} ({_p(rows, '≤')})"
    if not same:
        return f"{BETTER} all {len(rows)} others ({_p(rows, '≤')})"
    if not better:
        return f"{SAME} {len(rows)} others ({_p(rows, '≥')})"
    return f"{BETTER} {len(better)} of {len(rows)} others, {SAME} {len(same)}"


def _short(name: str) -> str:
    """A method's name as a finding has it; its quotes count, and are closed."""
    return named(shown(name, SHORTEST_NAME - 2 * ("," in name)))


def _p(rows: Sequence[PairedTest], sign: str) -> str:
    """Their largest (≤) or smallest (≥) p-value; how it is corrected stands under the table."""
    return limit(rows, sign).removesuffix(", Holm")


def best_rows(result: Result, methods: Sequence[str], metric: str) -> list[PairedTest]:
    """The tests of the best of some methods against the others, in the first table with any."""
    for block in result.blocks():
        rows = [
            row
            for row in result.comparisons
            if (row.dataset, row.test, row.rule, row.metric, row.why) == (*block, metric, "best")
            and row.a in methods
        ]
        if rows:
            return rows
    return []


def best_in_short(result: Result, methods: Sequence[str], metric: str) -> str:
    """Which of some methods is best by a metric, in two lines; nothing where that was not
    tested.
    """
    rows = best_rows(result, methods, metric)
    if not rows:
        return ""
    first = rows[0]
    words = Wording(result, first.dataset, first.test, first.rule, metric)
    where = [] if len(list(result.blocks())) == 1 else [shown(words.place, SHORTEST_NAME)]
    where += ["after calibration"] if first.a in result.calibrated else []
    end = "highest" if column(metric).better == "higher" else "lowest"
    where = [*where, f"{end} {words.noun}"]
    sentence = f"{', '.join(where)}: {_short(first.a)} ({words.value(first.a)})"
    return _cut(f"{sentence[0].upper()}{sentence[1:]}, {verdict_in_short(rows)}.")


def macc_in_short(result: Result) -> str:
    """How often MACC is better and worse than what it must beat, over all tables; nothing without
    MACC.
    """
    said = []
    for why, whom in (("task", "its own task loss"), ("dropout", "dropout alone")):
        verdicts = [
            verdict_of(row)
            for row in result.comparisons
            if (row.why, row.metric) == (why, JUDGED) and row.a not in result.calibrated
        ]
        if verdicts:
            said.append(
                f"than {whom} in {verdicts.count(BETTER)} of {len(verdicts)} tests (worse in {verdicts.count(WORSE)})"
            )
    return f"{column(JUDGED).heading} of MACC: significantly better {', '.join(said)}." if said else ""


def _first_tables(result: Result) -> Iterator[tuple[Table, list[int]]]:
    """Of each data set the table of the first test and rule; its rows, those to show first ahead.

    Of an experiment of another kind all tables; their last rows are the latest.
    """
    if result.kind != "table":
        for table in tables(result):
            rows = range(len(table.rows))
            yield table, list(reversed(rows)) if result.curves else list(rows)
        return
    for dataset in result.datasets:
        block = (dataset, result.tests[dataset][0], result.rules(dataset)[0])
        table = block_table(result, *block)
        if table.rows:
            names = [row[0].text for row in table.rows]
            yield table, [names.index(name) for name in _by_error(result, block, names)]


def _number_of_tables(result: Result) -> int:
    """As many as there are, without building them."""
    if result.kind != "table":
        return len(list(tables(result)))
    there = {(cell.dataset, cell.test, cell.rule) for cell in result.cells}
    fronts = {(row["dataset"], row["method"]) for row in result.fronts}
    return sum(block in there for block in result.blocks()) + len(fronts)


def _by_error(result: Result, block: tuple[str, str, str], names: Sequence[str]) -> list[str]:
    """Methods by calibration error, in turn one as it was trained and one after calibration."""

    def error(name: str) -> float:
        cell = result.cell(*block[:2], name, JUDGED, block[2])
        return cell.mean if isinstance(cell, Cell) and cell.mean == cell.mean else float("inf")

    stages = [sorted((n for n in stage if n in names), key=error) for stage in result.stages]
    return [name for name in chain.from_iterable(zip_longest(*stages)) if name is not None]


def _lines_beside_rows(table: Table, width: int) -> int:
    """Its title, its heading and the line under it, and the empty line that follows."""
    return len(_wrapped(f"{table.caption}: 99 of 99 methods, 99 of 99 columns", width).splitlines()) + 3


def _fitted(table: Table, rows: Sequence[int], width: int) -> str:
    """A table with some of its rows, in their order, and the columns that fit into a width.

    The columns of the main metrics come first; what stands beside a value stays with it.
    """
    kept = replace(
        table,
        rows=tuple(
            (replace(row[0], text=shown(row[0].text, LONGEST_NAME)), *row[1:])
            for row in (table.rows[index] for index in sorted(rows))
        ),
    )
    groups: list[list[int]] = []
    for index, found in enumerate(table.columns[1:], 1):
        if found.on_page:
            groups.append([])
        groups[-1].append(index)
    order = [column(name).heading for name in main()]
    groups.sort(key=lambda g: order.index(h) if (h := table.columns[g[0]].heading) in order else len(order))
    chosen, best = [0], _part(kept, [0])
    for group in groups:
        wider = _part(kept, sorted([*chosen, *group]))
        if max(map(len, wider.splitlines())) <= width:
            chosen, best = [*chosen, *group], wider
    said = [
        f"{shown_} of {all_} {what}"
        for shown_, all_, what in (
            (len(kept.rows), len(table.rows), "methods" if table.columns[0].heading == "method" else "rows"),
            (len(chosen) - 1, len(table.columns) - 1, "columns"),
        )
        if shown_ < all_
    ]
    title = f"{table.caption}: {', '.join(said)}" if said else table.caption
    return "\n".join(filter(None, [_wrapped(title, width), best]))


def _part(table: Table, columns: Sequence[int]) -> str:
    return replace(
        table,
        columns=tuple(table.columns[index] for index in columns),
        rows=tuple(tuple(row[index] for index in columns) for row in table.rows),
    ).text()


def _marks(result: Result) -> list[str]:
    """What the marks mean, and what is left out."""
    found = [marked(result, "*", SECOND)]
    if result.left_out:
        more = f"; and {len(result.left_out) - 1} more" if len(result.left_out) > 1 else ""
        found.append(
            f"Left out: {textwrap.shorten(result.left_out[0], 2 * WIDTH - 40, placeholder='…')}{more}"
        )
    return [text for text in found if text]


def _wrapped(text: str, width: int, sign: str = "") -> str:
    """Lines of at most a width; the lines after a sign are inset."""
    return textwrap.fill(text, width, initial_indent=sign, subsequent_indent=" " * len(sign))


def _cut(text: str) -> str:
    """Two lines at most."""
    return textwrap.shorten(text, 2 * WIDTH, placeholder="…")

"""One table, rendered for a terminal, Markdown, LaTeX, CSV and HTML; numbers and their units."""

import csv
import io
import math
from html.parser import HTMLParser

import pytest

from macc.tables import (
    PERCENT,
    PLAIN,
    THOUSANDTHS,
    Column,
    Entry,
    Table,
    escape_csv,
    html_of,
    interval,
    number,
    thousands,
)

NASTY = 'a|b_*{=1}$%\\ <b>&"\x1b'


@pytest.fixture
def table() -> Table:
    columns = (
        Column("method", left=True),
        Column("SCE", THOUSANDTHS, "lower"),
        Column("paper", on_page=False),
    )
    rows = (
        (Entry(NASTY), Entry("-1.50", -0.0015, "±0.20", ("-1.70 … -1.30",), best=True), Entry("2.00")),
        (Entry("=1+1"), Entry(), Entry()),
        (Entry("next"), Entry("2.50", 0.0025, second=True), Entry()),
    )
    return Table(columns, rows, "digits, `x<y`", ("a note <i>",))


class Reader(HTMLParser):
    """The texts of a table's cells, and the attributes of its tags."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data)


def test_text_aligns_and_marks(table):
    head, rule, first, second, third = table.text().splitlines()

    assert head.split() == ["method", "SCE", "1e-3", "paper"]
    assert set(rule) == {"─"}
    assert "-1.50 ±0.20*" in first
    assert third.endswith("2.50†")
    assert r"\x1b" in first
    assert second == "=1+1"
    assert head.index("paper") + len("paper") == first.index("2.00") + len("2.00")


def test_markdown_keeps_its_fields(table):
    lines = table.markdown().splitlines()

    assert lines[0] == "| method | SCE 1e-3 | paper |"
    assert lines[1] == "|---|--:|--:|"
    assert r"a\|b\_\*\{=1\}$%\\ &lt;b&gt;&amp;" in lines[2]
    assert "| **-1.50 ±0.20** | 2.00 |" in lines[2]
    assert lines[4] == "| next | 2.50† |  |"


def test_latex_escapes(table):
    text = table.latex()

    assert r"\begin{tabular}{lrr}" in text
    assert r"a\textbar{}b\_*\{=1\}\$\%\textbackslash{} $<$b$>$\&" in text
    assert r"\textbf{-1.50 $\pm$0.20} & 2.00 \\" in text
    assert r"next & \underline{2.50} &" in text
    assert r"\caption{digits, `x$<$y`}" in text


def test_csv_reads_back_and_holds_no_formula(table):
    rows = list(csv.reader(io.StringIO(table.csv())))

    assert rows == [
        ["method", "SCE 1e-3", "paper"],
        [NASTY, "'-1.50 ±0.20", "2.00"],
        ["'=1+1", "", ""],
        ["next", "2.50", ""],
    ]
    assert escape_csv("=HYPERLINK(1)") == "'=HYPERLINK(1)"
    assert escape_csv("-0.5") == "-0.5"


def test_a_notebook_shows_what_a_terminal_shows(table):
    found = Reader(Table.of(["", "value"], [["  part <b>", "1"]]).html())

    assert found.texts == ["value", "\u2003part <b>", "1"]
    assert {tag for tag, _ in found.tags} == {"table", "thead", "tbody", "tr", "th", "td"}
    assert html_of("<b>") == "<p>&lt;b&gt;</p>"


def test_a_page_sorts_by_the_value_and_puts_details_under_it(table):
    found = Reader(table.sortable("key"))
    text = "".join(found.texts)
    heads = [attributes for tag, attributes in found.tags if attributes.get("scope") == "col"]
    cells = [attributes for tag, attributes in found.tags if tag == "td"]
    buttons = [attributes["title"] for tag, attributes in found.tags if tag == "button"]

    assert [head["data-first"] for head in heads] == ["descending", "ascending"]
    assert buttons == ["sort", "lower is better"]
    assert cells == [
        {"data-value": "-0.0015", "class": "best"},
        {"data-value": ""},
        {"data-value": "0.0025", "class": "second"},
    ]
    assert "2.50second" in text.replace("\n", "")
    assert "−1.50best−1.70 … −1.30" in text.replace("\n", "")
    assert "paper" not in text
    assert "2.00" not in text
    assert NASTY in text
    assert "a note <i>" in text
    assert not {"b", "i"} & {tag for tag, _ in found.tags}
    assert ("code", {}) in found.tags


def test_a_number_has_the_digits_that_its_interval_makes_meaningful():
    assert number(0.123456, PERCENT, 0.05) == "12.3"
    assert number(0.123456, PERCENT, 0.0005, suffix=True) == "12.346 %"
    assert number(0.00123456, THOUSANDTHS, 0.0005, suffix=True) == "1.23e-3"
    assert number(-0.5, PLAIN, 0.1, sign=True) == "−0.500"
    assert number(0.00123456, THOUSANDTHS, math.nan) == "1.23"
    assert [number(value, PERCENT, 1) for value in (math.nan, math.inf, -math.inf)] == ["–", "∞", "−∞"]
    assert interval(0.1, 0.2, PERCENT) == "10.0 – 20.0"
    assert interval(math.nan, 0.2, PERCENT) == "–"
    assert thousands(1234567) == "1 234 567"

"""Tables: one value, how its numbers are written, and its renderings.

Whatever prints a table builds a :class:`Table`. It is rendered here for a terminal, Markdown,
LaTeX, CSV and HTML, and names of users are escaped here and nowhere else.
"""

import csv
import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from macc.words import shown

Better = Literal["lower", "higher", "zero", ""]
"""Which end of a column is good; ``zero`` where the nearest to it is."""

SECOND = "†"
"""The sign behind the second best where text has no other way to mark it."""

# Entries hold names from files; a longer one is cut on a terminal.
_WIDEST = 60


@dataclass(frozen=True)
class Unit:
    """How values are written, the same wherever they are shown.

    Args:
        symbol: What stands behind a number, and in the heading of a column.
        scale: What a value is multiplied by.
        digits: Decimals of a mean over runs. A value with an interval has as many as that makes
            meaningful.

    Example:
        >>> PERCENT.write(0.1234), THOUSANDTHS.write(0.01234) + THOUSANDTHS.suffix
        ('12.34', '12.34e-3')
    """

    symbol: str
    scale: float
    digits: int

    @property
    def suffix(self) -> str:
        """What follows a number in a sentence."""
        if self.symbol.startswith("1e"):
            return self.symbol[1:]
        return f" {self.symbol}" if self.symbol else ""

    def write(self, value: float, *, sign: bool = False) -> str:
        """A value with the decimals of the unit, without its symbol."""
        return f"{self.scale * value:{'+' if sign else ''}.{self.digits}f}"


PLAIN = Unit("", 1, 3)
AREA = Unit("", 1, 4)
PERCENT = Unit("%", 100, 2)
THOUSANDTHS = Unit("1e-3", 1000, 2)


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        heading: What it is called.
        unit: How its values are written; its symbol stands in the heading.
        better: Which end is good.
        left: Whether it is aligned to the left, as names are.
        on_page: Whether a page has it. A page shows what is beside a value under it.
    """

    heading: str
    unit: Unit = PLAIN
    better: Better = ""
    left: bool = False
    on_page: bool = True

    @property
    def title(self) -> str:
        """The heading with the unit."""
        return f"{self.heading} {self.unit.symbol}".strip()


@dataclass(frozen=True)
class Entry:
    """One field of a table.

    Args:
        text: What is read.
        value: What a browser sorts by, if it is a number.
        spread: What follows the text on its line; a page has ``below`` instead.
        below: What stands under the text on a page.
        best: Whether it is clearly the best of its column.
        second: Whether it comes next to the best of its column.
    """

    text: str = ""
    value: float | None = None
    spread: str = ""
    below: tuple[str, ...] = ()
    best: bool = False
    second: bool = False

    @property
    def line(self) -> str:
        """The text with its spread."""
        return f"{self.text} {self.spread}" if self.spread else self.text


@dataclass(frozen=True)
class Table:
    """A table: what every command, page and document shows is one of these.

    LaTeX has the caption within the table, and a page the caption and the notes; elsewhere they
    stand around it.

    Example:
        >>> table = Table.of(["", "ECE"], [["mine", "1.2 %"]])
        >>> print(table.text())
                ECE
        ───────────
        mine  1.2 %
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> "Table":
        """A table of texts, the first column aligned to the left."""
        columns = tuple(Column(text, left=index == 0) for index, text in enumerate(header))
        return cls(columns, tuple(tuple(map(Entry, row)) for row in rows), caption)

    @property
    def header(self) -> list[str]:
        """The headings with their units."""
        return [column.title for column in self.columns]

    def text(self) -> str:
        """For a terminal: aligned columns, ``*`` after the best, ``†`` the second, safe names."""
        lines = [
            self.header,
            *([entry.line + "*" * entry.best + SECOND * entry.second for entry in row] for row in self.rows),
        ]
        cells = [[shown(text, _WIDEST) for text in line] for line in lines]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        head, *body = (
            "  ".join(
                text.ljust(width) if column.left else text.rjust(width)
                for text, width, column in zip(line, widths, self.columns, strict=True)
            ).rstrip()
            for line in cells
        )
        return "\n".join([head, "─" * (sum(widths) + 2 * (len(widths) - 1)), *body])

    def markdown(self) -> str:
        """For Markdown, the best in bold, ``†`` behind the second."""

        def line(texts: Sequence[str]) -> str:
            return f"| {' | '.join(texts)} |"

        def written(entry: Entry) -> str:
            text = escape_markdown(entry.line)
            return f"**{text}**" if entry.best else text + SECOND * entry.second

        return "\n".join(
            [
                line([escape_markdown(text) for text in self.header]),
                "|" + "|".join("---" if column.left else "--:" for column in self.columns) + "|",
                *(line([written(entry) for entry in row]) for row in self.rows),
            ]
        )

    def latex(self) -> str:
        """For LaTeX, with its caption, the best in bold, the second underlined."""

        def written(entry: Entry) -> str:
            text = escape_latex(entry.line)
            if entry.best or entry.second:
                return rf"\{'textbf' if entry.best else 'underline'}{{{text}}}"
            return text

        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\caption{{{escape_latex(self.caption)}}}",
                r"\begin{tabular}{" + "".join("l" if column.left else "r" for column in self.columns) + "}",
                r"\hline",
                " & ".join(map(escape_latex, self.header)) + r" \\",
                r"\hline",
                *(" & ".join(map(written, row)) + r" \\" for row in self.rows),
                r"\hline",
                r"\end{tabular}",
                r"\end{table}",
            ]
        )

    def csv(self) -> str:
        """For spreadsheets and programs."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(map(escape_csv, self.header))
        writer.writerows([escape_csv(entry.line) for entry in row] for row in self.rows)
        return file.getvalue().rstrip("\n")

    def html(self) -> str:
        """For notebooks."""

        def line(texts: Sequence[str], tag: str) -> str:
            parts = []
            for text, column in zip(texts, self.columns, strict=True):
                side = "left" if column.left else "right"
                inset = "&emsp;" if text.startswith("  ") else ""
                parts.append(f'<{tag} style="text-align:{side}">{inset}{html.escape(text.strip())}</{tag}>')
            return f"<tr>{''.join(parts)}</tr>"

        body = "".join(line([entry.line for entry in row], "td") for row in self.rows)
        return f"<table><thead>{line(self.header, 'th')}</thead><tbody>{body}</tbody></table>"

    def sortable(self, key: str) -> str:
        """For a page that has the script and the style of reports: a press on a heading sorts.

        Args:
            key: What the table is called within the page.
        """
        kept = [i for i, column in enumerate(self.columns) if column.on_page]
        heads = "\n".join(_sorting_head(self.columns[i]) for i in kept)
        rows = "\n".join(
            f'<tr>\n<th scope="row">{html_name(row[0].text)}</th>\n'
            + "\n".join(_sorted_entry(row[i]) for i in kept[1:])
            + "\n</tr>"
            for row in self.rows
        )
        notes = "".join(f'<p class="note">{html_prose(note)}</p>' for note in self.notes)
        return (
            '<p class="note more" hidden>There are more columns: scroll the table sideways.</p>\n'
            f'<div class="scroll" role="region" aria-labelledby="{key}-caption" tabindex="0">\n'
            f'<table class="sortable" id="{key}">\n'
            f'<caption id="{key}-caption">{html_prose(self.caption)}</caption>\n'
            f"<thead><tr>\n{heads}\n</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n{notes}"
        )


class Displayed:
    """What shows itself as tables and sentences: ``print`` as text, notebooks as HTML.

    Example:
        >>> class Found(Displayed):
        ...     def _parts(self):
        ...         return [Table.of(["", "ECE"], [["mine", "1.2 %"]]), "It is small."]
        >>> print(Found())
                ECE
        ───────────
        mine  1.2 %
        <BLANKLINE>
        It is small.
        >>> Found()._repr_html_().endswith("</table><p>It is small.</p>")
        True
    """

    def _parts(self) -> Sequence[Table | str]:
        """The tables and sentences, in their order; an empty sentence is left out."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(part.text() if isinstance(part, Table) else part for part in self._parts() if part)

    def _repr_html_(self) -> str:
        return html_of(*self._parts())


def _sorting_head(column: Column) -> str:
    # The first press puts the best first.
    first = "descending" if column.better in ("", "higher") else "ascending"
    hints = {"lower": "lower is better", "higher": "higher is better", "zero": "0 is best", "": "sort"}
    return (
        f'<th scope="col" data-first="{first}"><button type="button" title="{hints[column.better]}">'
        f'{_html(column.title)}<span class="arrow" aria-hidden="true"></span></button></th>'
    )


def _sorted_entry(entry: Entry) -> str:
    # What has no value sorts last.
    value = "" if entry.value is None or not math.isfinite(entry.value) else repr(entry.value)
    text = entry.text if entry.value is None else _minus(entry.text)
    name = "best" if entry.best else "second" if entry.second else ""
    mark = f'<span class="mark">{name}</span>' if name else ""
    kind = f' class="{name}"' if name else ""
    below = "".join(f'\n<span class="small">{_html(_minus(text))}</span>' for text in entry.below)
    return f'<td data-value="{value}"{kind}>\n<span class="value">{_html(text or "–")}</span>{mark}{below}\n</td>'


def _minus(text: str) -> str:
    return re.sub(r"(?<!e)-", "−", text)


def number(value: float, unit: Unit, width: float, *, sign: bool = False, suffix: bool = False) -> str:
    """Write a value with the digits that an interval of this width makes meaningful.

    Example:
        >>> number(0.0158, PERCENT, 0.006, suffix=True), number(0.00158, THOUSANDTHS, 0.0006, suffix=True)
        ('1.58 %', '1.58e-3')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    fewest, most, digits = (3, 5, 4) if unit.scale == 1 else (1, 4, 2)
    if math.isfinite(width) and width > 0:
        digits = min(most, max(fewest, 1 - math.floor(math.log10(width * unit.scale))))
    text = f"{value * unit.scale:+.{digits}f}" if sign else f"{value * unit.scale:.{digits}f}"
    return _minus(text) + (unit.suffix if suffix else "")


def interval(low: float, high: float, unit: Unit) -> str:
    """Write an interval, or a dash when there is none."""
    if math.isnan(low) or math.isnan(high):
        return "–"
    return f"{number(low, unit, high - low)} – {number(high, unit, high - low)}"


def with_interval(value: float, low: float, high: float, unit: Unit, chance: float | None = None) -> Entry:
    """A value with its interval and, of an error, with what chance alone would show.

    Example:
        >>> with_interval(0.151, 0.111, 0.177, PERCENT, 0.032).line
        '15.1 % (11.1 – 17.7) 3.2 %'
    """
    if math.isnan(value):
        return Entry("–")
    ends, width = interval(low, high, unit), high - low
    by_chance = "" if chance is None else number(chance, unit, width, suffix=True)
    return Entry(
        number(value, unit, width, suffix=True),
        value,
        f"({ends}) {by_chance}".strip(),
        (ends, f"chance {by_chance}") if by_chance else (ends,),
    )


def thousands(count: int) -> str:
    """A whole number in groups of three."""
    return f"{count:,}".replace(",", " ")


def data_frame(rows: Mapping[str, Mapping[str, float | None]]) -> Any:
    """A row for each metric, for pandas."""
    try:
        from pandas import DataFrame  # type: ignore[import-untyped]
    except ImportError as error:
        raise ValueError(
            f"a data frame needs pandas ({error}); install it with: pip install pandas"
        ) from error
    return DataFrame.from_dict(rows, orient="index").rename_axis("metric")


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


def kept_together(text: str) -> str:
    """A text whose line ends part no number from its unit or its thousands."""
    return re.sub(r"(?<=\d) (?=\d{3}\b)|(?<=\S) (?=%)", "\u00a0", text)


def _html(text: str) -> str:
    return html.escape(kept_together(text))


def html_of(*parts: Table | str) -> str:
    """Tables and sentences as HTML, for notebooks; a paragraph for each line.

    Example:
        >>> html_of("a < b")
        '<p>a &lt; b</p>'
    """
    return "".join(
        part.html()
        if isinstance(part, Table)
        else "".join(f"<p>{html.escape(line)}</p>" for line in part.splitlines())
        for part in parts
    )


def html_prose(text: str) -> str:
    """A sentence as HTML: what stands between backticks is code.

    Example:
        >>> html_prose("run `a<b`")
        'run <code>a&lt;b</code>'
    """
    parts = re.split(r"`+([^`]+)`+", text)
    return "".join(f"<code>{_html(part)}</code>" if i % 2 else _html(part) for i, part in enumerate(parts))


def html_name(text: str) -> str:
    """A name as HTML that breaks at its signs, and within a word only where it must.

    Example:
        >>> html_name("FL+MACC")
        'FL<wbr>+<wbr>MACC'
    """
    parts = re.split(r"(?<=[^\w\s.])(?=\w)|(?<=_)(?=[^_])|(?<=\w)(?=[(*+=])", text)
    return "<wbr>".join(map(html.escape, parts))


def duration(seconds: float) -> str:
    """Hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

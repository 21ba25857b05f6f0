"""Printed tables, and how numbers are written in them."""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from macc.words import shown

# Cells hold names from files; a longer one is cut.
_WIDEST = 60


def number(value: float, unit: str, width: float, *, sign: bool = False, suffix: bool = False) -> str:
    """Write a value with the digits that an interval of this width makes meaningful."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    scale = 100 if unit == "%" else 1
    fewest, most = (1, 4) if unit == "%" else (3, 5)
    digits = 2 if unit == "%" else 4
    if math.isfinite(width) and width > 0:
        digits = min(most, max(fewest, 1 - math.floor(math.log10(width * scale))))
    text = f"{value * scale:+.{digits}f}" if sign else f"{value * scale:.{digits}f}"
    return text.replace("-", "−") + (" %" if suffix and unit == "%" else "")


def interval(low: float, high: float, unit: str) -> str:
    """Write an interval, or a dash when there is none."""
    if math.isnan(low) or math.isnan(high):
        return "–"
    return f"{number(low, unit, high - low)} – {number(high, unit, high - low)}"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces: the first to the left, the others to the right; names are made safe to print."""
    header, *rows = [[shown(cell, _WIDEST) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "─" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join(lines)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table for notebooks; every cell is escaped."""

    def line(cells: Sequence[str], tag: str) -> str:
        parts = []
        for i, cell in enumerate(cells):
            side = "left" if i == 0 else "right"
            text = (
                html.escape(cell).replace("  ", "&emsp;", 1) if cell.startswith("  ") else html.escape(cell)
            )
            parts.append(f'<{tag} style="text-align:{side}">{text}</{tag}>')
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"


def data_frame(rows: Mapping[str, Mapping[str, float | None]]) -> Any:
    """A row for each metric, for pandas."""
    try:
        from pandas import DataFrame  # type: ignore[import-untyped]
    except ImportError as error:
        raise ValueError(
            f"a data frame needs pandas ({error}); install it with: pip install pandas"
        ) from error
    return DataFrame.from_dict(rows, orient="index").rename_axis("metric")


def thousands(count: int) -> str:
    """A whole number in groups of three."""
    return f"{count:,}".replace(",", " ")

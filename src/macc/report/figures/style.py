"""What all figures share: colours, sizes, names as they are, and how files are written."""

import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from macc.metrics import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, distinct for every kind of colour vision, and a dark red of Tol's.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, WINE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#882255",
)
INK, FAINT, RULE = "#24292f", "#6b727a", "#c9ced4"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, INK, WINE)
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1.2, 2)))
MARKERS = "osD^vPX*"
MARKED = 8
"""Markers on a line, at most about; more would hide it."""
MOST_INSIDE = 4
"""More names than this in a legend would cover what is drawn; they stand beside it."""
FORMATS = ("svg", "png", "pdf")
LONGEST_NAME = 48
WIDE = 4
"""Panels in a row, at most."""

_SETTINGS: Any = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": True,  # a line must not run through its words
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
    "savefig.dpi": 200,
    "axes.facecolor": "none",
    "figure.facecolor": "white",
    "axes.unicode_minus": True,
}


@contextmanager
def style() -> Iterator[None]:
    """The look of the figures, for as long as they are drawn."""
    try:
        import matplotlib
    except ImportError as error:
        raise _missing(error) from error
    with matplotlib.rc_context(_SETTINGS):
        yield


def grid(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> "tuple[Figure, list[list[Axes]]]":
    """A figure of ``rows`` × ``columns`` panels of ``size`` inches, within :func:`style`."""
    try:
        from macc.report.figures._figure import NotebookFigure
    except ImportError as error:
        raise _missing(error) from error
    figure = NotebookFigure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.06)  # type: ignore[union-attr, call-arg]
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, [list(row) for row in axes]


@contextmanager
def panel(ax: "Axes | None", size: tuple[float, float] = (4.6, 3.6)) -> "Iterator[Axes]":
    """The axes to draw into: those given, in their style, or new ones in ours."""
    with style() if ax is None else nullcontext():
        yield grid(1, 1, size)[1][0][0] if ax is None else ax


def figure_of(ax: "Axes") -> "Figure":
    """The figure that axes belong to."""
    return cast("Figure", ax.figure)


def plain(name: str) -> str:
    r"""A name as matplotlib shows it letter by letter: no formulas, no line breaks, not too long.

    Example:
        >>> print(plain("$x$\n_ok"))
        \$x\$ _ok
    """
    words = " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", name).split())
    # What distinguishes names often stands at the end.
    kept = LONGEST_NAME - 1
    short = words if len(words) <= LONGEST_NAME else f"{words[: kept - kept // 2]}…{words[-(kept // 2) :]}"
    shown = short.replace("$", r"\$")
    # Matplotlib leaves names that begin with an underscore out of legends.
    return f"\u200b{shown}" if shown.startswith("_") else shown


def axis(metric: Metric[Any]) -> str:
    """A metric and its unit beside an axis."""
    return f"{metric.noun} ({metric.unit.symbol})" if metric.unit.symbol else metric.noun


def look(index: int) -> dict[str, Any]:
    """Colour and dashes of a series; the first eight have colours of their own.

    Two of them that share their dashes differ in how light they are, so that they can be
    distinguished in grey too.
    """
    return {
        "color": SERIES[index % len(SERIES)],
        "linestyle": DASHES[(index + index // len(SERIES)) % len(DASHES)],
    }


def line_look(index: int, points: int) -> dict[str, Any]:
    """The :func:`look` of a line, with markers of its own: no two of the first 16 lines share them.

    Every point of a short line has a marker. On a long line there are few, at other places than on
    other lines.
    """
    step = -(-points // MARKED) if points > 2 * MARKED else 1
    turn = index // len(MARKERS)
    return {
        **look(index),
        # Colours return after eight lines: with another marker, and a hollow one.
        "marker": MARKERS[(index + 3 * turn) % len(MARKERS)],
        "fillstyle": "none" if turn % 2 else "full",
        "markersize": 4.5 + turn % 2,
        "markevery": (index * step // len(MARKERS) % step, step),
        "linewidth": 1.6,
    }


def width_for(names: int, width: float) -> float:
    """The width of a figure of one panel, and of a legend beside it for many names."""
    return width if names <= MOST_INSIDE else 1.4 * width


def legend(ax: "Axes", loc: Literal["best", "upper left"] = "best") -> None:
    """Name what is drawn: within the axes, or beside them where there are many names."""
    if len(ax.get_legend_handles_labels()[1]) > MOST_INSIDE:
        ax.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    else:
        ax.legend(loc=loc)


def note(figure: "Figure", text: str) -> None:
    """Say under a figure by which rule it was made."""
    width = int(figure.get_figwidth() * 15.5)
    lines = [line for part in text.splitlines() for line in textwrap.wrap(part, width) or [""]]
    figure.supxlabel(
        "\n".join(lines).replace("$", r"\$"), x=0.01, ha="left", fontsize=8, color=FAINT, linespacing=1.35
    )


def save(figure: "Figure", file: IO[bytes], form: str, *, dpi: int = 200) -> None:
    """Write a figure; letters that the font lacks are drawn as boxes and not complained about."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "macc"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # Without a date, equal figures are equal files.
        meta = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        figure.savefig(file, format=form, dpi=dpi, metadata=meta)


def check_format(path: Path, forms: Sequence[str] = FORMATS) -> str:
    """The format a file name asks for."""
    form = path.suffix.lower().removeprefix(".")
    if form not in forms:
        names = [f".{name}" for name in forms]
        raise ValueError(
            f"{path}: a figure is written as {', '.join(names[:-1])} or {names[-1]}; end its name so"
        )
    return form


def _missing(error: ImportError) -> ValueError:
    return ValueError(f'figures need matplotlib ({error}); install it with: pip install "macc-torch[report]"')

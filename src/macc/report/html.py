"""A page as a value, and as one HTML file that needs nothing outside itself."""

import base64
import hashlib
from dataclasses import dataclass, field
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from macc import __version__
from macc.io.writing import write_whole
from macc.report.sources import ReportSource
from macc.tables import Table, html_name, html_prose, kept_together


@dataclass(frozen=True)
class Shown:
    """A figure on the page."""

    title: str
    svg: str
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction that the model was sure of."""

    index: int
    label: str
    predicted: str
    confidence: float
    image: str | None
    text: str


@dataclass
class Detail:
    """Everything about one run."""

    key: str
    name: str
    path: str
    facts: dict[str, str]
    verdict: str
    tests: str
    worst: str
    classes: Table | None
    figures: list[Shown]
    mistakes: list[Mistake]
    mistakes_note: str
    recipe: str
    environment: dict[str, str]


@dataclass
class Group:
    """Runs that were tested on the same samples, and so can be compared."""

    title: str
    sources: list[ReportSource]
    figures: list[Shown] = field(default_factory=list)


@dataclass(frozen=True)
class SectionPart:
    """One thing that a section shows: words, table, figure, what they rest on, what to do."""

    title: str
    finding: str
    table: Table
    figure: Shown | None
    basis: str = ""
    next_step: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the page beside those that every page has."""

    key: str
    title: str
    parts: list[SectionPart]


@dataclass(frozen=True)
class Answer:
    """A question that every reader has, and the answer in a sentence."""

    question: str
    sentence: str


@dataclass
class Page:
    """What the template shows."""

    title: str
    groups: list[Group]
    details: list[Detail]
    left_out: list[str]
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    figures: list[Shown] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    lead: Shown | None = None
    """The figure beside the answers."""
    version: str = __version__


def check_output(output: str | PathLike[str]) -> Path:
    """Refuse, before the work and not after it, what cannot be written."""
    path = Path(output)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{path}: the report is an .html file; end its name so")
    _jinja()
    return path


def write_page(page: Page, path: Path) -> Path:
    """Write a page."""
    with write_whole(path) as file:
        # Sentences may hold names of files, and those need not be text.
        file.write(render(page).encode(errors="backslashreplace"))
    return path


def render(page: Page) -> str:
    """The page as HTML."""
    jinja2 = _jinja()
    folder = resources.files("macc") / "report" / "templates"
    texts = {name: (folder / name).read_text("utf-8") for name in ("report.html", "report.css", "report.js")}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(texts),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_kept_together,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    from markupsafe import Markup

    environment.filters |= {
        "prose": lambda text: Markup(html_prose(text)),  # noqa: S704 - escaped there
        "name": lambda text: Markup(html_name(text)),  # noqa: S704
        "sortable": lambda table, key: Markup(table.sortable(key)),  # noqa: S704
    }
    script = texts["report.js"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text: str = environment.get_template("report.html").render(
        page=page, script=script, css=texts["report.css"], script_hash=digest
    )
    return text


def _jinja() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ValueError(
            f'the report needs Jinja2 ({error}); install it with: pip install "macc-torch[report]"'
        ) from error
    return jinja2


def _kept_together(value: object) -> object:
    plain = isinstance(value, str) and not hasattr(value, "__html__")
    return kept_together(str(value)) if plain else value

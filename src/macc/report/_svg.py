"""Figures and images as parts of a page: inline, in its colours, naming nothing outside."""

import base64
import io
import re
import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor

from macc.report.figures import style
from macc.report.figures._samples import picture

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

LARGEST_IMAGE = 96
_VARIABLES = {
    style.BLUE: "--blue",
    style.VERMILLION: "--vermillion",
    style.GREEN: "--green",
    style.PURPLE: "--purple",
    style.ORANGE: "--orange",
    style.SKY: "--sky",
    style.WINE: "--wine",
    style.INK: "--ink",
    style.FAINT: "--faint",
    style.RULE: "--rule",
}


def inline(figure: "Figure", key: str, description: str) -> "Markup":
    """A figure as an ``<svg>`` element whose colours are variables of the page.

    Args:
        figure: The figure.
        key: Different for every figure of a page, so that their definitions do not mix.
        description: What a screen reader says.
    """
    import matplotlib
    from markupsafe import Markup, escape

    file = io.BytesIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": key}
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Groups are numbered alike in every figure, and nothing refers to them.
    text = re.sub(r"<g id=\"[^\"]*\"", "<g", text)
    text = re.sub(r"\n\s*", "\n", text)
    # Inside tags alone: what stands between them are users' names.
    text = re.sub(r"<[^>]*>", lambda tag: _themed(tag[0]), text)
    head = re.search(r"viewBox=\"([^\"]*)\"", text)
    assert head is not None  # noqa: S101 - matplotlib writes one
    body = text[text.index(">") + 1 :]
    width, height = (float(part) for part in head[1].split()[2:])
    label = escape(description)
    # What matplotlib wrote: names in it are escaped as XML.
    return Markup(  # noqa: S704
        f'<svg role="img" aria-label="{label}" viewBox="{head[1]}" '
        f'style="aspect-ratio: {width:g} / {height:g}; max-width: {1.35 * width:.0f}px" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">{body}'
    )


def data_uri(image: Tensor) -> str:
    """An image ``(C, H, W)`` as a PNG within the page, not larger than it is shown."""
    from PIL import Image

    found: Any = Image.fromarray(picture(image))
    if max(found.size) > LARGEST_IMAGE:
        found.thumbnail((LARGEST_IMAGE, LARGEST_IMAGE))
    file = io.BytesIO()
    found.save(file, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _themed(tag: str) -> str:
    """A tag with the page's colours and font."""
    for colour, variable in _VARIABLES.items():
        tag = re.sub(colour, f"var({variable})", tag, flags=re.IGNORECASE)
    tag = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--font)", tag)
    return re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", tag)

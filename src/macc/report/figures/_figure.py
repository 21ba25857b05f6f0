"""A figure that a notebook shows; imported where one is drawn, as it needs matplotlib."""

import io

from matplotlib.figure import Figure

from macc.report.figures.style import save

_NOTEBOOK_DPI = 100


class NotebookFigure(Figure):
    """As matplotlib's; notebooks show it without ``%matplotlib inline`` and without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        save(self, file, "png", dpi=_NOTEBOOK_DPI)
        return file.getvalue()

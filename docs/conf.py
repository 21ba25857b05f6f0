"""How the documentation is built: ``make docs``."""

from sphinx.application import Sphinx
from sphinx.ext.autodoc import FunctionDocumenter

import macc
from macc.metrics import Metric

project = "macc"
release = macc.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
html_theme = "furo"
autodoc_member_order = "bysource"
autodoc_use_legacy_class_based = True  # the other form has no documenters of its own
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
myst_heading_anchors = 3


class MetricDocumenter(FunctionDocumenter):
    """Metrics are values that are called: the API page shows them as functions."""

    objtype = "metric"
    directivetype = "function"
    priority = FunctionDocumenter.priority + 10

    @classmethod
    def can_document_member(cls, member: object, *_: object) -> bool:
        """Whether it is a metric."""
        return isinstance(member, Metric)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_autodocumenter(MetricDocumenter)

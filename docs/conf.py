"""How the documentation is built: ``make docs``."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc import FunctionDocumenter
from sphinx.util import logging
from sphinx_gallery.scrapers import figure_rst

import macc
from macc.metrics import Metric
from macc.report.figures._figure import NotebookFigure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import commands  # noqa: E402 - a page of this folder

project = "macc"
release = macc.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
copyright = "the authors of macc; Apache-2.0"  # noqa: A001 - a name of Sphinx
html_theme = "furo"
html_title = f"macc {release}"
html_static_path = ["static"]
html_css_files = ["macc.css"]
autodoc_member_order = "bysource"
autodoc_use_legacy_class_based = True  # the other form has no documenters of its own
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["tutorials"]  # what they become is in gallery
suppress_warnings = ["config.cache"]  # the settings of the tutorials hold a function


def drawn(_: object, variables: dict[str, Any], settings: dict[str, Any]) -> str:
    """The figures of a part of a tutorial that earlier parts have not shown.

    Our figures know nothing of pyplot.
    """
    found = [value for value in variables["example_globals"].values() if isinstance(value, NotebookFigure)]
    paths = []
    for figure in found:
        if not hasattr(figure, "shown_in_gallery"):
            figure.shown_in_gallery = True
            path = next(variables["image_path_iterator"])
            figure.savefig(path, dpi=100)
            paths.append(path)
    return figure_rst(paths, settings["src_dir"])


sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",  # all of them run
    "within_subsection_order": "FileNameSortKey",  # the first ten minutes come first
    "image_scrapers": (drawn,),
    "reset_modules": (),
    "abort_on_example_error": True,
    "show_memory": False,
    "write_computation_times": False,
}


class MetricDocumenter(FunctionDocumenter):
    """Metrics are values that are called: the API page shows them as functions."""

    objtype = "metric"
    directivetype = "function"
    priority = FunctionDocumenter.priority + 10

    @classmethod
    def can_document_member(cls, member: object, *_: object) -> bool:
        """Whether it is a metric."""
        return isinstance(member, Metric)


# What the API pages show in whole.
DOCUMENTED = [path.stem for path in sorted((HERE / "api").glob("*.rst"))]
NOT_WHOLE = {"index", "integrations"}  # other libraries are imported one at a time


def public_names(module: str) -> set[str]:
    """The classes, functions and metrics that a package of macc offers, with their full names."""
    return {
        f"{module}.{name}"
        for name, value in vars(importlib.import_module(module)).items()
        if not name.startswith("_")
        and (isinstance(value, Metric) or inspect.isclass(value) or inspect.isfunction(value))
        and (getattr(value, "__module__", None) or module).startswith("macc.")
    }


def refuse_undocumented(_: Sphinx, environment: BuildEnvironment) -> None:
    """Warn of each public name that no page shows; with --fail-on-warning the build fails."""
    shown = environment.domains.python_domain.objects
    for page in set(DOCUMENTED) - NOT_WHOLE:
        package = "report.figures" if page == "figures" else page
        for name in sorted(public_names(f"macc.{package}") - set(shown)):
            logging.getLogger(__name__).warning("%s is public and has no place in the API pages", name)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_autodocumenter(MetricDocumenter)
    app.connect("env-check-consistency", refuse_undocumented)
    commands.write(HERE / "commands.md")

"""Classifiers whose confidence can be trusted.

Names resolve on first use, so that importing the package, or asking the command line for help,
does not load torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "LogitMoments": "macc.heads",
    "MCDropout": "macc.heads",
    "MCDropoutConv2d": "macc.heads",
    "MCDropoutLinear": "macc.heads",
    "attach": "macc.heads",
    "conventional_moments": "macc.heads",
    "detach": "macc.heads",
    "evaluate": "macc.metrics",
    "load": "macc.ship",
    "moments": "macc.heads",
}
_NAMESPACES = ("data", "losses", "metrics", "models", "posthoc", "ship", "training")

__all__ = ["__version__", *_HOME, *_NAMESPACES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _NAMESPACES:
        value = import_module(f"macc.{name}")
    else:
        raise AttributeError(f"module 'macc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

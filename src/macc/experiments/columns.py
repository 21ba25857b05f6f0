"""The columns of an experiment's tables: every metric as it is declared, and what is no metric."""

import math
from collections.abc import Container
from dataclasses import replace

from macc.metrics import headline, registry
from macc.tables import PERCENT, Column, Unit

OF_RUNS: dict[str, Column] = {
    "temperature": Column("T", Unit("", 1, 1)),
    "u": Column("mean u", Unit("", 1, 2)),
    "minutes": Column("training", Unit("min", 1, 2)),
}
"""Columns that say something of a run and nothing of its predictions."""
OF_PREDICTIONS: dict[str, Column] = {
    "gap": Column("conf.-acc.", PERCENT, "zero"),
    "classwise_ece": Column("ECE of", PERCENT, "lower"),
}
"""Columns of predictions that are no metrics, a difference and one number for each class."""


def names() -> list[str]:
    """Every column that an experiment may have.

    Example:
        >>> "brier" in names(), "gap" in names(), "positive_ece" in names()
        (True, True, False)
    """
    return [
        *(name for name, metric in registry().items() if metric.of == "any"),
        *OF_PREDICTIONS,
        *OF_RUNS,
    ]


def main() -> list[str]:
    """The metrics of every experiment, shown or not: the headline ones, errors ahead of scores.

    Example:
        >>> main()
        ['accuracy', 'ece', 'sce', 'nll', 'refinement']
    """
    found = headline()
    return sorted(found, key=lambda name: (found[name].better == "lower", not found[name].floored))


def compared(columns: Container[str]) -> list[str]:
    """The metrics in which methods are tested: the main ones, and those among the columns."""
    return list(dict.fromkeys([*main(), *(name for name in registry() if name in columns)]))


def column(name: str, unit: float | None = None) -> Column:
    """A column by its name, in the unit that the table gives; ``classwise_ece/3`` is class 3.

    Example:
        >>> column("sce").title, column("sce", 1e-2).title, column("classwise_ece/3").title
        ('SCE 1e-3', 'SCE 1e-2', 'ECE of 3 %')
    """
    base, _, index = name.partition("/")
    found = (OF_PREDICTIONS | OF_RUNS).get(base)
    if found is None:
        metric = registry()[base]
        found = Column(metric.noun, metric.unit, metric.better)
    if index:
        found = replace(found, heading=f"{found.heading} {index}")
    if unit is None:
        return found
    exponent = round(math.log10(unit))
    symbol = {0: "", -2: "1e-2", -3: "1e-3"}.get(exponent, f"{unit:g}")
    return replace(found, unit=Unit(symbol, 1 / unit, found.unit.digits))

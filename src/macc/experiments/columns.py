"""The columns of tables: how each metric is called, scaled and rounded, and which value of it is better."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Shown:
    """How a metric stands in tables."""

    label: str
    scale: float
    unit: str
    digits: int
    better: str
    """``lower``, ``higher``, ``zero`` (nearest to it) or nothing."""


SHOWN: dict[str, Shown] = {
    "accuracy": Shown("Acc.", 100, "%", 2, "higher"),
    "sce": Shown("SCE", 1000, "1e-3", 2, "lower"),
    "ece": Shown("ECE", 100, "%", 2, "lower"),
    "nll": Shown("NLL", 1, "", 3, "lower"),
    "brier": Shown("Brier", 1, "", 3, "lower"),
    "auroc": Shown("AUROC", 1, "", 4, "higher"),
    "gap": Shown("conf.-acc.", 100, "%", 2, "zero"),
    "classwise_ece": Shown("ECE of", 100, "%", 2, "lower"),
    "temperature": Shown("T", 1, "", 1, ""),
    "u": Shown("mean u", 1, "", 2, ""),
    "minutes": Shown("training", 1, "min", 2, ""),
}


def shown(column: str, unit: float | None = None) -> Shown:
    """How a column stands in a table whose file may give it another unit; ``classwise_ece/3`` is class 3."""
    name, _, index = column.partition("/")
    found = SHOWN[name]
    if index:
        found = Shown(f"{found.label} {index}", found.scale, found.unit, found.digits, found.better)
    if unit is None:
        return found
    exponent = round(math.log10(unit))
    text = {0: "", -2: "1e-2", -3: "1e-3"}.get(exponent, f"{unit:g}")
    return Shown(found.label, 1 / unit, text, found.digits, found.better)

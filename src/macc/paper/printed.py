"""The values that the paper prints in its tables 1 to 8."""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper_tables() -> dict[str, Any]:
    """Every printed value:
    ``{table: {caption, units, notes, rows: [{dataset, model, test, values}]}}``.

    Values are as printed; ``units`` says what 1 stands for.
    """
    text = (resources.files("macc") / "paper" / "printed.json").read_text("utf-8")
    return dict(json.loads(text))


def value(tables: Sequence[str], dataset: str, test: str, method: str, metric: str) -> float | None:
    """What the paper prints, in plain units (an ECE of 2 % is 0.02): the first of the tables that
    has it, if any has.

    Given as ``published`` to :func:`macc.experiments.run`, it puts the paper's values beside an
    experiment's own.

    Example:
        >>> value(["table1"], "CIFAR10", "test", "FL+MACC", "ece")
        0.0059
    """
    for table in tables:
        found = paper_tables()[table]
        for row in found["rows"]:
            printed = row["values"].get(method, {}).get(metric)
            if (row["dataset"], row["test"]) == (dataset, test) and printed is not None:
                return round(float(printed * found["units"][metric.partition("/")[0]]), 12)
    return None

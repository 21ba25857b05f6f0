"""What ``macc train`` and ``macc recipe`` print."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macc import data, models
from macc.metrics import headline
from macc.tables import Column, Entry, Table, Unit
from macc.training import loading


def summary(metrics: Mapping[str, Mapping[str, Any]]) -> Table:
    """The metrics of each split with their intervals, and those after the calibrator, if any."""
    found = {split: values for split, values in metrics.items() if split != "calibrated"}
    found |= {f"{split}, calibrated": values for split, values in metrics.get("calibrated", {}).items()}
    rows = [
        [metric.heading, *(_cell(values.get(name), metric.unit) for values in found.values())]
        for name, metric in headline().items()
    ]
    return Table.of(["", *found], rows)


def _cell(estimate: Mapping[str, Any] | None, unit: Unit) -> str:
    if not estimate or estimate.get("value") is None:
        return ""
    if estimate.get("low") is None:
        return unit.write(estimate["value"])
    return f"{unit.write(estimate['value'])} [{unit.write(estimate['low'])}, {unit.write(estimate['high'])}]"


def result_text(run: Path) -> str:
    """Where the files of a run are, and what to do with them."""
    calibrator = ["  calibrator.json         fitted to validation; `macc apply` reads it"]
    calibrator = calibrator if (run / "calibrator.json").is_file() else []
    return "\n".join(
        [
            f"{run}",
            "  metrics.json            every metric of validation and test, with intervals",
            "  predictions/test.npz    logits and labels; `macc evaluate` reads it",
            "  best.safetensors        the selected weights",
            *calibrator,
            "  history.jsonl           one line an epoch",
        ]
    )


def recipes() -> Table:
    """Every recipe on a line: data set, model, epochs, and what this version lacks to train it."""
    rows = []
    for name in loading.names():
        found = loading.load(name)
        lacking = []
        if found.dataset.partition(":")[0] not in data.known():
            lacking.append(f"data set {found.dataset}")
        if ":" not in found.model and found.model not in vars(models):
            lacking.append(f"model {found.model}")
        state = f"not yet: needs the {' and the '.join(lacking)}" if lacking else ""
        rows.append(tuple(map(Entry, (name, found.dataset, found.model, str(found.epochs), state))))
    columns = tuple(
        Column(heading, left=heading != "epochs") for heading in ("recipe", "data set", "model", "epochs", "")
    )
    return Table(columns, tuple(rows))

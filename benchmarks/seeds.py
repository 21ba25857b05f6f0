"""Seeds of a long experiment one at a time: each is measured by itself and kept, and those that are complete are joined.

    python -m benchmarks.seeds run NAME SCALE SEED RUNS DATA    # train and measure one seed of results/NAME.yaml
    python -m benchmarks.seeds measure NAME SCALE SEED RUNS DATA    # what is finished of it, while it trains
    python -m benchmarks.seeds join NAME RUNS DATA              # results/seeds/NAME-*.json into results/NAME.json

A method that ``results/seeds`` has of a seed is not trained again, wherever its run folder may be: a run is the same
by the hash of its recipe and data.
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.evidence import RESULTS, write_result
from macc import experiments, paper
from macc.experiments.findings import add_findings
from macc.experiments.gather import gather
from macc.experiments.ledger import open_ledger
from macc.experiments.result import Cell, Result
from macc.experiments.workers import Worker
from macc.metrics.over_runs import interval

SEEDS = RESULTS / "seeds"


def main(arguments: Sequence[str]) -> int:
    """``run``, ``measure`` or ``join``."""
    match list(arguments):
        case ["run" | "measure" as what, name, scale, seed, runs, data]:
            keep(name, scale, int(seed), Path(runs), Path(data), train=what == "run")
        case ["join", name, runs, data]:
            write_result(joined(name, Path(runs), Path(data)), RESULTS / f"{name}.json")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def keep(name: str, scale: str, seed: int, runs: Path, data: Path, *, train: bool) -> None:
    """Measure what is not kept yet of a seed, and keep it."""
    path = SEEDS / f"{name}-{seed}.json"
    before = experiments.load_result(path) if path.is_file() else None
    done = set() if before is None else {cell.method for cell in before.cells}
    whole = experiments.load(RESULTS / f"{name}.yaml", scale=scale)
    missing = [method for method in whole.methods if method.title not in done]
    if not missing:
        print(f"{path} is complete")
        return
    changes = {"name": f"{name}-{seed}", "methods": missing, "seeds": 1, "first_seed": seed}
    part = whole.model_copy(update=changes)
    ledger = open_ledger(part, runs, data)
    for dataset in ledger.catalog.datasets:
        for method in ledger.trained(dataset):
            if ledger.is_searched(dataset, method) or method.p_of is not None:
                raise ValueError(
                    f"{method.title} depends on a search, which one seed by itself cannot repeat"
                )
    if train:
        found = replace(
            experiments.run(part, out=runs, root=data, published=paper.value, show=True), name=name
        )
    else:
        worker = Worker(ledger, runs, "", tell=lambda _: None)
        for dataset in ledger.catalog.datasets:
            for job, part_of_data in ledger.predictions_missing(dataset):
                while not worker.predict(dataset, job, part_of_data):
                    time.sleep(1)  # another process is at this run
        found = replace(gather(ledger, paper.value), name=name)
    if before is not None:
        found = together(whole, [before, found])
    SEEDS.mkdir(exist_ok=True)
    write_result(found, path)


def joined(name: str, runs: Path, data: Path) -> Result:
    """The seeds that are complete as one result, tested over seeds; one alone over its samples, from its runs."""
    kept = {int(path.stem.rpartition("-")[2]): path for path in SEEDS.glob(f"{name}-*.json")}
    parts = [experiments.load_result(kept[seed]) for seed in sorted(kept)]
    complete = [part for part in parts if {cell.method for cell in part.cells} == set(part.methods)]
    if not complete:
        raise ValueError(f"{SEEDS} has no complete seed of {name}; `run` or `measure` one first")
    whole = experiments.load(RESULTS / f"{name}.yaml", scale=complete[0].scale)
    result = together(whole, complete)
    ledger = open_ledger(whole.model_copy(update={"seeds": result.seeds}), runs, data)
    add_findings(result, ledger)
    return result


def together(whole: experiments.Experiment, parts: Sequence[Result]) -> Result:
    """Parts of one seed each as one result: of several seeds, or of several methods; without tests."""
    order = [method.title for method in whole.methods]
    cells: dict[tuple[str, ...], list[Cell]] = {}
    for part in parts:
        for cell in part.cells:
            key = (cell.dataset, cell.test, cell.method, cell.rule, cell.metric)
            cells.setdefault(key, []).append(cell)
    runs = [run for part in parts for run in part.runs]
    made_by: dict[str, set[str]] = {}
    for part in parts:
        for name, values in part.provenance.items():
            made_by.setdefault(name, set()).update(values)
    return replace(
        parts[0],
        seeds=len({run.seed for run in runs}),
        methods=order,
        cells=sorted(map(over_seeds, cells.values()), key=lambda cell: order.index(cell.method)),
        runs=sorted(runs, key=lambda run: (order.index(run.method), run.seed)),
        comparisons=[],
        findings=[],
        left_out=list(dict.fromkeys(text for part in parts for text in part.left_out)),
        provenance={name: sorted(values) for name, values in made_by.items()},
    )


def over_seeds(cells: Sequence[Cell]) -> Cell:
    """The same cell of several seeds; noise floor and the paper's value are the first seed's, as everywhere."""
    values = tuple(value for cell in cells for value in cell.values)
    low, high = interval(values) or (cells[0].low, cells[0].high)
    pooled = [cell.pooled for cell in cells if cell.pooled is not None]
    whole = math.fsum(pooled) / len(pooled) if len(pooled) == len(cells) else None
    return replace(cells[0], values=values, low=low, high=high, pooled=whole)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Seeds of a long experiment one at a time: each is measured by itself and kept.

    python -m benchmarks.seeds run NAME SCALE SEED RUNS DATA [METHOD …]
        train and measure one seed of results/NAME.yaml, or some methods of it
    python -m benchmarks.seeds measure NAME SCALE SEED RUNS DATA [METHOD …]
        what is finished of it, while it trains
    python -m benchmarks.seeds join NAME RUNS DATA
        results/seeds/NAME-*.json into results/NAME.json

A method is kept as soon as it is trained and measured, so a long seed can be stopped anywhere.
``join`` takes the methods and seeds that are complete, and names the others. A method that
``results/seeds`` has of a seed is not trained again, wherever its run folder may be: a run is the
same by the hash of its recipe and data.
"""

import copy
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._results import RESULTS
from benchmarks.evidence import write_result
from macc import experiments, paper
from macc.experiments.findings import add_findings
from macc.experiments.gather import gather
from macc.experiments.ledger import Ledger, open_ledger
from macc.experiments.result import Cell, Result
from macc.experiments.spec import Method
from macc.experiments.workers import Event, Worker, execute
from macc.metrics.over_runs import interval

SEEDS = RESULTS / "seeds"


def main(arguments: Sequence[str]) -> int:
    """``run``, ``measure`` or ``join``."""
    match list(arguments):
        case ["run" | "measure" as what, name, scale, seed, runs, data, *methods]:
            keep(name, scale, int(seed), Path(runs), Path(data), methods, train=what == "run")
        case ["join", name, runs, data]:
            write_result(joined(name, Path(runs), Path(data)), RESULTS / f"{name}.json")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def keep(
    name: str, scale: str, seed: int, runs: Path, data: Path, only: Sequence[str] = (), *, train: bool
) -> None:
    """Measure what is not kept yet of a seed, or of some methods of it, and keep it."""
    path = SEEDS / f"{name}-{seed}.json"
    before = experiments.load_result(path) if path.is_file() else None
    done = set() if before is None else {cell.method for cell in before.cells}
    whole = experiments.load(RESULTS / f"{name}.yaml", scale=scale)
    unknown = set(only) - {method.title for method in whole.methods}
    if unknown:
        raise ValueError(f"{RESULTS / name}.yaml has no method {min(unknown)!r}")
    wanted = only or [method.title for method in whole.methods]
    missing = [method for method in whole.methods if method.title in wanted and method.title not in done]
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
    for method in missing:
        found = replace(of_method(ledger, method, train=train), name=name)
        before = found if before is None else together(whole, [before, found])
        SEEDS.mkdir(exist_ok=True)
        write_result(before, path)


def of_method(ledger: Ledger, method: Method, *, train: bool) -> Result:
    """One method of a ledger, trained where that is asked for, and measured."""
    catalog = copy.copy(ledger.catalog)  # the data that are loaded stay so
    catalog.experiment = catalog.experiment.model_copy(update={"methods": [method]})
    part = Ledger(catalog, ledger.out)
    if train:
        with TemporaryDirectory() as unused:  # of searches, which were refused
            execute(part, Path(unused), "", 1, tell)
    else:
        worker = Worker(part, part.out, "", tell=lambda _: None)
        for dataset in catalog.datasets:
            for job, name in part.predictions_missing(dataset):
                while not worker.predict(dataset, job, name):
                    time.sleep(1)  # another process is at this run
    return gather(part, paper.value, tested=False)


def tell(event: Event) -> None:
    """Print what is finished, and what failed."""
    if event[0] in ("done", "failed", "say"):
        print(time.strftime("%H:%M"), *event, flush=True)


def joined(name: str, runs: Path, data: Path) -> Result:
    """What is complete as one result, tested over seeds; one seed alone over its samples, from its
    runs.
    """
    kept = {int(path.stem.rpartition("-")[2]): path for path in SEEDS.glob(f"{name}-*.json")}
    parts = [experiments.load_result(kept[seed]) for seed in sorted(kept)]
    scale = parts[0].scale if parts else "full"
    whole = experiments.load(RESULTS / f"{name}.yaml", scale=scale)
    done, parts = complete([method.title for method in whole.methods], parts)
    if not done:
        raise ValueError(f"{SEEDS} has nothing of {name}; `run` or `measure` a seed first")
    left = [method.title for method in whole.methods if method.title not in done]
    methods = [method for method in whole.methods if method.title in done]
    result = together(whole.model_copy(update={"methods": methods}), parts)
    result.left_out.extend(f"{title}: not run with every seed yet" for title in left)
    ledger = open_ledger(whole.model_copy(update={"methods": methods, "seeds": result.seeds}), runs, data)
    add_findings(result, ledger)
    return result


def complete(methods: Sequence[str], parts: Sequence[Result]) -> tuple[set[str], list[Result]]:
    """The methods that each of some seeds has, so that these are the most runs; and what the seeds
    have of them.
    """
    of_seed = [set(methods) & {cell.method for cell in part.cells} for part in parts]
    common = max(
        of_seed,
        key=lambda some: (len(some) * sum(some <= each for each in of_seed), -len(some)),
        default=set[str](),
    )
    return common, [
        replace(
            part,
            cells=[cell for cell in part.cells if part.calibrated.get(cell.method, cell.method) in common],
            runs=[run for run in part.runs if part.calibrated.get(run.method, run.method) in common],
            calibrated={then: method for then, method in part.calibrated.items() if method in common},
        )
        for part, each in zip(parts, of_seed, strict=True)
        if common <= each
    ]


def together(whole: experiments.Experiment, parts: Sequence[Result]) -> Result:
    """Parts of one seed each as one result: of several seeds, or of several methods; without
    tests.
    """
    calibrated = {then: method for part in parts for then, method in part.calibrated.items()}
    trained = [method.title for method in whole.methods]
    order = [*trained, *sorted(calibrated, key=lambda then: trained.index(calibrated[then]))]
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
        calibrated=calibrated,
        cells=sorted(map(over_seeds, cells.values()), key=lambda cell: order.index(cell.method)),
        runs=sorted(runs, key=lambda run: (order.index(run.method), run.seed)),
        comparisons=[],
        findings=[],
        left_out=list(dict.fromkeys(text for part in parts for text in part.left_out)),
        provenance={name: sorted(values) for name, values in made_by.items()},
    )


def over_seeds(cells: Sequence[Cell]) -> Cell:
    """The same cell of several seeds; noise floor and the paper's value are the first seed's, as
    everywhere.
    """
    values = tuple(value for cell in cells for value in cell.values)
    low, high = interval(values) or (cells[0].low, cells[0].high)
    pooled = [cell.pooled for cell in cells if cell.pooled is not None]
    whole = math.fsum(pooled) / len(pooled) if len(pooled) == len(cells) else None
    return replace(cells[0], values=values, low=low, high=high, pooled=whole)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``python -m benchmarks.posthoc_field FOLDER``: every calibrator beside probmetrics and netcal, on
logits of real networks.

FOLDER holds ``.npz`` files with ``logits`` and ``labels``. Each is cut in two at random halves:
calibrators are fitted to the first ``--sizes`` samples of one half and measured on the other.
``NAME_val.npz`` and ``NAME_test.npz`` count as one file. ``--json results/posthoc_field.json``
keeps the numbers and ``--figure`` draws them. What is in the file already is not measured again, so
that a run that was stopped continues.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import import_module
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks._results import save
from macc import metrics, posthoc
from macc.io.writing import write_whole
from macc.metrics.over_runs import interval
from macc.report.figures.style import BLUE, FAINT, VERMILLION, grid, style

Array: TypeAlias = npt.NDArray[Any]
Map: TypeAlias = Callable[[Array], Array]
Fit: TypeAlias = Callable[[Array, Array], Map]

SIZES = (5000, 1000, 500)
MEASURES = ("nll", "brier", "ece", "sce", "accuracy")
REFERENCE = "Temperature"


def ours(name: str, **options: Any) -> Fit:
    """A calibrator of macc."""

    def fit(logits: Array, labels: Array) -> Map:
        found: Map = getattr(posthoc, name).fit(logits, labels, **options)
        return found

    return fit


def auto(logits: Array, labels: Array) -> Map:
    """What cross-validation chooses."""
    return posthoc.best(logits, labels).calibrator


def probmetrics(name: str) -> Fit:
    """A calibrator of probmetrics, which takes probabilities."""
    from probmetrics.calibrators import get_calibrator
    from probmetrics.calibrators.temperature_scaling import ETSCalibrator

    def fit(logits: Array, labels: Array) -> Map:
        found = ETSCalibrator() if name == "ets" else get_calibrator(name)
        found.fit(softmax(logits), labels)
        return lambda fresh: np.asarray(found.predict_proba(softmax(fresh)))

    return fit


def netcal(module: str, name: str) -> Fit:
    """A calibrator of netcal, which takes probabilities in float64."""

    def fit(logits: Array, labels: Array) -> Map:
        found = getattr(import_module(f"netcal.{module}"), name)()
        # Those that draw at random say so.
        options = {"random_state": 0} if "random_state" in signature(found.fit).parameters else {}
        found.fit(softmax(logits), labels, **options)
        return lambda fresh: np.asarray(found.transform(softmax(fresh)))

    return fit


def methods() -> dict[str, Fit]:
    """Every method by the name that tables print; the calibrators of macc are capitalised."""
    names = (
        "Identity",
        REFERENCE,
        "EnsembleTemperature",
        "LocalTemperature",
        "VectorScaling",
        "MatrixScaling",
        "Dirichlet",
        "Mixture",
    )
    return {
        **{name: ours(name) for name in names},
        "best": auto,
        "probmetrics temperature": probmetrics("ts-mix"),
        "probmetrics ETS": probmetrics("ets"),
        "probmetrics SVS": probmetrics("svs"),
        "probmetrics SMS": probmetrics("sms"),
        "netcal temperature": netcal("scaling", "TemperatureScaling"),
    }


def softmax(logits: Array) -> Array:
    """Probabilities in float64."""
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    scores = np.exp(shifted)
    result: Array = scores / scores.sum(1, keepdims=True)
    return result


def files(folder: Path) -> dict[str, list[Path]]:
    """The parts of each file of logits by its name."""
    result: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.npz")):
        result.setdefault(path.stem.removesuffix("_test").removesuffix("_val"), []).append(path)
    if not result:
        raise ValueError(f"{folder} has no .npz files; name a folder of logits")
    return result


def read(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Logits and labels of the parts of one file."""
    parts = [np.load(path) for path in paths]
    logits, labels = (np.concatenate([part[key] for part in parts]) for key in ("logits", "labels"))
    return logits, labels.astype(np.int64)


def splits(count: int, size: int, repeats: int) -> Iterator[tuple[Array, Array]]:
    """Rows to fit to and rows to measure on, of halves drawn at random."""
    for seed in range(repeats):
        order = np.random.default_rng(seed).permutation(count)
        yield order[: min(size, count // 2)], order[count // 2 :]


def measure(fit: Fit, logits: Array, labels: Array, rows: Array, fresh: Array) -> dict[str, Any]:
    """What one fit is worth, the seconds of the processor that it took, which other processes do
    not lengthen, and which calibrator it chose, if it had the choice.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        found = fit(logits[rows], labels[rows])
        seconds = time.process_time() - began
        probs = torch.from_numpy(np.asarray(found(logits[fresh].astype(np.float64)), dtype=np.float64))
    # Probabilities of 0 cost as much as the least number that float32 holds.
    probs = probs.clamp(min=float(np.finfo(np.float32).tiny))
    probs /= probs.sum(1, keepdim=True)
    answers = torch.from_numpy(labels[fresh])
    values = {name: float(getattr(metrics, name)(probs, answers)) for name in MEASURES} | {"seconds": seconds}
    chosen = {"chosen": type(found).__name__} if fit is auto else {}
    return {name: round(value, 6) for name, value in values.items()} | chosen


def run(
    folder: Path, sizes: Sequence[int], repeats: int, kept: Path | None, names: Collection[str]
) -> list[dict[str, Any]]:
    """Every method on every file, size and split; the methods take turns inside a split."""
    done: list[dict[str, Any]] = json.loads(kept.read_text()) if kept and kept.is_file() else []
    seen = {(row["file"], row["size"], row["split"], row["method"]) for row in done}
    everything = {name: fit for name, fit in methods().items() if name in names}
    jobs = [(name, paths, size) for size in sizes for name, paths in files(folder).items()]
    for name, paths, size in track(jobs, "measuring"):
        logits, labels = read(paths)
        for split, (rows, fresh) in enumerate(splits(len(labels), size, repeats)):
            for method, fit in everything.items():
                if (name, size, split, method) in seen:
                    continue
                values = measure(fit, logits, labels, rows, fresh)
                about = {"file": name, "classes": logits.shape[1], "size": size, "split": split}
                done.append({**about, "method": method, **values})
        if kept is not None:
            with write_whole(kept) as file:
                text = ",\n".join(json.dumps(row) for row in done)
                file.write(f"[\n{text}\n]\n".encode())
    return done


def means(rows: Sequence[dict[str, Any]], measure: str) -> dict[str, dict[str, float]]:
    """The mean over splits by method and file."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        values.setdefault(row["method"], {}).setdefault(row["file"], []).append(row[measure])
    return {
        method: {name: statistics.fmean(each) for name, each in by_file.items()}
        for method, by_file in values.items()
    }


def win_rates(values: dict[str, dict[str, float]]) -> dict[str, float]:
    """The share of duels that a method wins: against every other one on every file, draws count
    half.
    """
    result = {}
    for method, own in values.items():
        duels = [
            1.0 if own[name] < other[name] else 0.5 if own[name] == other[name] else 0.0
            for rival, other in values.items()
            if rival != method
            for name in own
        ]
        result[method] = statistics.fmean(duels)
    return result


def mean_ranks(values: dict[str, dict[str, float]]) -> dict[str, float]:
    """The mean over files of the place that a method takes, 1 being the best."""
    return {
        method: statistics.fmean(
            1 + sum(other[name] < value for other in values.values()) for name, value in own.items()
        )
        for method, own in values.items()
    }


def difference(values: dict[str, dict[str, float]], method: str) -> tuple[float, float, float]:
    """Mean difference from the temperature over files, and its 95 % interval."""
    return with_interval([value - values[REFERENCE][name] for name, value in values[method].items()])


def with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval."""
    low, high = interval(values) or (float("nan"), float("nan"))
    return statistics.fmean(values), low, high


def shown(found: Sequence[float]) -> str:
    """A mean difference and its interval."""
    value, low, high = found
    return f"{value:+.4f} ({low:+.4f} … {high:+.4f})"


def groups(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    """Rows of the same number of classes and size of the fit, of the splits on which every method
    was measured.
    """
    for classes, size in sorted({(row["classes"], row["size"]) for row in rows}, key=lambda g: (g[0], -g[1])):
        some = [row for row in rows if (row["classes"], row["size"]) == (classes, size)]
        seen = Counter((row["file"], row["split"]) for row in some)
        every = len({row["method"] for row in some})
        yield classes, size, [row for row in some if seen[row["file"], row["split"]] == every]


HEADS = (
    "NLL",
    "minus temperature",
    "wins",
    "rank",
    "first",
    "Brier",
    "wins",
    "ECE %",
    "SCE 1e-3",
    "accuracy %",
    "CPU s",
)


def lines(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Each method and its cells, the least NLL first."""
    by = {name: means(rows, name) for name in MEASURES}
    wins, ranks, brier_wins = win_rates(by["nll"]), mean_ranks(by["nll"]), win_rates(by["brier"])
    least = {name: min(own[name] for own in by["nll"].values()) for name in by["nll"][REFERENCE]}

    def average(name: str, method: str) -> float:
        return statistics.fmean(by[name][method].values())

    def seconds(method: str) -> str:
        # Rows of an earlier run may have none.
        found = [row["seconds"] for row in rows if row["method"] == method and "seconds" in row]
        return f"{statistics.median(found):.3f}" if found else ""

    return [
        [
            method,
            f"{average('nll', method):.4f}",
            "" if method == REFERENCE else shown(difference(by["nll"], method)),
            f"{wins[method]:.2f}",
            f"{ranks[method]:.1f}",
            str(sum(value == least[name] for name, value in by["nll"][method].items())),
            f"{average('brier', method):.4f}",
            f"{brier_wins[method]:.2f}",
            f"{100 * average('ece', method):.2f}",
            f"{1000 * average('sce', method):.2f}",
            f"{100 * average('accuracy', method):.2f}",
            seconds(method),
        ]
        for method in sorted(wins, key=lambda name: average("nll", name))
    ]


def table(classes: int, size: int, rows: Sequence[dict[str, Any]]) -> Table:
    """One row a method, the least NLL first."""
    result = Table(
        "", *HEADS, title=f"{classes} classes, {size} fitted, {len({row['file'] for row in rows})} networks"
    )
    for line in lines(rows):
        result.add_row(*line)
    return result


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Differences from the temperature in NLL with their intervals, a panel for each number of
    classes and size.
    """
    panels = list(groups(rows))
    wide = len({size for _, size, _ in panels})
    tall = -(-len(panels) // wide)
    measured = {row["method"] for row in rows}
    shown = [name for name in methods() if name in measured - {"Identity", REFERENCE}]
    with style():
        figure, axes = grid(tall, wide, (3.6, 1.0 + 0.22 * len(shown)), sharey=True)
        for ax, (classes, size, some) in zip(chain.from_iterable(axes), panels, strict=False):
            values = means(some, "nll")
            for height, name in enumerate(reversed(shown)):
                if name in values:
                    gap, low, high = difference(values, name)
                    other = name.startswith(("probmetrics", "netcal"))
                    colour, marker = (VERMILLION, "s") if other else (BLUE, "o")
                    ax.plot([low, high], [height, height], color=colour, lw=1.4)
                    ax.plot(gap, height, marker, color=colour, ms=4.5)
            ax.axvline(0, color=FAINT, lw=0.8)
            ax.set_yticks(range(len(shown)), list(reversed(shown)))
            ax.set_title(f"{classes} classes, fitted to {size} samples")
            ax.locator_params(axis="x", nbins=5)
            ax.grid(axis="x")
        for ax in axes[-1]:
            ax.set_xlabel("NLL minus that of a temperature (nats)")
        save(figure, path)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; exit 2 for a folder without logits."""
    parser = argparse.ArgumentParser(prog="benchmarks.posthoc_field")
    parser.add_argument("folder", type=Path, help="of .npz files with logits and labels")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="how many samples to fit to")
    parser.add_argument("--splits", type=int, default=5, help="random halves of each file")
    parser.add_argument(
        "--methods", nargs="+", default=list(methods()), choices=list(methods()), metavar="NAME"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the numbers, and continue from them")
    parser.add_argument("--figure", type=Path, metavar="SVG", help="draw differences in NLL")
    given = parser.parse_args(arguments)
    try:
        names = {REFERENCE, *given.methods}  # what the others are compared with
        rows = run(given.folder, given.sizes, given.splits, given.json, names)
    except ValueError as error:
        parser.error(str(error))
    console = Console(width=150)
    for group in groups(rows):
        console.print(table(*group))
    if given.figure is not None:
        draw(rows, given.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

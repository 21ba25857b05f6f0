"""Fashion-MNIST in detail: MACC against what is simpler, what happens during training, and advice
from it.

    python -m benchmarks.fashion histories RUNS
        keep the histories of the trainings that RUNS has in results/
    python -m benchmarks.fashion epochs RUNS DATA SEED …
        train seeds of the figure's methods again, see that they are the same, and keep what their
        logits are like in every epoch
    python -m benchmarks.evidence write
        results/*.json into the pages
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from benchmarks import calibrated
from benchmarks._results import RESULTS, predicted, save
from benchmarks.calibrated import BASE, LABELS, METRICS, number, then, trained
from macc import experiments, posthoc, training
from macc.experiments.ledger import open_ledger
from macc.experiments.result import Result
from macc.report.figures.style import BLUE, DASHES, GREEN, ORANGE, VERMILLION, grid, style

NAME, DATA = "fashion", "Fashion-MNIST"
OWN = ("NLL+MACC p 0.1", "NLL+MACC p 0.2")
CONTROL = "NLL, logits"  # what these begin with: a scale that happens to fit is no method
SIMPLER = (
    BASE,
    *(f"NLL+dropout p {p}" for p in (0.1, 0.2, 0.5)),
    *(f"NLL, logits \N{MULTIPLICATION SIGN} {scale}" for scale in (2, 4)),
    "NLL, weight decay 5e-4",
)
"""What MACC is held against, where it was run."""
RATES = (
    OWN,
    ("NLL+MACC p 0.5", "NLL+MACC p 0.2"),
    ("NLL+dropout p 0.1", "NLL+dropout p 0.2"),
    ("NLL+dropout p 0.5", "NLL+dropout p 0.2"),
)
DURING = RESULTS / "fashion_training.json"
COLOURS = {"NLL": BLUE, "NLL+dropout p 0.5": GREEN, "NLL+MACC p 0.2": ORANGE, "NLL+MACC p 0.1": VERMILLION}
"""The methods of the figure."""


def main(arguments: Sequence[str]) -> int:
    """``histories`` or ``epochs``."""
    match list(arguments):
        case ["histories", runs]:
            kept(collected(Path(runs)))
        case ["epochs", runs, data, *seeds]:
            for seed in map(int, seeds):
                kept(with_epochs(Path(runs), Path(data), seed))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def found() -> Result:
    """The committed result."""
    return experiments.load_result(RESULTS / f"{NAME}.json")


def value(result: Result, test: str, metric: str, method: str) -> float:
    """A mean over seeds, in the last epoch."""
    return calibrated.value(result, DATA, test, "last", metric, method)


def signs(result: Result, test: str, metric: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Of pairs of methods: is the first better, at 5 % after Holm's correction over the pairs?"""
    return [mark for _, mark in calibrated.judged(result, DATA, test, "last", metric, pairs)]


PLACES = [("in domain", metric) for metric in METRICS] + [("noise", "nll"), ("rotation", "nll")]
"""The columns of differences."""


def differences(result: Result, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Rows of the first of each pair minus the second, both after a temperature, corrected over
    the pairs.
    """
    rows = [[*pair] for pair in pairs]
    for test, metric in PLACES:
        marks = signs(result, test, metric, [(then(a), then(b)) for a, b in pairs])
        for row, (a, b), mark in zip(rows, pairs, marks, strict=True):
            difference = value(result, test, metric, then(a)) - value(result, test, metric, then(b))
            row.append(f"{number(metric, difference, signed=True)} `{mark}`")
    return [f"| {' | '.join(row)} |" for row in rows]


def _head() -> list[str]:
    return [
        f"| | minus | {' | '.join(LABELS[metric] for metric in METRICS)} | NLL, noise | NLL, rotation |",
        "|---|---|" + "--:|" * len(PLACES),
    ]


def simpler() -> str:
    """MACC after a temperature minus everything else after a temperature, last epoch, in domain and
    under shift.
    """
    result = found()
    rivals = [method for method in SIMPLER if method in trained(result)]
    rows = [row for own in OWN for row in differences(result, [(own, rival) for rival in rivals])]
    return "\n".join([*_head(), *rows])


def rates() -> str:
    """One rate minus another, of MACC and of plain dropout."""
    run = set(trained(found()))
    return "\n".join([*_head(), *differences(found(), [pair for pair in RATES if run.issuperset(pair)])])


def advice() -> list[tuple[str, str, str]]:
    """A situation, what to use in it, and the number behind that."""
    result = found()
    words = f"Fashion-MNIST, {result.seeds} seeds, last epoch"
    better = _differing(result, "in domain", "+")
    means = {
        method: value(result, "in domain", "nll", method)
        for method in trained(result)
        if not method.startswith(CONTROL)
    }
    least = min(means, key=lambda method: means[method])
    most = max(means, key=lambda method: means[method])
    rows = [
        (
            "few images, no augmentation, and a network trained until it fits them",
            f"{_named(list(better)) or 'cross-entropy'}, then a temperature",
            f"NLL after it: {_after(result, 'in domain', [*better, BASE])} ({words}; "
            f"{'significantly better than cross-entropy' if better else 'nothing is significantly better'})",
        ),
        (
            "no labelled samples left to fit a temperature to",
            f"{least}; not {most}",
            f"NLL as trained: {means[least]:.3f} and {means[most]:.3f}, cross-entropy {means[BASE]:.3f} ({words})",
        ),
    ]
    for test, what in (("noise", "inputs that will be noisier"), ("rotation", "inputs that will be turned")):
        good, bad = _differing(result, test, "+"), _differing(result, test, "-")
        judged = "; ".join(
            text
            for text in (
                good and f"significantly better than cross-entropy: {_after(result, test, good)}",
                bad and f"significantly worse: {_after(result, test, bad)}",
            )
            if text
        )
        rows.append(
            (
                what,
                f"{_named(good) or 'cross-entropy'}, then a temperature",
                f"NLL after it, under {test}: cross-entropy {_after(result, test, [BASE], bare=True)}; "
                f"{judged or 'no other method differs significantly'} ({words})",
            )
        )
    return rows


def _differing(result: Result, test: str, sign: str) -> list[str]:
    """The methods whose NLL after a temperature differs significantly from that of cross-entropy,
    the best first.
    """
    others = [method for method in trained(result) if method != BASE]
    marks = signs(result, test, "nll", [(then(method), then(BASE)) for method in others])
    chosen = [method for method, mark in zip(others, marks, strict=True) if mark == sign]
    return sorted(chosen, key=lambda method: value(result, test, "nll", then(method)))


def _named(methods: Sequence[str]) -> str:
    return " or ".join(methods)


def _after(result: Result, test: str, methods: Sequence[str], *, bare: bool = False) -> str:
    values = {method: f"{value(result, test, 'nll', then(method)):.3f}" for method in methods}
    return ", ".join(text if bare else f"{method} {text}" for method, text in values.items())


def kept(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what the figure and the table are made from."""
    DURING.write_text(json.dumps(rows, separators=(",", ":")).replace('},{"', '},\n{"') + "\n")


def collected(runs: Path) -> list[dict[str, Any]]:
    """The histories of the trainings, and what the validation logits of the last epoch are like."""
    rows = []
    for member in found().runs:
        if member.rule != "last" or member.method not in COLOURS:
            continue
        run = training.open_run(runs / member.folder)
        keys = {"nll": "val/nll", "refinement": "val/refinement", "u": "train/u"}
        size, temperature = _like(*predicted(run.path, "val"))
        rows.append(
            {
                "method": member.method,
                "seed": member.seed,
                "train": round(run.history[-1]["train/CrossEntropy"], 5),
                "size": size,
                "temperature": temperature,
                **{
                    name: [round(row[key], 5) for row in run.history]
                    for name, key in keys.items()
                    if key in run.history[0]
                },
            }
        )
    return rows


def with_epochs(runs: Path, data: Path, seed: int) -> list[dict[str, Any]]:
    """The kept rows, those of a seed with the logits of every epoch. It is trained again for that,
    and must give the same.
    """
    rows: list[dict[str, Any]] = json.loads(DURING.read_text())
    for method, run in _again(runs, data, seed).items():
        (row,) = (row for row in rows if (row["method"], row["seed"]) == (method, seed))
        if row["nll"] != [round(epoch["val/nll"], 5) for epoch in run.history]:
            raise ValueError(f"seed {seed} of {method} gave another validation NLL this time")
        of_epochs = [
            _like(*predicted(run.path, f"epochs/val-{epoch}")) for epoch in range(1, 1 + len(run.history))
        ]
        row["sizes"], row["temperatures"] = map(list, zip(*of_epochs, strict=True))
    return rows


def _again(runs: Path, data: Path, seed: int) -> dict[str, training.Run]:
    whole = experiments.load(RESULTS / f"{NAME}.yaml", scale="full")
    methods = [
        method.model_copy(update={"settings": {**method.settings, "epoch_predictions": ["val"]}})
        for method in whole.methods
        if method.title in COLOURS
    ]
    part = whole.model_copy(update={"methods": methods, "seeds": 1, "first_seed": seed, "rules": ["last"]})
    ledger = open_ledger(part, runs, data)
    (dataset,) = ledger.catalog.datasets
    recipes = {method.title: ledger.recipe(ledger.job(dataset, method, {}, seed)) for method in methods}
    return {
        title: training.fit(recipe, out=runs, root=data, resamples=100) for title, recipe in recipes.items()
    }


def _like(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """The size of logits, and the temperature they need."""
    temperature = posthoc.Temperature.fit(logits, labels).temperature
    return round(float(logits.std(dim=1).mean()), 4), round(temperature, 4)


def draw_training(path: Path) -> None:
    """u, NLL and NLL after temperature scaling on validation, epoch by epoch: thin lines are seeds,
    thick ones their means.
    """
    rows = json.loads(DURING.read_text())
    titles = {
        "u": "mean variance u of a logit\n(training)",
        "nll": "validation NLL as it is",
        "refinement": "validation NLL after a temperature",
    }
    with style():
        figure, axes = grid(1, len(titles), (3.4, 2.9))
        for ax, (key, title) in zip(axes[0], titles.items(), strict=True):
            for index, (method, colour) in enumerate(COLOURS.items()):
                lines = [row[key] for row in rows if row["method"] == method and key in row]
                epochs = range(1, 1 + max(map(len, lines), default=0))
                for line in lines:
                    ax.plot(epochs, line, color=colour, lw=0.5, alpha=0.5)
                if lines:
                    means = [fmean(values) for values in zip(*lines, strict=True)]
                    ax.plot(epochs, means, color=colour, ls=DASHES[index], lw=1.8, label=method)
            ax.set_title(title)
            ax.set_xlabel("epoch")
            ax.set_ylabel("u" if key == "u" else "NLL (nats)")
            ax.set_xticks([1, 5, 10, 15])
            if key != "u":
                ax.set_ylim(top=0.6)
        figure.legend(*axes[0][1].get_legend_handles_labels(), loc="outside upper center", ncols=len(COLOURS))
        save(figure, path)


def during() -> str:
    """The training loss of the last epoch, the size of the logits after it and the temperature they
    need.
    """
    rows = json.loads(DURING.read_text())
    lines = [
        "| last epoch | cross-entropy in training | size of the logits | temperature they need |",
        "|---|--:|--:|--:|",
    ]
    for method in COLOURS:
        mine = [row for row in rows if row["method"] == method]
        train, *rest = (fmean(row[key] for row in mine) for key in ("train", "size", "temperature"))
        lines.append(f"| {method} | {train:.3f} | {' | '.join(f'{mean:.2f}' for mean in rest)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

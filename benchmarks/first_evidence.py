"""A first look at what MACC does, before anything is built on it.

Small problems, five seeds, no selection: every dropout rate, weight and warm-up is a row of its
own.

    python -m benchmarks.first_evidence                  # all problems, tables in Markdown
    python -m benchmarks.first_evidence --json results/first_evidence.json
    python -m benchmarks.first_evidence --from results/first_evidence.json
"""

import argparse
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_digits, make_classification
from torch import Tensor, nn

import macc
from benchmarks._loop import fit
from macc import losses, metrics

SEEDS = 5
PACS = Path(os.environ.get("MACC_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data")) / (
    "pacs-resnet50-features.npz"
)
COLUMNS = ("accuracy", "ece", "sce", "nll", "gap", "u")


@dataclass(frozen=True)
class Problem:
    """Data, a network and how long to train it."""

    title: str
    train: tuple[Tensor, Tensor]
    val: tuple[Tensor, Tensor]
    tests: dict[str, tuple[Tensor, Tensor]]
    model: str
    epochs: int
    lr: float

    @property
    def num_classes(self) -> int:
        """``K``."""
        return int(self.train[1].max()) + 1

    @property
    def steps(self) -> int:
        """Training steps in all."""
        return self.epochs * (len(self.train[1]) // 64)

    def network(self) -> nn.Module:
        """A new network."""
        width = self.train[0].shape[-1]
        if self.model == "small_cnn":
            return macc.models.build("small_cnn", num_classes=self.num_classes, in_channels=1)
        if self.model == "linear":
            return nn.Sequential(nn.Linear(width, self.num_classes))
        return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, self.num_classes))


@dataclass(frozen=True)
class Method:
    """A loss, the head it is trained with, and what follows."""

    loss: str
    p: float | None = None
    samples: int = 10
    estimator: str = "sampled"
    warm: bool = False
    temperature: bool = False

    @property
    def title(self) -> str:
        """What the table calls it."""
        name = self.loss.replace("CrossEntropy", "CE").replace("Focal(gamma=3)", "FL")
        if self.temperature:
            name += " + temperature"
        if self.p is not None:
            kind = "single-pass dropout" if self.samples == 1 else self.estimator
            name += f", {kind}, p = {self.p:g}"
        return name + (", warm-up" if self.warm else "")


def methods() -> Iterator[Method]:
    """Every row of the tables."""
    yield Method("CrossEntropy")
    yield Method("CrossEntropy", temperature=True)
    for p in (0.05, 0.2, 0.5):
        yield Method("CrossEntropy", p=p, samples=1)
    yield Method("Focal(gamma=3)")
    yield Method("Focal(gamma=3) + 5*MDCA")
    yield Method("CrossEntropy + 0.1*MbLS(margin=10)")
    for task in ("CrossEntropy", "Focal(gamma=3)"):
        for estimator in ("sampled", "analytic"):
            for p in (0.05, 0.2, 0.5):
                for weight in (1, 10):
                    for warm in (False, True):
                        yield Method(f"{task} + {weight}*MACC", p=p, estimator=estimator, warm=warm)


def problems() -> dict[str, Problem]:
    """What is learned; PACS only where its features are."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    images = torch.as_tensor(pixels[order] / 16, dtype=torch.float32)
    labels = torch.as_tensor(digits[order])

    def cut(inputs: Tensor, targets: Tensor, *sizes: int) -> list[tuple[Tensor, Tensor]]:
        ends = np.cumsum([0, *sizes])
        return [(inputs[a:b], targets[a:b]) for a, b in itertools.pairwise(ends)]

    found = {}
    for model, inputs in (("small_cnn", images.reshape(-1, 1, 8, 8)), ("linear", images)):
        train, val, test = cut(inputs, labels, 600, 300, 897)
        found[f"digits-{model}"] = Problem(
            f"digits, {model} (600 images to train, 897 to test)", train, val, {"test": test}, model, 16, 0.05
        )
    x, y = make_classification(
        8000,
        20,
        n_informative=10,
        n_classes=5,
        n_clusters_per_class=2,
        flip_y=0.1,
        class_sep=1.0,
        random_state=0,
    )
    train, val, test = cut(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y), 2000, 1000, 5000)
    found["noisy"] = Problem(
        "make_classification, 5 classes, 10 % label noise, one hidden layer (2000 rows to train, 5000 to test)",
        train,
        val,
        {"test": test},
        "mlp",
        15,
        0.05,
    )
    if PACS.exists():
        with np.load(PACS) as stored:
            domains = {
                name: (
                    torch.as_tensor(stored[f"{name}_features"]).float(),
                    torch.as_tensor(stored[f"{name}_labels"]).long(),
                )
                for name in ("photo", "art_painting", "cartoon", "sketch")
            }
        features, targets = domains["photo"]
        shuffled = torch.as_tensor(np.random.default_rng(0).permutation(len(targets)))
        train, val, test = cut(features[shuffled], targets[shuffled], 1002, 334, 334)
        elsewhere = [domains[name] for name in ("art_painting", "cartoon", "sketch")]
        shifted = (torch.cat([d[0] for d in elsewhere]), torch.cat([d[1] for d in elsewhere]))
        found["pacs"] = Problem(
            "PACS, frozen ResNet-50 features, linear head trained on photo (1002 to train)",
            train,
            val,
            {"photo (334)": test, "art, cartoon and sketch together (8321)": shifted},
            "linear",
            6,
            0.01,
        )
    return found


def temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the least validation NLL, in [0.01, 100]."""
    found = minimize_scalar(
        lambda log_t: metrics.nll(logits / math.exp(log_t), labels, from_logits=True),
        bounds=(math.log(0.01), math.log(100)),
        method="bounded",
    )
    return math.exp(found.x)


def train_once(problem: Problem, method: Method, seed: int) -> dict[str, dict[str, float]]:
    """The metrics on each test set after one training."""
    torch.manual_seed(seed)
    model = problem.network()
    if method.p is not None:
        model = macc.attach(model, p=method.p, samples=method.samples, estimator=method.estimator)  # type: ignore[arg-type]
    text = method.loss.replace("MACC", f"MACC(warmup={problem.steps // 2})") if method.warm else method.loss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # saturation shows in the column of u
        fit(model, losses.parse(text), *problem.train, epochs=problem.epochs, lr=problem.lr)
    rows = {}
    with torch.no_grad():
        divisor = temperature(model(problem.val[0]), problem.val[1]) if method.temperature else 1.0
        for name, (inputs, labels) in problem.tests.items():
            logits = model(inputs) / divisor
            confidence = float(logits.softmax(dim=1).amax(dim=1).double().mean())
            accuracy = metrics.accuracy(logits, labels, from_logits=True)
            rows[name] = {
                "accuracy": 100 * accuracy,
                "ece": 100 * metrics.ece(logits, labels, from_logits=True),
                "sce": 1000 * metrics.sce(logits, labels, from_logits=True),
                "nll": metrics.nll(logits, labels, from_logits=True),
                "gap": 100 * (confidence - accuracy),
                "u": math.nan
                if method.p is None
                else float(macc.moments(model, inputs, estimator="analytic").variance.mean()),
            }
    return rows


def _job(job: tuple[str, int, int]) -> tuple[dict[str, Any], float]:
    """One training in a process of its own thread; its record and the CPU seconds it took."""
    key, index, seed = job
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    start = time.process_time()
    found = train_once(_problem(key), list(methods())[index], seed)
    rounded = {
        test: {name: float(f"{value:.5g}") for name, value in row.items()} for test, row in found.items()
    }
    return {"problem": key, "method": index, "seed": seed, "metrics": rounded}, time.process_time() - start


@functools.cache
def _problem(key: str) -> Problem:
    return problems()[key]


def run(seeds: int, only: list[str]) -> dict[str, Any]:
    """Train everything on two processes, with a line of progress."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    known = problems()
    jobs = [
        (key, index, seed)
        for key in (only or known)
        for index in range(len(list(methods())))
        for seed in range(seeds)
    ]
    runs: list[dict[str, Any]] = []
    seconds = 0.0
    with ProcessPoolExecutor(2) as pool:
        for done, (record, took) in enumerate(pool.map(_job, jobs, chunksize=8), start=1):
            runs.append(record)
            seconds += took
            if done % 50 == 0 or done == len(jobs):
                print(f"{done}/{len(jobs)} trainings, {seconds:.0f} CPU seconds", file=sys.stderr)
    return {
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "seeds": seeds,
        "cpu_seconds": round(seconds),
        "methods": [method.title for method in methods()],
        "problems": {
            key: {"title": known[key].title, "num_classes": known[key].num_classes} for key in (only or known)
        },
        "runs": runs,
    }


def tables(result: dict[str, Any]) -> str:
    """Markdown: a table per test set, mean over seeds and half-width of the 95 % t-interval."""
    lines = [
        f"{result['seeds']} seeds, commit {result['commit']}, torch {result['torch']}, {len(result['runs'])} trainings "
        f"in {result['cpu_seconds']} CPU seconds, shared by two processes. Mean ± half-width of the 95 % t-interval over seeds. ECE in %, "
        "SCE in 1e-3, gap is mean confidence minus accuracy in points, u the mean variance of the logits on the test "
        "set by the closed form at the p of the row. Lowest three ECE, SCE and NLL in bold.",
        "",
    ]
    t = float(stats.t.ppf(0.975, result["seeds"] - 1)) / math.sqrt(result["seeds"])
    for key, problem in result["problems"].items():
        runs = [run for run in result["runs"] if run["problem"] == key]
        fixed_point = math.atanh(1 - 1 / problem["num_classes"])
        for test in runs[0]["metrics"]:
            cells: dict[int, dict[str, tuple[float, float]]] = {}
            for index in range(len(result["methods"])):
                values = {
                    c: np.array([r["metrics"][test][c] for r in runs if r["method"] == index], dtype=float)
                    for c in COLUMNS
                }
                cells[index] = {c: (float(v.mean()), t * float(v.std(ddof=1))) for c, v in values.items()}
            low = {c: sorted(cell[c][0] for cell in cells.values())[2] for c in ("ece", "sce", "nll")}
            lines += [
                f"## {problem['title']}: {test}",
                "",
                f"The fixed point of u is {fixed_point:.3f}.",
                "",
            ]
            lines += [
                "| method | accuracy % | ECE % | SCE 1e-3 | NLL | gap | u |",
                "|---|---|---|---|---|---|---|",
            ]
            for index, cell in cells.items():
                row = [result["methods"][index]]
                for column in COLUMNS:
                    mean, half = cell[column]
                    digits = 3 if column in ("nll", "u") else 2 if column == "ece" else 1
                    text = (
                        ""
                        if math.isnan(mean)
                        else f"{mean:+.{digits}f}"
                        if column == "gap"
                        else f"{mean:.{digits}f} ± {half:.{digits}f}"
                    )
                    row.append(f"**{text}**" if mean <= low.get(column, -math.inf) else text)
                lines.append("| " + " | ".join(row) + " |")
            lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run or read, then print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--only", nargs="*", default=[], help="problems to run; all if none is named")
    parser.add_argument("--json", type=Path, help="write every run's metrics here")
    parser.add_argument("--from", dest="source", type=Path, help="print the tables of an earlier run")
    options = parser.parse_args()
    if options.source:
        result = json.loads(options.source.read_text())
    else:
        if not PACS.exists():
            print(f"PACS is left out: {PACS.name} is not there", file=sys.stderr)
        result = run(options.seeds, options.only)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result) + "\n")
    print(tables(result))


if __name__ == "__main__":
    main()

"""``python -m benchmarks.certainty_temperature``: does the logits' variance under dropout tell the
temperature?

Small networks with an attached head are trained on digits (and, with ``--pacs FILE``, on features
of one PACS domain). On validation samples two temperatures are fitted: a plain one, and
``T = exp(a + b * feature)`` with a penalty on b. Both are measured in domain and under shift.
Features: ``ratio``, the logarithm of the mean variance under dropout over the variance of the
logits of a sample; ``variance``, that of the mean variance; ``margin``, for comparison, the
logarithm of the distance of the two largest logits, which needs no dropout. A difference is that of
one run; the interval is over runs.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import minimize
from torch import Tensor, nn

import macc
from benchmarks.posthoc_field import shown, with_interval
from macc import data, losses, metrics, posthoc

PENALTY = 10.0
# Standardised features further out than those of validation samples say no more.
FARTHEST = 3.0
LOSSES = ("CrossEntropy()", "CrossEntropy() + MACC()")


def ratio(moments: macc.LogitMoments) -> Tensor:
    """Variance under dropout over the variance of the logits."""
    return moments.variance.mean(1).log() - moments.mean.var(1).log()


def variance(moments: macc.LogitMoments) -> Tensor:
    """Variance under dropout."""
    return moments.variance.mean(1).log()


def margin(moments: macc.LogitMoments) -> Tensor:
    """Distance of the two largest logits."""
    top = moments.mean.topk(2, dim=1).values
    return (top[:, 0] - top[:, 1]).clamp(min=1e-6).log()


FEATURES: dict[str, Callable[[macc.LogitMoments], Tensor]] = {
    "ratio": ratio,
    "variance": variance,
    "margin": margin,
}


class Temperatures:
    """Temperatures that depend on one feature, fitted to the moments and labels of validation
    samples.
    """

    def __init__(
        self, feature: Callable[[macc.LogitMoments], Tensor], moments: macc.LogitMoments, labels: Tensor
    ):
        """Find a and b of least penalised NLL, from the plain temperature."""
        self.feature = feature
        raw = feature(moments)
        self.middle, self.spread = raw.mean(), raw.std()
        x = self.scaled(moments)

        def objective(at: Any) -> tuple[float, Any]:
            numbers = torch.tensor(at, requires_grad=True)
            log_t = numbers[0] + numbers[1] * x
            loss = nn.functional.cross_entropy(moments.mean / log_t.exp()[:, None], labels, reduction="sum")
            loss = loss + PENALTY / 2 * numbers[1].square()
            (slope,) = torch.autograd.grad(loss, numbers)
            return float(loss.detach()), slope.numpy()

        plain = posthoc.Temperature.fit(moments.mean, labels).temperature
        self.a, self.b = minimize(objective, [np.log(plain), 0.0], jac=True, method="L-BFGS-B").x

    def scaled(self, moments: macc.LogitMoments) -> Tensor:
        """The feature, standardised and bounded."""
        return ((self.feature(moments) - self.middle) / self.spread).clamp(-FARTHEST, FARTHEST)

    def __call__(self, moments: macc.LogitMoments) -> Tensor:
        """Calibrated probabilities."""
        log_t = self.a + self.b * self.scaled(moments)
        probs: Tensor = (moments.mean / log_t.exp()[:, None]).softmax(1)
        return probs


def trained(inputs: Tensor, labels: Tensor, classes: int, hidden: int, loss: str, seed: int) -> nn.Module:
    """A network of one hidden layer and a head that reports variance."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(inputs.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, classes))
    macc.attach(model, p=0.2)
    criterion, optimiser = losses.parse(loss), torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(40):
        for rows in torch.randperm(len(labels)).chunk(len(labels) // 64):
            optimiser.zero_grad()
            criterion(model(inputs[rows]), labels[rows]).backward()
            optimiser.step()
    return model.eval()


def problems(
    pacs: Path | None, seed: int
) -> Iterator[tuple[str, tuple[Tensor, Tensor], tuple[Tensor, Tensor], dict[str, Any]]]:
    """Names, training and validation samples, and test sets: in domain and shifted."""
    splits = data.load("digits")
    parts = [splits.train, splits.val]
    inputs, labels = (torch.cat([getattr(part, key) for part in parts]) for key in ("inputs", "labels"))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, val = order[:700], order[700:]
    flat = {"in domain": splits.test, **splits.shifts}
    tests = {name: (part.inputs.flatten(1) / 255.0, part.labels) for name, part in flat.items()}
    inputs = inputs.flatten(1) / 255.0
    yield "digits", (inputs[train], labels[train]), (inputs[val], labels[val]), tests
    if pacs is None:
        return
    file = np.load(pacs)
    domains = [key.removesuffix("_features") for key in file if key.endswith("_features")]
    everything = {
        name: (torch.from_numpy(file[f"{name}_features"]).float(), torch.from_numpy(file[f"{name}_labels"]))
        for name in domains
    }
    for name, (inputs, labels) in everything.items():
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        train, val, test = order[: len(order) // 3], *order[len(order) // 3 :].chunk(2)
        tests = {"in domain": (inputs[test], labels[test])}
        tests |= {other: everything[other] for other in domains if other != name}
        yield f"PACS {name}", (inputs[train], labels[train]), (inputs[val], labels[val]), tests


def run(pacs: Path | None, seeds: range) -> list[dict[str, Any]]:
    """One row for each network, test set and feature."""
    rows = []
    for seed in track(seeds, "training"):
        for name, (inputs, labels), (val, answers), tests in problems(pacs, seed):
            for loss in LOSSES:
                model = trained(inputs, labels, int(labels.max()) + 1, 64, loss, seed)
                moments = moments_of(model, val)
                plain = posthoc.Temperature.fit(moments.mean, answers)
                fits = {key: Temperatures(feature, moments, answers) for key, feature in FEATURES.items()}
                for test, (fresh, truth) in tests.items():
                    found = moments_of(model, fresh)
                    about = {"data": name, "loss": loss, "seed": seed, "test": test}
                    before = plain(found.mean)
                    for key, fitted in fits.items():
                        after = fitted(found)
                        gaps = {
                            each: float(
                                getattr(metrics, each)(after, truth) - getattr(metrics, each)(before, truth)
                            )
                            for each in ("nll", "brier", "ece")
                        }
                        rows.append({**about, "feature": key, "slope": fitted.b, **gaps})
    return rows


def moments_of(model: nn.Module, inputs: Tensor) -> macc.LogitMoments:
    """Mean and variance of the logits, in float64."""
    with torch.no_grad():
        found = macc.moments(model, inputs)
    return macc.LogitMoments(found.mean.double(), found.variance.double())


def kind(row: dict[str, Any]) -> str:
    """Which test set, the levels of a shift together."""
    return (
        f"{row['data']}, {row['test'].partition('-')[0]}"
        if "digits" in row["data"]
        else f"PACS, {'in domain' if row['test'] == 'in domain' else 'other domain'}"
    )


def over_networks(rows: Iterable[dict[str, Any]], measure: str = "nll") -> tuple[float, float, float]:
    """The mean difference, and its 95 % interval over networks; a network's levels of a shift count
    as one.
    """
    runs: dict[Any, list[float]] = {}
    for row in rows:
        runs.setdefault((row["data"], row["seed"]), []).append(row[measure])
    return with_interval([statistics.fmean(values) for values in runs.values()])


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Differences from the plain temperature: the mean over levels of a run, with an interval over
    runs.
    """
    result = Table(
        "test set",
        "loss",
        "feature",
        "NLL",
        "Brier",
        "ECE %",
        title="minus plain temperature (95 % over runs)",
    )
    for where in dict.fromkeys(map(kind, rows)):
        for loss in LOSSES:
            for key in FEATURES:
                some = [row for row in rows if (kind(row), row["loss"], row["feature"]) == (where, loss, key)]
                cells = []
                for each, unit in (("nll", 1), ("brier", 1), ("ece", 100)):
                    cells.append(shown(tuple(unit * value for value in over_networks(some, each))))
                result.add_row(where, loss, key, *cells)
    return result


def main(arguments: Sequence[str]) -> int:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.certainty_temperature")
    parser.add_argument("--pacs", type=Path, metavar="NPZ", help="features and labels of the PACS domains")
    parser.add_argument("--seeds", type=int, default=10, help="networks of each kind")
    parser.add_argument("--first", type=int, default=0, help="seed of the first network")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the numbers")
    given = parser.parse_args(arguments)
    rows = run(given.pacs, range(given.first, given.first + given.seeds))
    if given.json is not None:
        lines = ",\n".join(json.dumps(row) for row in rows)
        given.json.write_text(f"[\n{lines}\n]\n")
    Console(width=150).print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

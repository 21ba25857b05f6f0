"""Size and power of the tests of ``metrics.compare`` for calibration errors.

Prints the tables of ``docs/intervals.md``: how often, at the level of 5 %, two models on the same
samples are called different, where the errors of their populations are equal (the size, which
should be at most 5 %) and where they differ (the power)::

    python -m benchmarks.differences [--repeats 200] [--sizes 500 2000]
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from macc import metrics

METRICS = ("ece", "sce", "rmsce", "ks_error")
CLASSES = 3
Model = Callable[[Tensor, Tensor], Tensor]
"""From true logits and noise of the same shape to stated logits."""


def sharpened(by: float) -> Model:
    """All logits times a number."""
    return lambda logits, _: by * logits


def noisy(by: float, spread: float = 0.7) -> Model:
    """A training with its own seed: the logits with noise, times a number."""
    return lambda logits, noise: by * (logits + spread * noise)


def where_sure(by: float) -> Model:
    """Sharpened only where the confidence is above 70 %."""
    return lambda logits, _: torch.where(logits.softmax(1).amax(1, keepdim=True) > 0.7, by * logits, logits)


def population(model: Model, name: str, size: int = 500_000) -> float:
    """The error of a large sample."""
    logits, noise, _, labels = draw(size, 10**6)
    return float(getattr(metrics, name)(model(logits, noise), labels, from_logits=True))


def draw(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """True logits, the noise of two models, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits, one, other = 2 * torch.randn(3, n, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return logits, one / 2, other / 2, labels


def as_bad(wanted: float, family: Callable[[float], Model], low: float, high: float, name: str) -> Model:
    """The member of a family with the error wanted; errors grow from ``low`` to ``high``."""
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if population(family(middle), name) < wanted else (low, middle)
    return family((low + high) / 2)


def equal(name: str) -> dict[str, tuple[Model, Model]]:
    """Pairs of different models whose population has the same error."""
    error = population(sharpened(1.4), name)
    return {
        "two seeds, both near calibrated": (noisy(0.8), noisy(0.8)),
        "two seeds, both over-confident": (noisy(1.4), noisy(1.4)),
        "one over-, one under-confident": (sharpened(1.4), as_bad(error, sharpened, 1.0, 0.3, name)),
        "one only where it is sure": (sharpened(1.4), as_bad(error, where_sure, 1.0, 6.0, name)),
        "calibrated, and calibrated with noise of 1 %": (sharpened(1.0), noisy(1.0, 0.05)),
    }


DIFFERENT: dict[str, tuple[Model, Model]] = {
    **{
        f"logits times {one:g} and {other:g}": (sharpened(one), sharpened(other))
        for one, other in ((1, 1.2), (1, 1.4), (1.2, 1.4), (1.4, 1.8))
    },
    "two seeds, times 1 and 1.3": (noisy(1.0), noisy(1.3)),
}


def rejected(pair: tuple[Model, Model], names: tuple[str, ...], n: int, repeats: int) -> dict[str, float]:
    """How often the test of each error says that the two differ."""
    found = dict.fromkeys(names, 0)
    for seed in range(repeats):
        logits, one, other, labels = draw(n, seed)
        a, b = pair[0](logits, one), pair[1](logits, other)
        result = metrics.compare(a, b, labels, metrics=names, from_logits=True, resamples=200, seed=seed)
        for name in names:
            found[name] += result[name].p < 0.05
    return {name: count / repeats for name, count in found.items()}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--sizes", nargs="+", type=int, default=(500, 2000))
    options = parser.parse_args()
    cases = {name: equal(name) for name in METRICS}
    print("| models | n |", " | ".join(METRICS), "|")
    print("|---" * (2 + len(METRICS)) + "|")
    for case in cases[METRICS[0]]:
        for n in options.sizes:
            shares = [rejected(cases[name][case], (name,), n, options.repeats)[name] for name in METRICS]
            print(f"| {case} | {n} |", " | ".join(f"{share:.3f}" for share in shares), "|", flush=True)
    for case, pair in DIFFERENT.items():
        for n in options.sizes:
            shares = list(rejected(pair, METRICS, n, options.repeats).values())
            print(f"| {case} | {n} |", " | ".join(f"{share:.3f}" for share in shares), "|", flush=True)


if __name__ == "__main__":
    main()

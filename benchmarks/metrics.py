"""Speed of the metrics as ratios within one interleaved run: ``python benchmarks/metrics.py``."""

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from macc import metrics

SAMPLES, CLASSES, BINS, BATCH = 50_000, 1000, 15, 256


def cases() -> Iterator[tuple[str, float, str]]:
    """Yield name, measured ratio and what it must reach."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SAMPLES, CLASSES, generator=generator).mul_(3)
    probs = logits.softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    del logits

    def separate() -> None:
        for function in (metrics.ece, metrics.sce, metrics.classwise_ece, metrics.mce):
            function(probs, labels)

    def one_pass() -> dict[str, object]:
        calibration = metrics.Calibration(CLASSES)
        calibration.update(probs, labels)
        return calibration.compute()

    def streamed() -> dict[str, object]:
        calibration = metrics.Calibration(CLASSES)
        for start in range(0, SAMPLES, BATCH):
            calibration.update(probs[start : start + BATCH], labels[start : start + BATCH])
        return calibration.compute()

    def theirs() -> Tensor:
        return multiclass_calibration_error(probs, labels, num_classes=CLASSES, n_bins=BINS)

    fast = {
        "floor": lambda: probs.sum(0),
        "sce": lambda: metrics.sce(probs, labels),
        "separate": separate,
        "one pass": one_pass,
        "streamed": streamed,
        "torchmetrics": theirs,
    }
    best = interleaved(fast, rounds=7)
    # The loop takes minutes, and as long for each class: some of them are timed, and all counted.
    part = 20
    expected = float(metrics.classwise_ece(probs, labels)[:part].mean())
    assert abs(loop_sce(probs, labels, part) - expected) < 1e-5 * expected
    assert abs(float(bincount_sce(probs, labels)) - metrics.sce(probs, labels)) < 1e-6
    slow = {
        "sce": lambda: metrics.sce(probs, labels),
        "bincount": lambda: bincount_sce(probs, labels),
        "loop": lambda: loop_sce(probs, labels, part),
    }
    against = interleaved(slow, rounds=3)
    against["loop"] *= CLASSES / part
    yield "sce over one pass of probs.sum(0)", best["sce"] / best["floor"], "<= 8"
    yield "vectorised bincount over sce", against["bincount"] / against["sce"], ">= 8"
    yield "double loop over sce", against["loop"] / against["sce"], ">= 100"
    yield (
        "ece, sce, classwise_ece, mce (one pass) over torchmetrics' ECE",
        best["one pass"] / best["torchmetrics"],
        "<= 1",
    )
    yield (
        "the same as four calls over torchmetrics' ECE",
        best["separate"] / best["torchmetrics"],
        "for information",
    )
    yield "streaming in batches of 256 over one call", best["streamed"] / best["one pass"], "<= 1.5"


def interleaved(candidates: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Shortest time of each candidate over rounds in which they take turns."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    return best


def bincount_sce(probs: Tensor, labels: Tensor) -> Tensor:
    """All entries binned and scattered at once."""
    edges = torch.arange(1, BINS) / BINS
    cells = torch.bucketize(probs, edges) * CLASSES + torch.arange(CLASSES)
    claimed = torch.bincount(cells.flatten(), probs.flatten(), minlength=BINS * CLASSES)
    hits = torch.bincount(cells[torch.arange(len(labels)), labels], minlength=BINS * CLASSES)
    return (hits - claimed).abs().sum() / len(labels) / CLASSES


def loop_sce(probs: Tensor, labels: Tensor, classes: int) -> float:
    """The published form for the first classes: a loop over them and the bins, with masks."""
    total = 0.0
    edges = np.arange(BINS + 1) / BINS
    for j in range(classes):
        scores, hits = probs[:, j], (labels == j).float()
        for low, high in itertools.pairwise(edges):
            inside = (scores > low) & (scores <= high)
            share = inside.float().mean()
            if share > 0:
                total += float(share * (hits[inside].mean() - scores[inside].mean()).abs())
    return total / classes


if __name__ == "__main__":
    for name, ratio, limit in cases():
        print(
            f"{name:65} {ratio:8.2f}   must be {limit}"
            if limit[0] in "<>"
            else f"{name:65} {ratio:8.2f}   {limit}"
        )

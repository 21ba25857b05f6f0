"""Speed of the metrics at 50 000 samples and 1000 classes."""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks._timing import Ratio, best_times
from macc import metrics

SAMPLES, CLASSES, BINS, BATCH = 50_000, 1000, 15, 256


def cases() -> Iterator[Ratio]:
    """Every claim of this file."""
    from torchmetrics.functional.classification import multiclass_calibration_error

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SAMPLES, CLASSES, generator=generator).mul_(3)
    probs = logits.softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    del logits

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

    def sce() -> float:
        return metrics.sce(probs, labels)

    floor, ours, together, in_batches, other = best_times(
        lambda: probs.sum(0), sce, one_pass, streamed, theirs, repeats=7
    )
    # The loop takes minutes, and as long for each class: some of them are timed, and all counted.
    part = 20
    expected = float(metrics.classwise_ece(probs, labels)[:part].mean())
    assert abs(loop_sce(probs, labels, part) - expected) < 1e-5 * expected
    assert abs(float(bincount_sce(probs, labels)) - metrics.sce(probs, labels)) < 1e-6
    again, bincount, loop = best_times(
        sce, lambda: bincount_sce(probs, labels), lambda: loop_sce(probs, labels, part), repeats=6
    )
    size = "50 000 x 1000"
    yield Ratio(f"sce, {size}, over one pass of probs.sum(0)", ours / floor, at_most=8)
    yield Ratio(f"vectorised bincount over sce, {size}", bincount / again, at_least=8)
    yield Ratio(
        f"double loop over classes and bins over sce, {size}", loop * CLASSES / part / again, at_least=100
    )
    yield Ratio(
        "ece, sce, classwise_ece and mce in one pass over torchmetrics' ECE", together / other, at_most=1
    )
    yield Ratio("streaming in batches of 256 over the one call", in_batches / together, at_most=1.5)


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

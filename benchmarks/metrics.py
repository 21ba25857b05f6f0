"""Speed of the metrics: many samples of few classes, and fewer of many."""

import itertools
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from benchmarks._timing import Ratio, best_times
from macc import metrics

BINS = 15
# Samples, classes, how much of torchmetrics' time the errors of one pass may take, and batches of
# a quarter of a million scores and fewer.
SIZES = ((1_000_000, 10, 2.0, 16_384), (50_000, 1000, 0.7, 256))
# A batch as of a training's validation, of which a call costs more than the work.
SMALL = 256


def cases() -> Iterator[Ratio]:
    """Every claim of this file."""
    for samples, classes, together, batch in SIZES:
        probs, labels = _predictions(samples, classes)
        size = f"{samples:,} x {classes}".replace(",", " ")
        yield from _over_torchmetrics(probs, labels, size, together)
        yield from _in_batches(probs, labels, size, batch)
    # Of the last, which has many classes.
    yield from _over_plain_code(probs, labels, size)
    yield from _intervals()


def _predictions(samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Those of a calibrated model."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(samples, classes, generator=generator).mul_(3).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def _over_torchmetrics(probs: Tensor, labels: Tensor, size: str, together: float) -> Iterator[Ratio]:
    """The errors of the predicted class and of all classes, over one error of the predicted
    class.
    """
    from torchmetrics.functional.classification import multiclass_calibration_error

    samples, classes = probs.shape

    def theirs() -> Tensor:
        return multiclass_calibration_error(probs, labels, num_classes=classes, n_bins=BINS)

    assert abs(float(theirs()) - metrics.ece(probs, labels)) < 1e-5
    other, alone, all_of_them = best_times(
        theirs, lambda: metrics.ece(probs, labels), lambda: _streamed(probs, labels, samples), repeats=15
    )
    yield Ratio(f"ece over torchmetrics' ECE, {size}", alone / other, at_most=0.7)
    yield Ratio(
        f"ece, mce, sce and classwise_ece in one pass over torchmetrics' ECE, {size}",
        all_of_them / other,
        at_most=together,
    )


def _in_batches(probs: Tensor, labels: Tensor, size: str, batch: int) -> Iterator[Ratio]:
    """A stream over the one call, and over that of torchmetrics, on one thread."""
    from torchmetrics.classification import MulticlassCalibrationError

    samples, classes = probs.shape

    def theirs() -> object:
        error = MulticlassCalibrationError(classes, BINS)
        for start in range(0, samples, SMALL):
            error.update(probs[start : start + SMALL], labels[start : start + SMALL])
        return error.compute()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    whole, some, small, other = best_times(
        lambda: _streamed(probs, labels, samples),
        lambda: _streamed(probs, labels, batch),
        lambda: _streamed(probs, labels, SMALL),
        theirs,
        repeats=9,
        clock=time.thread_time,
    )
    torch.set_num_threads(threads)
    yield Ratio(f"streaming in batches of {batch} over the one call, {size}", some / whole, at_most=1.2)
    yield Ratio(f"streaming in batches of {SMALL} over torchmetrics' ECE in them, {size}", small / other)


def _streamed(probs: Tensor, labels: Tensor, batch: int) -> dict[str, object]:
    calibration = metrics.Calibration(probs.shape[1])
    for start in range(0, len(probs), batch):
        calibration.update(probs[start : start + batch], labels[start : start + batch])
    return calibration.compute()


def _intervals() -> Iterator[Ratio]:
    """Reports with all intervals, on one thread, over the values alone and over the time that
    people wait.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield from _report(10_000, 1)
    yield from _report(1_000_000, 15)
    torch.set_num_threads(threads)


def _report(samples: int, seconds: int) -> Iterator[Ratio]:
    probs, labels = _predictions(samples, 10)
    every = metrics.metrics_of(10).values()
    values, report = best_times(
        lambda: [metric.value(probs, labels) for metric in every],
        lambda: metrics.evaluate(probs, labels),
        repeats=3,
        clock=time.thread_time,
    )
    size = f"{samples:,}".replace(",", " ") + " x 10, one thread"
    yield Ratio(f"all metrics with intervals, {size}: seconds / {seconds} s", report / seconds, at_most=1)
    if seconds > 1:
        yield Ratio(f"all metrics with intervals over their values, {size}", report / values, at_most=10)


def _over_plain_code(probs: Tensor, labels: Tensor, size: str) -> Iterator[Ratio]:
    """The error of all classes over one read of the probabilities, and other forms of it over
    ours.
    """

    def sce() -> float:
        return metrics.sce(probs, labels)

    floor, ours = best_times(lambda: probs.sum(0), sce, repeats=15)
    # The loop takes minutes, and as long for each class: some of them are timed, and all counted.
    part, classes = 20, probs.shape[1]
    expected = float(metrics.classwise_ece(probs, labels)[:part].mean())
    assert abs(loop_sce(probs, labels, part) - expected) < 1e-5 * expected
    assert abs(float(bincount_sce(probs, labels)) - sce()) < 1e-6
    again, bincount, loop = best_times(
        sce, lambda: bincount_sce(probs, labels), lambda: loop_sce(probs, labels, part), repeats=6
    )
    yield Ratio(f"sce, {size}, over one pass of probs.sum(0)", ours / floor, at_most=8)
    yield Ratio(f"vectorised bincount over sce, {size}", bincount / again, at_least=8)
    yield Ratio(
        f"double loop over classes and bins over sce, {size}", loop * classes / part / again, at_least=100
    )


def bincount_sce(probs: Tensor, labels: Tensor) -> Tensor:
    """All entries binned and scattered at once."""
    edges, classes = torch.arange(1, BINS) / BINS, probs.shape[1]
    cells = torch.bucketize(probs, edges) * classes + torch.arange(classes)
    claimed = torch.bincount(cells.flatten(), probs.flatten(), minlength=BINS * classes)
    hits = torch.bincount(cells[torch.arange(len(labels)), labels], minlength=BINS * classes)
    return (hits - claimed).abs().sum() / len(labels) / classes


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

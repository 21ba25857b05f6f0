"""The main job in a minute, on data that comes with scikit-learn: is the confidence better with MACC?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor

from macc import losses, metrics, models
from macc.experiments._fit import fit
from macc.heads import attach

EPOCHS = 24
BATCH = 64
SIZES = (600, 300, 897)  # train, val, test
NOISE = 0.3
P = 0.2


@dataclass(frozen=True)
class Method:
    """A row of the comparison: a loss and the head it is trained with."""

    name: str
    loss: str
    samples: int | None = None


METHODS = (
    Method("CE", "CrossEntropy"),
    Method("CE, dropout", "CrossEntropy", samples=1),
    Method("CE + MACC", "CrossEntropy + MACC(warmup={half})", samples=10),
    Method("FL", "Focal(gamma=3)"),
    Method("FL + MACC", "Focal(gamma=3) + MACC(warmup={half})", samples=10),
)
COMPARED = (("CE + MACC", "CE"), ("CE + MACC", "CE, dropout"), ("FL + MACC", "FL"))
COLUMNS = {
    "accuracy": ("accuracy %", ".1f"),
    "ece": ("ECE %", ".2f"),
    "sce": ("SCE 1e-3", ".1f"),
    "nll": ("NLL", ".3f"),
    "gap": ("conf.-acc.", ".1f"),
}


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Seeded splits of the digits: train, val, test, and the test images under Gaussian noise."""
    pixels, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=generator)
    images = torch.as_tensor(pixels, dtype=torch.float32).div(16).reshape(-1, 1, 8, 8)[order]
    targets = torch.as_tensor(labels)[order]
    first, second = SIZES[0], SIZES[0] + SIZES[1]
    rows = {"train": slice(first), "val": slice(first, second), "test": slice(second, None)}
    parts = {name: (images[cut], targets[cut]) for name, cut in rows.items()}
    clean, of_clean = parts["test"]
    parts["noisy test"] = (clean + NOISE * torch.randn(clean.shape, generator=generator), of_clean)
    return parts


def measure(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The numbers of one row, in the units of the table."""
    accuracy = metrics.accuracy(logits, labels, from_logits=True)
    return {
        "accuracy": 100 * accuracy,
        "ece": 100 * metrics.ece(logits, labels, from_logits=True),
        "sce": 1000 * metrics.sce(logits, labels, from_logits=True),
        "nll": metrics.nll(logits, labels, from_logits=True),
        "gap": 100 * (float(logits.softmax(dim=1).amax(dim=1).mean()) - accuracy),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean over seeds and half-width of its 95 % t-interval."""
    return mean(values), float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def run(*, seeds: int = 5) -> None:
    """Train every method with every seed and print the comparison."""
    if seeds < 2:
        raise ValueError(f"`--seeds` must be at least 2, got {seeds}: an interval needs two runs")
    console = Console()
    parts = digits()
    half = EPOCHS * (SIZES[0] // BATCH) // 2
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with bar:
        progress = bar.add_task("training", total=len(METHODS) * seeds * EPOCHS)
        for seed in range(seeds):
            for method in METHODS:
                bar.update(progress, description=f"{method.name}, seed {seed}")
                torch.manual_seed(seed)
                model = models.build("small_cnn", num_classes=10, in_channels=1)
                if method.samples is not None:
                    attach(model, p=P, samples=method.samples)
                criterion = losses.parse(method.loss.format(half=half))
                fit(
                    model,
                    criterion,
                    *parts["train"],
                    epochs=EPOCHS,
                    batch_size=BATCH,
                    on_epoch=lambda _: bar.advance(progress),
                )
                with torch.no_grad():
                    for name in ("test", "noisy test"):
                        images, labels = parts[name]
                        found.setdefault((method.name, name), []).append(measure(model(images), labels))
    _print(console, found, seeds, half)


def _print(
    console: Console, found: dict[tuple[str, str], list[dict[str, float]]], seeds: int, half: int
) -> None:
    console.print(
        f"scikit-learn's digits: {SIZES[0]} images to train, {SIZES[2]} to test; a small CNN, {EPOCHS} epochs, "
        f"{seeds} seeds. CE is cross-entropy, FL focal loss. MACC has weight 1, dropout {P} and a warm-up of "
        f"{half} steps: the defaults, nothing was tuned. Noisy images have Gaussian noise of {NOISE}. "
        "Mean over seeds ± half of the 95 % interval."
    )
    for test in ("test", "noisy test"):
        table = Table(
            "method",
            *(title for title, _ in COLUMNS.values()),
            title=f"{test} images",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for method in METHODS:
            cells = []
            for column, (_, digits_shown) in COLUMNS.items():
                centre, half_width = interval([row[column] for row in found[method.name, test]])
                cells.append(
                    f"{centre:{'+' if column == 'gap' else ''}{digits_shown}} ±{half_width:{digits_shown}}"
                )
            table.add_row(method.name, *cells)
        console.print(table)
    console.print(
        "Lower is better for ECE, SCE and NLL. conf.-acc. is mean confidence minus accuracy: 0 is best, above is "
        "over-confident.\n"
    )
    for test in ("test", "noisy test"):
        for name, other in COMPARED:
            console.print(_finding(found, name, other, test))
    console.print("\nNext: put the two lines of the README into your own training loop.")


def _finding(found: dict[tuple[str, str], list[dict[str, float]]], name: str, other: str, test: str) -> str:
    """One honest sentence: the paired difference in ECE and whether it is more than noise."""
    pairs = zip(found[name, test], found[other, test], strict=True)
    centre, half_width = interval([a["ece"] - b["ece"] for a, b in pairs])
    if abs(centre) <= half_width:
        verdict = "no clear difference"
    else:
        verdict = "better calibrated" if centre < 0 else "worse calibrated"
    return (
        f"{name} against {other}, {test} images: {verdict}, ECE {centre:+.2f} points "
        f"[{centre - half_width:+.2f}, {centre + half_width:+.2f}]."
    )

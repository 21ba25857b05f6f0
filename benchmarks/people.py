"""Which probabilities are nearest to what people are unsure of? CIFAR-10H: some 50 people labelled
each test image of CIFAR-10.

    python -m benchmarks.people networks LOGITS PEOPLE
        public networks, whose test logits are LOGITS/cifar10_*.npz, into results/people.json
    python -m benchmarks.people runs NAME RUNS PEOPLE
        the runs of the experiment results/NAME.json
    python -m benchmarks.evidence write
        results/people.json into the pages

PEOPLE is the file of the shares of labels, (10 000, 10), in the order of the official test set.
Distances are means over images: the cross-entropy of the people's labels under the network, and
half of the absolute differences, the share of labels that would have to move.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from benchmarks._results import RESULTS, predicted, read
from macc import posthoc, training

KEPT = RESULTS / "people.json"


def main(arguments: Sequence[str]) -> int:
    """``networks LOGITS PEOPLE`` or ``runs NAME RUNS PEOPLE``."""
    match list(arguments):
        case ["networks", folder, people]:
            rows = networks(Path(folder), shares(Path(people)))
        case ["runs", name, runs, people]:
            rows = of_runs(name, Path(runs), shares(Path(people)))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    new = {(row["network"], row["seed"]) for row in rows}
    before = json.loads(KEPT.read_text()) if KEPT.is_file() else []
    rows = [row for row in before if (row["network"], row["seed"]) not in new] + rows
    KEPT.write_text(json.dumps(rows, separators=(",", ":")).replace('},{"', '},\n{"') + "\n")
    return 0


def shares(path: Path) -> Tensor:
    """The people's labels as probabilities."""
    found = torch.from_numpy(np.load(path, allow_pickle=False)).double()
    if found.shape != (10_000, 10):
        raise ValueError(f"{path} must hold (10000, 10) shares, got {tuple(found.shape)}")
    return found


def distances(probabilities: Tensor, people: Tensor) -> dict[str, float]:
    """How far probabilities are from people's labels, means over images.

    Example:
        >>> one = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
        >>> distances(one[1], one[0])["moved"]
        0.5
    """
    floor = torch.finfo(torch.float32).tiny
    cross = -(people * probabilities.clamp_min(floor).log()).sum(dim=1)
    moved = (probabilities - people).abs().sum(dim=1) / 2
    return {"cross": round(float(cross.mean()), 5), "moved": round(float(moved.mean()), 5)}


def networks(folder: Path, people: Tensor) -> list[dict[str, object]]:
    """Public networks, each measured on one half of the test set with the temperature of the other
    half, five times.
    """
    rows: list[dict[str, object]] = []
    for path in sorted(folder.glob("cifar10_*.npz")):
        with np.load(path, allow_pickle=False) as file:
            logits = torch.from_numpy(file["logits"]).double()
            labels = torch.from_numpy(file["labels"]).long()
        if len(labels) != len(people):
            continue
        for seed in range(5):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
            fitted, measured = order.chunk(2)
            temperature = posthoc.Temperature.fit(logits[fitted], labels[fitted])
            rows.append(
                {
                    "network": path.stem.removeprefix("cifar10_").removesuffix("_test"),
                    "seed": seed,
                    "raw": distances(logits[measured].softmax(dim=1), people[measured]),
                    "then": distances(temperature(logits[measured]), people[measured]),
                    "itself": distances(people[measured], people[measured])["cross"],
                }
            )
    return rows


def of_runs(name: str, runs: Path, people: Tensor) -> list[dict[str, object]]:
    """The last epochs of an experiment, with the temperature of their validation set."""
    result = read(name)
    if result is None:
        raise ValueError(f"results/{name}.json is not there; `python -m benchmarks.seeds join` it")
    rows: list[dict[str, object]] = []
    for member in result.runs:
        if member.rule != "last":
            continue
        run = training.open_run(runs / member.folder)
        logits, labels = predicted(run.path, "val")
        temperature = posthoc.Temperature.fit(logits, labels)
        logits, labels = predicted(run.path, "test")
        rows.append(
            {
                "network": member.method,
                "seed": member.seed,
                "raw": distances(logits.softmax(dim=1), people),
                "then": distances(temperature(logits), people),
                "itself": distances(people, people)["cross"],
            }
        )
    return rows


def table() -> str:
    """Networks and methods, raw and after a temperature."""
    lines = [
        "| | cross-entropy: as trained | then temperature | moved %: as trained | then temperature |",
        "|---|--:|--:|--:|--:|",
    ]
    rows = json.loads(KEPT.read_text())
    for name in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == name]
        cells = [
            f"{fmean(row[when][key] for row in mine) * times:.{digits}f}"
            for key, times, digits in (("cross", 1, 3), ("moved", 100, 1))
            for when in ("raw", "then")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    least = fmean(row["itself"] for row in rows)
    off = [
        1 - fmean(row["then"]["cross"] for row in mine) / fmean(row["raw"]["cross"] for row in mine)
        for name in dict.fromkeys(row["network"] for row in rows)
        for mine in [[row for row in rows if row["network"] == name]]
    ]
    lines += [
        "",
        f"A temperature takes {100 * min(off):.0f} to {100 * max(off):.0f} % off the cross-entropy. "
        f"The least possible is {least:.3f}, people's own.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

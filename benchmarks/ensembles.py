"""Three networks in place of one: the mean of their probabilities is what a single training is held
against.

    python -m benchmarks.ensembles NAME RUNS
        every three seeds of each method of results/NAME.json, into results/ensembles.json
    python -m benchmarks.evidence write
        results/ensembles.json into the pages
"""

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from benchmarks._results import RESULTS, predicted, read
from benchmarks.calibrated import LABELS, METRICS, number
from macc import metrics, posthoc

KEPT = RESULTS / "ensembles.json"
SIZE = 3
PARTS = ("val", "test")

Predictions = dict[str, tuple[Tensor, Tensor]]
"""Logits and labels of each part."""


def main(arguments: Sequence[str]) -> int:
    """``NAME RUNS``."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    name, runs = arguments
    result = read(name)
    if result is None:
        raise ValueError(f"results/{name}.json is not there; `python -m benchmarks.seeds join` it")
    folders: dict[str, list[Path]] = {}
    for member in result.runs:
        if member.rule == "last":
            folders.setdefault(member.method, []).append(Path(runs) / member.folder)
    rows = [row for method, own in folders.items() for row in collected(method, own)]
    KEPT.write_text(json.dumps(rows, separators=(",", ":")).replace('},{"method', '},\n{"method') + "\n")
    return 0


def collected(method: str, folders: Sequence[Path]) -> list[dict[str, object]]:
    """Of the run folders of every seed: members and ensembles, each after a temperature of the
    validation set.
    """
    members = [{part: predicted(folder, part) for part in PARTS} for folder in folders]
    single = [after_temperature(member) for member in members]
    rows: list[dict[str, object]] = []
    for seeds in combinations(range(len(members)), SIZE):
        whole = after_temperature(together([members[seed] for seed in seeds]))
        one = {key: fmean(single[seed][key] for seed in seeds) for key in METRICS}
        rows.append({"method": method, "seeds": seeds, "one": rounded(one), "together": rounded(whole)})
    return rows


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    """To five digits behind the point."""
    return {key: round(value, 5) for key, value in values.items()}


def together(members: Sequence[Predictions]) -> Predictions:
    """The mean of the members' probabilities, as logits.

    Example:
        >>> one, two = (torch.tensor([[p, 1 - p]]).log() for p in (0.9, 0.5))
        >>> label = torch.tensor([0])
        >>> logits, _ = together([{"val": (one, label)}, {"val": (two, label)}])["val"]
        >>> logits.exp()
        tensor([[0.7000, 0.3000]])
    """
    found: Predictions = {}
    for part, (_, labels) in members[0].items():
        if any(not torch.equal(member[part][1], labels) for member in members):
            raise ValueError(f"the members have not the same {part} samples")
        probs = torch.stack([member[part][0].softmax(dim=1) for member in members]).mean(dim=0)
        found[part] = probs.clamp_min(torch.finfo(probs.dtype).tiny).log(), labels
    return found


def after_temperature(parts: Predictions) -> dict[str, float]:
    """The metrics of the test set, with the temperature of the validation set."""
    fitted = posthoc.Temperature.fit(*parts["val"])
    logits, labels = parts["test"]
    probs = fitted(logits)
    return {key: float(getattr(metrics, key)(probs, labels)) for key in METRICS}


def table() -> str:
    """One network and three, each then a temperature, the mean over the groups of three."""
    if not KEPT.is_file():
        return "Not run yet."
    rows = json.loads(KEPT.read_text())
    lines = [
        f"| then a temperature | networks | {' | '.join(LABELS[metric] for metric in METRICS)} |",
        "|---|--:|" + "--:|" * len(METRICS),
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        for size, key in ((1, "one"), (SIZE, "together")):
            cells = (number(metric, fmean(row[key][metric] for row in mine)) for metric in METRICS)
            lines.append(f"| {method} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What the pages of results share: the committed results, paired tests of their cells, and how
figures are saved.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from macc import experiments
from macc.experiments.result import Result
from macc.metrics.over_runs import interval, paired_p

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Verdict:
    """A method minus a rival in one metric, over the seeds both were trained with, and its 95 %
    interval.
    """

    difference: float
    low: float
    high: float
    p: float

    def sign(self, direction: int, corrected: float) -> str:
        """``+`` where the method is better, ``-`` where it is worse, ``·`` where no difference is
        significant.
        """
        if not corrected < 0.05:  # nor is it where no test is possible
            return "·"
        return "+" if self.difference * direction > 0 else "-"


def read(name: str) -> Result | None:
    """A committed result."""
    path = RESULTS / f"{name}.json"
    return experiments.load_result(path) if path.is_file() else None


def predicted(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Logits and labels that a run kept of a part of its data."""
    with np.load(folder / "predictions" / f"{part}.npz", allow_pickle=False) as file:
        return torch.from_numpy(file["logits"]).double(), torch.from_numpy(file["labels"]).long()


def versus(
    result: Result, dataset: str, test: str, rule: str, metric: str, method: str, rival: str
) -> Verdict | None:
    """A paired t-test over seeds; nothing where there are fewer than two."""
    own = result.cell(dataset, test, method, metric, rule)
    other = result.cell(dataset, test, rival, metric, rule)
    if own is None or other is None or len(own.values) != len(other.values):
        return None
    differences = [a - b for a, b in zip(own.values, other.values, strict=True)]
    ends = interval(differences)
    return None if ends is None else Verdict(own.mean - other.mean, *ends, paired_p(differences))


def heading(result: Result) -> str:
    """What was run, at which scale, by which commits."""
    scale = "" if result.scale == "full" else f" Reduced scale: {result.scale}."
    commits = ", ".join(f"`{commit}`" for commit in result.provenance["commit"])
    seeds = "One seed" if result.seeds == 1 else f"{result.seeds} seeds"
    return f"{result.title}.{scale} {seeds}, by commit {commits}."


def save(figure: Figure, path: Path) -> None:
    """As SVG; the same figure gives the same file."""
    path.parent.mkdir(exist_ok=True)
    with rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})

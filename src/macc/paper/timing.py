"""How long an epoch takes in each way to compute moments, which the paper says costs little."""

from collections.abc import Callable
from os import PathLike
from typing import Any

from torch import Tensor, nn

from macc import heads, losses
from macc.experiments.catalog import LocalDataSet
from macc.experiments.estimates import WARM_STEPS, learner_of, timed
from macc.experiments.gather import gather
from macc.experiments.ledger import Ledger
from macc.experiments.listening import Listener
from macc.experiments.result import Result
from macc.experiments.running import folder_of, look, write
from macc.experiments.spec import Experiment
from macc.training.engine import Learner
from macc.training.randomness import kept_generators, seed_everything
from macc.training.recipe import Recipe, criterion_of

ROUNDS = 3
PAPER_MASKS = 10
PAPER_RATIO = 7


class _Conventional(nn.Module):
    """Moments from whole passes through the network, without the paper's short cut."""

    def __init__(self, model: nn.Module, samples: int) -> None:
        super().__init__()
        self.model, self.samples = model, samples

    def forward(self, inputs: Tensor) -> heads.LogitMoments:
        return heads.conventional_moments(self.model, inputs, samples=self.samples)


def time_epochs(
    experiment: Experiment,
    *,
    out: str | PathLike[str] = "runs",
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    listener: Listener | None = None,
) -> Result:
    """Run an experiment of ``kind: timing``: time whole epochs with the moments computed in each
    way.

    Args:
        experiment: The experiment.
        out: The folder of run folders; results go to ``<out>/experiments/<name>-<scale>``.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
        listener: Hears how far it is; `macc run` gives one that shows it.

    Returns:
        What it found, also written as ``result.json``.
    """
    listener = listener or Listener()
    ledger = look(experiment, out, root, verify=verify, listener=listener)
    result = gather(ledger)
    result.timings, result.findings = _timings(ledger, listener.say)
    write(result, folder_of(experiment, out))
    return result


def _timings(ledger: Ledger, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], list[str]]:
    """Whole epochs of the task loss alone and with MACC, the moments computed in each way; the
    fastest of three.

    The ways take turns, so that a busy machine is busy for all of them.
    """
    rows: list[dict[str, Any]] = []
    findings = []
    method = ledger.experiment.methods[0]
    for dataset in ledger.catalog.datasets:
        recipe = ledger.recipe(ledger.job(dataset, method, ledger.points(dataset, method)[0], 0))
        ways: dict[tuple[str, int], Learner] = {}
        with kept_generators():
            seed_everything(0, "timing")
            for way, masks in _ways(ledger):
                ways[way, masks] = _way(ledger, dataset, recipe, way, masks)
                timed(ways[way, masks], WARM_STEPS)
            best: dict[tuple[str, int], float] = {}
            for index in range(ROUNDS):
                say(f"{dataset.name}: round {index + 1} of {ROUNDS}, {len(ways)} ways to train an epoch")
                for key, learner in ways.items():
                    best[key] = min(best.get(key, float("inf")), timed(learner)[0])
        alone = best["task loss alone", 0]
        for (way, masks), seconds in best.items():
            efficient = best.get(("efficient", masks))
            rows.append(
                {
                    "dataset": dataset.name,
                    "moments": way,
                    "masks": masks or "–",
                    "seconds an epoch": seconds,
                    "times the task loss alone": seconds / alone,
                    "times the efficient form": seconds / efficient if efficient else "–",
                }
            )
        if ("conventional", PAPER_MASKS) in best:
            ratio = best["conventional", PAPER_MASKS] / best["efficient", PAPER_MASKS]
            findings.append(
                f"{dataset.name} ({recipe.model}): with {PAPER_MASKS} masks an epoch of the efficient form is "
                f"{ratio:.1f} times as fast as one of {PAPER_MASKS} whole passes; the paper says "
                f"{PAPER_RATIO} times for whole trainings."
            )
    return rows, findings


def _ways(ledger: Ledger) -> list[tuple[str, int]]:
    masks = ledger.experiment.passes
    pairs = [(way, count) for count in masks for way in ("efficient", "conventional")]
    return [("task loss alone", 0), ("closed form", 0), *pairs]


def _way(ledger: Ledger, dataset: LocalDataSet, recipe: Recipe, way: str, masks: int) -> Learner:
    criterion = criterion_of(recipe.loss)
    task = criterion.task if isinstance(criterion, losses.Criterion) else criterion
    special: dict[str, dict[str, Any]] = {
        "task loss alone": {"head": "none", "loss": str(task)},
        "closed form": {"head": {"p": 0.2, "estimator": "analytic"}},
    }
    changes = special.get(way, {"head": {"p": 0.2, "samples": masks}})
    learner = learner_of(ledger, dataset, Recipe.model_validate(recipe.to_dict() | changes))
    if way == "conventional":
        learner.prepared = _Conventional(learner.model, masks)
    return learner

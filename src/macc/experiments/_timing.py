"""How long an epoch takes: for estimates, and for the paper's claim that its moments cost little."""

import math
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from torch import Tensor, nn

from macc import heads, losses
from macc.experiments._runs import Case, Plan
from macc.training import engine
from macc.training._randomness import kept_generators, seed_everything
from macc.training.building import build_model, splits_for
from macc.training.engine import Learner
from macc.training.recipe import Recipe

WARM_STEPS = 2
LONGEST = 10
"""Seconds after which an epoch that is timed for an estimate is broken off."""
ROUNDS = 3
PAPER_MASKS = 10
PAPER_RATIO = 7


class _Conventional(nn.Module):
    """Moments from whole passes through the network, as they are computed without the paper's short cut."""

    def __init__(self, model: nn.Module, samples: int) -> None:
        super().__init__()
        self.model, self.samples = model, samples

    def forward(self, inputs: Tensor) -> heads.LogitMoments:
        return heads.conventional_moments(self.model, inputs, samples=self.samples)


def _learner(plan: Plan, case: Case, recipe: Recipe) -> Learner:
    resolved = recipe.resolved()
    data = splits_for(resolved, plan.splits(case), plan.root)
    return engine.learner_for(resolved, build_model(resolved, data), data, engine.accelerator_for(resolved))


def _seconds(learner: Learner, steps: int | None = None) -> float:
    """The time of some steps, or of a whole epoch."""
    return _timed(learner, steps, math.inf)[0]


def _timed(learner: Learner, steps: int | None, longest: float) -> tuple[float, int]:
    """The time of some steps or of a whole epoch, broken off after so many seconds, and how many steps it was."""
    learner.prepared.train()
    learner.criterion.train()
    taken, seconds = 0, 0.0
    began = time.perf_counter()
    for inputs, labels in islice(learner.batches_of_epoch.epoch(skip=0), steps):
        engine.take_step(learner, inputs, labels)
        taken, seconds = taken + 1, time.perf_counter() - began
        if seconds > longest:
            break
    return seconds, taken


def seconds_of_epoch(plan: Plan, case: Case) -> float:
    """What an epoch of a data set takes here, with moments if a method needs them: one is timed, ten seconds at most."""
    methods = [method for method in plan.trained(case) if plan.ready(case, method)]
    recipes = [plan.recipe(plan.job(case, m, plan.points(case, m)[0], 0)) for m in methods]
    recipe = max(recipes or [plan.base_recipe(case)], key=lambda each: losses.parse(each.loss).needs_moments)
    with kept_generators():
        seed_everything(0, "timing")
        learner = _learner(plan, case, recipe)
        _seconds(learner, WARM_STEPS)
        seconds, taken = _timed(learner, None, LONGEST)
        return seconds * len(learner.batches_of_epoch) / taken


def timings(plan: Plan, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], list[str]]:
    """Whole epochs of the task loss alone and with MACC, the moments computed in each way; the fastest of three.

    The ways take turns, so that a busy machine is busy for all of them.
    """
    rows: list[dict[str, Any]] = []
    findings = []
    method = plan.experiment.methods[0]
    for case in plan.cases:
        recipe = plan.recipe(plan.job(case, method, plan.points(case, method)[0], 0))
        ways: dict[tuple[str, int], Learner] = {}
        with kept_generators():
            seed_everything(0, "timing")
            for way, masks in _ways(plan):
                ways[way, masks] = _way(plan, case, recipe, way, masks)
                _seconds(ways[way, masks], WARM_STEPS)
            best: dict[tuple[str, int], float] = {}
            for index in range(ROUNDS):
                say(f"{case.name}: round {index + 1} of {ROUNDS}, {len(ways)} ways to train an epoch")
                for key, learner in ways.items():
                    best[key] = min(best.get(key, float("inf")), _seconds(learner))
        alone = best["task loss alone", 0]
        for (way, masks), seconds in best.items():
            efficient = best.get(("efficient", masks))
            rows.append(
                {
                    "dataset": case.name,
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
                f"{case.name} ({recipe.model}): with {PAPER_MASKS} masks an epoch of the efficient form is "
                f"{ratio:.1f} times as fast as one of {PAPER_MASKS} whole passes; the paper says "
                f"{PAPER_RATIO} times for whole trainings."
            )
    return rows, findings


def _ways(plan: Plan) -> list[tuple[str, int]]:
    masks = plan.experiment.passes
    pairs = [(way, count) for count in masks for way in ("efficient", "conventional")]
    return [("task loss alone", 0), ("closed form", 0), *pairs]


def _way(plan: Plan, case: Case, recipe: Recipe, way: str, masks: int) -> Learner:
    criterion = losses.parse(recipe.loss)
    task = criterion.task if isinstance(criterion, losses.Criterion) else criterion
    special: dict[str, dict[str, Any]] = {
        "task loss alone": {"head": "none", "loss": str(task)},
        "closed form": {"head": {"p": 0.2, "estimator": "analytic"}},
    }
    changes = special.get(way, {"head": {"p": 0.2, "samples": masks}})
    learner = _learner(plan, case, Recipe.model_validate(recipe.to_dict() | changes))
    if way == "conventional":
        learner.prepared = _Conventional(learner.model, masks)
    return learner

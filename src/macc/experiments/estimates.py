"""What an experiment would take: its trainings, those that are done, and the time of an epoch."""

import math
import time
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path

import torch

from macc import data
from macc.experiments.catalog import Catalog, LocalDataSet
from macc.experiments.ledger import Ledger, criterion_of
from macc.experiments.spec import Experiment
from macc.training import engine
from macc.training.building import build_model, splits_for
from macc.training.engine import Learner
from macc.training.randomness import kept_generators, seed_everything
from macc.training.recipe import Recipe

WARM_STEPS = 2
STAND_IN_BATCHES = 8
LONGEST = 10
"""Seconds after which an epoch that is timed for an estimate is broken off."""


@dataclass(frozen=True)
class Share:
    """What one data set takes."""

    dataset: str
    trainings: int
    """How many there are at most."""
    done: int
    epochs: int
    """Of each training."""
    seconds: float | None
    """Of an epoch; none where that cannot be known, or nothing is left to train."""
    samples: int | None
    """To train on, of a data set whose files are missing; none where that is not known."""

    @property
    def seconds_left(self) -> float:
        """Of what is not done, by one worker."""
        return max(0, self.trainings - self.done) * self.epochs * (self.seconds or 0.0)


@dataclass(frozen=True)
class Estimate:
    """What an experiment takes."""

    experiment: Experiment
    here: list[Share]
    missing: list[Share]
    """The data sets whose files are not there."""
    left_out: list[str]
    """What is left out and why."""
    complete: bool
    """Whether everything is done."""


def estimate(
    experiment: Experiment,
    *,
    out: str | PathLike[str] = "runs",
    root: str | PathLike[str] | None = None,
    verify: bool = True,
) -> Estimate:
    """Count the trainings of an experiment, and time an epoch of each of its data sets.

    Args:
        experiment: The experiment.
        out: The folder of run folders.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
    """
    catalog = Catalog(experiment, root, verify=verify)
    ledger = Ledger(catalog, Path(out))
    complete = bool(catalog.datasets) and not catalog.missing and not ledger.is_open()
    here = [
        Share(
            dataset=dataset.name,
            trainings=experiment.trainings([dataset.spec]),
            done=ledger.finished(dataset),
            epochs=catalog.base_recipe(dataset).epochs,
            seconds=None if complete else seconds_of_epoch(ledger, dataset),
            samples=None,
        )
        for dataset in catalog.datasets
    ]
    missing = []
    for spec in catalog.missing:
        recipe, samples = catalog.without_data(spec)
        seconds = None if samples is None else seconds_without_data(recipe, samples)
        missing.append(Share(spec.name, experiment.trainings([spec]), 0, recipe.epochs, seconds, samples))
    return Estimate(experiment, here, missing, catalog.left_out, complete)


def seconds_of_epoch(ledger: Ledger, dataset: LocalDataSet) -> float:
    """What an epoch of a data set takes here, with moments if a method needs them: one is timed, ten seconds at most."""
    methods = [method for method in ledger.trained(dataset) if ledger.ready(dataset, method)]
    recipes = [ledger.recipe(ledger.job(dataset, m, ledger.points(dataset, m)[0], 0)) for m in methods]
    recipes = recipes or [ledger.catalog.base_recipe(dataset)]
    recipe = max(recipes, key=lambda each: criterion_of(each.loss).needs_moments)
    with kept_generators():
        seed_everything(0, "timing")
        learner = learner_of(ledger, dataset, recipe)
        timed(learner, WARM_STEPS)
        seconds, taken = timed(learner, longest=LONGEST)
        return seconds * len(learner.batches_of_epoch) / taken


def seconds_without_data(recipe: Recipe, samples: int) -> float | None:
    """What an epoch of a data set takes whose files are missing, timed on noise of its shape; none where that is unknown.

    Args:
        recipe: The recipe of the data set.
        samples: How many samples it trains on.
    """
    known = data.known().get(recipe.dataset)
    if known is None or known.shape is None or known.kind != "image" or known.num_classes is None:
        return None
    resolved = recipe.resolved()
    with kept_generators():
        seed_everything(0, "timing")
        rows = min(samples, STAND_IN_BATCHES * recipe.batch_size)
        part = data.Part(
            inputs=torch.randint(0, 256, (rows, *known.shape), dtype=torch.uint8),
            labels=torch.arange(rows) % known.num_classes,
        )
        stand_in = data.Splits(
            name="stand-in",
            kind="image",
            classes=tuple(map(str, range(known.num_classes))),
            train=part,
            val=part,
            test=part,
        )
        try:
            model = build_model(resolved, stand_in)
        except ValueError:  # weights that are not here either
            return None
        learner = engine.learner_for(resolved, model, stand_in, engine.accelerator_for(resolved))
        timed(learner, WARM_STEPS)
        seconds, taken = timed(learner, longest=LONGEST)
    return seconds / taken * math.ceil(samples / recipe.batch_size)


def learner_of(ledger: Ledger, dataset: LocalDataSet, recipe: Recipe) -> Learner:
    """What a recipe trains on a data set, before its first step."""
    resolved = recipe.resolved()
    splits = splits_for(resolved, ledger.catalog.splits(dataset), ledger.catalog.root)
    return engine.learner_for(
        resolved, build_model(resolved, splits), splits, engine.accelerator_for(resolved)
    )


def timed(learner: Learner, steps: int | None = None, longest: float = math.inf) -> tuple[float, int]:
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

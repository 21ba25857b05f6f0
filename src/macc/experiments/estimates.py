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
from macc.experiments.ledger import Ledger
from macc.experiments.spec import Experiment
from macc.training import engine
from macc.training.building import model_for, splits_for
from macc.training.engine import Learner
from macc.training.randomness import kept_generators, seed_everything
from macc.training.recipe import Recipe, criterion_of

WARM_STEPS = 2
STAND_IN_BATCHES = 8
STAND_IN_VALUES = 2**21
"""Of a batch of noise at most, so that steps on large images take seconds."""
LONGEST = 10
"""Seconds after which an epoch that is timed for an estimate is broken off."""


@dataclass(frozen=True)
class DataSetCost:
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
class Cost:
    """What an experiment takes."""

    experiment: Experiment
    here: list[DataSetCost]
    missing: list[DataSetCost]
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
) -> Cost:
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
        DataSetCost(
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
        missing.append(
            DataSetCost(spec.name, experiment.trainings([spec]), 0, recipe.epochs, seconds, samples)
        )
    return Cost(experiment, here, missing, catalog.left_out, complete)


def seconds_of_epoch(ledger: Ledger, dataset: LocalDataSet) -> float:
    """What an epoch of a data set takes here: one is timed, ten seconds at most."""
    methods = [method for method in ledger.trained(dataset) if ledger.ready(dataset, method)]
    recipes = [ledger.recipe(ledger.job(dataset, m, ledger.points(dataset, m)[0], 0)) for m in methods]
    recipes = recipes or [ledger.catalog.base_recipe(dataset)]
    recipe = max(recipes, key=lambda each: criterion_of(each.loss).needs_moments)
    with kept_generators():
        seed_everything(0, "timing")
        learner = learner_of(ledger, dataset, recipe)
        return seconds_of_step(learner) * len(learner.batches_of_epoch)


def seconds_without_data(recipe: Recipe, samples: int) -> float | None:
    """What an epoch of a missing data set takes, timed on noise of its shape, if known.

    Weights do not change the time: the model starts from fresh ones. Of large images, batches are
    small.

    Args:
        recipe: The recipe of the data set.
        samples: How many samples it trains on.
    """
    known = data.known().get(recipe.dataset)
    if known is None or known.shape is None:
        return None
    side = recipe.image_size
    values = math.prod(known.shape if side is None else (known.shape[0], side, side))
    rows = min(recipe.batch_size, max(2, STAND_IN_VALUES // values))
    resolved = recipe.resolved().model_copy(update={"pretrained": None, "batch_size": rows, "accumulate": 1})
    with kept_generators():
        seed_everything(0, "timing")
        try:
            learner = learner_on(resolved, stand_in(known, STAND_IN_BATCHES * rows))
        except ValueError:  # a model of a hub that is not here either
            return None
        return seconds_of_step(learner) * samples / rows


def stand_in(known: data.Dataset[...], rows: int) -> data.Splits:
    """Noise in the shape of a data set of images or tokens."""
    assert known.shape is not None and known.num_classes is not None  # noqa: S101, PT018 - published sets have both
    if known.vocabulary is None:
        inputs = torch.randint(0, 256, (rows, *known.shape), dtype=torch.uint8)
    else:
        inputs = torch.randint(1, known.vocabulary, (rows, *known.shape))
    part = data.Part(inputs=inputs, labels=torch.arange(rows) % known.num_classes)
    return data.Splits(
        name="stand-in",
        kind="image" if known.vocabulary is None else "tokens",
        classes=tuple(map(str, range(known.num_classes))),
        train=part,
        val=part,
        test=part,
        vocabulary=known.vocabulary,
    )


def learner_of(ledger: Ledger, dataset: LocalDataSet, recipe: Recipe) -> Learner:
    """What a recipe trains on a data set, before its first step."""
    resolved = recipe.resolved()
    splits = splits_for(resolved, ledger.catalog.splits(dataset), ledger.catalog.root)
    return learner_on(resolved, splits)


def learner_on(resolved: Recipe, splits: data.Splits) -> Learner:
    """What a resolved recipe trains on given data, before its first step."""
    model = model_for(resolved, splits, None)
    return engine.learner_for(resolved, model, splits, engine.accelerator_for(resolved))


def seconds_of_step(learner: Learner) -> float:
    """What a step takes once warm: the mean of an epoch, or of what ten seconds hold."""
    timed(learner, WARM_STEPS, longest=1)
    seconds, taken = timed(learner, longest=LONGEST)
    return seconds / taken


def timed(learner: Learner, steps: int | None = None, longest: float = math.inf) -> tuple[float, int]:
    """The time of some steps, broken off after so many seconds, and how many they were."""
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

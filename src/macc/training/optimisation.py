"""Optimisers, and learning rates as pure functions of the step: a schedule has no state to lose."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from macc.training.recipe import Adam, AdamW, Constant, Cosine, MultiStep, OneCycle, Recipe


def build_optimiser(recipe: Recipe, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The recipe's optimiser over the parameters that are trained."""
    settings = recipe.optimiser
    if isinstance(settings, AdamW):
        kind: type[torch.optim.Adam] = torch.optim.AdamW
    elif isinstance(settings, Adam):
        kind = torch.optim.Adam
    else:
        return torch.optim.SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            nesterov=settings.nesterov,
        )
    return kind(parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay)


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0 over the whole run.

    Example:
        >>> from macc.training import load
        >>> recipe = load("digits", overrides=["schedule={name: multistep, milestones: [10, 20]}"]).resolved()
        >>> [round(learning_rate(recipe, 5 * epoch, 5), 7) for epoch in (0, 9, 10, 20)]
        [0.05, 0.05, 0.005, 0.0001]
    """
    return recipe.optimiser.lr * _factor(recipe, step, steps_per_epoch)


def _factor(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    schedule, total = recipe.schedule, recipe.epochs * steps_per_epoch
    if isinstance(schedule, Constant):
        return 1.0
    if isinstance(schedule, MultiStep):
        passed = sum(step // steps_per_epoch >= milestone for milestone in schedule.milestones)
        if passed < len(schedule.milestones):
            return schedule.factor**passed
        assert not isinstance(schedule.last_factor, str), "the engine trains resolved recipes"  # noqa: S101
        return schedule.factor ** (passed - 1) * schedule.last_factor
    if isinstance(schedule, Cosine):
        rise = round(schedule.warmup * steps_per_epoch)
        if step < rise:
            return (step + 1) / rise
        return _between(1.0, schedule.final, (step - rise) / max(1, total - rise))
    assert isinstance(schedule, OneCycle)  # noqa: S101
    # The turning point and the end are those of torch's OneCycleLR.
    turn = schedule.rise * total - 1
    if turn > 0 and step <= turn:
        return _between(schedule.start, 1.0, step / turn)
    return _between(1.0, schedule.final, (step - turn) / (total - 1 - turn))


def _between(start: float, end: float, share: float) -> float:
    """From ``start`` to ``end`` along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2

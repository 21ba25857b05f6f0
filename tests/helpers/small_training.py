"""Trainings of seconds: a small network on small features, and digits cut short."""

import torch
from torch import nn
from torch.nn import functional as F

from macc import training
from macc.training import loading as recipes
from macc.training.recipe import Recipe


def small(*overrides, loss="CrossEntropy"):
    """The recipe of digits with fewer images and epochs."""
    return recipes.load("digits", loss=loss, overrides=["subset.train=320", "epochs=2", *overrides])


def tabular(n=400, classes=3, seed=0):
    """Separable features, in splits."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    inputs = torch.randn(n, 6, generator=generator) + 2 * F.one_hot(labels, 6)
    cuts = {"train": slice(0, n // 2), "val": slice(n // 2, 3 * n // 4), "test": slice(3 * n // 4, n)}
    return {name: (inputs[cut], labels[cut]) for name, cut in cuts.items()}


def own_recipe(**changes):
    """A recipe for :func:`network` and :func:`tabular`."""
    values = {
        "dataset": "mine", "model": "mine", "loss": "CrossEntropy", "epochs": 2, "batch_size": 20,
        "optimiser": {"name": "sgd", "lr": 0.1}, "selection": "val_accuracy",
    }  # fmt: skip
    return Recipe(**{**values, **changes})


def network(outputs=3):
    """A small network for :func:`tabular`, with the same weights at each call."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))


def trained(recipe, parts=None, model=None, **options):
    """The run of a recipe on small features, and the model it has trained."""
    model = model or network()
    run = training.fit(recipe, model=model, data=parts or tabular(), **options)
    return run, model

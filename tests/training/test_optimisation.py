"""Schedules are those of torch, and every optimiser learns."""

import math

import pytest
import torch
from torch import nn

from helpers.small_training import own_recipe, trained
from macc.training import loading as recipes
from macc.training import optimisation


def schedule(text, epochs=12, steps=7):
    recipe = recipes.load(
        "digits", loss="CrossEntropy", overrides=[f"epochs={epochs}", f"schedule={text}"]
    ).resolved()
    return [optimisation.learning_rate(recipe, step, steps) for step in range(epochs * steps)]


def of_torch(make, epochs=12, steps=7, *, every=1, lr=0.05):
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, rates = make(optimiser), []
    for step in range(epochs * steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if (step + 1) % every == 0:
            scheduler.step()
    return rates


def test_schedules_are_those_of_torch():
    kinds = torch.optim.lr_scheduler
    expected = of_torch(lambda o: kinds.MultiStepLR(o, [4, 9]), every=7)
    assert schedule("{name: multistep, milestones: [4, 9]}") == pytest.approx(expected)
    assert schedule("{name: cosine}") == pytest.approx(of_torch(lambda o: kinds.CosineAnnealingLR(o, 84)))
    expected = of_torch(lambda o: kinds.OneCycleLR(o, 0.05, total_steps=84))
    assert schedule("{name: onecycle}") == pytest.approx(expected, rel=1e-6)
    assert set(schedule("{name: constant}")) == {0.05}


def test_the_last_milestone_has_its_own_factor():
    rates = schedule("{name: multistep, milestones: [4, 9], last_factor: 0.02}", steps=1)

    assert rates == pytest.approx([0.05] * 4 + [0.005] * 5 + [0.0001] * 3)


def test_a_warm_up_rises_to_the_full_rate():
    rates = schedule("{name: cosine, warmup: 2, final: 0.1}", steps=5)

    assert rates[:10] == pytest.approx([0.005 * (i + 1) for i in range(10)])
    assert max(rates) == pytest.approx(0.05)
    assert rates[-1] == pytest.approx(0.005, rel=0.02)


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_short_one_cycles_stay_finite(epochs):
    rates = schedule("{name: onecycle}", epochs=epochs, steps=1)

    assert all(math.isfinite(rate) and 0 <= rate <= 0.05 for rate in rates)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_every_optimiser_learns(tmp_path, name):
    run, _ = trained(own_recipe(epochs=4, optimiser={"name": name, "lr": 0.02}), out=tmp_path)

    assert run.history[-1]["train/loss"] < run.history[0]["train/loss"]
    assert run.metrics["test"]["accuracy"]["value"] > 0.6

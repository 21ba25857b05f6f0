"""What an experiment would take, also where the data are missing."""

import pytest

from macc.experiments import estimates
from macc.experiments.estimates import DataSetCost, seconds_without_data
from macc.training import loading


@pytest.mark.parametrize(
    "recipe",
    [
        loading.load("newsgroups", overrides=["text_length=30", "batch_size=4"]),
        loading.load("mendeley", overrides=["image_size=32", "batch_size=4"]),
    ],
    ids=lambda recipe: recipe.dataset,
)
def test_texts_and_models_without_their_weights_are_timed_on_noise(recipe, monkeypatch):
    monkeypatch.setattr(estimates, "LONGEST", 0)

    assert seconds_without_data(recipe, 100) > 0


def test_batches_of_large_images_are_small(monkeypatch):
    seen = []
    monkeypatch.setattr(estimates, "learner_on", lambda recipe, splits: seen.append((recipe, splits)))
    monkeypatch.setattr(estimates, "seconds_of_step", lambda _: 3.0)

    assert seconds_without_data(loading.load("mendeley"), 4709) == 3.0 * 4709 / 3
    ((recipe, splits),) = seen
    assert recipe.batch_size == 3
    assert splits.train.inputs.shape == (24, 1, 832, 832)
    assert seconds_without_data(loading.load("cifar10"), 45_000) == 3.0 * 45_000 / 128


def test_a_frozen_backbone_is_timed_as_such():
    recipe = loading.load("mendeley", overrides=["image_size=32", "pretrained=null"]).resolved()
    learner = estimates.learner_on(recipe, estimates.stand_in(estimates.data.known()["chest_xray"], 8))

    assert not learner.model.conv1.weight.requires_grad
    assert learner.model.fc.out.weight.requires_grad


def test_what_is_left_is_epochs_times_trainings():
    share = DataSetCost("d", trainings=5, done=2, epochs=10, seconds=1.5, samples=None)

    assert share.seconds_left == 45
    assert DataSetCost("d", 5, 7, 10, 1.5, None).seconds_left == 0

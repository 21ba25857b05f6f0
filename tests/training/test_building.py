"""What a recipe names is built: the model, the data, the weights of classes."""

import pytest
import torch

import macc
from helpers.small_training import own_recipe, small
from macc import data
from macc.data import Part, Splits
from macc.training import engine
from macc.training import loading as recipes
from macc.training.building import build_model, splits_for


def test_balanced_classes_weigh_inversely_to_their_number():
    recipe = recipes.load("digits", loss="CrossEntropy", overrides=["class_weight=balanced"]).resolved()
    splits = data.load("digits").make_imbalanced(10, seed=0)
    learner = engine.learner_for(
        recipe,
        macc.models.build("small_cnn", num_classes=10, in_channels=1),
        splits,
        engine.accelerator_for(recipe),
    )
    counts = splits.train.counts(10)

    torch.testing.assert_close(learner.criterion.weight * counts, torch.full((10,), counts.sum() / 10.0))


def test_texts_are_read_by_their_last_words():
    tokens = torch.randint(1, 50, (6, 40), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    part = Part(inputs=tokens, labels=torch.arange(6) % 3)
    texts = Splits(
        name="texts", kind="tokens", classes=("a", "b", "c"), train=part, val=part, test=part, vocabulary=50
    )
    short, whole = (
        build_model(own_recipe(model="gpcnn", text_length=length).resolved(), texts).eval()
        for length in (25, None)
    )

    torch.testing.assert_close(short(tokens), whole(tokens[:, -25:]))
    assert not torch.allclose(short(tokens), whole(tokens))
    with pytest.raises(ValueError, match="text_length: digits has no texts; leave it out"):
        build_model(small("text_length=5").resolved(), data.load("digits"))


def test_a_recipe_says_how_images_are_changed_in_training():
    recipe = small("augmentation.pad=2", "augmentation.flip=true")
    assert splits_for(recipe, None, None).augmentation == data.Augmentation(pad=2, flip=True)
    assert splits_for(small(), None, None).augmentation is None
    assert "augmentation" in recipe.deciding()
    assert "augmentation" not in small().deciding()  # runs from before there was one keep their hash
    part = Part(inputs=torch.zeros(4, 3), labels=torch.tensor([0, 1, 0, 1]))
    features = Splits(name="rows", kind="features", classes=("a", "b"), train=part, val=part, test=part)
    with pytest.raises(ValueError, match="augmentation: rows has no images; leave it out"):
        splits_for(own_recipe(augmentation={"flip": True}), features, None)

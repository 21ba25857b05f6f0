"""A frozen backbone runs once over the data, where nothing changes its features."""

from dataclasses import replace

import pytest
import torch

import macc
from helpers.small_training import own_recipe
from macc import data, training
from macc.cli import displays
from macc.data import Part, Splits
from macc.training import frozen


def images(augmentation=None):
    generator = torch.Generator().manual_seed(0)

    def part(n):
        labels = torch.arange(n) % 3
        pixels = torch.rand(n, 3, 16, 16, generator=generator)
        pixels[torch.arange(n), labels] += 0.5
        return Part(inputs=pixels, labels=labels)

    return Splits(
        name="mine", kind="image", classes=("a", "b", "c"), train=part(96), val=part(48), test=part(48),
        augmentation=augmentation,
    )  # fmt: skip


def frozen_run(tmp_path, monkeypatch, augmentation=None, **changes):
    """The run, the model, and how many samples went through its backbone."""
    torch.manual_seed(0)
    model, seen = macc.models.build("resnet20", num_classes=3), []
    model.conv1.register_forward_hook(lambda _m, inputs, _o: seen.append(len(inputs[0])))
    slow = {"name": "sgd", "lr": 0.01}
    recipe = own_recipe(
        freeze="backbone", epochs=4, batch_size=24, loss="Focal + MACC", optimiser=slow, **changes
    )
    run = training.fit(
        recipe, model=model, data=images(augmentation), out=tmp_path, display=displays.of_training()
    )
    return run, model, sum(seen)


def test_a_frozen_backbone_runs_once_over_the_data(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    before = macc.models.build("resnet20", num_classes=3).state_dict()
    run, model, samples = frozen_run(tmp_path, monkeypatch)

    assert samples == 96 + 48 + 48
    assert "running the frozen backbone once over 192 samples" in capsys.readouterr().out
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith("fc."), name
    assert run.weights().keys() == before.keys()
    logits, _ = run.predictions("test")
    torch.testing.assert_close(logits, model(images().test.inputs), rtol=1e-4, atol=1e-4)
    assert run.history[-1]["train/loss"] < run.history[0]["train/loss"]


def test_a_frozen_backbone_also_runs_once_over_a_shifted_set_that_is_predicted_each_epoch(tmp_path):
    splits = replace(images(), shifts={"dark-1": images().test, "dark-2": images().test})
    torch.manual_seed(0)
    model, seen = macc.models.build("resnet20", num_classes=3), []
    model.conv1.register_forward_hook(lambda _m, inputs, _o: seen.append(len(inputs[0])))
    run = training.fit(
        own_recipe(freeze="backbone", epochs=3, batch_size=24, epoch_predictions=["test", "dark-2"]),
        model=model, data=splits, out=tmp_path,
    )  # fmt: skip

    assert sum(seen) == 96 + 3 * 48
    assert torch.equal(run.predictions("epochs/dark-2-3")[0], run.predictions("epochs/test-3")[0])


@pytest.mark.parametrize(
    ("changes", "reason"), [({"freeze_bn": False}, "statistics move"), ({}, "augmented at random")]
)
def test_a_backbone_that_changes_runs_in_every_step(tmp_path, monkeypatch, capsys, changes, reason):
    augmentation = None if changes else data.Augmentation(flip=True)
    _, model, samples = frozen_run(tmp_path, monkeypatch, augmentation, **changes)
    drifted = not torch.equal(model.bn1.running_mean, torch.zeros(16))

    assert samples > 4 * 96
    assert reason in capsys.readouterr().out
    assert drifted == ("freeze_bn" in changes)
    assert not any(p.requires_grad for name, p in model.named_parameters() if not name.startswith("fc"))


def test_features_that_do_not_fit_are_not_cached(monkeypatch):
    monkeypatch.setattr(frozen, "CACHE_BYTES", 1000)
    model = macc.models.build("resnet20", num_classes=3)

    assert "of memory" in frozen.why_not_cached(images(), model, freeze_bn=True)

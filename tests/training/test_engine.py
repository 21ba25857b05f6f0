"""What a step computes, and when training stops or speaks up."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import macc
from helpers.small_training import network, own_recipe, small, tabular, trained
from macc import data, losses, training
from macc.cli import displays
from macc.training import engine, selection


def test_one_epoch_is_the_plain_loop(tmp_path):
    """The engine on the caller's tensors against the loop that anyone would write."""
    run, model = trained(own_recipe(epochs=1, selection="last"), out=tmp_path)
    plain, (x, y) = network(), tabular()["train"]
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    from macc.training.randomness import derived_seed

    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(derived_seed(0, 1, "batches")))
    values = []
    for rows in order.split(20):
        optimiser.zero_grad()
        loss = F.cross_entropy(plain(x[rows]), y[rows])
        loss.backward()
        optimiser.step()
        values.append(loss.item())

    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert run.history[0]["train/loss"] == pytest.approx(np.mean(values), rel=1e-6)


def test_history_has_the_mean_variance_of_the_logits_where_a_head_gives_it(tmp_path):
    recipe = own_recipe(loss="CrossEntropy + MACC", epochs=1, optimiser={"name": "sgd", "lr": 1e-12})
    model = macc.attach(network(), p=0.4, estimator="analytic")
    run, _ = trained(recipe, model=model, out=tmp_path / "head")
    plain, _ = trained(own_recipe(epochs=1), out=tmp_path / "plain")
    with torch.no_grad():
        expected = float(macc.moments(model, tabular()["train"][0]).variance.mean())

    assert run.history[0]["train/u"] == pytest.approx(expected, rel=1e-5)
    assert "train/u" not in plain.history[0]


class Wrapped(nn.Module):
    """A model whose logits stand in something else."""

    def __init__(self, wrap):
        super().__init__()
        self.body, self.wrap = network(), wrap

    def forward(self, x):
        return self.wrap(self.body(x))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: {"features": 0, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
        lambda logits: (logits, "auxiliary"),
    ],
    ids=["dict", "object", "tuple"],
)
def test_what_attach_reads_is_trained(tmp_path, wrap):
    recipe = own_recipe(loss="CrossEntropy + MACC", epochs=1)
    plain, _ = trained(recipe, out=tmp_path / "plain")
    model = macc.attach(Wrapped(wrap), example=tabular()["val"][0])
    run, _ = trained(recipe, model=model, out=tmp_path / "wrapped")

    assert torch.equal(run.predictions("test")[0], plain.predictions("test")[0])


def test_an_output_without_logits_is_refused(tmp_path):
    with pytest.raises(ValueError, match="returned a dict without logits; it must return logits"):
        trained(own_recipe(), model=Wrapped(lambda logits: {"scores": logits}), out=tmp_path)


def test_a_warm_up_counts_steps_and_not_parts_of_a_batch(tmp_path):
    recipe = own_recipe(loss="CrossEntropy + MACC(warmup=50)", accumulate=4, penalty_batch="micro")
    run, _ = trained(recipe, out=tmp_path)
    found = load_file(run.path / "checkpoint" / "2" / "criterion.safetensors")

    assert found == {"penalties.0.penalty.step": torch.tensor(20)}  # 2 epochs of 10 steps


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    _, whole = trained(own_recipe(), out=tmp_path)
    _, parts = trained(own_recipe(accumulate=4), out=tmp_path)

    for ours, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_clipping_bounds_the_step(tmp_path):
    bound = {"name": "sgd", "lr": 1.0, "momentum": 0.0}
    before = network()
    _, after = trained(
        own_recipe(epochs=1, clip=1e-3, batch_size=200, optimiser=bound, selection="last"), out=tmp_path
    )
    moved = torch.cat(
        [(a - b).flatten() for a, b in zip(after.parameters(), before.parameters(), strict=True)]
    )

    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_logits_that_are_not_finite_stop_with_step_values_and_remedy(tmp_path):
    parts = tabular()
    parts["train"][0][195:] = float("nan")
    with pytest.raises(ValueError) as caught:
        trained(own_recipe(loss="CrossEntropy + 0.1*MbLS", batch_size=2), parts, out=tmp_path)
    message = str(caught.value)

    assert "the logits are not finite at step " in message
    assert re.search(
        r"of epoch 1; the step before it had loss [0-9.]+, CrossEntropy [0-9.]+, .*MbLS", message
    )
    assert (
        "try a smaller optimiser.lr, or clip: 1, or a smaller weight or a warm-up of the penalty" in message
    )


def test_a_loss_that_is_not_finite_stops_with_step_values_and_remedy(tmp_path):
    """Finite logits so far apart that the loss is not."""
    far = nn.Linear(6, 3)
    with torch.no_grad():
        far.weight.copy_(3e38 * torch.eye(3, 6))
        far.bias.zero_()
    parts = {
        name: (x.sign().abs() * torch.tensor([1.0, -1, 0, 0, 0, 0]), y) for name, (x, y) in tabular().items()
    }
    with pytest.raises(
        ValueError, match="the loss is not finite at step 1 of epoch 1: loss inf, CrossEntropy inf; try"
    ):
        trained(own_recipe(), parts, model=nn.Sequential(far), out=tmp_path)


def test_the_step_named_is_the_first_that_is_not_finite():
    learner = type("L", (), {})()
    learner.terms, learner.sums, learner.step, learner.epoch = ["loss"], {}, 25, 0
    learner.recipe, learner.criterion = own_recipe(), losses.CrossEntropy()
    learner.unread = [torch.tensor([float("nan") if i >= 7 else 1.0]) for i in range(25)]
    with pytest.raises(ValueError, match="at step 8 of epoch 1: loss nan"):
        engine.read_losses(learner)


def test_collapse_is_said_aloud(tmp_path, capsys):
    dead = own_recipe(epochs=3, optimiser={"name": "sgd", "lr": 1e-9})
    noise = {name: (torch.zeros_like(x), y) for name, (x, y) in tabular().items()}
    training.fit(dead, model=network(), data=noise, out=tmp_path, display=displays.of_training())
    printed = capsys.readouterr().out

    assert printed.count("validation accuracy is at chance") == 1
    assert "lower optimiser.lr" in printed


def test_chance_is_judged_after_the_warm_up_and_over_two_epochs():
    rows = [{"epoch": i, "val/accuracy": a} for i, a in enumerate([0.1, 0.1, 0.9, 0.1, 0.11], start=1)]

    assert selection.at_chance(rows[:2], 0.1, 1000, after=0)
    assert not selection.at_chance(rows[:2], 0.1, 1000, after=2)
    assert not selection.at_chance(rows[:4], 0.1, 1000, after=0)
    assert not selection.at_chance(rows[:1], 0.1, 1000, after=0)


def test_a_model_with_the_wrong_number_of_outputs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="model: it gives outputs of shape .*1.* use one output per class"):
        trained(own_recipe(loss="CrossEntropy + MbLS"), model=network(1), out=tmp_path)
    with pytest.raises(ValueError, match="mine.* has 3 classes"):
        trained(own_recipe(), model=network(5), out=tmp_path)


def test_borders_of_training_images_are_made_once_for_all_epochs(tmp_path, monkeypatch):
    from macc.data import _batches

    made = []
    around = _batches._Bordered.around
    monkeypatch.setattr(_batches._Bordered, "around", lambda *given: made.append(1) or around(*given))
    monkeypatch.setattr(data, "load", with_borders(data.load))
    training.fit(small("epochs=3", "subset.train=64", "subset.val=32", "subset.test=32"), out=tmp_path)

    assert len(made) == 1


def with_borders(load):
    def read(*given, **options):
        return replace(load(*given, **options), augmentation=data.Augmentation(pad=1))

    return read

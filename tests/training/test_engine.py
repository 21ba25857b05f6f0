"""What the engine computes: schedules, accumulation, precision, freezing, selection, and when it stops."""

import gc
import hashlib
import json
import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import macc
from macc import data, losses, training
from macc.data import Part, Splits
from macc.training import engine, frozen, optimisation, selection
from macc.training import loading as recipes
from macc.training._bf16 import ensure_bf16_runs
from macc.training.building import build_model
from macc.training.recipe import Recipe
from macc.training.runs import locked, run_hash, run_path


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Few resamples: intervals are not what is tested."""
    monkeypatch.setattr("macc.training.fitting.RESAMPLES", 100)


def small(*overrides, loss="CrossEntropy"):
    return recipes.load("digits", loss=loss, overrides=["subset.train=320", "epochs=2", *overrides])


def tabular(n=400, classes=3, seed=0):
    """Separable features, in splits."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    inputs = torch.randn(n, 6, generator=generator) + 2 * F.one_hot(labels, 6)
    cuts = {"train": slice(0, n // 2), "val": slice(n // 2, 3 * n // 4), "test": slice(3 * n // 4, n)}
    return {name: (inputs[cut], labels[cut]) for name, cut in cuts.items()}


def own_recipe(**changes):
    values = {
        "dataset": "mine", "model": "mine", "loss": "CrossEntropy", "epochs": 2, "batch_size": 20,
        "optimiser": {"name": "sgd", "lr": 0.1},
    }  # fmt: skip
    return Recipe(**{**values, **changes})


def network(outputs=3):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))


# Schedules


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


# What a step computes


def trained(recipe, parts=None, model=None, **options):
    model = model or network()
    run = training.fit(recipe, model=model, data=parts or tabular(), **options)
    return run, model


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


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_every_optimiser_learns(tmp_path, name):
    run, _ = trained(own_recipe(epochs=4, optimiser={"name": name, "lr": 0.02}), out=tmp_path)

    assert run.history[-1]["train/loss"] < run.history[0]["train/loss"]
    assert run.metrics["test"]["accuracy"]["value"] > 0.6


@pytest.fixture
def bf16():
    try:
        ensure_bf16_runs()
    except ValueError as error:
        pytest.skip(str(error))


def test_bf16_in_a_process_of_its_own(tmp_path):
    """On a machine that names matrix tiles and does not execute them, too."""
    command = ["train", "digits", "--scale", "smoke", "--set", "precision=bf16", "--out", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-m", "macc", *command], capture_output=True, text=True, timeout=120
    )

    assert result.returncode == 0, result.stderr
    assert "cpu, bf16" in result.stdout or torch.accelerator.is_available()


@pytest.mark.usefixtures("bf16")
def test_bf16_trains_and_predicts_in_float32(tmp_path):
    run, model = trained(own_recipe(precision="bf16", loss="CrossEntropy + MACC"), out=tmp_path)
    logits, _ = run.predictions("test")
    x, _ = tabular()["test"]

    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, model(x), rtol=1e-6, atol=1e-6)
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.usefixtures("bf16")
def test_recipes_of_different_precision_train_in_one_process(tmp_path):
    for precision in ("bf16", "fp32", "bf16"):
        run, _ = trained(own_recipe(precision=precision, epochs=1), out=tmp_path)
        assert run.recipe.precision == precision


def test_fp16_without_an_accelerator_is_refused(tmp_path):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.raises(ValueError, match="precision: fp16 needs an accelerator .* write bf16 or fp32"):
        trained(own_recipe(precision="fp16"), out=tmp_path)


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


# When it stops or speaks up


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
    training.fit(dead, model=network(), data=noise, out=tmp_path, show=True)
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


# Selection


def rows(*values):
    return [
        {"epoch": i, "val/accuracy": a, "val/nll": n, "val/sce": s}
        for i, (a, n, s) in enumerate(values, start=1)
    ]


HISTORY = rows(
    (0.900, 0.50, 0.010), (0.903, 0.40, 0.012), (0.906, 0.45, 0.030), (0.906, 0.60, 0.020), (0.7, 0.9, 0.001)
)


@pytest.mark.parametrize(
    ("rule", "epoch"), [("val_accuracy", 3), ("val_nll", 2), ("val_sce", 2), ("last", 5)]
)
def test_each_rule_selects_its_epoch(rule, epoch):
    assert selection.chosen_epoch(HISTORY, rule) == epoch


@pytest.mark.parametrize("rule", ["val_accuracy", "val_nll", "val_sce", "last"])
def test_the_weights_of_whatever_is_chosen_later_are_kept(rule):
    """Epoch by epoch, keeping only candidates, the choice is always among what was kept."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        values = torch.rand(12, 3, generator=generator)
        values[:, 0] = 0.9 + (values[:, 0] * 10).round() / 1000
        history, kept = rows(*values.tolist()), set()
        for end in range(1, 13):
            candidates = selection.candidate_epochs(history[:end], rule)
            assert candidates <= kept | {end}
            kept = candidates
            assert selection.chosen_epoch(history[:end], rule) in kept


def test_the_weights_are_those_of_the_chosen_epoch(tmp_path):
    run, model = trained(own_recipe(epochs=6, optimiser={"name": "sgd", "lr": 0.5}), out=tmp_path)
    best = max(run.history, key=lambda row: row["val/accuracy"])
    x, y = tabular()["val"]

    assert float((model(x).argmax(1) == y).double().mean()) == pytest.approx(best["val/accuracy"])
    assert run.metrics["val"]["accuracy"]["value"] == pytest.approx(best["val/accuracy"])


def test_the_test_set_decides_nothing(tmp_path):
    """Other test labels: other test metrics, the same weights and history."""
    parts = tabular()
    x, y = parts["test"]
    run, model = trained(own_recipe(), parts, out=tmp_path / "a")
    other, again = trained(own_recipe(), {**parts, "test": (x, (y + 1) % 3)}, out=tmp_path / "b")

    assert run.metrics["test"] != other.metrics["test"]
    assert run.metrics["val"] == other.metrics["val"]
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_test_split_is_not_read_before_the_end(tmp_path, monkeypatch):
    seen = []
    whole = engine.predicted_logits
    monkeypatch.setattr(
        engine,
        "predicted_logits",
        lambda learner, part: seen.append((learner.epoch, part)) or whole(learner, part),
    )
    trained(own_recipe(epochs=3), out=tmp_path)

    assert seen == [(1, "val"), (2, "val"), (3, "val"), (3, "val"), (3, "test")]


def test_logits_of_named_splits_are_written_each_epoch(tmp_path):
    run = training.fit(small("epoch_predictions=[test, noise-1]", "selection=last"), out=tmp_path)
    logits, labels = run.predictions("epochs/test-2")

    assert torch.equal(logits, run.predictions("test")[0])
    assert torch.equal(labels, data.load("digits").test.labels)
    assert run.predictions("epochs/noise-1-1")[0].shape == (359, 10)
    assert not torch.equal(run.predictions("epochs/test-1")[0], logits)


# A user's own module and tensors


def test_fit_trains_a_module_of_ones_own_in_place(tmp_path):
    model = network()
    run = training.fit(
        own_recipe(loss="Focal + MACC(warmup=10)", epochs=5), model=model, data=tabular(), out=tmp_path
    )
    x, _ = tabular()["test"]

    assert isinstance(model[2], macc.MCDropoutLinear)
    assert not model.training
    torch.testing.assert_close(run.predictions("test")[0], model(x))
    assert run.metrics["test"]["accuracy"]["value"] > 0.7
    assert run.path.name.startswith("mine-mine-")


def test_other_initial_weights_are_another_run_and_the_same_ones_are_found(tmp_path):
    first, trained_model = trained(own_recipe(), out=tmp_path)
    again, found = trained(own_recipe(), out=tmp_path)
    torch.manual_seed(99)
    other, _ = trained(own_recipe(), model=nn.Sequential(nn.Linear(6, 3)), out=tmp_path)

    assert first == again != other
    for ours, theirs in zip(found.parameters(), trained_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_model_with_a_head_of_its_own_keeps_it(tmp_path):
    model = macc.attach(network(), p=0.4, estimator="analytic")
    trained(own_recipe(loss="CrossEntropy + MACC"), model=model, out=tmp_path)

    assert model[2].p == 0.4


def test_a_run_on_data_of_ones_own_predicts_more_of_them(tmp_path):
    recipe, parts = own_recipe(loss="Focal + MACC"), tabular()
    run, _ = trained(recipe, parts, out=tmp_path)
    found = {name: Part(inputs=x, labels=y) for name, (x, y) in parts.items()}
    found["test"] = Part(inputs=parts["test"][0].flip(0), labels=parts["test"][1].flip(0))
    more = Splits(name="later", kind="features", classes=("0", "1", "2"), **found)
    fresh = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    (written,) = training.predict(run, model=fresh, trained_on=parts, data=more, moments=True)

    assert written.parts[-2:] == ("later", "test.npz")
    # A row's last bits may depend on its place in the batch.
    torch.testing.assert_close(run.predictions("later/test")[0], run.predictions("test")[0].flip(0))
    with pytest.raises(ValueError, match="mine.*data of your own are given as `trained_on`"):
        training.predict(run, model=network())
    with pytest.raises(ValueError, match="its hash differs"):
        training.predict(run, model=network(), trained_on=tabular(n=200))


def test_missing_splits_are_named(tmp_path):
    with pytest.raises(ValueError, match="'val' is missing"):
        training.fit(
            own_recipe(),
            model=network(),
            data={"train": tabular()["train"], "test": tabular()["test"]},
            out=tmp_path,
        )


# Frozen backbones


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
    run = training.fit(recipe, model=model, data=images(augmentation), out=tmp_path, show=True)
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


# Around it


def test_trackers_of_accelerate(tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        run, _ = trained(own_recipe(trackers=["tensorboard"]), out=tmp_path)

    assert list(run.path.rglob("events.out.tfevents*"))


def test_a_tracker_that_is_not_installed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("macc.training.fitting.get_available_trackers", list)
    with pytest.raises(ValueError, match="trackers: mlflow is not installed; pip install mlflow"):
        trained(own_recipe(trackers=["mlflow"]), out=tmp_path)


def test_memory_does_not_grow_over_fifty_epochs(tmp_path, monkeypatch):
    from macc.training.record import Recorder

    counts, whole = [], Recorder.epoch

    def epoch(self, learner):
        whole(self, learner)
        if learner.epoch in (10, 50):
            gc.collect()
            counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))

    monkeypatch.setattr(Recorder, "epoch", epoch)
    trained(own_recipe(epochs=50, loss="CrossEntropy + MACC"), out=tmp_path)

    assert counts[1] <= counts[0]


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


def test_what_a_killed_process_left_in_another_rules_run_is_removed(tmp_path):
    recipe = own_recipe(epochs=6, optimiser={"name": "sgd", "lr": 0.3})
    by_nll = recipe.model_copy(update={"selection": "val_nll"})
    name = training.fit(by_nll, model=network(), data=tabular(), out=tmp_path / "b").path.name
    (tmp_path / "a" / name / "predictions").mkdir(parents=True)
    left = [tmp_path / "a" / name / place for place in (".writing-x", "predictions/.writing-y")]
    for path in left:
        path.write_bytes(b"half")
    training.fit(recipe, model=network(), data=tabular(), out=tmp_path / "a", also=["val_nll"])

    assert training.Run(tmp_path / "a" / name).finished
    assert not any(path.exists() for path in left)


def test_another_rules_epoch_is_left_as_the_run_it_would_give(tmp_path):
    recipe = own_recipe(epochs=6, optimiser={"name": "sgd", "lr": 0.3})
    by_nll = recipe.model_copy(update={"selection": "val_nll"})
    run = training.fit(recipe, model=network(), data=tabular(), out=tmp_path / "a", also=["val_nll", "last"])
    alone = training.fit(by_nll, model=network(), data=tabular(), out=tmp_path / "b")
    twin = training.Run(tmp_path / "a" / alone.path.name)
    chosen = [selection.chosen_epoch(run.history, rule) for rule in ("val_accuracy", "val_nll", "last")]

    assert len(set(chosen)) == 3  # or there is nothing to see
    assert len([path for path in (tmp_path / "a").iterdir() if path.is_dir()]) == 3
    for name in ("recipe.yaml", "best.safetensors", "metrics.json", "predictions/test.npz"):
        assert (twin.path / name).read_bytes() == (alone.path / name).read_bytes(), name
    assert [{**row, "seconds": 0} for row in twin.history] == [{**row, "seconds": 0} for row in alone.history]
    assert twin.environment["run_sha256"] == alone.environment["run_sha256"]
    assert not (run.path / "candidates").exists()
    assert (twin.path / "best.safetensors").read_bytes() != (run.path / "best.safetensors").read_bytes()


def test_a_rule_that_selects_the_same_epoch_leaves_nothing(tmp_path):
    recipe = own_recipe(epochs=1)
    run = training.fit(recipe, model=network(), data=tabular(), out=tmp_path, also=["val_nll"])

    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [run.path]


def test_the_environment_is_recorded(tmp_path):
    run = training.fit(small(), out=tmp_path)
    found = json.loads((run.path / "environment.json").read_text())

    assert found["macc"] == macc.__version__
    assert found["packages"]["torch"] == torch.__version__
    assert found["num_processes"] == 1
    assert found["threads"] == torch.get_num_threads()
    assert found["data_sha256"] == data.load("digits").subset(train=320, seed=0).digest()
    assert run.path.name == f"digits-small_cnn-nll-{found['run_sha256'][:12]}"
    assert {"commit", "processor", "cores", "python", "device"} <= set(found)


def test_a_changed_weight_file_is_another_run(tmp_path):
    path = tmp_path / "w.safetensors"
    recipe = own_recipe(model="linear", pretrained=str(path), epochs=1)
    found = []
    for seed in (0, 1, 0):
        weights = torch.randn(3, 6, generator=torch.Generator().manual_seed(seed))
        save_file({"1.weight": weights, "1.bias": torch.zeros(3)}, path)
        run = training.fit(recipe, data=tabular(), out=tmp_path / "runs")
        assert run.environment["weights_sha256"] == {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
        found.append(run)

    assert found[0] == found[2]
    assert found[0].path != found[1].path
    assert found[0].metrics != found[1].metrics


def test_weights_in_a_folder_are_part_of_a_runs_hash_and_runs_without_keep_theirs(tmp_path):
    folder = own_recipe(model=f"hf:{tmp_path}")
    plain = run_hash(folder, "data")
    (tmp_path / "model.safetensors").write_bytes(b"one")
    one = run_hash(folder, "data")
    (tmp_path / "model.safetensors").write_bytes(b"other")

    assert len({plain, one, run_hash(folder, "data")}) == 3
    parts = [folder.deciding(), "data", macc.__version__, None]
    assert plain == hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize(
    ("change", "another"),
    [
        ({"trackers": ["tensorboard"]}, False),
        ({"eval_batch_size": 7}, False),
        ({"loss": "CrossEntropy+1.0 * MACC()"}, False),
        ({"loss": "CrossEntropy + 2*MACC"}, True),
        ({"precision": "bf16"}, True),
        ({"batch_size": 10}, True),
        ({"epoch_predictions": ["val"]}, True),
        ({"selection": "last"}, True),
        ({"seed": 1}, True),
    ],
)
def test_only_what_changes_the_result_makes_another_run(change, another):
    plain = own_recipe(loss="CrossEntropy + MACC")
    changed = own_recipe(**{"loss": "CrossEntropy + MACC", **change})

    assert (run_hash(changed, "data") != run_hash(plain, "data")) == another


def test_a_finished_run_is_read_while_another_process_holds_it(tmp_path):
    run, model = trained(own_recipe(epochs=1), out=tmp_path)
    again = network()
    with locked(run.path):
        assert training.fit(own_recipe(epochs=1), model=again, data=tabular(), out=tmp_path) == run

    for name, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value)


def test_too_little_memory_is_one_sentence(tmp_path):
    class Greedy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.empty(2**62 // 4).sum()

    with pytest.raises(ValueError, match="not enough memory for a batch; lower batch_size"):
        trained(own_recipe(), model=Greedy(6, 3), out=tmp_path)


def test_names_on_disk_are_plain():
    recipe = own_recipe(
        dataset="arrays:/tmp/Über Data.npz", model="hf:facebook/deit-tiny", loss="Focal(gamma=2) + MACC"
    )
    assert (
        run_path("runs", recipe, "0123456789abcdef").name
        == "arrays-tmp-ber-data.npz-hf-facebook-deit-tiny-fl+macc-0123456789ab"
    )


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

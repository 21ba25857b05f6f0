"""``fit`` with a model and data of one's own, and what it records."""

import gc
import warnings

import pytest
import torch
from torch import nn

import macc
from helpers.small_training import network, own_recipe, small, tabular, trained
from macc import data, losses, training
from macc.data import Part, Splits


def test_logits_of_named_splits_are_written_each_epoch(tmp_path):
    run = training.fit(small("epoch_predictions=[test, noise-1]", "selection=last"), out=tmp_path)
    logits, labels = run.predictions("epochs/test-2")

    assert torch.equal(logits, run.predictions("test")[0])
    assert torch.equal(labels, data.load("digits").test.labels)
    assert run.predictions("epochs/noise-1-1")[0].shape == (359, 10)
    assert not torch.equal(run.predictions("epochs/test-1")[0], logits)


def test_the_text_of_a_loss_is_parsed_once_a_run(tmp_path, monkeypatch):
    seen, parse = [], losses.parse
    monkeypatch.setattr(losses, "parse", lambda text: seen.append(text) or parse(text))
    recipe = own_recipe(loss="Focal(gamma=1.625) + 0.375*MACC")  # as no other test has it
    run, _ = trained(recipe, tabular(), out=tmp_path, resamples=100)

    assert seen == [recipe.loss]
    assert run.path.name.split("-")[-2] == "fl+macc"


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


def test_too_little_memory_is_one_sentence(tmp_path):
    class Greedy(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.empty(2**62 // 4).sum()

    with pytest.raises(ValueError, match="not enough memory for a batch; lower batch_size"):
        trained(own_recipe(), model=Greedy(6, 3), out=tmp_path)

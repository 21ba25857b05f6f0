"""Each rule selects its epoch, and the test set decides nothing."""

from typing import get_args

import pytest
import torch

from helpers.small_training import network, own_recipe, tabular, trained
from macc import metrics, training
from macc.training import engine, selection
from macc.training.recipe import Selection


def rows(*values):
    return [
        {"epoch": i, "val/accuracy": a, "val/nll": n, "val/sce": s, "val/refinement": r}
        for i, (a, n, s, r) in enumerate(values, start=1)
    ]


HISTORY = rows(
    (0.900, 0.50, 0.010, 0.4),
    (0.903, 0.40, 0.012, 0.4),
    (0.906, 0.45, 0.030, 0.4),
    (0.906, 0.60, 0.020, 0.3),
    (0.700, 0.90, 0.001, 0.3),
)


@pytest.mark.parametrize(
    ("rule", "epoch"),
    [("val_accuracy", 3), ("val_nll", 2), ("val_refinement", 4), ("val_sce", 2), ("last", 5)],
)
def test_each_rule_selects_its_epoch(rule, epoch):
    assert selection.chosen_epoch(HISTORY, rule) == epoch


@pytest.mark.parametrize("rule", get_args(Selection))
def test_the_weights_of_whatever_is_chosen_later_are_kept(rule):
    """Epoch by epoch, keeping only candidates, the choice is always among what was kept."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        values = torch.rand(12, 4, generator=generator)
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


def test_the_default_is_the_loss_after_temperature_scaling(tmp_path):
    values = own_recipe(epochs=8, optimiser={"name": "sgd", "lr": 1.0}).to_dict()
    del values["selection"]
    recipe = training.Recipe(**values)
    run, model = trained(recipe, out=tmp_path)
    best = min(run.history, key=lambda row: row["val/refinement"])
    x, y = tabular()["val"]

    assert recipe.selection == "val_refinement"
    assert best["val/refinement"] < run.history[-1]["val/refinement"]  # or there is nothing to see
    assert metrics.refinement(model(x), y, from_logits=True) == pytest.approx(best["val/refinement"])


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
    for name in (
        "recipe.yaml",
        "best.safetensors",
        "calibrator.json",
        "metrics.json",
        "predictions/test.npz",
    ):
        assert (twin.path / name).read_bytes() == (alone.path / name).read_bytes(), name
    assert [{**row, "seconds": 0} for row in twin.history] == [{**row, "seconds": 0} for row in alone.history]
    assert twin.environment["run_sha256"] == alone.environment["run_sha256"]
    assert not (run.path / "candidates").exists()
    assert (twin.path / "best.safetensors").read_bytes() != (run.path / "best.safetensors").read_bytes()


def test_a_rule_that_selects_the_same_epoch_leaves_nothing(tmp_path):
    recipe = own_recipe(epochs=1)
    run = training.fit(recipe, model=network(), data=tabular(), out=tmp_path, also=["val_nll"])

    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [run.path]

"""Training in stages: the body first, then its classifier again."""

import pytest
import torch

from helpers.small_training import small
from macc import experiments, training
from macc.training.recipe import Recipe

CLASSIFIER = "11.weight"


def staged(*overrides, stages="[{epochs: 2}]"):
    return small("subset.val=60", "subset.test=60", f"stages={stages}", *overrides)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return training.fit(staged(), out=out, resamples=100)


def test_the_body_stays_and_the_classifier_starts_anew(finished):
    first = training.fit(staged().earlier(), out=finished.path.parent)

    assert len(list(finished.path.parent.iterdir())) == 2  # what was found, not trained again
    assert first.recipe.stages == []
    before, after = first.weights(), finished.weights()
    different = {name for name in after if not torch.equal(before[name], after[name])}
    assert different == {"11.weight", "11.bias"}
    assert len(finished.history) == 2
    assert finished.environment["weights_sha256"].keys() == {"best.safetensors"}


@pytest.mark.parametrize("fresh", [True, False])
def test_the_classifier_starts_anew_or_goes_on(finished, fresh):
    still = f"[{{epochs: 1, fresh_classifier: {str(fresh).lower()}, optimiser: {{name: sgd, lr: 1.0e-12}}}}]"
    run = training.fit(staged(stages=still), out=finished.path.parent, resamples=100)
    first = training.fit(staged().earlier(), out=finished.path.parent)

    same = torch.allclose(run.weights()[CLASSIFIER], first.weights()[CLASSIFIER])
    assert same is not fresh


def test_a_stage_with_another_loss_gets_its_head(finished):
    recipe = staged(stages="[{epochs: 1, loss: CrossEntropy + MACC, head: {p: 0.4}}]")
    run = training.fit(recipe, out=finished.path.parent, resamples=100)

    assert "train/MACC" in run.history[0]
    training.predict(run, out=run.path / "again", moments=True)
    assert training.open_run(run.path).recipe.final().head.p == 0.4


def test_broken_off_in_the_last_stage_it_ends_as_if_nothing_had_happened(finished, tmp_path):
    class Broken(Exception):
        pass

    def stop(row):
        raise Broken

    with pytest.raises(Broken):
        training.fit(staged(), out=tmp_path, resamples=100, on_epoch=stop)
    run = training.fit(staged(), out=tmp_path, resamples=100)

    assert run.path.name == finished.path.name
    for name, tensor in finished.weights().items():
        assert torch.equal(run.weights()[name], tensor)


def test_recipes_without_stages_keep_their_hash():
    assert "stages" not in small().deciding()
    assert "stages" in staged().deciding()
    assert Recipe(**staged().to_dict()).to_dict() == staged().to_dict()


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{}], r"'stages.0.epochs' is missing|stages.0.epochs"),
        (
            [{"epochs": 1, "fresh": True}],
            "unknown key 'stages.0.fresh'; did you mean 'freeze'|fresh_classifier",
        ),
        ([{"epochs": 1, "loss": "Nonsense"}], "stages.0.loss: cannot read loss 'Nonsense'"),
        (
            [{"epochs": 2, "schedule": {"name": "multistep", "milestones": [3]}}],
            "stages.0.schedule.milestones: epoch 3",
        ),
    ],
)
def test_mistakes_are_named(stages, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**{**small().to_dict(), "stages": stages})


def test_a_model_of_ones_own_has_one_stage():
    with pytest.raises(ValueError, match="stages: a model of your own is trained in one stage"):
        training.fit(staged(), model=torch.nn.Linear(64, 10))


def test_an_experiment_compares_stages(tmp_path):
    mine = experiments.Experiment.model_validate(
        {
            "name": "mine", "datasets": "digits", "seeds": 1, "tests": {"test": "test"}, "columns": ["nll"],
            "set": {"epochs": 2, "subset.train": 320, "subset.val": 60, "subset.test": 60},
            "methods": [
                {"name": "one", "loss": "CrossEntropy"},
                {"name": "two", "loss": "CrossEntropy", "set": {"stages": [{"epochs": 1}]}},
            ],
        }
    )  # fmt: skip
    result = experiments.run(mine, out=tmp_path, workers=1)

    assert [result.cell("digits", "test", name, "nll") is not None for name in ("one", "two")] == [True, True]

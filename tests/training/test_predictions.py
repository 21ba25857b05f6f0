"""After training: other data, noise, moments, ensembles; and the commands for them."""

import json
import re
import shutil
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from helpers.command import run
from helpers.stored import arrays
from macc import data, metrics, training
from macc.training import loading as recipes

pytestmark = pytest.mark.xdist_group("predictions")  # one pytest worker, so that the runs are trained once


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three finished runs on the digits: two seeds with a head, one without."""
    out = tmp_path_factory.mktemp("runs")
    patch = pytest.MonkeyPatch()
    patch.setattr("macc.training.fitting.RESAMPLES", 100)
    with patch.context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = [training.fit(recipes.load("digits", scale="smoke", seed=seed), out=out) for seed in (0, 1)]
        plain = recipes.load("digits", scale="smoke", loss="CrossEntropy")
        found.append(training.fit(plain, out=out))
    patch.undo()
    return found


def test_shifted_test_sets_by_the_command(runs):
    result = run("predict", runs[0].path, "--on", "digits")

    assert result.code == 0, result.err
    assert len(result.out.splitlines()) == 10
    clean, labels = runs[0].predictions("test")
    light, _ = runs[0].predictions("digits/noise-1")
    heavy, noisy_labels = runs[0].predictions("digits/noise-5")
    accuracies = [metrics.accuracy(z, labels, from_logits=True) for z in (clean, light, heavy)]
    assert torch.equal(labels, noisy_labels)
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[0] > accuracies[2]


def test_predicting_again_gives_the_same_logits(runs, tmp_path):
    written = training.predict(runs[0], out=tmp_path)

    assert [path.name for path in written] == ["val.npz", "test.npz"]
    for path in written:
        assert np.array_equal(arrays(path)["logits"], runs[0].predictions(path.stem)[0].numpy())


def test_moments(runs, tmp_path):
    (_, test) = training.predict(runs[0], moments=True, out=tmp_path)
    found = arrays(test)

    assert found["mean"].shape == found["variance"].shape == (359, 10)
    assert (found["variance"] > 0).all()
    assert np.corrcoef(found["mean"].ravel(), found["logits"].ravel())[0, 1] > 0.95
    again = arrays(training.predict(runs[0], moments=True, out=tmp_path / "again")[1])
    assert np.array_equal(found["variance"], again["variance"])


def test_moments_need_a_head(runs, tmp_path):
    result = run("predict", runs[2].path, "--moments")

    assert result.code == 2
    assert "has no MC-dropout head" in result.err
    assert len(result.err.splitlines()) == 1


def test_perturbed_validation_logits_fall_in_equal_steps_to_chance(runs, tmp_path):
    written = training.predict(runs[0], perturb=True, out=tmp_path)
    clean, labels = runs[0].predictions("val")
    accuracies, noise = [metrics.accuracy(clean, labels, from_logits=True)], []
    for path in written:
        found = arrays(path)
        accuracies.append(metrics.accuracy(found["logits"], found["labels"], from_logits=True))
        noise.append(float(found["noise"]))

    assert [path.name for path in written] == [f"gaussian-{level}.npz" for level in range(1, 11)]
    assert noise == sorted(noise)
    wanted = np.linspace(accuracies[0], 0.1, 11)
    assert np.abs(np.array(accuracies) - wanted).max() < 0.05


def test_tokens_unknown_to_the_run_are_refused():
    from macc.training.building import own_splits
    from macc.training.predictions import _parts

    tokens, labels = torch.arange(40).view(4, 10), torch.arange(4) % 2
    own, more = (
        own_splits("texts", dict.fromkeys(("train", "val", "test", "b"), (t, labels)))
        for t in (tokens, tokens + 5)
    )
    recipe = recipes.load("digits")

    assert (own.vocabulary, more.vocabulary) == (40, 45)
    assert [name for name, *_ in _parts(recipe, own, own, None, perturb=False)] == ["texts/b"]
    with pytest.raises(ValueError, match="texts has token ids below 45, the run was trained on ids below 40"):
        _parts(recipe, own, more, None, perturb=False)


def test_perturbed_logits_have_moments_too(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("macc.training.predictions.NOISE_LEVELS", 2)
    monkeypatch.setattr("macc.training.predictions.BISECTIONS", 2)
    result = run("predict", runs[0].path, "--perturb", "--moments", "-o", tmp_path)
    found = [arrays(path) for path in result.out.split()]

    assert len(found) == 2, result.err
    for one in found:
        assert (one["variance"] > 0).all()
        assert np.corrcoef(one["mean"].ravel(), one["logits"].ravel())[0, 1] > 0.95
    assert not np.array_equal(found[0]["mean"], found[1]["mean"])


def test_noise_on_tokens_is_refused():
    from macc.training.predictions import _perturbed

    tokens = data.Part(inputs=torch.zeros(4, 30, dtype=torch.int64), labels=torch.arange(4) % 2)
    splits = data.Splits(
        name="texts", kind="tokens", classes=("a", "b"), train=tokens, val=tokens, test=tokens
    )
    with pytest.raises(ValueError, match="tokens are no numbers"):
        next(_perturbed(nn.Identity(), splits, 4, torch.device("cpu")))


def test_other_classes_are_refused(runs):
    with pytest.raises(ValueError, match="they must be the same"):
        training.predict(runs[0], data="synthetic")


def test_all_rows_of_a_file_without_splits_are_predicted_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, count in (("site1", 100), ("site2", 60)):
        labels = rng.integers(0, 3, count)
        np.savez(f"{name}.npz", features=rng.normal(size=(count, 4)) + labels[:, None], labels=labels)
    settings = ["dataset=arrays:site1.npz", "epochs=1", "model=linear", "subset.test=5"]
    trained = training.fit(
        recipes.load("embeddings", loss="CrossEntropy", overrides=settings), out="runs", resamples=100
    )
    result = run("predict", trained.path, "--on", "arrays:site2.npz")

    assert result.code == 0, result.err
    logits, labels = trained.predictions("site2/test")
    given = arrays(tmp_path / "site2.npz")
    assert labels.tolist() == given["labels"].tolist()
    train = data.load("arrays:site1.npz")
    model = training.building.build_model(trained.recipe, train)
    model.load_state_dict(trained.weights())
    inputs = train.normalisation(torch.from_numpy(given["features"]).float())
    torch.testing.assert_close(logits, model(inputs).detach())
    again = run("predict", trained.path, "--on", f"arrays:{tmp_path / 'site1.npz'}")
    assert "site1 is what the run was trained on and has no shifted test set" in again.err


def test_missing_data_files_are_looked_for_where_root_says(runs, tmp_path, monkeypatch):
    monkeypatch.setenv("MACC_OFFLINE", "1")
    result = run("predict", runs[0].path, "--on", "cifar10_c", "--data", tmp_path)

    assert result.code == 2
    assert f"cifar10 is not in {tmp_path} " in result.err
    assert "say where it is with --data or $MACC_DATA" in result.err


def test_a_data_set_given_as_the_folder_is_refused(runs):
    result = run("predict", runs[0].path, "--data", "cifar10_c")

    assert result.code == 2
    assert (
        result.err
        == "macc: `--data` is the folder with data files; the data set to predict is --on cifar10_c\n"
    )


def test_the_mean_of_probabilities(runs, tmp_path):
    path = tmp_path / "ensemble.npz"
    result = run("ensemble", runs[0].path, runs[1].path, runs[2].path, "-o", path)
    found = arrays(path)
    expected = torch.stack([run.predictions("test")[0].double().softmax(1) for run in runs]).mean(0)

    assert result.out.strip() == str(path)
    assert set(found) == {"logits", "labels"}
    np.testing.assert_allclose(torch.from_numpy(found["logits"]).softmax(1), expected, rtol=1e-12)
    one = [metrics.nll(run.predictions("test")[0], found["labels"], from_logits=True) for run in runs]
    assert metrics.nll(found["logits"], found["labels"], from_logits=True) < max(one)


def test_what_an_ensemble_writes_can_be_measured_and_repaired(runs, tmp_path):
    path = tmp_path / "ensemble.npz"
    run("ensemble", runs[0].path, runs[1].path, "-o", path)
    measured = run("evaluate", path)
    repaired = run(
        "calibrate", "--resamples", "100", "--fit", path, "--apply", path, "-o", tmp_path / "repaired.npz"
    )

    assert measured.code == 0, measured.err
    assert "accuracy" in measured.out
    assert repaired.code == 0, repaired.err


def test_ensembles_that_make_no_sense(runs, tmp_path):
    with pytest.raises(ValueError, match="at least two runs"):
        training.ensemble(runs[:1], tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"\.npz"):
        training.ensemble(runs, tmp_path / "a.csv")
    with pytest.raises(ValueError, match="has no predictions 'train'; there are "):
        training.ensemble(runs, tmp_path / "a.npz", split="train")


def test_a_folder_that_is_no_finished_run(runs, tmp_path):
    with pytest.raises(ValueError, match=r"no recipe\.yaml"):
        training.open_run(tmp_path)
    (tmp_path / "recipe.yaml").write_bytes((runs[0].path / "recipe.yaml").read_bytes())
    with pytest.raises(ValueError, match="is not finished"):
        training.open_run(tmp_path)


def test_damaged_weights_are_one_sentence(runs, tmp_path):
    for name in ("recipe.yaml", "metrics.json", "environment.json"):
        (tmp_path / name).write_bytes((runs[0].path / name).read_bytes())
    (tmp_path / "best.safetensors").write_bytes((runs[0].path / "best.safetensors").read_bytes()[:200])
    with pytest.raises(ValueError, match="is damaged"):
        training.predict(training.open_run(tmp_path))


def test_the_train_command_says_what_it_did(tmp_path):
    result = run(
        "train",
        "digits",
        "--scale",
        "smoke",
        "--set",
        "epochs=1",
        "--loss",
        "CrossEntropy",
        "--out",
        tmp_path,
    )
    lines = result.out.splitlines()

    assert result.code == 0, result.err
    assert lines[0] == "digits, small_cnn (scale: smoke): CrossEntropy; no MC-dropout head"
    assert lines[1].startswith("1295 samples to train, 143 to validate, 359 to test; 1 epochs on ")
    assert lines[2].startswith("epoch 1/1  CrossEntropy ")
    assert "val accuracy " in lines[2]
    assert "ECE " in lines[2]
    assert "0 s left" in lines[2]
    assert "accuracy %" in result.out
    assert "best.safetensors" in result.out
    assert result.err == ""
    again = run(
        "train",
        "digits",
        "--scale",
        "smoke",
        "--set",
        "epochs=1",
        "--loss",
        "CrossEntropy",
        "--out",
        tmp_path,
    )
    assert "is finished already" in again.out


@pytest.mark.parametrize("command", ["train", "predict", "ensemble"])
def test_a_place_below_a_file_is_one_sentence(runs, tmp_path, command):
    file = tmp_path / "file"
    file.write_text("")
    first, second = (one.path for one in runs[:2])
    words, reason = {
        "train": (["digits", "--scale", "smoke", "--out", file], "Not a directory"),
        "predict": ([first, "-o", file / "x"], "Not a directory"),
        "ensemble": ([first, second, "-o", file / "x.npz"], "it is not a folder"),
    }[command]
    result = run(command, *words)

    assert result.code == 2
    assert re.fullmatch(rf"macc: {file}\S* cannot be written or read: {reason}\n", result.err)


def test_a_folder_that_cannot_be_written_to_is_one_sentence(runs, tmp_path, monkeypatch):
    def refuse(**_):  # whoever runs the tests may be allowed everything
        raise PermissionError(13, "Permission denied", str(tmp_path / ".writing-x"))

    monkeypatch.setattr("macc.io.writing.tempfile.mkstemp", refuse)
    result = run("ensemble", runs[0].path, runs[1].path, "-o", tmp_path / "x.npz")

    assert result.code == 2
    assert result.err == f"macc: {tmp_path / 'x.npz'} cannot be written or read: Permission denied\n"


def test_recipes_by_the_command():
    head, _, *shown = run("recipe", "list").out.splitlines()
    assert head.split() == ["recipe", "data", "set", "model", "epochs"]
    assert [line.split()[0] for line in shown] == recipes.names()
    assert next(line for line in shown if line.startswith("svhn")).endswith(
        "not yet: needs the data set svhn"
    ) or ("svhn" in data.known())
    text = run("recipe", "show", "cifar10", "--loss", "CrossEntropy", "--set", "epochs=200").out
    assert "last_factor: 0.1  # auto: the baselines' setting" in text
    assert "loss: CrossEntropy  # --loss" in text
    assert "epochs: 200  # --set epochs=200" in text
    assert json.loads(run("recipe", "schema").out)["title"] == "macc recipe"


@pytest.mark.parametrize(("content", "message"), [("[]", "it holds no mapping"), ("{}", "its hash differs")])
def test_a_changed_environment_is_one_line(runs, tmp_path, content, message):
    copy = shutil.copytree(runs[0].path, tmp_path / "copy")
    (copy / "environment.json").write_text(content)
    result = run("predict", copy)

    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1

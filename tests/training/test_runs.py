"""Which recipes are one run, what its folder is called, and who may read it."""

import hashlib
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import macc
from helpers.small_training import network, own_recipe, small, tabular, trained
from macc import data, training
from macc.training.runs import locked, run_hash, run_path


def test_other_initial_weights_are_another_run_and_the_same_ones_are_found(tmp_path):
    first, trained_model = trained(own_recipe(), out=tmp_path)
    again, found = trained(own_recipe(), out=tmp_path)
    torch.manual_seed(99)
    other, _ = trained(own_recipe(), model=nn.Sequential(nn.Linear(6, 3)), out=tmp_path)

    assert first == again != other
    for ours, theirs in zip(found.parameters(), trained_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


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


def test_names_on_disk_are_plain():
    recipe = own_recipe(
        dataset="arrays:/tmp/Über Data.npz", model="hf:facebook/deit-tiny", loss="Focal(gamma=2) + MACC"
    )
    assert (
        run_path("runs", recipe, "0123456789abcdef").name
        == "arrays-tmp-ber-data.npz-hf-facebook-deit-tiny-fl+macc-0123456789ab"
    )

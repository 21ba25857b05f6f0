"""Which data sets are there, what their tests are, and which mistakes are errors."""

import json

import pytest

from helpers.made_up_runs import jobs_of, made_up, own_data
from macc import data, experiments
from macc.experiments.ledger import open_ledger


def test_missing_data_are_left_out_and_said(tmp_path, monkeypatch):
    def load(name, root=None, verify=True):
        if name == "digits":
            return data.digits()
        raise data.MissingFilesError(f"there is no {name} here")

    monkeypatch.setattr(data, "load", load)
    rows = [
        {"name": "A", "recipe": "cifar10"},
        {"name": "B", "recipe": ["cifar100", "digits"]},
        {"name": "C", "recipe": "digits", "tests": {"test": "test", "corrupted": "cifar10_c/*"}},
    ]
    ledger = made_up(tmp_path, datasets=rows, methods=["CrossEntropy"])

    assert [dataset.name for dataset in ledger.catalog.datasets] == ["B", "C"]
    assert ledger.catalog.left_out[0] == "A is left out: recipe cifar10: dataset: there is no cifar10 here"
    assert "B" in ledger.catalog.datasets[0].name
    assert "trained by recipe digits, because recipe cifar100" in ledger.catalog.datasets[0].remarks[0]
    assert list(ledger.catalog.datasets[1].tests) == ["test"]
    assert ledger.catalog.left_out[1] == "C under cifar10_c is left out: there is no cifar10_c here"
    with pytest.raises(ValueError, match="^A: recipe cifar10: dataset: there is no cifar10 here$"):
        made_up(tmp_path, datasets=rows[:1], methods=["CrossEntropy"])
    other = {"name": "D", "recipe": "svhn"}
    with pytest.raises(ValueError, match="no cifar10 here; D: recipe svhn: dataset: there is no svhn here$"):
        made_up(tmp_path, datasets=[rows[0], other], methods=["CrossEntropy"])


@pytest.mark.parametrize(
    ("row", "method", "message"),
    [
        ({"set": {"epochz": 3}}, {}, "set epochz=3: unknown key 'epochz'; did you mean 'epochs'"),
        ({"set": {"epochs": -1}}, {}, "epochs must be greater than or equal to 1, got -1"),
        ({"set": {"subset.train": 9000}}, {}, "9000"),
        ({"set": {"model": "resnet9"}}, {}, "resnet9"),
        ({"tests": {"noise": "own/nose-*"}}, {}, "B has no test set 'own/nose-*'; there are noise-1"),
        (
            {"tests": {"c": "cifar10_cc/*"}},
            {},
            "no data set is called 'cifar10_cc'; did you mean 'cifar10_c'",
        ),
        ({"recipe": "digitz"}, {}, "no recipe is called 'digitz'; did you mean 'digits'"),
        ({"recipe": "arrays:nothing.npz"}, {}, "there is no file nothing.npz"),
        ({}, {"set": {"optimizer.lr": 3}}, "method 'M': recipe digits: unknown key 'optimizer'"),
        ({}, {"set": {"head.p": "{0.2,1.5}"}}, "method 'M': recipe digits, set head.p=1.5"),
    ],
)
def test_a_mistake_is_an_error_and_leaves_nothing_out(tmp_path, row, method, message):
    """The data set before it is there, so the experiment could go on without the one with the
    mistake.
    """
    file = tmp_path / "mine.yaml"
    rows = [{"name": "A", "recipe": "digits"}, {"name": "B", "recipe": "digits", **row}]
    methods = [{"name": "M", "loss": "CrossEntropy + MACC", **method}]
    file.write_text(json.dumps({"datasets": rows, "methods": methods, "seeds": 1}))
    with pytest.raises(ValueError) as caught:
        open_ledger(experiments.load(file), tmp_path / "runs", None)

    assert str(caught.value).startswith(f"{file}: datasets: {'A' if method else 'B'}: ")
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_only_the_parts_that_tests_name_are_predicted(tmp_path):
    ledger = made_up(tmp_path, methods=["CrossEntropy"], tests={"one": "own/noise-1", "some": "own/*-[12]"})
    (dataset,) = ledger.catalog.datasets

    assert sorted(dataset.sets["own"]) == ["noise-1", "noise-2", "rotation-1", "rotation-2"]
    assert list(ledger.catalog.shifted(dataset, "own").shifts) == dataset.sets["own"]


class TestOwnData:
    def test_no_shift_takes_the_place_of_the_test_split(self, tmp_path):
        source = own_data(tmp_path, "test-2", "noise-1", "noise-2", "val-1")
        (dataset,) = made_up(tmp_path, datasets=source, methods=["CrossEntropy"]).catalog.datasets

        assert {
            title: [name.partition("/")[2] or name for name in names]
            for title, names in dataset.tests.items()
        } == {
            "test": ["test"],
            "test-2": ["test-2"],
            "noise": ["noise-1", "noise-2"],
            "val-1": ["val-1"],
        }

    def test_a_shift_may_have_brackets_in_its_name(self, tmp_path):
        source = own_data(tmp_path, "site [B]", "site B")
        (dataset,) = made_up(tmp_path, datasets=source, methods=["CrossEntropy"]).catalog.datasets

        assert [dataset.tests[name][0].partition("/")[2] for name in ("site [B]", "site B")] == [
            "site [B]",
            "site B",
        ]

    def test_weights_are_found_where_training_finds_them(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "w.safetensors").touch()
        source = own_data(tmp_path)
        for place in ("~/w.safetensors", "hub"):
            assert made_up(
                tmp_path, datasets=source, methods=["CrossEntropy"], set={"pretrained": place}
            ).catalog.datasets
        with pytest.raises(ValueError, match="pretrained: there is no file ~/v.safetensors; give its path"):
            made_up(
                tmp_path, datasets=source, methods=["CrossEntropy"], set={"pretrained": "~/v.safetensors"}
            )

    def test_settings_are_judged_with_the_losses_of_the_methods(self, tmp_path):
        source = own_data(tmp_path)
        ledger = made_up(tmp_path, datasets=source, methods=["CrossEntropy"], set={"head": "none"})

        assert ledger.recipe(jobs_of(ledger, "CrossEntropy")[0]).head == "none"
        with pytest.raises(
            ValueError, match=r"method 'CrossEntropy \+ MACC': .* needs the variance of an MC-dropout"
        ):
            made_up(tmp_path, datasets=source, methods=["CrossEntropy + MACC"], set={"head": "none"})

    def test_a_control_needs_a_head_to_take_its_dropout_from(self, tmp_path):
        target = {"name": "a", "loss": "CrossEntropy", "set": {"head": "auto"}}
        control = {"name": "c", "loss": "CrossEntropy", "p_of": "a"}
        ledger = made_up(tmp_path, datasets=own_data(tmp_path), methods=[target, control])

        with pytest.raises(
            ValueError, match="^method 'a' has no head whose dropout rate could be taken; set its"
        ):
            ledger.recipe(jobs_of(ledger, "c")[0])

"""Sets of classes from a model in use: those of the validation predictions, in shipped files and
graphs too.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import macc
from helpers.command import run
from helpers.made_up_models import made_up
from macc import posthoc
from macc.ship import Predictor, export, exporting, ship

X = 3 * torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
FORMS = {
    "lac": {},
    "aps": {"method": "aps"},
    "raps": {"method": "raps", "penalty": 0.1, "rank": 1},
    "a threshold for each class": {"per_class": True},
}


def spread():
    """A model whose validation logits are as small as those of a network that nobody trained."""
    usual = made_up(calibrator=posthoc.Temperature(3, 0.1))
    return replace(usual, logits=0.03 * usual.logits)


@pytest.mark.parametrize("form", FORMS)
def test_sets_are_those_of_the_validation_predictions(form):
    trained = spread()
    predictor = Predictor(trained)
    assert (predictor.set_rule, predictor(X).in_set) == (None, None)
    found = predictor.sets(0.8, **FORMS[form])

    expected = posthoc.Sets.fit(
        trained.calibrator(trained.logits), trained.labels, coverage=0.8, **FORMS[form]
    )
    prediction = predictor(X)
    assert found.to_dict() == expected.to_dict()
    assert torch.equal(prediction.in_set, expected(prediction.probs))
    assert torch.equal(predictor(X, batch_size=7).in_set, prediction.in_set)
    assert 0 < prediction.in_set.double().mean() < 1


def test_classes_by_name_the_most_probable_first():
    predictor = Predictor(spread())
    with pytest.raises(ValueError, match=r"this model has no sets; call predictor\.sets"):
        _ = predictor(X).sets
    predictor.sets(0.9, method="aps")
    prediction = predictor(X)

    for names, probs, held in zip(prediction.sets, prediction.probs, prediction.in_set, strict=True):
        assert sorted(names) == [prediction.classes[k] for k in held.nonzero()[:, 0]]
        values = [probs[prediction.classes.index(name)] for name in names]
        assert values == sorted(values, reverse=True)
    assert str(prediction).splitlines()[0].endswith("{" + ", ".join(prediction.sets[0]) + "}")


def test_a_shipped_file_keeps_them(tmp_path):
    predictor = Predictor(spread())
    found = predictor.sets(0.9, method="aps", per_class=True)
    again = macc.load(predictor.save(tmp_path / "model.safetensors"))

    assert again.set_rule.to_dict() == found.to_dict()
    assert torch.equal(again(X).in_set, predictor(X).in_set)
    again.set_rule = None
    assert again(X).in_set is None


@pytest.mark.parametrize(("form", "suffix"), [("raps", ".onnx"), ("aps", ".pt2"), ("lac", ".pt2")])
def test_graphs_have_them(form, suffix, tmp_path):
    if suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime", reason="the extra 'export' is not installed")
        pytest.importorskip("onnxscript", reason="the extra 'export' is not installed")
    predictor = Predictor(spread())
    predictor.sets(0.8, **FORMS[form])
    path = export(predictor.shipped(), tmp_path / f"model{suffix}").path
    if suffix == ".onnx":
        session = runtime.InferenceSession(path)
        assert session.get_outputs()[-1].name == "in_set"
        found = session.run(["in_set"], {"inputs": X.numpy()})[0]
    else:
        found = torch.export.load(path).module()(X)["in_set"].numpy()

    assert np.array_equal(found, predictor(X).in_set.numpy())


def test_a_graph_with_other_sets_is_not_written(tmp_path, monkeypatch):
    predictor = Predictor(spread())
    predictor.sets(0.8)
    monkeypatch.setattr(exporting, "in_sets", lambda sets, probs: torch.ones_like(probs, dtype=torch.bool))
    with pytest.raises(ValueError, match="the exported graph differs from PyTorch by inf"):
        export(predictor.shipped(), tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


class TestRefusals:
    def test_random_numbers(self):
        usual = spread()
        random = posthoc.Sets.fit(usual.calibrator(usual.logits), usual.labels, method="aps", randomise=True)
        with pytest.raises(
            ValueError, match="answers the same whenever it is asked, so its sets cannot be ran"
        ):
            Predictor(replace(usual, sets=random))
        with pytest.raises(ValueError, match="its sets cannot be randomised"):
            Predictor(usual).set_rule = random

    def test_sets_of_other_classes(self, tmp_path):
        usual = spread()
        with pytest.raises(ValueError, match="these sets are of 4 classes, and the model has 3"):
            Predictor(usual).set_rule = posthoc.Sets("lac", 0.9, (0.5,), (100,), 4)
        path = ship(
            replace(usual, sets=posthoc.Sets("lac", 0.9, (0.5,), (100,), 4)), tmp_path / "m.safetensors"
        )
        with pytest.raises(ValueError, match="is damaged: its sets are of another number of classes"):
            macc.load(path)


def test_the_command(tmp_path):
    ship(spread(), tmp_path / "model.safetensors")
    ended = run(
        "export", tmp_path / "model.safetensors", "-o", tmp_path / "more.safetensors", "--coverage", "0.8"
    )
    assert ended.code == 0
    assert "LAC: 80 % coverage" in ended.out
    assert macc.load(tmp_path / "more.safetensors").set_rule.coverage == 0.8

    ended = run(
        "export", tmp_path / "model.safetensors", "-o", tmp_path / "no.safetensors", "--method", "aps"
    )
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "--method aps is of sets; give --coverage too" in ended.err
    assert not (tmp_path / "no.safetensors").exists()

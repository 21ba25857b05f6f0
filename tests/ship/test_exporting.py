"""Exported graphs give what PyTorch gives, from raw inputs to acceptance, and nothing is written
that does not.
"""

import errno
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers.command import run
from helpers.made_up_models import inputs_for, made_up
from macc import data, models, posthoc
from macc.io import writing
from macc.models.resnet import ResNet
from macc.ship import Predictor, export, exporting, files
from macc.training.inputs import Inputs

WITHOUT = "the extra 'export' is not installed"
onnx = pytest.importorskip("onnx", reason=WITHOUT)
onnxruntime = pytest.importorskip("onnxruntime", reason=WITHOUT)
pytest.importorskip("onnxscript", reason=WITHOUT)

TOKENS = Inputs(
    dataset="ids", kind="tokens", shape=(25,), dtype="int32", classes=("a", "b", "c"), vocabulary=30
)


def images(side, channels=3, **more):
    scaling = {"mean": [0.4] * channels, "std": [0.3] * channels}
    return inputs_for((channels, side, side), normalisation=scaling, **more)


def run_onnx(path, inputs):
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"inputs": inputs.numpy()}), strict=True))


def transformers_network(kind):
    if kind == "vit":
        whole = models.build("hf:deit-tiny-patch4-32", num_classes=3).configuration
        return {**whole, "num_hidden_layers": 1, "hidden_size": 12, "intermediate_size": 24}
    transformers = pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        num_labels=3,
    )
    return json.loads(config.to_json_string(use_diff=False))


NETWORKS = {
    "mlp": lambda: made_up("mlp", inputs_for((5,), normalisation={"mean": [1.0] * 5, "std": [2.0] * 5})),
    "linear": lambda: made_up("linear", loss="CrossEntropy"),
    "gpcnn": lambda: made_up("gpcnn", TOKENS),
    "small_cnn": lambda: made_up("small_cnn", images(10, 1)),  # windows of 3 and 4 pixels
    "resnet20": lambda: made_up("resnet20", images(16)),
    "resnet18": lambda: made_up("resnet18", images(16)),  # the stem of ImageNet below basic blocks
    "resnet50_tiny": lambda: made_up("resnet50_tiny", images(16)),  # bottlenecks, four features of each map
    "mendeley": lambda: made_up("mendeley", images(32, 1)),  # a ResNet-50 below windows that overlap
    "vit": lambda: made_up("hf:x", images(32, network=transformers_network("vit"))),
    "enlarged": lambda: made_up("hf:x", images(16, network=transformers_network("vit")), image_size=32),
    "bert": lambda: made_up("hf:x", TOKENS.model_copy(update={"network": transformers_network("bert")})),
}


@pytest.fixture
def shallow(monkeypatch):
    """ResNets of few blocks and channels: a graph is made of the same parts, and sooner."""
    whole = ResNet.__init__

    def small(self, block, blocks, planes, **options):
        whole(self, block, [2, *[1] * (len(blocks) - 1)], [width // 8 for width in planes], **options)

    monkeypatch.setattr(ResNet, "__init__", small)


@pytest.mark.usefixtures("shallow")
@pytest.mark.filterwarnings("ignore:a Dropout.*registered right before:UserWarning")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_network_as_onnx(name, tmp_path):
    trained = NETWORKS[name]()
    found = export(trained, tmp_path / "model.onnx")
    inputs = exporting._random_inputs(trained.inputs)[:7]  # another number of samples
    outputs, expected = run_onnx(found.path, inputs), Predictor(trained)(inputs)

    assert found.difference <= 1e-4
    assert (found.real, found.samples) == (False, 64)
    assert list(outputs) == ["labels", "confidence", "probs", "certainty", "accepted"]
    for key, value in outputs.items():
        np.testing.assert_allclose(value, getattr(expected, key).numpy(), atol=1e-4)


CALIBRATORS = {
    "identity": lambda: posthoc.Identity(3),
    "temperature": lambda: posthoc.Temperature(3, 0.4),
    "ensemble": lambda: posthoc.EnsembleTemperature(3, 1.5, [0.5, 0.3, 0.2]),
    "vector": lambda: posthoc.VectorScaling(
        3, weight=[1.0, 2, 3], bias=[0.0, 1, 0.5], temperature=1.0, present=[1.0, 1, 1], penalties=[1.0, 1]
    ),
    "a class is absent": lambda: posthoc.VectorScaling(
        3, weight=[1.0, 2, 3], bias=[0.0, 1, 0.5], temperature=1.0, present=[1.0, 0, 1], penalties=[1.0, 1]
    ),
    "matrix": lambda: posthoc.MatrixScaling(
        3,
        weight=np.eye(3) + 0.1,
        bias=[0.0, 1, 0.5],
        temperature=1.0,
        present=[1.0, 1, 1],
        penalties=[1.0, 1, 1],
    ),
}


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_calibrators_are_inside(name, suffix, tmp_path):
    calibrator = CALIBRATORS[name]()
    trained = made_up(calibrator=calibrator)
    path = export(trained, tmp_path / f"model{suffix}").path
    x = 3 * torch.randn(9, 5)
    probs = calibrator(Predictor(made_up(calibrator=posthoc.Identity(3)))(x).probs.log())
    outputs = run_onnx(path, x) if suffix == ".onnx" else torch.export.load(path).module()(x)

    np.testing.assert_allclose(outputs["probs"], probs.numpy(), atol=1e-5)


def test_platt_is_inside(tmp_path):
    inputs = inputs_for((5,), classes=2)
    platt = posthoc.Platt(2, slope=0.5, intercept=0.3, temperature=1.0, present=[1.0, 1.0])
    found = export(made_up("mlp", inputs, calibrator=platt), tmp_path / "model.onnx")

    assert found.difference < 1e-5


def test_the_graph_says_what_it_is(tmp_path):
    trained = made_up("small_cnn", images(8, licence="CC0"))
    path = export(trained, tmp_path / "model.onnx").path
    model = onnx.load(path)
    about = {item.key: item.value for item in model.metadata_props}

    onnx.checker.check_model(model)
    assert json.loads(about["classes"]) == ["class 0", "class 1", "class 2"]
    assert json.loads(about["inputs"])["shape"] == [3, 8, 8]
    assert json.loads(about["inputs"])["dtype"] == "uint8"
    assert json.loads(about["metrics"])["test"]["accuracy"] == {"value": 0.9, "low": 0.85, "high": 0.94}
    assert json.loads(about["threshold"])["threshold"] == trained.rule.threshold
    assert (about["calibrator"], about["data_licence"]) == ("Temperature", "CC0")
    extra = {"macc.json": ""}
    torch.export.load(export(trained, tmp_path / "model.pt2").path, extra_files=extra)
    assert json.loads(extra["macc.json"]) == about


def test_acceptance_is_the_rule_of_the_model(tmp_path):
    trained = files.with_risk(made_up(), 0.0001)
    assert trained.rule.threshold is None
    assert not run_onnx(export(trained, tmp_path / "model.onnx").path, torch.randn(9, 5))["accepted"].any()


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_no_data_no_pickle_and_no_folder_of_this_machine_is_inside(suffix, digits_run, tmp_path):
    found = export(files.read(digits_run.path), tmp_path / f"model{suffix}")
    content = found.path.read_bytes()
    parts = {"": content}
    if suffix == ".pt2":
        with zipfile.ZipFile(found.path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
    samples = data.load("digits").val.inputs[: found.samples].numpy()

    assert found.real
    for name, part in parts.items():
        assert not name.endswith(".pkl")
        assert b"PK\x03\x04" not in part  # an archive of its own
        assert not any(sample.tobytes() in part for sample in samples)
        assert str(Path(torch.__file__).parent).encode() not in part
        assert b"ship/network.py" not in part


def test_an_older_torch_that_pickles_weights(tmp_path, monkeypatch):
    def pickled(program, file, **more):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("serialized_state_dict.pt", b"PK\x03\x04...")

    monkeypatch.setattr(torch.export, "save", pickled)
    with pytest.raises(
        ValueError, match=r"writes a \.pt2 with a pickle in it; install a newer torch, or wri"
    ):
        export(made_up(), tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["confidence", "probs", "certainty"])
def test_what_is_no_number_is_a_difference(name):
    trained = made_up()
    with torch.no_grad():
        expected = exporting._Graph(trained)(torch.randn(4, 5))
    other = {key: value.clone() for key, value in expected.items()}
    other[name][0] = torch.nan

    assert exporting._largest_difference(expected, expected, None) == 0
    assert exporting._largest_difference(expected, other, None) == float("inf")


class TestCommand:
    def test_a_run_is_compared_on_its_validation_inputs(self, digits_run, tmp_path):
        for name in ("model.onnx", "model.pt2", "model.safetensors"):
            ended = run("export", digits_run.path, "-o", tmp_path / name, "--risk", "0.1")
            assert ended.code == 0, ended.err
            assert "Accept predictions of confidence" in ended.out
            if name != "model.safetensors":
                assert "on 64 validation inputs the largest difference from PyTorch is" in ended.out
        again = run("export", tmp_path / "model.safetensors", "-o", tmp_path / "again.pt2")
        assert again.code == 0, again.err
        assert "at most 10.0 % of them are wrong" in again.out

    def test_a_run_without_weights(self, digits_run, tmp_path):
        import shutil

        folder = shutil.copytree(digits_run.path, tmp_path / "run")
        (folder / "best.safetensors").unlink()
        ended = run("export", folder, "-o", tmp_path / "model.onnx")

        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "has no best.safetensors" in ended.err
        assert not (tmp_path / "model.onnx").exists()

    @pytest.mark.parametrize("name", ["model.zip", "no/model.onnx", ""])
    def test_places_that_cannot_be_written(self, digits_run, tmp_path, name):
        ended = run("export", digits_run.path, "-o", tmp_path / name)

        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.safetensors"])
    @pytest.mark.parametrize("moment", ["begun", "named"])
    def test_a_folder_that_may_not_be_written_to(self, digits_run, tmp_path, monkeypatch, name, moment):
        def refused(*given, **more):
            raise PermissionError(errno.EACCES, "Permission denied")

        if moment == "begun":
            monkeypatch.setattr(writing.tempfile, "mkstemp", refused)
        else:
            monkeypatch.setattr(writing.Path, "replace", refused)
        ended = run("export", digits_run.path, "-o", tmp_path / name)

        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert f"{name} cannot be written: Permission denied" in ended.err
        assert list(tmp_path.iterdir()) == []


class TestRefusals:
    def test_other_calibrators_with_the_list(self, tmp_path):
        usual = made_up()
        trained = replace(usual, calibrator=posthoc.Isotonic.fit(usual.logits, usual.labels))
        with pytest.raises(
            ValueError, match="the calibrator Isotonic cannot.*only Identity, Temperature, VectorScaling, Mat"
        ):
            export(trained, tmp_path / "model.onnx")
        assert list(tmp_path.iterdir()) == []

    def test_without_the_extra(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxscript", None)
        with pytest.raises(ValueError, match=r"ONNX needs onnxscript: pip install 'macc-torch\[export\]'"):
            export(made_up(), tmp_path / "model.onnx")
        assert list(tmp_path.iterdir()) == []

    def test_a_graph_that_differs(self, tmp_path, monkeypatch):
        monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
        trained = made_up()
        with pytest.raises(ValueError, match="the exported graph differs from PyTorch by .*not written"):
            export(trained, tmp_path / "model.pt2")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.usefixtures("shallow")
    def test_a_network_that_drops_in_evaluation_too(self, tmp_path):
        trained = made_up("mendeley_dropout", images(32, 1))
        with pytest.raises(
            ValueError, match="the answers of mendeley_dropout differ from call to call, so it"
        ):
            export(trained, tmp_path / "model.pt2")
        assert list(tmp_path.iterdir()) == []

    def test_a_damaged_configuration(self, tmp_path):
        network = {**transformers_network("bert"), "model_type": "nonsense"}
        trained = replace(made_up("gpcnn", TOKENS), inputs=TOKENS.model_copy(update={"network": network}))
        with pytest.raises(ValueError, match="transformers cannot build a network from its configuration"):
            export(trained, tmp_path / "model.onnx")


def test_windows_are_those_of_torch():
    for side, size in [(8, 4), (10, 4), (2, 13), (7, 7), (26, 13)]:
        maps = torch.randn(2, 3, side, side + 1)
        assert torch.equal(exporting._MaxWindows(size)(maps), nn.AdaptiveMaxPool2d(size)(maps))

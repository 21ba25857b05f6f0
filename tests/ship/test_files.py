"""One file that holds a model whole: it comes back as it was, and what was changed or is foreign is
refused.
"""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import macc
from helpers.made_up_models import inputs_for, made_up
from macc import posthoc
from macc.ship import Predictor, files
from macc.training.inputs import Inputs

TOKENS = Inputs(
    dataset="news",
    kind="tokens",
    shape=(25,),
    dtype="int32",
    classes=("a", "b"),
    vocabulary=30,
    dimensions=7,
    words=tuple(f"w{k}" for k in range(30)),
)


def written(tmp_path, trained=None):
    return Predictor(made_up() if trained is None else trained).save(tmp_path / "model.safetensors")


def metadata(path):
    size = int.from_bytes(path.read_bytes()[:8], "little")
    return json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]


def test_the_same_model_is_the_same_file(tmp_path):
    path = written(tmp_path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])

    assert size % 8 == 0
    assert list(header) == sorted(header)
    assert list(header["__metadata__"]) == ["macc", "sha256"]
    for order in (1, -1):  # safetensors writes its metadata in any order
        header["__metadata__"] = dict(list(header["__metadata__"].items())[::order])
        text = json.dumps(header).encode()
        again = len(text).to_bytes(8, "little") + text + content[8 + size :]
        assert files._in_order(again) == content


def with_about(path, change):
    """The file with something else in its JSON, and a checksum that fits."""
    about, tensors = json.loads(metadata(path)["macc"]), load_file(path)
    change(about)
    text = json.dumps(about)
    save_file(tensors, path, metadata={"macc": text, "sha256": files._digest(text, tensors)})
    return path


@pytest.mark.parametrize(
    ("trained", "example"),
    [
        (made_up(), torch.randn(9, 5)),
        (
            made_up("small_cnn", inputs_for((1, 8, 8), normalisation={"mean": [0.3], "std": [0.4]})),
            torch.randint(256, (9, 1, 8, 8), dtype=torch.uint8),
        ),
        (made_up("gpcnn", TOKENS, calibrator=posthoc.Platt.fit([-3.0, 3.0, 3.0] * 50, [0, 1, 0] * 50)),
         ["w1 w2 w3", "w4"]),
        (made_up(loss="CrossEntropy", pretrained="gone.pth"), torch.randn(9, 5)),
    ],
    ids=["features", "images", "texts", "pretrained"],
)  # fmt: skip
def test_a_model_comes_back_as_it_was(trained, example, tmp_path):
    before = Predictor(trained)
    before.threshold(risk=0.2)
    after = macc.load(before.save(tmp_path / "model.safetensors"))

    one, other = before(example), after(example)
    assert torch.equal(one.probs, other.probs)
    assert torch.equal(one.certainty, other.certainty)
    assert torch.equal(one.accepted, other.accepted)
    assert (after.classes, after.rule) == (before.classes, before.rule)
    assert after.threshold(risk=0.1) == before.threshold(risk=0.1)
    assert after.trained.metrics == trained.metrics


def test_a_run_ships_without_its_folder(digits_run, tmp_path):
    before = macc.load(digits_run.path)
    after = macc.load(before.save(tmp_path / "digits.safetensors"))
    images = torch.randint(256, (20, 1, 8, 8), dtype=torch.uint8)

    assert torch.equal(before(images).probs, after(images).probs)
    assert after.trained.metrics == digits_run.metrics


def test_a_transformers_network_ships_with_its_configuration(tmp_path):
    pytest.importorskip("transformers", reason="the extra 'transformers' is not installed")
    from macc import models

    network = models.build("hf:deit-tiny-patch4-32", num_classes=3)
    small = {**network.configuration, "num_hidden_layers": 1, "hidden_size": 12, "intermediate_size": 24}
    trained = made_up("hf:somewhere/else", inputs_for((3, 32, 32), network=small))
    path = written(tmp_path, trained)
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)

    assert torch.equal(macc.load(path)(images).probs, Predictor(trained)(images).probs)
    with pytest.raises(ValueError, match="lacks the configuration of its network hf:somewhere/else"):
        macc.load(with_about(path, lambda about: about["inputs"].update(network=None)))


class TestRefusals:
    def test_a_changed_byte(self, tmp_path):
        path = written(tmp_path)
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)

        with pytest.raises(
            ValueError, match="was changed or damaged after it was written: its checksum differs"
        ):
            macc.load(path)

    def test_a_changed_threshold(self, tmp_path):
        path = written(tmp_path)
        text = metadata(path)["macc"]
        changed = path.read_bytes().replace(b'threshold\\": 0.', b'threshold\\": 1.')
        assert changed != path.read_bytes(), text
        path.write_bytes(changed)

        with pytest.raises(ValueError, match="its checksum differs"):
            macc.load(path)

    @pytest.mark.parametrize("keep", [0, 4, 100, -20])
    def test_a_cut_file(self, tmp_path, keep):
        path = written(tmp_path)
        path.write_bytes(path.read_bytes()[:keep])

        with pytest.raises(ValueError, match="is not a model that macc shipped, or is damaged"):
            macc.load(path)

    def test_a_foreign_file(self, tmp_path):
        path = tmp_path / "other.safetensors"
        save_file({"weight": torch.zeros(2)}, path)
        with pytest.raises(ValueError, match="is not a model that macc shipped: it does not say"):
            macc.load(path)

    def test_a_pickle_is_not_opened(self, tmp_path):
        class Boom:
            def __reduce__(self):
                return (tmp_path.joinpath("ran").write_text, ("yes",))

        path = tmp_path / "model.safetensors"
        path.write_bytes(pickle.dumps(Boom()))
        with pytest.raises(ValueError, match="is not a model that macc shipped"):
            macc.load(path)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda about: about.update(macc_model=2), "another version of macc"),
            (lambda about: about.pop("recipe"), "is not a model that macc shipped: 'recipe'"),
            (lambda about: about["recipe"].update(model="../../evil"), "no model is called '../../evil'"),
            (lambda about: about["inputs"].update(shape=[10**9]), "does not hold the weights of the network"),
            (lambda about: about["inputs"].update(classes=["a", "b"]), "differ in the number of classes"),
            (lambda about: about["inputs"].update(kind="sound"), "inputs.*damaged|is damaged: kind"),
            (lambda about: about["calibrator"].update(method="Evil"), "no method is called 'Evil'"),
            (lambda about: about["threshold"].update(threshold="high"), "is not a model that macc shipped"),
            (lambda about: about.update(metrics=3), "is not a model that macc shipped"),
        ],
    )
    def test_contents_that_cannot_be(self, tmp_path, change, reason):
        with pytest.raises(ValueError, match=reason):
            macc.load(with_about(written(tmp_path), change))

    def test_other_names_and_places(self, tmp_path):
        trained = made_up()
        with pytest.raises(ValueError, match=r"a shipped model is a \.safetensors file, got .*model\.zip"):
            files.ship(trained, tmp_path / "model.zip")
        with pytest.raises(ValueError, match="does not exist; create it first"):
            files.ship(trained, tmp_path / "no" / "model.safetensors")
        assert list(tmp_path.iterdir()) == []

    def test_files_of_a_run_that_do_not_belong_together(self, digits_run, tmp_path):
        import shutil

        folder = shutil.copytree(digits_run.path, tmp_path / "run")
        posthoc.Temperature(4, 3.0).save(folder / "calibrator.json")
        with pytest.raises(ValueError, match="its files differ in the number of classes"):
            macc.load(folder)
        (folder / "best.safetensors").unlink()
        (folder / "calibrator.json").unlink()
        with pytest.raises(ValueError, match="has no best.safetensors"):
            macc.load(folder)


def test_the_rule_is_written_with_the_model(tmp_path):
    trained = replace(made_up(), rule=posthoc.threshold(torch.eye(3)[[0, 1]], [0, 1], risk=0.5))
    about = json.loads(metadata(files.ship(trained, tmp_path / "m.safetensors"))["macc"])

    assert about["threshold"]["risk"] == 0.5
    assert about["version"] == macc.__version__

"""Raw inputs in, calibrated answers out: as in training, in any of the forms that data come in."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import macc
from helpers.made_up_models import inputs_for, made_up
from macc import data, posthoc, training
from macc.ship import Predictor
from macc.training.building import rebuilt
from macc.training.inputs import Inputs

FEATURES = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))


def small_run(out, *, model="mlp", module=None):
    """One epoch on 30 samples."""
    labels = torch.arange(60) % 3
    cuts = {"train": slice(30), "val": slice(30, 45), "test": slice(45, 60)}
    recipe = training.Recipe(
        dataset="mine",
        model=model,
        loss="CrossEntropy",
        epochs=1,
        batch_size=10,
        optimiser={"name": "sgd", "lr": 0.1},
    )
    parts = {name: (FEATURES[cut], labels[cut]) for name, cut in cuts.items()}
    return training.fit(recipe, model=module, data=parts, out=out, resamples=100)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


class TestOfARun:
    def test_answers_are_those_of_training_after_the_calibrator(self, digits_run, digits):
        predictor = macc.load(digits_run.path)
        logits, _ = digits_run.predictions("test")
        probs = predictor.calibrator(logits)
        prediction = predictor(digits.test.inputs)

        torch.testing.assert_close(prediction.probs, probs, atol=1e-5, rtol=0)
        assert torch.equal(prediction.labels, prediction.probs.argmax(1))
        assert torch.equal(prediction.confidence, prediction.probs.amax(1))
        assert torch.equal(prediction.accepted, prediction.confidence >= predictor.rule.threshold)
        assert len(prediction) == 359
        assert prediction.names[:3] == [str(label) for label in prediction.labels[:3].tolist()]
        assert torch.equal(prediction.of("7"), prediction.probs[:, 7])
        assert str(prediction).count("\n") == 358

    def test_certainty_is_the_closed_form_of_the_head(self, digits_run, digits):
        recipe = digits_run.recipe
        model = training.building.build_model(recipe, digits)
        model.load_state_dict(digits_run.weights())
        batch, _ = next(iter(digits.batches("test", batch_size=64)))
        expected = macc.moments(model, batch, estimator="analytic").certainty
        prediction = macc.load(digits_run.path)(digits.test.inputs[:64])

        own = expected.gather(1, prediction.labels[:, None])[:, 0]
        torch.testing.assert_close(prediction.certainty, own.detach(), atol=1e-6, rtol=1e-5)

    def test_a_calibrator_in_the_folder_is_used(self, digits_run, digits, tmp_path):
        folder = shutil.copytree(digits_run.path, tmp_path / "run")
        posthoc.Temperature(10, 3.0).save(folder / "calibrator.json")
        logits, _ = digits_run.predictions("test")

        torch.testing.assert_close(
            macc.load(folder)(digits.test.inputs).probs, (logits / 3).softmax(1), atol=1e-5, rtol=0
        )

    def test_class_names_go_in(self, digits_run, digits):
        predictor = macc.load(digits_run.path)
        inputs, labels = digits.test.inputs[:80], digits.test.labels[:80]
        names = [digits.classes[label] for label in labels.tolist()]

        by_name, by_index = (predictor.evaluate(inputs, each, resamples=100) for each in (names, labels))
        assert by_name["accuracy"].value == by_index["accuracy"].value
        with pytest.raises(ValueError, match="there is no class owl; there are 0, 1"):
            predictor.evaluate(inputs[:1], ["owl"])

    def test_a_run_of_your_own_module_needs_it(self, tmp_path):
        module, before = nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3))
        run = small_run(tmp_path, model="mine", module=module)

        with pytest.raises(ValueError, match="no model is called 'mine'"):
            macc.load(run.path)
        logits, _ = run.predictions("test")
        predictor = macc.load(run.path, model=before)
        torch.testing.assert_close(predictor(FEATURES[45:]).probs, predictor.calibrator(logits))

    def test_an_old_run_gets_what_it_lacks_from_the_same_command(self, tmp_path):
        run = small_run(tmp_path)
        (run.path / "inputs.json").unlink()
        with pytest.raises(ValueError, match="has no inputs.json.*the same `macc train` command adds it"):
            macc.load(run.path)

        small_run(tmp_path)
        assert macc.load(run.path).classes == tuple("012")


class TestTheRule:
    def test_another_risk_is_chosen_from_the_validation_predictions(self):
        trained = made_up()
        predictor = Predictor(trained)
        found = predictor.threshold(risk=0.2)

        probs = trained.calibrator(trained.logits)
        assert found == posthoc.threshold(probs, trained.labels, risk=0.2)
        assert predictor.rule is found

    def test_nothing_is_accepted_where_no_threshold_can_promise_the_risk(self):
        predictor = Predictor(made_up())
        assert predictor.threshold(risk=0.0001).threshold is None
        assert not predictor(100 * torch.randn(50, 5)).accepted.any()

    def test_all_is_accepted_where_every_prediction_may_be_wrong(self):
        predictor = Predictor(made_up())
        predictor.threshold(risk=0.99)
        assert predictor(torch.randn(50, 5)).accepted.all()


class TestForms:
    def test_batches_threads_and_devices_change_nothing(self):
        predictor = Predictor(made_up())
        x = torch.randn(100, 5)
        whole = predictor(x)
        cut = predictor.to("cpu")(x, batch_size=7)
        with ThreadPoolExecutor(4) as pool:
            many = list(pool.map(predictor, [x] * 16))

        for name in ("labels", "confidence", "probs", "certainty", "accepted"):
            torch.testing.assert_close(getattr(whole, name), getattr(cut, name))
            assert all(torch.equal(getattr(whole, name), getattr(each, name)) for each in many)
        with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
            predictor(x, batch_size=0)

    def test_nothing_is_kept_for_gradients(self):
        answers = Predictor(made_up())(torch.randn(4, 5, requires_grad=True))

        assert not any(getattr(answers, name).requires_grad for name in ("confidence", "probs", "certainty"))

    def test_no_inputs_give_no_answers(self):
        assert Predictor(made_up())(torch.zeros(0, 5)).probs.shape == (0, 3)

    def test_images_in_every_layout(self):
        scaling = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
        predictor = Predictor(made_up("small_cnn", inputs_for((3, 8, 6), normalisation=scaling)))
        images = torch.randint(256, (5, 3, 8, 6), dtype=torch.uint8)
        expected = predictor(images).probs

        for other in (
            images.numpy(),
            images.permute(0, 2, 3, 1),
            images / 255,
            (images / 255).double().numpy(),
        ):
            torch.testing.assert_close(predictor(other).probs, expected, atol=1e-5, rtol=0)

    @pytest.mark.parametrize(("mean", "folded"), [(3.0, True), (2000.0, False)])
    def test_features_are_normalised_by_the_first_layer_where_precision_allows(self, mean, folded):
        scaling = {"mean": [mean, -mean, 0.0, 1.0], "std": [0.5, 2.0, 1.0, 1.5]}
        trained = made_up("mlp", inputs_for((4,), normalisation=scaling))
        plain = rebuilt(trained.recipe, trained.inputs).double().eval()
        plain.load_state_dict(dict(trained.weights))
        predictor = Predictor(trained)
        middle, width = (torch.tensor(scaling[key]).double() for key in ("mean", "std"))
        features = middle + 3 * width * torch.randn(9, 4)
        for given, values in (
            (features.float(), features.float().double()),
            (torch.arange(36, dtype=torch.uint8).view(9, 4), torch.arange(36.0).view(9, 4).double() / 255),
        ):
            expected = trained.calibrator(plain((values - middle) / width).detach())
            found = predictor(given)
            torch.testing.assert_close(found.probs.double(), expected, atol=2e-6, rtol=0)
            assert torch.equal(found.confidence, found.probs.amax(1))
            assert torch.equal(found.labels, expected.argmax(1))
        assert predictor.network.scaled is not folded

    def test_grey_images_without_their_axis(self):
        predictor = Predictor(made_up("small_cnn", inputs_for((1, 8, 8))))
        images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)

        assert torch.equal(predictor(images[:, 0].numpy()).probs, predictor(images).probs)

    def test_image_files_of_any_size(self, tmp_path):
        Image = pytest.importorskip("PIL.Image")
        predictor = Predictor(made_up("small_cnn", inputs_for((3, 8, 8), resizing="squash")))
        pixels = np.random.default_rng(0).integers(0, 256, (16, 20, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        image.save(tmp_path / "a.png")
        small = np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR))[None]

        expected = predictor(small).probs
        for given in ([tmp_path / "a.png"], [str(tmp_path / "a.png")], tmp_path / "a.png", [image]):
            torch.testing.assert_close(predictor(given).probs, expected)
        with pytest.raises(ValueError, match="there is no image .*b.png"):
            predictor(tmp_path / "b.png")

    def test_texts_are_read_as_in_training(self):
        words = ("", *(f"w{k}" for k in range(29)))
        tokens = Inputs(
            dataset="news", kind="tokens", shape=(25,), dtype="int32", classes=("a", "b"),
            vocabulary=30, dimensions=7, words=words,
        )  # fmt: skip
        predictor = Predictor(made_up("gpcnn", tokens))
        ids = data.Tokeniser(words, 25)(["W1, w2! unknown w28"])

        assert ids[0, -3:].tolist() == [2, 3, 29]
        assert torch.equal(predictor(["W1, w2! unknown w28"]).probs, predictor(ids).probs)

    def test_a_model_without_a_head_has_the_certainty_of_the_usual_rate(self):
        trained = made_up("linear", loss="CrossEntropy")
        predictor = Predictor(trained)
        x = torch.randn(10, 5)
        found = predictor(x)

        weight = trained.weights["1.weight"]
        variance = 0.25 * x.square() @ weight.square().T
        own = variance.gather(1, found.labels[:, None])[:, 0]
        torch.testing.assert_close(found.certainty, 1 - own.tanh())
        assert predictor.network.p == 0.2

    @pytest.mark.parametrize("calibrator", [posthoc.Temperature(3, 0.05), posthoc.Identity(3)])
    def test_a_temperature_in_the_last_layer_leaves_the_certainty(self, calibrator):
        trained = made_up("mlp", loss="CrossEntropy")
        plain = rebuilt(trained.recipe, trained.inputs).eval()
        plain.load_state_dict(dict(trained.weights))
        x = torch.randn(10, 5)
        found = Predictor(replace(trained, calibrator=calibrator))(x)

        torch.testing.assert_close(found.probs, calibrator(plain(x).detach()), atol=1e-5, rtol=0)
        assert torch.equal(found.certainty, Predictor(trained)(x).certainty)

    def test_a_relu_that_stands_in_two_places_is_overwritten_in_neither(self):
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.relu = nn.ReLU()
                self.first = nn.Sequential(nn.Linear(5, 5), self.relu)
                self.last = nn.Linear(5, 3)

            def forward(self, x):
                hidden = self.first(x) - 1
                return self.last(hidden + self.relu(hidden))

        torch.manual_seed(0)
        module = Twice()
        trained = replace(made_up(loss="CrossEntropy"), weights=module.state_dict())
        x = torch.randn(10, 5)
        expected = trained.calibrator(module(x).detach())

        torch.testing.assert_close(Predictor(trained, module)(x).probs, expected, atol=1e-5, rtol=0)

    def test_a_model_without_a_linear_layer_has_no_certainty(self):
        module = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 5), nn.Flatten())
        trained = replace(made_up(loss="CrossEntropy"), weights=module.state_dict())
        predictor = Predictor(trained, module)

        assert predictor(torch.randn(4, 5)).certainty is None
        assert predictor(torch.randn(9, 5), batch_size=2).certainty is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("given", "got"),
        [
            (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"uint8 of shape \(2, 3, 8, 8\)"),
            (torch.zeros(8, 8, dtype=torch.uint8), r"uint8 of shape \(8, 8\)"),
            (torch.zeros(2, 1, 8, 8, dtype=torch.int64), r"int64 of shape \(2, 1, 8, 8\)"),
            (torch.full((2, 1, 8, 8), 255.0), "floats from 255 to 255"),
            (torch.full((2, 1, 8, 8), torch.nan), "floats from nan to nan"),
            ([object()], "a list"),
        ],
    )
    def test_images_of_another_form(self, given, got):
        predictor = Predictor(made_up("small_cnn", inputs_for((1, 8, 8))))
        expected = r"this model was trained on made_up: images \(N, 1, 8, 8\), uint8 or floats in \[0, 1\]"
        with pytest.raises(ValueError, match=f"{expected}.*, got {got}"):
            predictor(given)

    @pytest.mark.parametrize("given", [torch.zeros(2, 6), torch.zeros(5), ["a text"], torch.zeros(2, 5) > 0])
    def test_features_of_another_form(self, given):
        with pytest.raises(ValueError, match=r"was trained on made_up: features \(N, 5\), got "):
            Predictor(made_up())(given)

    @pytest.mark.parametrize("given", [torch.full((2, 25), 30), torch.full((2, 25), -1), torch.zeros(2, 25)])
    def test_tokens_of_another_form(self, given):
        tokens = Inputs(
            dataset="ids", kind="tokens", shape=(25,), dtype="int32", classes=("a", "b"), vocabulary=30
        )
        with pytest.raises(ValueError, match=r"was trained on ids: token ids \(N, L\) from 0 to 29, got "):
            Predictor(made_up("gpcnn", tokens))(given)

    def test_no_such_file(self, tmp_path):
        with pytest.raises(ValueError, match="there is no run folder or shipped model"):
            macc.load(tmp_path / "nothing")
        with pytest.raises(ValueError, match="is no run folder"):
            macc.load(tmp_path)
        Path(tmp_path / "a.onnx").write_bytes(b"")
        with pytest.raises(ValueError, match="is an exported graph, which onnxruntime runs"):
            macc.load(tmp_path / "a.onnx")

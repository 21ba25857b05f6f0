"""What every calibrator of the namespace promises, checked without anyone listing it."""

import copy
import inspect
import json
import pickle
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from torch import nn

from helpers.calibrators import data, fit
from macc import metrics, posthoc
from macc.posthoc._base import methods
from macc.posthoc._classwise import ClassWise

NAMES = sorted(methods())
TWO_ONLY = {name for name, kind in methods().items() if kind.two_classes}


def classes_of(name: str) -> int:
    return 2 if name in TWO_ONLY else 4


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_of_the_kind_that_was_given(name):
    logits, labels = data(classes=classes_of(name))
    fitted = fit(name, logits, labels)
    expected = fitted(logits)

    assert isinstance(expected, np.ndarray)
    assert expected.dtype == np.float64
    assert expected.shape == logits.shape
    assert (expected >= 0).all()
    np.testing.assert_allclose(expected.sum(1), 1, atol=1e-12)
    rounded = logits.astype(np.float32)
    assert fitted(rounded).dtype == np.float32
    np.testing.assert_allclose(fitted(rounded), fitted(rounded.astype(np.float64)), atol=1e-6)
    tensor = fitted(torch.from_numpy(logits).requires_grad_())
    assert isinstance(tensor, torch.Tensor)
    assert not tensor.requires_grad
    np.testing.assert_array_equal(tensor.numpy(), expected)
    assert fitted(torch.from_numpy(logits).bfloat16()).dtype == torch.float32
    np.testing.assert_array_equal(fitted(logits.tolist()), expected)
    np.testing.assert_array_equal(fitted(logits[::-1])[::-1], expected)


@pytest.mark.parametrize("name", NAMES)
def test_fit_does_not_depend_on_the_kind_and_changes_nothing(name):
    logits, labels = data(classes=classes_of(name))
    before = logits.copy(), labels.copy()
    expected = fit(name, logits, labels).to_dict()

    assert fit(name, torch.from_numpy(logits), torch.from_numpy(labels)).to_dict() == expected
    assert fit(name, logits.tolist(), labels.tolist()).to_dict() == expected
    np.testing.assert_array_equal(logits, before[0])
    np.testing.assert_array_equal(labels, before[1])


@pytest.mark.parametrize("name", NAMES)
def test_json_holds_all_of_it(name, tmp_path):
    logits, labels = data(classes=classes_of(name))
    fitted = fit(name, logits, labels)
    fitted.save(tmp_path / "calibrator.json")
    again = posthoc.load(tmp_path / "calibrator.json")

    assert type(again) is type(fitted)
    assert again.to_dict() == fitted.to_dict()
    np.testing.assert_array_equal(again(logits), fitted(logits))
    assert copy.deepcopy(fitted).to_dict() == fitted.to_dict()
    assert pickle.loads(pickle.dumps(fitted)).to_dict() == fitted.to_dict()


@pytest.mark.parametrize("name", NAMES)
def test_ends_a_network(name, tmp_path):
    """``nn.Sequential(model, calibrator.module())``: the same probabilities, moved, saved, loaded
    and exported.
    """
    logits, labels = data(classes=classes_of(name))
    logits, labels = logits[labels != 1], labels[labels != 1]  # a class that is only tempered
    fitted = fit(name, logits, labels)
    first = nn.Linear(classes_of(name), classes_of(name), bias=False).double()
    nn.init.eye_(first.weight)
    network = nn.Sequential(first, fitted.module()).eval()
    inputs = torch.from_numpy(logits[:50])

    np.testing.assert_allclose(network(inputs).detach(), fitted(logits[:50]), rtol=1e-9, atol=1e-300)
    assert network.float()(inputs.float()).dtype == torch.float32
    assert list(network.to("cpu").state_dict()) == ["0.weight", "1._extra_state"]
    assert name in repr(network)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    other = nn.Sequential(
        nn.Linear(*first.weight.shape, bias=False), posthoc.Identity(classes_of(name)).module()
    )
    other.load_state_dict(torch.load(tmp_path / "w.pth", weights_only=True))
    assert other[1].calibrator.to_dict() == fitted.to_dict()
    assert torch.equal(other(inputs.float()), network(inputs.float()))
    assert torch.equal(copy.deepcopy(network)(inputs.float()), network(inputs.float()))
    with pytest.raises(ValueError, match=rf"must have shape \(N, {classes_of(name)}\), got \(2, 9\)"):
        network[1](torch.zeros(2, 9))
    exported = torch.export.export(network[1], (inputs,)).module()
    np.testing.assert_allclose(exported(inputs), fitted(logits[:50]), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("Histogram", "MetaCal", "VennAbers")])
def test_gradients_reach_the_logits(name):
    logits, labels = data(200, classes_of(name), scale=1.0)
    layer = fit(name, logits, labels).module()
    fresh, _ = data(6, classes_of(name), scale=1.0, seed=1)  # curves have corners at samples of the fit
    given = torch.from_numpy(fresh).requires_grad_()

    assert torch.autograd.gradcheck(layer, given, eps=1e-7, atol=1e-4)
    sure = torch.zeros(1, classes_of(name), dtype=torch.float64)
    sure[0, 0] = 1e3
    sure.requires_grad_()
    layer(sure).square().sum().backward()
    assert sure.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_frozen(name):
    logits, labels = data(classes=classes_of(name))
    fitted = fit(name, logits, labels)
    with pytest.raises(FrozenInstanceError):
        fitted.num_classes = 3
    for value in vars(fitted).values():
        assert not isinstance(value, np.ndarray) or not value.flags.writeable


@pytest.mark.parametrize("scale", [0.05, 1e3, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_float32_of_any_scale(name, scale):
    """The optimum of float32 logits is that of the same numbers in float64, and nothing
    overflows.
    """
    logits, labels = data(classes=classes_of(name), scale=scale, dtype=np.float32)
    fitted = fit(name, logits, labels)
    wide = fit(name, logits.astype(np.float64), labels)
    probs = fitted(logits)

    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(probs, wide(logits), atol=1e-6)


@pytest.mark.parametrize("scale", [0.5, 2e4])
@pytest.mark.parametrize("name", NAMES)
def test_float16_with_ties(name, scale):
    """Few values, rows that are all equal, up to the largest of float16: as in float64."""
    raw, labels = data(classes=classes_of(name), scale=1.0)
    logits = (scale * raw.round(0).clip(-3, 3)).astype(np.float16)
    logits[::50] = logits[0, 0]
    fitted = fit(name, logits, labels)
    probs = fitted(logits)

    assert fitted.to_dict() == fit(name, logits.astype(np.float64), labels).to_dict()
    assert probs.dtype == np.float32
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("shift", [0.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_better_than_before_on_the_same_kind_of_data(name, shift):
    """Twice over-confident logits are repaired on fresh data; a constant added to all of a row is
    nothing.
    """
    logits, labels = data(4000, classes_of(name), scale=3.0)
    fresh, fresh_labels = data(4000, classes_of(name), scale=3.0, seed=1)
    fitted = fit(name, logits + shift, labels)

    after = metrics.nll(fitted(fresh + shift), fresh_labels)
    if name == "Identity":
        assert after == pytest.approx(metrics.nll(fresh, fresh_labels, from_logits=True))
    else:
        assert after < metrics.nll(fresh, fresh_labels, from_logits=True) - 0.1


@pytest.mark.parametrize("name", [n for n in NAMES if methods()[n].keeps_argmax])
def test_the_predicted_class_stays_where_that_is_promised(name):
    logits, labels = data(classes=classes_of(name), dtype=np.float32)
    fitted = fit(name, logits, labels)
    fresh, _ = data(2000, classes_of(name), seed=1, dtype=np.float32)
    # Differences that float32 probabilities cannot show.
    close = np.zeros_like(fresh)
    close[:, -1] = np.float32(1e-9)
    for rows in (fresh, close, 1e4 * fresh):
        np.testing.assert_array_equal(fitted(rows).argmax(1), rows.argmax(1))


@pytest.mark.parametrize("name", NAMES)
def test_a_class_without_samples(name):
    if name in TWO_ONLY:
        logits, _ = data(classes=2)
        labels = np.zeros(len(logits), dtype=int)
    else:
        logits, labels = data()
        logits, labels = logits[labels != 2], labels[labels != 2]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = getattr(posthoc, name).fit(logits, labels)
    probs = fitted(logits)

    assert np.isfinite(probs).all()
    if issubclass(methods()[name], ClassWise):
        absent = 1 if name in TWO_ONLY else 2
        assert any(f"class {absent} has no samples" in note for note in fitted.notes)
        assert any(f"class {absent} has no samples" in str(warning.message) for warning in caught)
        assert (probs[:, absent] > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_classes_without_samples_do_no_harm_to_data_that_have_them(name):
    """Over random models and absent classes, on all classes: about as good as tempering or as doing
    nothing.
    """
    for seed in range(4):
        rng = np.random.default_rng(seed)
        classes = 2 if name in TWO_ONLY else (3, 5, 8)[seed % 3]
        factors, offsets = rng.uniform(0.5, 2, classes), rng.normal(size=classes)
        truth = (1.5, 3.0)[seed % 2] * rng.normal(size=(1300, classes))
        labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
        logits = 2 * (factors * truth + offsets) + rng.normal(size=truth.shape)
        absent = rng.permutation(classes)[: max(1, classes // 3)]
        seen = ~np.isin(labels, absent) & (np.arange(1300) < 500)
        fresh, answers = logits[500:], labels[500:]
        fitted = fit(name, logits[seen], labels[seen])
        before = fit("Identity", logits, labels)(fresh)
        # MetaCal pays accuracy for its bound, whatever the classes.
        usual = [
            before,
            fit("Temperature", logits[seen], labels[seen])(fresh),
            fit(name, logits, labels)(fresh),
        ]

        worst = max(metrics.nll(probs, answers) for probs in usual)
        assert metrics.nll(fitted(fresh), answers) < worst + 0.02
        least = min(metrics.accuracy(probs, answers) for probs in usual)
        assert metrics.accuracy(fitted(fresh), answers) > least - 0.05
        if issubclass(methods()[name], ClassWise):
            tempered = torch.from_numpy(fresh / fitted.temperature).softmax(1)
            np.testing.assert_allclose(fitted(fresh)[:, absent], tempered[:, absent], rtol=1e-9)


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling", "Dirichlet", "best"])
@pytest.mark.filterwarnings("ignore:.*has no samples")
def test_a_class_without_samples_goes_on_being_predicted(name):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(6000, 3))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)  # from the softmax itself
    val, test = logits[:3000][labels[:3000] != 2], logits[3000:][labels[3000:] == 2]
    seen = labels[:3000][labels[:3000] != 2]
    fitted = posthoc.best(val, seen).calibrator if name == "best" else getattr(posthoc, name).fit(val, seen)

    found = (fitted(test).argmax(1) == 2).mean()
    assert found == pytest.approx((test.argmax(1) == 2).mean(), abs=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_two_classes_as_a_vector(name):
    logits, labels = data(classes=2)
    margin = logits[:, 1] - logits[:, 0]
    fitted = fit(name, margin, labels)
    probs = fitted(margin)

    assert probs.shape == margin.shape
    assert fitted(margin.astype(np.float32)).dtype == np.float32
    assert fitted(torch.from_numpy(margin).float()).dtype == torch.float32
    both = np.stack([np.zeros_like(margin), margin], axis=1)
    np.testing.assert_array_equal(fitted(both)[:, 1], probs)


@pytest.mark.parametrize("name", NAMES)
def test_validation_without_errors(name):
    logits, _ = data(classes=classes_of(name))
    probs = fit(name, logits, logits.argmax(1))(logits)

    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_one_sentence(name):
    logits, labels = data(classes=classes_of(name))
    kind = getattr(posthoc, name)
    fitted = fit(name, logits, labels)
    holed = logits.copy()
    holed[3, 1] = np.nan
    for call in (lambda: kind.fit(holed, labels), lambda: fitted(holed)):
        with pytest.raises(ValueError, match=r"logits\[3, 1\] is nan"):
            call()
    with pytest.raises(ValueError, match="they must pair up"):
        kind.fit(logits, labels[1:])
    with pytest.raises(ValueError, match="labels must lie in"):
        kind.fit(logits, labels + 10)
    with pytest.raises(ValueError, match=f"and this {name} was fitted to {classes_of(name)}"):
        fitted(np.zeros((3, 7)))
    with pytest.raises(ValueError, match="floating-point"):
        fitted(np.zeros((3, classes_of(name)), dtype=int))


@pytest.mark.parametrize("name", NAMES)
def test_files_that_nobody_vouches_for(name, tmp_path):
    logits, labels = data(classes=classes_of(name))
    good = fit(name, logits, labels).to_dict()
    path = tmp_path / "calibrator.json"

    def refused(content, match):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ValueError, match=match) as error:
            posthoc.load(path)
        assert str(path) in str(error.value)
        assert len(str(error.value)) < 600
        assert "\n" not in str(error.value)

    refused({**good, "method": "os.system"}, "no method is called 'os.system'")
    refused({**good, "method": "Calibrator"}, "no method is called")
    refused({**good, "method": ["Temperature"]}, "no method is called")
    refused({**good, "__class__": "x"}, "has no field '__class__'")
    refused({**good, "macc_calibrator": 99}, "macc_calibrator")
    refused([good], "macc_calibrator")
    refused("[" * 100_000, "not a calibrator")
    refused("", "not a calibrator")
    refused(json.dumps(good)[:-4], "not a calibrator")
    refused('{"macc_calibrator": 1, "x": ' + "9" * 10_000 + "}", "not a calibrator")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no text"):
        posthoc.load(path)
    for key in set(good) - {"macc_calibrator", "method"}:
        refused({k: v for k, v in good.items() if k != key}, f"lacks the field '{key}'")
        for bad in (None, {"a": 1}, "text", [["x"]], [[[[1.0]]]], -1e30):
            if bad is None and good[key] is None:
                continue
            refused({**good, key: bad}, "not a calibrator")
    for bad in (0, 1, -3, 10**9, True, 2.5):
        refused({**good, "num_classes": bad}, "num_classes")
    for key, value in good.items():
        if isinstance(value, float):
            refused(json.dumps({**good, key: 123.5}).replace("123.5", "NaN"), "NaN")
            refused(json.dumps({**good, key: 123.5}).replace("123.5", "1e999"), key)
        if isinstance(value, list) and key != "notes":
            refused({**good, key: [*value, *value]}, "not a calibrator")


def test_a_calibrator_that_does_not_exist(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        posthoc.load(tmp_path / "nothing.json")
    with pytest.raises(ValueError, match="cannot be read"):
        posthoc.load(tmp_path)


def test_every_calibrator_says_what_it_is():
    for name, kind in methods().items():
        assert kind.__module__.startswith("macc.posthoc._"), name
        assert "Example:" in inspect.getdoc(kind), name


def test_best_needs_two_classes_to_compare():
    with pytest.raises(ValueError, match="all labels are of class 1, which no calibrator can be compared by"):
        posthoc.best(np.random.default_rng(0).normal(size=(50, 3)), np.ones(50, dtype=int))


def test_best_tries_candidates_of_one_name_and_takes_a_single_one():
    logits, labels = data(300, 3)
    two = [lambda z, y: posthoc.Temperature.fit(z, y), lambda z, y: posthoc.Identity.fit(z, y)]
    names = sorted(score.name.rpartition("<lambda>")[2] for score in posthoc.best(logits, labels, two).scores)

    assert names == ["", ", 2"]
    assert posthoc.best(logits, labels, "temperature").scores[0].name == "Temperature"


def test_what_a_calibrator_tells_of_samples_is_refused_as_its_probabilities_are():
    logits, labels = data(300, 3)
    local, meta = posthoc.LocalTemperature.fit(logits, labels), posthoc.MetaCal.fit(logits, labels)
    for call in (local.temperatures, meta.uncertain):
        with pytest.raises(ValueError, match="logits has 2 classes, and this .* was fitted to 3"):
            call(np.zeros((4, 2)))
        with pytest.raises(ValueError, match="nan"):
            call(np.full((4, 3), np.nan))


def test_a_fit_worse_than_nothing_is_refused():
    from macc.posthoc._base import accept, sample

    logits, labels = data(scale=1.0)
    with pytest.raises(ValueError, match=r"Temperature makes its own validation data worse \(NLL .* refused"):
        accept(posthoc.Temperature(4, 50.0), sample(logits, labels))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "name",
    ["Temperature", "EnsembleTemperature", "LocalTemperature", "VectorScaling", "MatrixScaling", "Dirichlet"],
)
def test_never_worse_than_nothing_on_its_own_data(name, seed):
    """Few samples, many classes, labels that have nothing to do with the logits."""
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(30, 8)) * 10 ** rng.uniform(-2, 2), rng.integers(0, 8, 30)
    fitted = fit(name, logits, labels)

    assert metrics.nll(fitted(logits), labels) <= metrics.nll(logits, labels, from_logits=True) + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_masked_classes_get_probability_0(name):
    """Logits of minus infinity: no class of theirs, and the others are calibrated as ever."""
    classes = classes_of(name)
    logits, labels = data(1000, classes)
    rows = np.arange(0, 1000, 3)
    other = (labels[rows] + 1) % classes
    masked = logits.copy()
    masked[rows, other] = -np.inf
    fitted = fit(name, masked, labels)
    probs = fitted(masked)

    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(1), 1)
    assert (probs[rows, other] == 0).all()
    with pytest.raises(ValueError, match=r"logits\[0, \d\] is -inf and the label of the sample"):
        fit(name, np.where(np.eye(classes)[labels] == 1, -np.inf, logits), labels)
    with pytest.raises(ValueError, match=r"logits\[0, 0\] is -inf; remove the sample"):
        fitted(np.full((2, classes), -np.inf))

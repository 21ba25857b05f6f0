"""Every run ends with a calibrator fitted to its validation logits."""

import pytest
import torch

from helpers.small_training import network, own_recipe, tabular, trained
from macc import metrics, posthoc, training
from macc.cli import displays
from macc.cli.runs import summary
from macc.io import writing
from macc.training import fitting
from macc.training.calibrating import fitted_to

CLASSES = ("a", "b", "c")


def sample(n=400, k=3, scale=3.0):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, k, generator=generator)
    return scale * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def test_a_run_has_a_temperature_and_metrics_before_and_after(tmp_path):
    run, _ = trained(own_recipe(), out=tmp_path, resamples=100)
    logits, labels = run.predictions("test")
    calibrated = run.calibrator(logits.double())

    assert run.calibrator.temperature != 1
    assert set(run.metrics) == {"val", "test", "calibrated"}
    assert set(run.metrics["calibrated"]) == {"test"}
    for name in ("nll", "ece", "accuracy"):
        found = run.metrics["calibrated"]["test"][name]
        assert found["value"] == pytest.approx(getattr(metrics, name)(calibrated, labels))
    assert run.metrics["test"]["nll"]["value"] == pytest.approx(metrics.nll(logits, labels, from_logits=True))
    printed = summary(run.metrics)
    assert printed.header == ["", "val", "test", "test, calibrated"]
    (ece,) = (row for row in printed.rows if row[0].text == "ECE %")
    values = [
        100 * found["ece"]["value"] for found in (run.metrics["test"], run.metrics["calibrated"]["test"])
    ]
    assert [entry.text.partition(" ")[0] for entry in ece[2:]] == [f"{value:.2f}" for value in values]


def test_the_temperature_is_that_of_the_validation_logits():
    logits, labels = sample(4000)
    found = fitted_to(logits, labels, "temperature", CLASSES)

    assert found.temperature == pytest.approx(posthoc.Temperature.fit(logits, labels).temperature, rel=0.01)
    assert found.notes == ()


def test_without_a_calibrator_all_is_as_before(tmp_path):
    run, _ = trained(own_recipe(calibrate="none"), out=tmp_path, resamples=100)

    assert run.calibrator is None
    assert not (run.path / "calibrator.json").exists()
    assert set(run.metrics) == {"val", "test"}
    assert "calibrate" not in own_recipe(calibrate="none").deciding()
    assert own_recipe().deciding()["calibrate"] == "temperature"


def test_auto_takes_the_best_of_all():
    logits, labels = sample(3000)
    logits[:, 0] += 4  # no temperature repairs that
    found = fitted_to(logits, labels, "auto", CLASSES)
    before, after = (
        metrics.nll(one(logits), labels) for one in (fitted_to(logits, labels, "temperature", CLASSES), found)
    )

    assert after < before - 0.05


def test_too_few_samples_for_auto_give_a_temperature():
    logits, labels = sample(8)
    found = fitted_to(logits, labels, "auto", CLASSES)

    assert isinstance(found, posthoc.Temperature)
    assert "8 samples are too few for 5 folds; a temperature is fitted instead" in found.notes


def test_a_validation_set_without_errors_leaves_a_temperature_to_live_with():
    logits, labels = sample(300)
    right = fitted_to(logits, logits.argmax(1), "temperature", CLASSES)

    assert 0.1 < right.temperature < posthoc.Temperature.fit(logits, labels).temperature
    assert metrics.nll(right(logits), labels) < 5


def test_what_a_validation_set_lacks_is_said(tmp_path, capsys):
    parts = tabular()
    x, y = parts["val"]
    parts["val"] = x[y != 1][:40], y[y != 1][:40]
    trained(own_recipe(), parts, out=tmp_path, resamples=100, display=displays.of_training())
    said = capsys.readouterr().out

    assert "calibrated on the validation set: temperature " in said
    assert "warning: 40 validation samples are few to calibrate by; have 100 at least, better 1000" in said
    assert "the validation set has no sample of 1, so nothing shows how sure the model may be there" in said


class Stopped(Exception):
    pass


@pytest.mark.parametrize("calibrate", ["temperature", "auto"])
def test_stopped_before_any_file_and_started_again_it_ends_the_same(tmp_path, monkeypatch, calibrate):
    recipe = own_recipe(calibrate=calibrate)

    def fit(out):
        return training.fit(recipe, model=network(), data=tabular(), out=out, resamples=100, also=["last"])

    whole = fit(tmp_path / "whole")
    names = ["best.safetensors", "val.npz", "test.npz", "calibrator.json", "metrics.json"]
    replace = writing.os.replace
    for name in names:

        def stop(source, target, name=name):
            if str(target).endswith(name):
                raise Stopped
            replace(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(writing.os, "replace", stop)
            with pytest.raises(Stopped):
                fit(tmp_path / name)
        again = fit(tmp_path / name)
        for file in ("best.safetensors", "calibrator.json", "metrics.json"):
            assert (again.path / file).read_bytes() == (whole.path / file).read_bytes(), (name, file)


def test_a_finished_run_is_only_read(tmp_path, monkeypatch):
    first, _ = trained(own_recipe(), out=tmp_path, resamples=100)
    monkeypatch.setattr(fitting, "fitted_to", lambda *_: pytest.fail("fitted again"))

    assert trained(own_recipe(), out=tmp_path, resamples=100)[0] == first

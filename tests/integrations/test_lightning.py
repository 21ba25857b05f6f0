"""The Lightning callback, with real trainings on the CPU, in one process and in two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from macc import metrics, posthoc

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
from helpers import lightning_module
from helpers.lightning_module import Small, loaders, trainer
from macc.integrations.lightning import Calibrate

# Lightning advises more workers, a logger and other things that a test does not want.
pytestmark = pytest.mark.filterwarnings("ignore")


def validated(model):
    """Logits and labels of the validation set."""
    inputs, labels = lightning_module.samples(100, 1).tensors
    with torch.no_grad():
        return model.network.eval()(inputs), labels


def test_metrics_are_logged_and_a_calibrator_is_fitted_at_the_end(tmp_path):
    callback = Calibrate(3, path=tmp_path / "calibrator.json")
    run, model = trainer(tmp_path, [callback]), Small()
    run.fit(model, *loaders())

    logits, labels = validated(model)
    logged = {name: float(value) for name, value in run.callback_metrics.items()}
    for name in ("accuracy", "nll", "ece", "sce"):
        value = metrics.registry()[name](logits, labels, from_logits=True)
        assert logged[f"val_{name}"] == pytest.approx(value, abs=1e-6)
    expected = posthoc.Temperature.fit(logits, labels).temperature
    assert callback.calibrator.temperature == pytest.approx(expected, abs=1e-6)
    assert posthoc.load(tmp_path / "calibrator.json").temperature == callback.calibrator.temperature


def test_validation_by_itself_fits_the_calibrator_to_those_weights(tmp_path):
    callback, model = Calibrate(3, method="auto"), Small()
    trainer(tmp_path, [callback]).validate(model, loaders()[1], verbose=False)

    assert isinstance(callback.calibrator, posthoc.Calibrator)


def test_what_validation_returns_can_be_read_otherwise(tmp_path):
    class Tuple(Small):
        def validation_step(self, batch, _):
            return {"scores": self.network(batch[0])}

    with pytest.raises(
        ValueError, match="returned a dict of scores; return a dict with `logits` and `labels`"
    ):
        trainer(tmp_path, [Calibrate(3)]).fit(Tuple(), *loaders())
    callback = Calibrate(3, read=lambda outputs, batch: (outputs["scores"], batch[1]))
    trainer(tmp_path, [callback]).fit(Tuple(), *loaders())
    assert callback.calibrator is not None


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no calibrator is called 'temprature'"):
        Calibrate(3, method="temprature")
    with pytest.raises(ValueError, match="there was no validation epoch to fit a calibrator to"):
        trainer(tmp_path, [Calibrate(3)]).fit(Small(), loaders()[0])
    callback = Calibrate(3, method=None)
    trainer(tmp_path, [callback]).fit(Small(), *loaders())
    assert callback.calibrator is None


def test_two_processes_measure_and_calibrate_as_one(tmp_path):
    path = tmp_path / "two.pt"
    folder = Path(lightning_module.__file__).parents[1]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(folder),
        "PYTHONWARNINGS": "ignore",
    }
    result = subprocess.run(
        [sys.executable, lightning_module.__file__, path], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    two = torch.load(path, weights_only=True)

    model = Small()
    model.load_state_dict(two["weights"])
    logits, labels = validated(model)
    assert two["metrics"]["val_ece"] == pytest.approx(metrics.ece(logits, labels, from_logits=True), abs=1e-6)
    assert two["metrics"]["val_nll"] == pytest.approx(metrics.nll(logits, labels, from_logits=True), abs=1e-6)
    assert two["temperature"] == pytest.approx(posthoc.Temperature.fit(logits, labels).temperature, abs=1e-5)

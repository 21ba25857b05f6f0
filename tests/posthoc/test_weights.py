"""Calibrators that take weights: whole ones are repeated samples."""

import inspect
from functools import partial

import numpy as np
import pytest

from macc import posthoc
from macc.posthoc._base import methods

TAKING = sorted(
    name for name, kind in methods().items() if "weights" in inspect.signature(kind.fit).parameters
)
FITS = {name: methods()[name].fit for name in TAKING} | {
    "grid": partial(posthoc.Temperature.fit, grid=True),
    "brier": partial(posthoc.Temperature.fit, objective="brier"),
    "mixed brier": partial(posthoc.EnsembleTemperature.fit, objective="brier"),
}


def drawn(num_classes=3, seed=0):
    """Logits of a model that is too sure where the weights are large, labels and whole weights."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(400, num_classes))
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(1)
    weights = rng.integers(0, 5, 400)
    return truth * np.where(weights > 2, 3.0, 1.0)[:, None], labels, weights


@pytest.mark.parametrize("name", FITS)
def test_whole_weights_are_repeated_samples(name):
    logits, labels, weights = drawn()
    found = FITS[name](logits, labels, weights=weights)
    repeated = FITS[name](logits.repeat(weights, 0), labels.repeat(weights))
    np.testing.assert_allclose(found(logits), repeated(logits), rtol=2e-4 if "brier" in name else 1e-5)
    plain = FITS[name](logits, labels)
    assert not np.allclose(found(logits), plain(logits), rtol=1e-2)


def test_the_temperature_to_the_digit():
    logits, labels, weights = drawn()
    found = posthoc.Temperature.fit(logits, labels, weights=weights)
    repeated = posthoc.Temperature.fit(logits.repeat(weights, 0), labels.repeat(weights))
    assert found.temperature == pytest.approx(repeated.temperature, rel=1e-10)


def test_bad_weights():
    logits, labels, weights = drawn()
    for name in TAKING:
        with pytest.raises(ValueError, match=r"weights\[0\] is -1"):
            methods()[name].fit(logits, labels, weights=[-1, *weights[1:]])

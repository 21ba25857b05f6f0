"""NLL after temperature scaling: fitted to one half, measured on the other."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch

import macc
import reference_metrics as reference
from helpers.command import run
from macc import metrics, posthoc
from macc.metrics._refinement import _halves, _logits
from macc.metrics.inputs import predictions
from macc.metrics.temperature import best_temperature


def sample(n, k, *, scale=1.0, seed=0):
    """Logits of which a scale of 1 is right, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return scale * logits, labels


def halves_of(logits, labels):
    return _halves(_logits(predictions(logits, labels, from_logits=True)), labels)


@pytest.mark.parametrize(("n", "k", "scale"), [(7, 2, 1.0), (40, 3, 3.0), (60, 5, 0.2)])
def test_it_is_its_definition(n, k, scale):
    logits, labels = sample(n, k, scale=scale)
    expected = reference.refinement(logits.tolist(), labels.tolist(), halves_of(logits, labels).tolist())

    assert metrics.refinement(logits, labels, from_logits=True) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("scale", [1e-4, 0.5, 3.0, 1e6])
def test_the_scale_of_logits_does_not_matter(scale):
    logits, labels = sample(500, 4)
    expected = metrics.refinement(logits, labels, from_logits=True)

    assert metrics.refinement(scale * logits, labels, from_logits=True) == pytest.approx(expected, rel=1e-6)


def test_it_is_above_the_loss_at_the_best_temperature_by_about_one_in_n():
    """On average over samples: half as many to fit to, and none of those that are measured."""
    excess = []
    for seed in range(60):
        logits, labels = sample(400, 5, scale=2.0, seed=seed)
        same = metrics.nll(posthoc.Temperature.fit(logits, labels)(logits), labels)
        excess.append(metrics.refinement(logits, labels, from_logits=True) - same)

    # 1 / (2 N) that the fit gains on its own samples, and 1 / N that one to half of them loses.
    assert np.mean(excess) == pytest.approx(1.5 / 400, abs=3 * np.std(excess) / math.sqrt(60))
    assert min(excess) > 0


def test_halves_have_as_many_samples_of_each_class():
    logits, labels = sample(301, 6)
    counts = torch.stack([labels[halves_of(logits, labels) == half].bincount(minlength=6) for half in (0, 1)])

    assert int((counts[0] - counts[1]).abs().max()) <= 1


def test_probabilities_and_logits_have_the_same_halves():
    logits, labels = sample(3000, 10)
    single = logits.float()

    assert metrics.refinement(single.softmax(1), labels) == pytest.approx(
        metrics.refinement(single, labels, from_logits=True), rel=1e-6
    )


def test_a_half_without_errors_is_not_trusted_without_limit():
    """One error in 100: the half without it would take it to cost everything."""
    logits, _ = sample(100, 3, scale=2.0)
    labels = logits.argmax(1)
    labels[0] = logits[0].argmin()

    alone = posthoc.Temperature(3, best_temperature(logits[1:], labels[1:]).value)
    assert metrics.nll(alone(logits), labels) > 5
    assert metrics.refinement(logits, labels, from_logits=True) < 0.3


@pytest.mark.parametrize("right", [0, 15, 30])
def test_saturated_probabilities_have_a_finite_refinement(right):
    labels = (np.arange(30) >= right).astype(int)
    found = macc.evaluate(np.tile([1.0, 0.0], (30, 1)), labels, metrics=["nll", "refinement"], resamples=100)

    assert 0 <= found["refinement"].low <= found["refinement"].value <= found["refinement"].high < 10
    masked = np.tile([3.0, -np.inf], (30, 1))
    assert math.isfinite(metrics.refinement(masked, labels, from_logits=True))


def test_few_samples():
    assert metrics.refinement([[0.9, 0.05, 0.05]], [0]) == pytest.approx(math.log(3))
    assert math.isfinite(metrics.refinement([[0.9, 0.05, 0.05]] * 2, [0, 0]))
    assert metrics.refinement([[0.5, 0.5]] * 9, [0] * 9) == pytest.approx(math.log(2))


def test_classes_without_samples():
    logits, _ = sample(200, 50)

    assert metrics.refinement(logits, torch.arange(200) % 3, from_logits=True) == pytest.approx(
        math.log(50), rel=0.05
    )


def test_many_samples_are_resampled_in_groups():
    logits, labels = sample(12_000, 3, scale=2.0)
    found = macc.evaluate(logits, labels, from_logits=True, metrics=["refinement"], resamples=200)[
        "refinement"
    ]
    mean = macc.evaluate(logits / 2, labels, from_logits=True, metrics=["nll"], resamples=200)["nll"]

    assert found.high - found.low == pytest.approx(mean.high - mean.low, rel=0.02)


def test_commands_know_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logits, labels = sample(600, 3, scale=3.0)
    np.savez("a.npz", logits=logits.numpy(), labels=labels.numpy())
    np.savez("b.npz", logits=logits.numpy() / 3, labels=labels.numpy())
    code, out, err = run("evaluate", "a.npz", "--json", "a.json")
    assert code == 0, err
    assert "NLL after temperature scaling" in out
    assert json.loads((tmp_path / "a.json").read_text())["refinement"]["high"] > 0
    found = run("compare", "a.npz", "b.npz", "--json", "c.json")[1]
    assert "NLL after temperature scaling" in found
    assert run("check", "a.npz", "--max-refinement", "0.5")[0] == 1
    assert run("check", "a.npz", "--max-refinement", "1.0")[0] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is counted in kilobytes on Linux only")
def test_memory_grows_by_one_copy_and_a_half():
    """80 MB of float64 logits, of which one half is copied at a time."""
    code = """
import resource
import torch
from macc import metrics
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
logits, labels = torch.randn(20_000, 500, generator=generator), torch.arange(20_000) % 500
metrics.refinement(logits[:1000], labels[:1000], from_logits=True)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
metrics.refinement(logits, labels, from_logits=True)
print(peak() - before)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert float(ended.stdout) < 160  # over 200 where all rows are tempered at once

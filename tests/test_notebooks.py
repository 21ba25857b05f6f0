"""What notebooks show: tables as tables, sentences as paragraphs, names letter by letter."""

import numpy as np
import pytest
import torch

import macc
from macc import losses, metrics, posthoc
from macc.experiments.result import Cell, Result
from macc.monitor import Monitor
from macc.ship import Prediction
from macc.tables import Displayed

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=(400, 3))
LABELS = (LOGITS + RNG.gumbel(size=LOGITS.shape)).argmax(1)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
NAMES = ["<cat>", "dog", "owl"]


MOMENTS = macc.LogitMoments(torch.tensor(LOGITS), torch.ones(400, 3))


def experiment():
    """A result of one cell, and a sentence."""
    found = Result("x", "", "table", "full", "0", 1, ["ece"], {}, ["<cat>"], ["M"], {"<cat>": ["test"]})
    found.findings.append("M is better than chance.")
    found.cells.append(Cell("<cat>", "test", "M", "val_accuracy", "ece", (0.02,), 0.01, 0.03, None))
    return found


def watched():
    monitor = Monitor(3, window="1h")
    monitor.update(PROBS, LABELS, 60.0 * np.arange(400), batch="a")
    return monitor


def predicted():
    probs = torch.tensor(PROBS[:3])
    top = probs.max(1)
    sets = torch.tensor([[True, True, False]] * 3)
    return Prediction(top.indices, top.values, probs, None, top.values > 0.7, tuple(NAMES), sets)


SHOWN = {
    "Report": lambda: macc.evaluate(PROBS, LABELS, metrics=["sce", "ece"], classes=NAMES, resamples=100),
    "Comparison": lambda: metrics.compare(
        PROBS, PROBS**0.5, LABELS, metrics=["nll"], normalise=True, resamples=100
    ),
    "GroupReport": lambda: metrics.evaluate_groups(
        PROBS, LABELS, np.array(["<cat>", "b"])[np.arange(400) % 2], metrics=["ece"], resamples=100
    ),
    "LabelReport": lambda: metrics.evaluate_labels(
        PROBS, np.eye(3)[LABELS], names=NAMES, metrics=["nll"], resamples=100
    ),
    "Best": lambda: posthoc.best(LOGITS, LABELS, ["temperature", "identity"]),
    "Grouped": lambda: posthoc.Grouped.fit(LOGITS, LABELS, np.array(["<cat>", "b"])[np.arange(400) % 2]),
    "Coverage": lambda: posthoc.Sets.fit(PROBS, LABELS).measure(PROBS, LABELS, classes=NAMES),
    "LabelThresholds": lambda: posthoc.label_thresholds(PROBS, np.eye(3)[LABELS], names=NAMES),
    "MACCDiagnostics": lambda: losses.MACC().diagnostics(MOMENTS),
    "Monitor": watched,
    "Result": experiment,
    "Prediction": predicted,
    "Temperature": lambda: posthoc.Temperature.fit(LOGITS, LABELS),
    "VectorScaling": lambda: posthoc.VectorScaling.fit(LOGITS, LABELS),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_has_a_table_shows_it(name):
    found = SHOWN[name]()
    html = found._repr_html_()

    assert type(found).__name__ == name
    assert html.count("<table>") == html.count("</table>") >= 1
    assert "<cat>" not in html
    if "&lt;cat&gt;" in html:
        assert "<cat>" in str(found)


def test_a_mixture_names_its_parts():
    parts = (posthoc.Temperature(3, temperature=2.0), posthoc.Identity(3))
    shown = posthoc.Mixture(3, weight=0.25, parts=parts)._repr_html_()

    assert "Temperature and Identity" in shown
    assert "0.25" in shown


def test_sentences_are_paragraphs():
    sets = posthoc.Sets.fit(PROBS, LABELS)
    threshold = posthoc.threshold(PROBS, LABELS, risk=0.3)
    for found in (sets, threshold):
        lines = str(found).splitlines()
        assert found._repr_html_().count("<p>") == len(lines)
        assert isinstance(found, Displayed)


def test_a_stream_says_what_it_has_seen():
    calibration = metrics.Calibration(3)
    calibration.update(PROBS, LABELS)

    assert repr(calibration) == "<Calibration: 400 samples, 3 classes, 15 bins>"

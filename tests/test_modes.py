"""Modes that a user may have switched on: inference mode, and another default device than the
data's.
"""

import pytest
import torch

import macc
from macc import losses, metrics, posthoc
from macc.posthoc._base import methods

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(300, 3, generator=GENERATOR)
PROBS = LOGITS.softmax(1)
LABELS = torch.multinomial(PROBS, 1, generator=GENERATOR)[:, 0]


def streamed():
    found = metrics.Calibration(3)
    found.update(PROBS[:100], LABELS[:100])
    found.update(PROBS[100:], LABELS[100:])
    return found.compute()["sce"]


def partial():
    found = metrics.Calibration(3, intervals=True)
    found.update(PROBS, LABELS)
    return found.report()["sce"]


CALLS = {
    "sce": lambda: metrics.sce(PROBS, LABELS),
    "evaluate": lambda: metrics.evaluate(PROBS, LABELS, resamples=100)["sce"],
    "compare": lambda: metrics.compare(PROBS, (2 * LOGITS).softmax(1), LABELS, resamples=100)["sce"],
    "streamed": streamed,
    "partial": partial,
    "best": lambda: posthoc.best(LOGITS, LABELS).scores[0].nll,
    "threshold": lambda: posthoc.threshold(PROBS, LABELS, risk=0.9).threshold,
    **{
        name: lambda kind=kind: kind.fit(LOGITS, LABELS)(LOGITS)[0].tolist()
        for name, kind in methods().items()
        if not kind.two_classes
    },
    "Focal": lambda: float(losses.Focal()(LOGITS, LABELS)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_another_default_device_changes_nothing(name):
    expected = CALLS[name]()
    with torch.device("meta"):
        found = CALLS[name]()

    assert found == expected


@pytest.mark.parametrize("estimator", ["sampled", "analytic"])
def test_a_head_stays_where_its_features_are(estimator):
    head = macc.MCDropoutLinear(3, 3, estimator=estimator)
    with torch.device("meta"):
        output = head(LOGITS)

    assert output.mean.device == output.variance.device == torch.device("cpu")


def test_metrics_within_inference_mode_and_after_it():
    expected = metrics.ece(PROBS, LABELS)
    with torch.inference_mode():
        inside = metrics.ece(PROBS.repeat(9, 1), LABELS.repeat(9))  # more than was seen before

    assert inside == pytest.approx(expected)
    assert metrics.ece(PROBS, LABELS) == expected


def test_a_stream_within_inference_mode_goes_on_outside():
    kept = metrics.Calibration(3)
    with torch.inference_mode():
        kept.update(PROBS[:100], LABELS[:100])
    kept.update(PROBS[100:], LABELS[100:])
    assert kept.compute()["ece"] == pytest.approx(metrics.ece(PROBS, LABELS))

    with torch.inference_mode():
        kept.compute()
        kept.reset()
    kept.update(PROBS, LABELS)
    assert kept.compute()["ece"] == pytest.approx(metrics.ece(PROBS, LABELS))

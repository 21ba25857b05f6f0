"""Streaming calibration among the metrics of torchmetrics, and what is said where an extra is not
installed.
"""

import subprocess
import sys

import pytest
import torch

from macc import metrics

torchmetrics = pytest.importorskip("torchmetrics", reason="the extra 'torchmetrics' is not installed")
from macc.integrations.torchmetrics import CalibrationMetric  # noqa: E402


def sample(count=300, classes=4):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(count, classes, generator=generator, dtype=torch.float64).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def assert_same(found, probs, labels):
    for name in ("ece", "mce", "sce", "accuracy", "nll", "brier"):
        assert found[name] == pytest.approx(metrics.registry()[name](probs, labels), abs=1e-9), name
    assert found["count"] == len(labels)


def test_it_gives_the_values_of_macc_and_merges():
    probs, labels = sample()
    metric = CalibrationMetric(4)
    metric.update(probs[:100], labels[:100])
    step = metric(probs[100:], labels[100:])

    assert step["count"] == 200
    assert_same(metric.compute(), probs, labels)
    one, two = CalibrationMetric(4), CalibrationMetric(4)
    one.update(probs[:50], labels[:50])
    two.update(probs[50:], labels[50:])
    one.merge_state(two)
    assert_same(one.compute(), probs, labels)
    metric.reset()
    with (
        pytest.raises(ValueError, match="no samples"),
        pytest.warns(UserWarning, match="before the ``update``"),
    ):
        metric.compute()


def test_in_a_collection_beside_others_by_position_and_by_name():
    probs, labels = sample()
    collection = torchmetrics.MetricCollection(
        {
            "calibration": CalibrationMetric(4, names=["ece", "nll"]),
            "accuracy": torchmetrics.classification.MulticlassAccuracy(4, average="micro"),
        },
        prefix="val_",
    )
    collection.update(probs[:150], labels[:150])
    collection.update(preds=probs[150:], target=labels[150:])
    found = collection.compute()

    assert set(found) == {"val_ece", "val_nll", "val_accuracy"}
    assert found["val_ece"] == pytest.approx(metrics.ece(probs, labels))
    assert found["val_nll"] == pytest.approx(metrics.nll(probs, labels))
    assert float(found["val_accuracy"]) == pytest.approx(metrics.accuracy(probs, labels))


def test_two_of_them_in_a_collection_keep_their_own_bins():
    probs, labels = sample()
    collection = torchmetrics.MetricCollection(
        {f"bins{b}": CalibrationMetric(4, b, names=["ece"]) for b in (5, 20)}
    )
    found = collection(probs, labels)

    for bins in (5, 20):
        assert found[f"bins{bins}_ece"] == pytest.approx(metrics.ece(probs, labels, bins=bins))


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no streaming metric is called 'eec'; did you mean 'ece'"):
        CalibrationMetric(4, names=["eec"])


@pytest.mark.parametrize("extra", ["torchmetrics", "transformers", "lightning"])
def test_without_its_library_an_adapter_names_what_to_install(extra):
    code = (
        "import sys\n"
        f"sys.modules[{extra!r}] = None\n"
        "import macc.metrics\n"
        "try:\n"
        f"    import macc.integrations.{extra}\n"
        "except ValueError as error:\n"
        f"    assert \"pip install 'macc-torch[{extra}]'\" in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)

"""ECE with soft bins."""

import pytest
import torch

import reference
from macc import losses, metrics


def batch(rows=60):
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    return logits, torch.randint(0, 6, (rows,), generator=generator)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("temperature", [0.01, 0.1])
def test_matches_the_slow_reference(norm, temperature):
    logits, labels = batch()
    loss = losses.SoftECE(bins=7, temperature=temperature, norm=norm)

    expected = reference.soft_ece(logits.tolist(), labels.tolist(), 7, temperature, norm)
    assert loss(logits, labels).item() == pytest.approx(expected, rel=1e-7)


def test_with_hard_bins_it_is_the_metric():
    logits, labels = batch(500)
    value = losses.SoftECE(temperature=1e-6, norm=1)(logits, labels).item()

    assert value == pytest.approx(metrics.ece(logits.softmax(1), labels), abs=1e-4)


def test_one_bin_is_the_gap_of_the_batch():
    logits, labels = batch()

    torch.testing.assert_close(losses.SoftECE(bins=1, norm=1)(logits, labels), losses.DCA()(logits, labels))


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"bins": 0}, r"`bins` must be a whole number in \[1, 10000\], got 0"),
        ({"norm": 3}, r"`norm` must be a whole number in \[1, 2\], got 3"),
        ({"norm": True}, "got True"),
        ({"temperature": 0}, "`temperature` must be a number at least 1e-06, got 0"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        losses.SoftECE(**knobs)

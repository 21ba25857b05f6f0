"""Local temperature scaling."""

import numpy as np
import pytest
import torch

from helpers.calibrators import data
from macc import metrics, posthoc


def test_local_temperature_learns_where_the_model_is_over_confident():
    rng = np.random.default_rng(0)
    logits, labels = data(4000, 3, scale=1.0)
    features = rng.normal(size=(4000, 2))
    logits = logits * np.where(features[:, :1] > 0, 5.0, 1.0)
    fitted = posthoc.LocalTemperature.fit(logits, labels, features=features)
    hot = fitted.temperatures(logits, features)

    assert np.median(hot[features[:, 0] > 1]) == pytest.approx(5, rel=0.25)
    assert np.median(hot[features[:, 0] < -1]) == pytest.approx(1, rel=0.25)
    assert (
        metrics.nll(fitted(logits, features), labels)
        < metrics.nll(posthoc.Temperature.fit(logits, labels)(logits), labels) - 0.02
    )
    np.testing.assert_allclose(
        fitted(torch.from_numpy(logits), torch.from_numpy(features)).numpy(), fitted(logits, features)
    )
    with pytest.raises(ValueError, match="fitted with features; pass features="):
        fitted(logits)
    with pytest.raises(ValueError, match="features has 3 columns"):
        fitted(logits, np.zeros((4000, 3)))
    with pytest.raises(ValueError, match="features has 5 samples"):
        fitted(logits, np.zeros((5, 2)))
    with pytest.raises(ValueError, match=r"features\[1, 0\] is not finite"):
        fitted(logits, np.where(np.arange(8000).reshape(4000, 2) == 2, np.nan, 0.0))
    with pytest.raises(ValueError, match="leave features out"):
        posthoc.LocalTemperature.fit(logits, labels)(logits, features)


def test_local_temperature_gradient():
    """The search moved, and to where a finite-difference optimiser finds nothing better nearby."""
    from macc.posthoc import _local
    from macc.posthoc._base import sample

    logits, labels = data(50, 3)
    rows = sample(logits, labels)
    logs = torch.linspace(-1, 1, 50, dtype=torch.float64)
    loss, slopes = _local._losses(rows, logs)
    for i in (0, 17, 49):
        step = torch.zeros(50, dtype=torch.float64)
        step[i] = 1e-6
        up, down = _local._losses(rows, logs + step)[0], _local._losses(rows, logs - step)[0]
        assert float(slopes[i]) == pytest.approx((up - down) / 2e-6, abs=1e-5)
    assert loss > 0

"""The mixture of two calibrators, and its place in the choice of the best."""

import numpy as np
import pytest
import torch

from helpers.calibrators import data, drawn, fit
from macc import metrics, posthoc
from macc.posthoc._mixture import learned_weight, mixed_losses


def losses(seed: int = 0):
    """Of two calibrators that are good at different samples."""
    rng = np.random.default_rng(seed)
    return (torch.from_numpy(rng.exponential(size=200)) for _ in range(2))


@pytest.mark.parametrize(("count", "times"), [(0, 1), (1, 1), (20, 1), (200, 1), (200, 50)])
def test_weight_is_the_mean_of_its_posterior(count, times):
    first, second = (each[:count] for each in losses())
    grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    logs = 2 * grid.log()
    for one, two in zip(first, second, strict=True):
        logs += times * (grid * (-one).exp() + (1 - grid) * (-two).exp()).log()
    density = (logs - logs.max()).exp()
    expected = pytest.approx(float(grid @ density / density.sum()), abs=2e-4)

    assert learned_weight(first.repeat(times), second.repeat(times)) == expected
    assert learned_weight(first, second, torch.full_like(first, times)) == expected


def test_many_samples_leave_no_doubt():
    first, _ = losses()
    assert learned_weight(first.repeat(20), first.repeat(20) + 1) > 0.99
    assert learned_weight(first.repeat(20) + 1, first.repeat(20)) < 0.01


def test_losses_of_a_fold_come_from_the_weight_of_the_others():
    first, second = losses()
    folds = torch.arange(200) % 4
    found = mixed_losses(first, second, folds)
    for fold in range(4):
        out = folds == fold
        weight = learned_weight(first[~out], second[~out])
        expected = -(weight * (-first[out]).exp() + (1 - weight) * (-second[out]).exp()).log()
        torch.testing.assert_close(found[out], expected)


def test_mixes_and_is_the_best_by_default():
    """Classes with offsets, and samples that are too sure in two degrees: each part repairs one of
    both.
    """
    rng = np.random.default_rng(0)
    truth = 2 * rng.normal(size=(3500, 4))
    labels = drawn(truth + np.array([0.7, 0.0, 0.0, -0.7]), rng)
    sure = np.where(np.abs(truth).max(1, keepdims=True) > 3, 3.0, 1.0)
    logits, fresh, answers = truth[:1500] * sure[:1500], truth[1500:] * sure[1500:], labels[1500:]
    chosen = posthoc.best(logits, labels[:1500])
    mixture = chosen.calibrator

    assert chosen.chosen == "Mixture"
    assert isinstance(mixture, posthoc.Mixture)
    assert 0 < mixture.weight < 1
    assert mixture.to_dict() == posthoc.Mixture.fit(logits, labels[:1500]).to_dict()
    expected = mixture.weight * mixture.parts[0](fresh) + (1 - mixture.weight) * mixture.parts[1](fresh)
    np.testing.assert_allclose(mixture(fresh), expected, atol=1e-12)
    for part in mixture.parts:
        assert metrics.nll(mixture(fresh), answers) < metrics.nll(part(fresh), answers)
    assert {"Beta", "Isotonic", "Histogram"}.isdisjoint(score.name for score in chosen.scores)
    assert ", but by less than two" in chosen.why or "its NLL is the least" in chosen.why


def test_refuses_what_no_fit_gives():
    logits, labels = data(200, 3)
    fitted = fit("Mixture", logits, labels)
    content = fitted.to_dict()
    with pytest.raises(ValueError, match="weight must lie between 0 and 1"):
        posthoc.from_dict({**content, "weight": 1.5})
    with pytest.raises(ValueError, match="Mixture.parts cannot be"):
        posthoc.from_dict({**content, "parts": [content, content["parts"][0]]})
    with pytest.raises(ValueError, match="must be two calibrators, and no mixtures"):
        posthoc.Mixture(3, 0.5, (fitted, fitted.parts[0]))
    with pytest.raises(ValueError, match="must be of 3 classes"):
        posthoc.Mixture(3, 0.5, (fitted.parts[0], posthoc.Temperature(4, 1.0)))
    with pytest.raises(ValueError, match="does not say 'macc_calibrator'"):
        posthoc.from_dict({**content, "parts": [1, 2]})

"""Meta-Cal keeps its bound."""

import numpy as np
import pytest

from helpers.calibrators import data, fit
from macc import posthoc


def test_meta_cal_keeps_its_bound():
    """Over many validation sets, the share of right samples lost exceeds the bound in at most 1 -
    confidence.
    """
    rng = np.random.default_rng(0)
    population, labels = data(20_000, 3, scale=2.0)
    right = population.argmax(1) == labels
    exceeded, shares = 0, []
    for _ in range(200):
        rows = rng.choice(len(labels), 300, replace=False)
        fitted = fit("MetaCal", population[rows], labels[rows], miscoverage=0.1, confidence=0.9)
        shares.append(fitted.uncertain(population)[right].mean())
        exceeded += shares[-1] > 0.1
    # 200 draws of at most 0.1 exceed 33 with probability 0.001.
    assert exceeded <= 33
    assert exceeded >= 5  # and the bound is not kept by rejecting nothing
    assert np.mean(shares) > 0.05


def test_meta_cal_gives_the_uncertain_no_opinion():
    logits, labels = data(1000)
    fitted = posthoc.MetaCal.fit(logits, labels)
    unsure = fitted.uncertain(logits)

    assert 0 < unsure.mean() < 1
    np.testing.assert_allclose(fitted(logits)[unsure], 0.25)
    assert (fitted(logits)[~unsure].max(1) > 0.25).all()
    with pytest.warns(UserWarning, match="too few for any threshold"):
        few = posthoc.MetaCal.fit(logits[:20], labels[:20])
    assert not few.uncertain(logits).any()
    with pytest.raises(ValueError, match="miscoverage must lie in"):
        posthoc.MetaCal.fit(logits, labels, miscoverage=0)

"""Beta calibration against an independent optimiser."""

import numpy as np
import pytest
from scipy.special import log_softmax

from helpers.calibrators import data, slow_minimum
from macc import posthoc


@pytest.mark.parametrize("classes", [2, 3])
def test_beta_is_the_penalised_maximum_of_each_class(classes):
    logits, labels = data(300, classes)
    fitted = posthoc.Beta.fit(logits, labels)
    log_q = log_softmax(logits / fitted.temperature, axis=1)
    for j in range(classes):

        def objective(at, j=j):
            scores = at[0] * log_q[:, j] - at[1] * np.log1p(-np.exp(log_q[:, j])) + at[2]
            loss = np.logaddexp(0, np.where(labels == j, -scores, scores)).sum()
            return (loss + ((at - [1, 1, 0]) ** 2).sum() / 2) / len(labels)

        at = slow_minimum(objective, [1.0, 1.0, 0.0], bounds=[(0, None), (0, None), (None, None)])
        found = np.array([fitted.a[j], fitted.b[j], fitted.c[j]])
        np.testing.assert_allclose(found, at, atol=2e-3)
        assert objective(found) <= objective(at) + 1e-8

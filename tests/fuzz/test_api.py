"""Random predictions of any form give what slow loops give: types, strides, absent classes,
saturated and masked logits.
"""

import os
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import macc
import reference
import reference_metrics
from macc import losses, metrics, posthoc

# Few and always the same, unless the environment asks for more of them.
CASES = int(os.environ.get("MACC_CASES", "0"))
FEW = settings(
    max_examples=CASES or 20,
    derandomize=not CASES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
METRICS = ["accuracy", "nll", "brier", "ece", "mce", "sce", "classwise_ece", "rmsce", "ks_error", "aurc"]
LOSSES = {
    "CrossEntropy": reference.cross_entropy,
    "Brier": reference.brier,
    "FLSD": reference.flsd,
    "Focal(gamma=2)": lambda logits, labels: reference.focal(logits, labels, 2),
    "CrossEntropy + MDCA": lambda z, y: reference.cross_entropy(z, y) + reference.mdca(z, y),
    "CrossEntropy + DCA": lambda z, y: reference.cross_entropy(z, y) + reference.dca(z, y),
}


@st.composite
def batches(draw, most=40.0):
    """Logits without ties, at any scale, and labels that need not name every class."""
    rows, classes = draw(st.integers(1, 12)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.01, 1.0, 5.0, most]))
    logits = scale * rng.normal(size=(rows, classes))
    labels = rng.integers(0, draw(st.integers(1, classes)), rows)
    return logits, labels


def laid_out(array, draw_number):
    """The same values in another order of memory."""
    match draw_number:
        case 0:
            return np.asfortranarray(array)
        case 1:
            return np.repeat(array, 2, axis=0)[::2]
        case 2:
            return array[::-1].copy()[::-1]
        case _:
            return array


def softmax(logits):
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


@FEW
@given(batches(most=8.0), st.integers(0, 3), st.sampled_from(["float64", "float32"]), st.booleans())
def test_metrics_equal_the_loops(batch, layout, dtype, as_tensor):
    logits, labels = batch
    probs = laid_out(softmax(logits).astype(dtype), layout)
    given_probs = torch.from_numpy(np.ascontiguousarray(probs).T.copy()).T if as_tensor else probs
    for name in METRICS:
        found = np.asarray(getattr(metrics, name)(given_probs, labels))
        expected = np.asarray(getattr(reference_metrics, name)(probs, labels))

        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7, err_msg=name)
        assert name == "nll" or ((found >= 0) & (found <= (2 if name == "brier" else 1))).all(), name


@FEW
@given(batches(), st.booleans())
def test_losses_equal_the_loops(batch, transposed):
    logits, labels = batch
    tensor = torch.from_numpy(logits.T.copy()).T if transposed else torch.from_numpy(logits)
    tensor = tensor.requires_grad_()
    for text, loop in LOSSES.items():
        try:
            expected = loop(logits.tolist(), labels.tolist())
        except ValueError:  # the logarithm of a probability of 0, where the loss is finite
            expected = None
        found = losses.parse(text)(tensor, torch.from_numpy(labels))
        (gradient,) = torch.autograd.grad(found, tensor)

        assert torch.isfinite(found), text
        assert torch.isfinite(gradient).all(), text
        if expected is not None:
            assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-9), text


@FEW
@given(
    batches(), st.sampled_from(["Temperature", "VectorScaling", "Identity"]), st.booleans(), st.integers(0, 3)
)
def test_calibrated_probabilities_are_probabilities(batch, name, masked, layout):
    logits, labels = batch
    with warnings.catch_warnings(action="ignore"):
        try:
            fitted = getattr(posthoc, name).fit(logits, labels)
        except ValueError:  # too few rows or classes
            return
    asked = logits.copy()
    if masked:
        asked[:, -1] = -np.inf
    found = np.asarray(fitted(laid_out(asked, layout)))

    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    assert (found >= 0).all()
    np.testing.assert_array_equal(found, np.asarray(fitted(asked)))
    if masked:
        assert (found[:, -1] == 0).all()


@FEW
@given(st.integers(0, 2**31), st.integers(1, 9), st.sampled_from([0.1, 0.5, 0.9]), st.booleans())
def test_a_head_has_the_moments_of_its_formula(seed, rows, p, transposed):
    torch.manual_seed(seed)
    layer = nn.Linear(4, 3).double()
    features = (
        torch.randn(4, rows, dtype=torch.float64).T
        if transposed
        else torch.randn(rows, 4, dtype=torch.float64)
    )
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    model = macc.attach(nn.Sequential(layer), p=p, estimator="analytic").train()
    moments = model(features)
    # The variance of sum_i w_i x_i m_i / (1 - p) over masks m_i that keep with probability 1 - p.
    expected = (features**2) @ (weight**2).T * p / (1 - p)

    torch.testing.assert_close(moments.mean, features @ weight.T + bias)
    torch.testing.assert_close(moments.variance, expected)

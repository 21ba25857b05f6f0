"""Calibrators of groups: own maps where they pay, the common one everywhere else."""

import json

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from macc import metrics, posthoc


def drawn(rng, size, slopes, offsets=0.0):
    """Logits of a model that is too sure, labels, and groups whose truth has these slopes and
    offsets.
    """
    truth = 2 * rng.normal(size=(size, 3))
    group = rng.integers(0, len(slopes), size)
    tilt = np.broadcast_to(offsets, (len(slopes), 3))[group]
    labels = (np.array(slopes)[group][:, None] * truth + tilt + rng.gumbel(size=truth.shape)).argmax(1)
    return 1.5 * truth, labels, np.array(["a", "b", "c", "d"])[group]


def gain(fitted, logits, labels, groups):
    """How much less NLL the groups' maps have than the common one, and its standard error."""
    own, common = (
        np.log(probs[np.arange(len(labels)), labels])
        for probs in (fitted(logits, groups), fitted.common(logits))
    )
    return (own - common).mean(), (own - common).std() / np.sqrt(len(labels))


@pytest.mark.parametrize("method", ["temperature", "vector-scaling"])
def test_equal_groups_keep_the_common_map(method):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        fitted = posthoc.Grouped.fit(*drawn(rng, 1000, [1, 1, 1, 1]), method=method)
        assert not any(score.own for score in fitted.scores)
        logits, labels, groups = drawn(rng, 1000, [1, 1, 1, 1])
        assert gain(fitted, logits, labels, groups)[0] == 0


def test_groups_that_differ_gain():
    rng = np.random.default_rng(0)
    fitted = posthoc.Grouped.fit(*drawn(rng, 3000, [1, 0.3, 1, 1.5]))
    assert {"b", "d"} <= set(fitted.slopes)
    assert fitted.slopes["b"] < 0.7 < 1.1 < fitted.slopes["d"]
    found, error = gain(fitted, *drawn(rng, 10000, [1, 0.3, 1, 1.5]))
    assert found > 0.02
    assert found > 5 * error
    assert "own" in str(fitted)


def test_offsets_where_the_method_has_them_and_the_class_stays_where_it_keeps_it():
    tilts = [[0, 0, 0], [1.5, 0, -1.5], [0, 0, 0], [0, 0, 0]]
    rng = np.random.default_rng(1)
    data = drawn(rng, 3000, [1, 1, 1, 1], tilts)
    tilted = posthoc.Grouped.fit(*data, method=posthoc.VectorScaling)
    assert tilted.offsets["b"][0] > 0.5 > -0.5 > tilted.offsets["b"][2]
    assert gain(tilted, *drawn(rng, 10000, [1, 1, 1, 1], tilts))[0] > 0.05
    kept = posthoc.Grouped.fit(*data)
    assert not any(offset.any() for offset in kept.offsets.values())
    assert (kept(data[0], data[2]).argmax(1) == data[0].argmax(1)).all()


def test_the_own_map_is_the_penalised_optimum():
    rng = np.random.default_rng(2)
    logits, labels, groups = drawn(rng, 2000, [1, 0.3])
    fitted = posthoc.Grouped.fit(logits, labels, groups, method="beta")
    there = groups == "b"
    logs, truth = np.log(fitted.common(logits[there])), labels[there]

    def cost(at):
        moved = log_softmax(at[0] * logs + at[1:], axis=1)
        away = at - np.array([1, 0, 0, 0])
        return -moved[np.arange(len(truth)), truth].sum() + fitted.penalty * away @ away / 2

    expected = minimize(cost, [1, 0, 0, 0], method="BFGS").x
    found = [fitted.slopes["b"], *fitted.offsets["b"]]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_small_and_unknown_groups_get_the_common_map():
    rng = np.random.default_rng(3)
    logits, labels, groups = drawn(rng, 1500, [1, 0.3])
    groups[:20] = "c"
    fitted = posthoc.Grouped.fit(logits, labels, groups)
    assert fitted.notes[-1] == "few samples (below 100), so that the common map is used: c"
    assert "c" not in fitted.slopes
    with pytest.warns(UserWarning, match="has not seen the group z; the common map"):
        found = fitted(logits[:3], ["c", "z", "b"])
    np.testing.assert_array_equal(found[:2], fitted.common(logits[:2]))
    assert not np.allclose(found[2], fitted.common(logits[2:3])[0])


def test_saved_and_loaded(tmp_path):
    rng = np.random.default_rng(4)
    logits, labels, groups = drawn(rng, 1500, [1, 0.3])
    fitted = posthoc.Grouped.fit(logits, labels, groups)
    fitted.save(tmp_path / "g.json")
    loaded = posthoc.Grouped.load(tmp_path / "g.json")
    np.testing.assert_array_equal(loaded(logits, groups), fitted(logits, groups))
    assert loaded.scores == fitted.scores
    with pytest.raises(ValueError, match=r"of groups, which posthoc\.Grouped\.load"):
        posthoc.load(tmp_path / "g.json")
    content = json.loads((tmp_path / "g.json").read_text())
    for broken in (
        {"slopes": {"b": -1.0}},
        {"slopes": {}},
        {"offsets": {name: [0.0] for name in content["offsets"]}},
        {"scores": [1]},
        {"penalty": "a lot"},
        {"macc_grouped": 2},
    ):
        (tmp_path / "broken.json").write_text(json.dumps(content | broken))
        with pytest.raises(ValueError, match="is not a calibrator of groups"):
            posthoc.Grouped.load(tmp_path / "broken.json")


def test_two_classes_in_one_column_and_torch():
    rng = np.random.default_rng(5)
    logit = rng.normal(size=1500) * 2
    site = rng.choice(["n", "s"], 1500)
    labels = (rng.random(1500) < 1 / (1 + np.exp(-logit - np.where(site == "s", 1.5, 0)))).astype(int)
    fitted = posthoc.Grouped.fit(logit, labels, site, method="platt")
    probs = fitted(torch.from_numpy(logit).float(), site)
    assert probs.shape == (1500,)
    assert probs.dtype == torch.float32
    common = fitted.common(torch.from_numpy(logit).float())
    assert metrics.nll(probs, labels) < metrics.nll(common, labels) - 0.02


def test_refusals():
    logits, labels = np.zeros((6, 2)), [0, 1] * 3
    with pytest.raises(ValueError, match="groups must name one group for each of 6 samples"):
        posthoc.Grouped.fit(logits, labels, ["a"])
    with pytest.raises(ValueError, match="folds must be an integer"):
        posthoc.Grouped.fit(logits, labels, ["a"] * 6, folds=1)

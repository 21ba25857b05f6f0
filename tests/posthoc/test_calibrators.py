"""Each calibrator against an independent optimiser, known parameters, and what it promises beyond the contract."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from helpers.calibrators import data, fit
from macc import metrics, posthoc


def nll(log_probs, labels):
    return -log_probs[np.arange(len(labels)), labels].mean()


def drawn(scores, rng):
    return (softmax(scores, axis=1).cumsum(1) > rng.random((len(scores), 1))).argmax(1)


def slow_minimum(objective, start, **options):
    """A derivative-free gradient and another algorithm than the library's."""
    found = minimize(objective, start, method="SLSQP", options={"ftol": 1e-15, "maxiter": 2000}, **options)
    return found.x


def test_platt_is_the_penalised_maximum():
    logits, labels = data(500, 2)
    temperature = fit("Temperature", logits, labels).temperature
    margin = logits[:, 1] - logits[:, 0]

    def objective(at):
        scores = at[0] * margin / temperature + at[1]
        loss = np.logaddexp(0, np.where(labels == 1, -scores, scores)).sum()
        return (loss + ((at - [1, 0]) ** 2).sum() / 2) / len(labels)

    slope, intercept = slow_minimum(objective, [1.0, 0.0])
    fitted = posthoc.Platt.fit(logits, labels)

    assert fitted.slope == pytest.approx(slope / temperature, abs=1e-5)
    assert fitted.intercept == pytest.approx(intercept, abs=1e-5)


def test_platt_recovers_a_curve_and_agrees_with_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    margin = rng.normal(size=40_000) * 3
    labels = (rng.random(40_000) < expit(0.5 * margin - 1)).astype(int)
    fitted = posthoc.Platt.fit(margin, labels)
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(margin[:, None], labels)

    assert fitted.slope == pytest.approx(0.5, abs=0.02)
    assert fitted.intercept == pytest.approx(-1, abs=0.04)
    np.testing.assert_allclose(fitted(margin), theirs.predict_proba(margin[:, None])[:, 1], atol=1e-4)


def test_platt_is_for_two_classes():
    with pytest.raises(ValueError, match="Platt is for two classes, and logits has 4; use"):
        posthoc.Platt.fit(*data())


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling", "Dirichlet"])
def test_linear_maps_are_the_penalised_maximum(name):
    logits, labels = data(300, 3)
    temperature = fit("Temperature", logits, labels).temperature
    features = log_softmax(logits, axis=1) if name == "Dirichlet" else logits - logits.mean(1, keepdims=True)
    features = features / temperature
    start = np.ones(3) if name == "VectorScaling" else np.eye(3)
    off = 10.0 * 3

    def objective(at):
        weight, bias = at[:-3].reshape(start.shape), at[-3:]
        scores = features * weight + bias if start.ndim == 1 else features @ weight.T + bias
        cost = 1.0 if start.ndim == 1 else np.where(np.eye(3) == 1, 1.0, off)
        penalty = (cost * (weight - start) ** 2).sum() / 2 + (bias**2).sum() / 2
        return nll(log_softmax(scores, axis=1), labels) + penalty / len(labels)

    at = slow_minimum(objective, np.concatenate([start.ravel(), np.zeros(3)]))
    fitted = getattr(posthoc, name).fit(logits, labels)

    np.testing.assert_allclose(fitted.weight.ravel() * temperature, at[:-3], atol=2e-4)
    np.testing.assert_allclose(fitted.bias, at[-3:], atol=2e-4)
    found = np.concatenate([fitted.weight.ravel() * temperature, fitted.bias])
    assert objective(found) <= objective(at) + 1e-9


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling"])
def test_linear_maps_recover_known_parameters(name):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60_000, 3)) * 2
    logits -= logits.mean(1, keepdims=True)
    weight = np.diag([0.5, 1.0, 1.5])
    if name == "MatrixScaling":
        weight = weight + np.array([[0, 0.3, 0], [0, 0, -0.3], [0, 0, 0]])
    bias = np.array([0.5, 0.0, -0.5])
    fitted = getattr(posthoc, name).fit(logits, drawn(logits @ weight.T + bias, rng))

    np.testing.assert_allclose(fitted(logits), softmax(logits @ weight.T + bias, axis=1), atol=0.02)
    np.testing.assert_allclose(fitted.bias - fitted.bias.mean(), bias, atol=0.06)
    if name == "VectorScaling":
        np.testing.assert_allclose(fitted.weight, [0.5, 1.0, 1.5], atol=0.06)


def test_dirichlet_recovers_known_parameters():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60_000, 3)) * 2
    weight = np.array([[0.6, 0.2, 0], [0, 0.8, 0], [0, 0, 1.0]])
    truth = log_softmax(logits, axis=1) @ weight.T + [0.3, -0.3, 0.0]
    fitted = posthoc.Dirichlet.fit(logits, drawn(truth, rng))

    np.testing.assert_allclose(fitted(logits), softmax(truth, axis=1), atol=0.02)


@pytest.mark.parametrize("name", ["VectorScaling", "MatrixScaling", "Dirichlet"])
def test_penalties_lead_back_to_temperature_scaling(name):
    logits, labels = data()
    options = {"penalty": 1e9} if name == "VectorScaling" else {"off_diagonal": 1e9, "bias": 1e9}
    fitted = getattr(posthoc, name).fit(logits, labels, **options)

    np.testing.assert_allclose(fitted(logits), posthoc.Temperature.fit(logits, labels)(logits), atol=1e-5)
    for key in options:
        with pytest.raises(ValueError, match=f"{key} must be a number of at least 0"):
            getattr(posthoc, name).fit(logits, labels, **{key: -1.0})


def test_a_class_without_samples_is_only_tempered():
    logits, labels = data(800)
    logits, labels = logits[labels != 2], labels[labels != 2]
    temperature = posthoc.Temperature.fit(logits, labels).temperature
    with pytest.warns(
        UserWarning, match="class 2 has no samples in the validation set; its probability is only tempered"
    ):
        fitted = posthoc.MatrixScaling.fit(logits, labels)

    np.testing.assert_allclose(fitted.weight[2], np.eye(4)[2] / temperature, rtol=1e-12)
    assert fitted.bias[2] == 0
    assert abs(fitted.bias[1]) > 1e-4


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


def test_isotonic_agrees_with_scikit_learn():
    """Before smoothing and normalising, each curve is scikit-learn's at every validation sample."""
    from sklearn.isotonic import IsotonicRegression

    logits, labels = data(500, 3)
    logits = logits.round(1)  # with ties
    probs = softmax(logits, axis=1)
    curves = [IsotonicRegression().fit_transform(probs[:, j], (labels == j).astype(float)) for j in range(3)]
    expected = (len(labels) * np.stack(curves, axis=1) + 1 / 3) / (len(labels) + 1)
    fitted = posthoc.Isotonic.fit(logits, labels)

    np.testing.assert_allclose(fitted(logits), expected / expected.sum(1, keepdims=True), atol=1e-9)


def test_histogram_against_a_loop():
    logits, labels = data(500, 3)
    fitted = posthoc.Histogram.fit(logits, labels, bins=4)
    probs = softmax(logits, axis=1)
    expected = np.empty_like(probs)
    for j in range(3):
        order = probs[:, j].argsort()
        for part in np.array_split(order, 4):
            expected[part, j] = ((labels[part] == j).sum() + 1 / 3) / (len(part) + 1)

    np.testing.assert_allclose(fitted(logits), expected / expected.sum(1, keepdims=True), atol=1e-12)
    with pytest.raises(ValueError, match="bins must be a positive integer"):
        posthoc.Histogram.fit(logits, labels, bins=0)


@pytest.mark.parametrize("name", ["Histogram", "Isotonic"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_no_class_gets_probability_0(name, scale):
    logits, _ = data(dtype=np.float32)
    fitted = fit(name, logits * scale, logits.argmax(1))

    assert fitted(logits * scale).min() > 0
    assert fitted(1e5 * logits * scale).min() > 0


def test_histogram_shares_ties():
    logits = np.repeat([-3.0, 3.0], [100, 200])
    labels = np.concatenate([np.zeros(100), np.tile([1, 1, 1, 0], 50)]).astype(int)
    fitted = posthoc.Histogram.fit(logits, labels, bins=2)

    np.testing.assert_allclose(fitted([-3.0, 3.0]), [0.5 / 101, 150.5 / 201], atol=1e-3)


def test_mixture_weights_are_optimal():
    """At the optimum no opinion promises more than the mixture: the mean share of each is at most 1."""
    rng = np.random.default_rng(0)
    logits, labels = data(3000, 5)
    labels = np.where(rng.random(3000) < 0.2, rng.integers(0, 5, 3000), labels)  # wrong labels call for 1 / K
    fitted = posthoc.EnsembleTemperature.fit(logits, labels)
    own = np.arange(3000), labels
    opinions = np.stack(
        [softmax(logits / fitted.temperature, axis=1)[own], softmax(logits, axis=1)[own], np.full(3000, 0.2)],
        1,
    )
    shares = (opinions / (opinions @ fitted.weights)[:, None]).mean(0)

    assert shares.max() < 1 + 1e-6
    assert fitted.weights[2] > 0.05
    np.testing.assert_allclose(fitted(logits)[own], opinions @ fitted.weights, atol=1e-12)


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


def test_meta_cal_keeps_its_bound():
    """Over many validation sets, the share of right samples lost exceeds the bound in at most 1 - confidence."""
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


def test_a_fit_worse_than_nothing_is_refused():
    from macc.posthoc._base import accept, sample

    logits, labels = data(scale=1.0)
    with pytest.raises(ValueError, match=r"Temperature makes its own validation data worse \(NLL .* refused"):
        accept(posthoc.Temperature(4, 50.0), sample(logits, labels))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "name",
    ["Temperature", "EnsembleTemperature", "LocalTemperature", "VectorScaling", "MatrixScaling", "Dirichlet"],
)
def test_never_worse_than_nothing_on_its_own_data(name, seed):
    """Few samples, many classes, labels that have nothing to do with the logits."""
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(30, 8)) * 10 ** rng.uniform(-2, 2), rng.integers(0, 8, 30)
    fitted = fit(name, logits, labels)

    assert metrics.nll(fitted(logits), labels) <= metrics.nll(logits, labels, from_logits=True) + 1e-9


def test_best_finds_the_family_that_made_the_data():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 3)) * 2
    shifted = drawn(0.5 * logits + [1.0, 0.0, -1.0], rng)
    chosen = posthoc.best(logits, shifted, ["identity", "temperature", "vector-scaling", "histogram"])

    assert chosen.scores[0].name == "VectorScaling"
    assert chosen.scores[-1].name == "Identity"
    assert isinstance(chosen.calibrator, posthoc.VectorScaling)
    assert chosen.calibrator.to_dict() == posthoc.VectorScaling.fit(logits, shifted).to_dict()
    assert chosen.scores[0].behind == 0
    assert chosen.scores[-1].behind > 10 * chosen.scores[-1].error
    assert "VectorScaling" in str(chosen)


def test_best_keeps_the_simpler_one_within_a_standard_error():
    """Labels of tempered logits: more parameters than one can only look better by chance."""
    names = ["matrix-scaling", "vector-scaling", "temperature", "identity"]
    looked_better = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        logits = 2 * rng.normal(size=(300, 3))
        chosen = posthoc.best(2 * logits, drawn(logits, rng), names)
        scores = {score.name: score for score in chosen.scores}
        looked_better += chosen.scores[0].name != "Temperature"

        near = [score for score in chosen.scores if score.behind <= score.error]
        assert chosen.chosen == min(near, key=lambda score: score.num_parameters).name
        assert type(chosen.calibrator).__name__ == chosen.chosen
        assert [scores[name].num_parameters for name in ("Identity", "Temperature", "VectorScaling")] == [
            0,
            1,
            6,
        ]
        assert scores["MatrixScaling"].num_parameters == 12
        for text in (repr(chosen), str(chosen), chosen._repr_html_()):
            assert chosen.why in text
            assert "MatrixScaling" in text
    assert looked_better >= 3  # so that the rule was needed


def test_best_scores_are_those_of_held_out_samples():
    """Against a plain loop over the same folds."""
    from macc.posthoc._base import sample
    from macc.posthoc._best import _folds

    logits, labels = data(200)
    chosen = posthoc.best(logits, labels, [posthoc.Histogram], folds=4)
    folds = _folds(sample(logits, labels), 4, 0).numpy()
    losses = []
    for fold in range(4):
        fitted = posthoc.Histogram.fit(logits[folds != fold], labels[folds != fold])
        probs = fitted(logits[folds == fold])
        losses.append(-np.log(probs[np.arange(len(probs)), labels[folds == fold]]))

    assert chosen.scores[0].nll == pytest.approx(np.concatenate(losses).mean())
    for j in range(4):  # each class is dealt evenly
        counts = np.bincount(folds[labels == j], minlength=4)
        assert counts.max() - counts.min() <= 1


def test_best_says_who_was_refused_and_takes_functions():
    logits, labels = data()
    chosen = posthoc.best(
        logits, labels, [posthoc.Temperature, "platt", partial(posthoc.MatrixScaling.fit, off_diagonal=1e3)]
    )

    assert {score.name for score in chosen.scores} == {
        "Temperature",
        "Platt",
        "MatrixScaling(off_diagonal=1000.0)",
    }
    assert chosen.scores[-1].reason.startswith("Platt is for two classes")
    assert "two classes" in str(chosen)
    with pytest.raises(ValueError, match="no candidate could be fitted; Platt: Platt is for two"):
        posthoc.best(logits, labels, ["platt"])
    with pytest.raises(ValueError, match="no calibrator is called 'magic'; there are .*vector-scaling"):
        posthoc.best(logits, labels, ["magic"])
    with pytest.raises(ValueError, match="folds must be"):
        posthoc.best(logits, labels, folds=1)
    with pytest.raises(ValueError, match="too few for 5 folds"):
        posthoc.best(logits[:8], labels[:8])
    with pytest.raises(ValueError, match="candidates is empty"):
        posthoc.best(logits, labels, [])


def test_best_of_all():
    shares = []
    logits, labels = data(300, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        chosen = posthoc.best(logits, labels, on_progress=shares.append)

    assert {"Platt", "Identity", "Dirichlet"} <= {score.name for score in chosen.scores}
    assert "MetaCal" not in {score.name for score in chosen.scores}
    assert shares == sorted(shares)
    assert shares[-1] == 1

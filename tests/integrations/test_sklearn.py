"""scikit-learn's conventions, and what our two estimators promise beyond them."""

import pickle
import threading
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, make_blobs, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from macc import losses, metrics, posthoc
from macc.integrations import sklearn as ours
from macc.integrations.sklearn import Calibrated, MACCClassifier
from macc.integrations.sklearn._weights import rows_by_weight

X, Y = load_iris(return_X_y=True)

COPIES = "the seed draws other batches, held-out samples and folds where rows are repeated than where they have a weight"
EXPECTED_TO_FAIL = {
    "check_sample_weight_equivalence_on_dense_data": COPIES,
    "check_sample_weight_equivalence_on_sparse_data": COPIES,
}
SKIPPED = {"check_array_api_input": "needs the environment variable SCIPY_ARRAY_API"}


def quick(**knobs):
    """A classifier that takes a fraction of a second."""
    return MACCClassifier(**{"hidden": (16,), "max_iter": 15, "random_state": 0, **knobs})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [MACCClassifier(max_iter=30, hidden=(32,)), Calibrated(GaussianNB(), method="temperature")],
    ids=repr,
)
def test_the_checks_of_scikit_learn_pass(estimator):
    results = check_estimator(estimator, expected_failed_checks=EXPECTED_TO_FAIL, on_skip=None)

    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    failed = {result["check_name"] for result in results if result["status"] == "xfail"}
    assert skipped <= set(SKIPPED)
    assert failed <= set(EXPECTED_TO_FAIL)
    assert len(results) > 50


def test_breast_cancer_is_classified_in_cross_validation():
    features, labels = load_breast_cancer(return_X_y=True)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)

    assert cross_val_score(MACCClassifier(random_state=0), features, labels, cv=folds).mean() >= 0.955


def test_probabilities_of_string_labels_are_calibrated_and_in_the_order_of_classes():
    names = np.array(["setosa", "versicolor", "virginica"])[Y]
    classifier = quick().fit(X, names)

    probs = classifier.predict_proba(X)
    assert list(classifier.classes_) == ["setosa", "versicolor", "virginica"]
    assert np.allclose(probs.sum(1), 1)
    assert (classifier.predict(X) == classifier.classes_[probs.argmax(1)]).all()
    assert isinstance(classifier.calibrator_, posthoc.Temperature)
    assert set(classifier.history_[0]) == {"loss", "refinement"}
    assert classifier.history_[classifier.best_iter_ - 1]["refinement"] == min(
        epoch["refinement"] for epoch in classifier.history_
    )
    raw = classifier.model_(torch.from_numpy(X)).detach()
    assert np.allclose(probs, classifier.calibrator_(raw).numpy())


def test_the_same_seed_gives_the_same_probabilities_and_leaves_the_generator_of_torch_alone():
    state = torch.random.get_rng_state()
    one, two, other = (quick(random_state=seed).fit(X, Y).predict_proba(X) for seed in (0, 0, 1))

    assert (one == two).all()
    assert not np.allclose(one, other)
    assert (torch.random.get_rng_state() == state).all()


def test_fits_in_threads_do_not_disturb_each_other():
    alone = quick().fit(X, Y).predict_proba(X)
    found = joblib.Parallel(n_jobs=3, backend="threading")(
        joblib.delayed(quick().fit)(X, Y) for _ in range(3)
    )

    assert all((each.predict_proba(X) == alone).all() for each in found)


@pytest.mark.parametrize("text", ["CrossEntropy", "Focal(gamma=2) + MACC", "Brier + 0.1*MDCA"])
def test_every_loss_can_be_had_by_its_text(text):
    assert quick(loss=text, max_iter=60, learning_rate=1e-2).fit(X, Y).score(X, Y) > 0.9


def test_a_criterion_is_copied_and_not_trained_on():
    criterion = losses.CrossEntropy() + losses.MACC(warmup=5)
    quick(loss=criterion).fit(X, Y)

    assert int(criterion.penalties[0].penalty.step) == 0


def test_a_search_over_losses_in_processes_inside_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), quick(standardise=False))
    grid = {"maccclassifier__loss": ["CrossEntropy", "Focal(gamma=2) + MACC"]}
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2, scoring="neg_log_loss").fit(X, Y)

    again = clone(search.best_estimator_).fit(X, Y)
    assert (again.predict_proba(X) == search.predict_proba(X)).all()


@pytest.mark.parametrize(
    "estimator", [quick(), Calibrated(GaussianNB(), "temperature")], ids=["network", "calibrated"]
)
def test_pickle_and_joblib_keep_every_digit(estimator, tmp_path):
    fitted = estimator.fit(X, Y)
    joblib.dump(fitted, tmp_path / "model.joblib")

    for again in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "model.joblib")):
        assert (again.predict_proba(X) == fitted.predict_proba(X)).all()


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize(
    "estimator", [quick(), Calibrated(GaussianNB(), "temperature")], ids=["network", "calibrated"]
)
def test_data_frames_and_their_names(library, estimator):
    frames = pytest.importorskip(library, reason=f"{library} is not installed")
    frame = frames.DataFrame({f"f{i}": X[:, i] for i in range(4)})
    series = frames.Series(["abc"[label] for label in Y])
    fitted = clone(estimator).fit(frame, series)

    assert list(fitted.feature_names_in_) == ["f0", "f1", "f2", "f3"]
    assert list(fitted.classes_) == ["a", "b", "c"]
    assert np.allclose(fitted.predict_proba(frame), clone(estimator).fit(X, Y).predict_proba(X))
    if library == "pandas":
        with pytest.raises(ValueError, match="feature names"):
            fitted.predict(frame[["f1", "f0", "f2", "f3"]])


def test_ctrl_c_keeps_the_best_epoch_so_far(monkeypatch):
    train, epochs = ours._classifier._epoch, []

    def interrupted(*args):
        if len(epochs) == 4:
            raise KeyboardInterrupt
        epochs.append(train(*args))
        return epochs[-1]

    monkeypatch.setattr(ours._classifier, "_epoch", interrupted)
    with pytest.warns(UserWarning, match=r"interrupted after 4 of 15 epochs; the weights of epoch \d"):
        classifier = quick().fit(X, Y)
    assert classifier.n_iter_ == 4
    assert classifier.predict_proba(X).shape == (150, 3)

    epochs[:] = [0.0] * 4  # before the first epoch there is nothing to keep
    with pytest.raises(KeyboardInterrupt):
        quick().fit(X, Y)


def test_training_stops_when_refinement_does_not_get_better():
    features, labels = make_classification(400, flip_y=0.4, random_state=0)
    classifier = MACCClassifier(patience=3, max_iter=500, random_state=0).fit(features, labels)

    assert classifier.n_iter_ == classifier.best_iter_ + 3 < 500


def test_a_weight_counts_as_copies():
    """Two labels of equal place: their probabilities are the shares of the weights."""
    labels = np.arange(2000) % 2
    for knobs, weight in (({}, np.where(labels, 3.0, 1.0)), ({"class_weight": {0: 1, 1: 3}}, None)):
        classifier = quick(loss="CrossEntropy", hidden=(), max_iter=60, **knobs)
        probs = classifier.fit(np.zeros((2000, 1)), labels, sample_weight=weight).predict_proba([[0.0]])
        assert probs[0, 1] == pytest.approx(0.75, abs=0.02)
    draw = np.random.RandomState(0)
    drawn = np.bincount(np.concatenate([rows_by_weight(np.array([0.5, 0, 2.5]), draw) for _ in range(2000)]))
    assert drawn / drawn.sum() == pytest.approx([1 / 6, 0, 5 / 6], abs=0.01)


def test_a_balanced_classifier_sees_the_rare_class():
    features, labels = make_blobs([300, 20], centers=[[0, 0], [1.5, 0]], random_state=0)
    rare = [
        quick(class_weight=weight).fit(features, labels).predict(features).mean()
        for weight in (None, "balanced")
    ]

    assert rare[1] > 2 * rare[0]


def test_a_held_out_part_without_errors_does_not_make_the_model_certain():
    features, labels = make_blobs(300, centers=[[0, 0], [9, 9]], random_state=0)
    classifier = quick(max_iter=40).fit(features, labels)

    assert 0.9 < classifier.predict_proba(features).max() < 0.9999


def test_a_learning_rate_of_nothing_is_refused_where_denormals_are_flushed():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        with pytest.raises(ValueError, match="`learning_rate` must be a number above 0, got 0"):
            quick(learning_rate=0).fit(X, Y)
    finally:
        torch.set_flush_denormal(False)


def test_what_cannot_be_is_refused(monkeypatch):
    for knobs, message in (
        ({"validation_fraction": 1.0}, r"`validation_fraction` must lie in \[0, 1\), got 1.0"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1, got 0"),
        ({"loss": "Focal + MAC"}, "did you mean 'MACC'"),
        ({"calibrator": "temprature"}, "no calibrator is called 'temprature'"),
        ({"calibrator": 3}, "no calibrator is called 3"),
        ({"loss": 3}, "`loss` must be a criterion or its text, got 3"),
        ({"hidden": 128}, r"`hidden` must have the size of each hidden layer, as in \(128,\), got 128"),
        ({"hidden": (8, 0)}, "`hidden` must be a whole number of at least 1, got 0"),
        ({"learning_rate": 0}, "`learning_rate` must be a number above 0, got 0"),
        ({"weight_decay": "a"}, "`weight_decay` must be a number of at least 0, got 'a'"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(ours._classifier, "_epoch", None)  # before the first epoch
            with pytest.raises(ValueError, match=message):
                quick(**knobs).fit(X, Y)
    with pytest.warns(UserWarning, match="20 samples are too few to hold out a share of 0.15"):
        assert quick().fit(X[45:65], Y[45:65]).calibrator_ is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(validation_fraction=0, max_iter=2).fit(X[45:65], Y[45:65])


OVERLAPPING = make_classification(1200, 20, n_informative=6, n_classes=3, class_sep=0.7, random_state=3)


@pytest.mark.parametrize(
    "estimator",
    [GaussianNB(), LinearSVC(), RandomForestClassifier(30, random_state=0)],
    ids=lambda e: type(e).__name__,
)
def test_calibrated_probabilities_are_better_than_those_of_the_classifier(estimator):
    features, labels = OVERLAPPING
    train, test = slice(0, 800), slice(800, None)
    calibrated = Calibrated(estimator, method="vector-scaling").fit(features[train], labels[train])

    plain = clone(estimator).fit(features[train], labels[train])
    if hasattr(plain, "predict_proba"):
        before = np.clip(plain.predict_proba(features[test]), 1e-6, None)
        before /= before.sum(1, keepdims=True)
    else:
        before = torch.from_numpy(plain.decision_function(features[test])).softmax(1).numpy()
    assert metrics.nll(calibrated.predict_proba(features[test]), labels[test]) < metrics.nll(
        before, labels[test]
    )


def test_auto_compares_and_says_why():
    features, labels = OVERLAPPING
    calibrated = Calibrated(GaussianNB()).fit(features, labels)

    assert "is chosen" in str(calibrated.choice_)
    assert calibrated.calibrator_ is calibrated.choice_.calibrator


def test_a_fitted_classifier_is_kept_as_it_is():
    features, labels = OVERLAPPING
    fitted = GaussianNB().fit(features[:600], labels[:600])
    one = Calibrated(fitted, "temperature", cv="prefit").fit(features[600:], labels[600:])
    two = Calibrated(FrozenEstimator(fitted), "temperature").fit(features[600:], labels[600:])

    assert one.estimator_ is fitted
    by_hand = posthoc.Temperature.fit(np.log(fitted.predict_proba(features[600:])), labels[600:])
    assert one.calibrator_.temperature == two.calibrator_.temperature == pytest.approx(by_hand.temperature)
    with pytest.raises(ValueError, match="does not know the class 7"):
        Calibrated(fitted, "temperature", cv="prefit").fit(features[600:], np.full(600, 7))


def test_weights_reach_classifier_and_calibrator():
    labels = np.arange(400) % 2
    weight = np.where(labels, 3.0, 1.0)
    features = np.random.RandomState(0).randn(400, 1)
    calibrated = Calibrated(GaussianNB(), "platt").fit(features, labels, sample_weight=weight)

    assert calibrated.predict_proba([[0.0]])[0, 1] == pytest.approx(0.75, abs=0.03)
    times = weight.astype(int)
    weighted, repeated = (Calibrated(calibrated.estimator_, "platt", cv="prefit") for _ in range(2))
    weighted.fit(features, labels, sample_weight=weight)
    repeated.fit(features.repeat(times, 0), labels.repeat(times))
    assert weighted.calibrator_.to_dict() == repeated.calibrator_.to_dict()


def test_what_calibrated_refuses():
    with pytest.raises(ValueError, match="no calibrator is called 'temprature'"):
        Calibrated(None, method="temprature").fit(X, Y)
    with pytest.raises(ValueError, match="decision_function_shape='ovr'"):
        Calibrated(SVC(decision_function_shape="ovo"), "temperature").fit(
            *make_blobs(80, centers=4, random_state=0)
        )
    with pytest.raises(ValueError, match="class 2 has 1 sample and cross-validation needs 2"):
        Calibrated(GaussianNB()).fit(X[:101], Y[:101])
    with pytest.raises(ValueError, match="StandardScaler has neither decision_function nor predict_proba"):
        Calibrated(StandardScaler()).fit(X, Y)


def test_the_lock_is_not_pickled():
    assert isinstance(ours._classifier._ONE_FIT_AT_A_TIME, type(threading.RLock()))
    assert b"RLock" not in pickle.dumps(quick().fit(X, Y))


def test_losses_of_independent_labels_are_refused():
    with pytest.raises(ValueError, match="BinaryCrossEntropy is for independent labels"):
        quick(loss="BinaryCrossEntropy").fit(X, Y)

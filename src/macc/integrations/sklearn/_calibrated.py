"""Any classifier of scikit-learn with a calibrator of ours."""

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv, cross_val_predict
from sklearn.utils import column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, has_fit_parameter

from macc import posthoc

Floats = npt.NDArray[np.float64]


class Calibrated(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Any classifier with calibrated probabilities.

    The calibrator is fitted to scores of samples that the classifier was not trained on: by default
    those that cross-validation holds out, after which the classifier is trained on all samples. A
    classifier that is already fitted is kept as it is with ``cv="prefit"``, or as a
    ``FrozenEstimator``; then fit on other samples than it was trained on.

    Scores are the classifier's ``decision_function``, or else the logarithms of its
    ``predict_proba``. A probability of 0 counts as half the least one above 0.

    Args:
        estimator: A classifier with ``decision_function`` or ``predict_proba``.
        method: ``"auto"`` compares all that suit (:func:`macc.posthoc.best`), or the name of a
            calibrator: ``"temperature"``, ``"isotonic"``, ``"vector-scaling"``, …
        cv: Number of folds, fewer where a class has fewer samples; a splitter of scikit-learn, or
            ``"prefit"``.
        n_jobs: How many folds to train at a time.

    Attributes:
        estimator_: The fitted classifier.
        calibrator_: The fitted calibrator of :mod:`macc.posthoc`.
        choice_: With ``"auto"``, the comparison of all candidates, which prints as a table;
            otherwise None.
        floor_: What a probability of 0 counts as.
        classes_: The labels of the classes.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = load_iris(return_X_y=True)
        >>> calibrated = Calibrated(GaussianNB(), method="temperature").fit(X, y)
        >>> calibrated.calibrator_.temperature > 1  # naive Bayes is too sure
        True
    """

    def __init__(self, estimator: Any, method: str = "auto", *, cv: Any = 5, n_jobs: int | None = None):
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> "Calibrated":
        """Fit classifier and calibrator, or the calibrator alone where the classifier is fitted.

        Args:
            X: What the classifier takes.
            y: Labels, of any type.
            sample_weight: A weight for each sample, for the classifier if it takes weights, and for
                the calibrator.
            **fit_params: Passed on to the classifier's ``fit``.
        """
        X, y = indexable(X, y)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
            if has_fit_parameter(self.estimator, "sample_weight"):
                fit_params = {**fit_params, "sample_weight": weight}
        kind: Any = None if self.method == "auto" else posthoc.by_name(self.method)
        self._method_ = _score_method(self.estimator)
        if self.cv == "prefit" or isinstance(self.estimator, FrozenEstimator):
            check_is_fitted(self.estimator)
            self.estimator_ = self.estimator
            scores = getattr(self.estimator_, self._method_)(X)
        else:
            scores = cross_val_predict(
                clone(self.estimator), X, y,
                cv=self._splitter(y), n_jobs=self.n_jobs, method=self._method_, params=fit_params,
            )  # fmt: skip
            self.estimator_ = clone(self.estimator).fit(X, y, **fit_params)
        self.classes_ = np.asarray(self.estimator_.classes_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.floor_ = _floor(scores) if self._method_ == "predict_proba" else 0.0
        logits, labels = self._logits(scores), _indices(y, self.classes_)
        self.choice_ = None if kind else posthoc.best(logits, labels, weights=weight)
        self.calibrator_ = (
            self.choice_.calibrator if self.choice_ else kind.fit(logits, labels, weights=weight)
        )
        return self

    def predict_proba(self, X: Any) -> Floats:
        """Calibrated probabilities of the classes, in the order of ``classes_``, (N, K)."""
        check_is_fitted(self)
        return np.asarray(self.calibrator_(self._logits(getattr(self.estimator_, self._method_)(X))))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class of the largest calibrated probability."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = get_tags(self.estimator).input_tags.sparse
        return tags

    def _logits(self, scores: Floats) -> Floats:
        if self._method_ == "predict_proba":
            return np.asarray(np.log(np.maximum(scores, self.floor_)))
        if scores.ndim == 1:
            return np.column_stack([np.zeros_like(scores), scores])
        if scores.shape[1] != len(self.classes_):
            raise ValueError(
                f"the decision function of {type(self.estimator).__name__} has {scores.shape[1]} columns for "
                f"{len(self.classes_)} classes; choose one column a class, as decision_function_shape='ovr' of SVC does"
            )
        return scores

    def _splitter(self, y: npt.NDArray[Any]) -> Any:
        classes, counts = np.unique(y, return_counts=True)
        if len(classes) < 2:
            raise ValueError(f"Calibrated needs samples of at least 2 classes, got {len(classes)} class")
        folds = self.cv
        if isinstance(folds, int):
            if counts.min() < 2:
                raise ValueError(
                    f"class {classes[counts.argmin()]} has 1 sample and cross-validation needs 2; leave the class out, "
                    "or fit the classifier and pass cv='prefit'"
                )
            folds = min(folds, int(counts.min()))
        return check_cv(folds, y, classifier=True)


def _score_method(estimator: Any) -> str:
    for method in ("decision_function", "predict_proba"):
        if hasattr(estimator, method):
            return method
    raise ValueError(
        f"{type(estimator).__name__} has neither decision_function nor predict_proba; use a classifier that has one"
    )


def _floor(probs: Floats) -> float:
    """What a probability of 0 counts as: half the least one above 0."""
    above = probs[probs > 0]
    return max(float(above.min()) / 2, float(np.finfo(probs.dtype).tiny)) if len(above) else 0.5


def _indices(y: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    places = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    strange = y[classes[places] != y]
    if len(strange):
        raise ValueError(
            f"the classifier does not know the class {strange[0]}; it was fitted to {', '.join(map(str, classes[:10]))}"
        )
    return places

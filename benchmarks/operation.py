"""Prediction sets: fitting and applying them, over the time of MAPIE on the same probabilities."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._timing import Ratio, best_times
from macc import posthoc

ROWS, CLASSES, REPEATS = 1_000_000, 10, 3


def sample() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Calibrated probabilities and labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(ROWS, CLASSES))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    probs = np.exp(logits)
    return probs / probs.sum(1, keepdims=True), labels


def with_mapie(method: str, probs: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Callable[[], Any]:
    """``SplitConformalClassifier`` on a fitted classifier that passes probabilities on."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Passing(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """Passes probabilities on."""

        def fit(self, _: Any, y: Any) -> "Passing":
            """Nothing to learn but the classes."""
            self.classes_ = np.unique(y)
            return self

        def predict_proba(self, x: Any) -> Any:
            """The probabilities."""
            return x

        def predict(self, x: Any) -> Any:
            """The class of the largest."""
            return x.argmax(1)

    fitted = Passing().fit(probs, labels)
    options = None if method == "lac" else {"include_last_label": "randomized"}

    def run() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sets = SplitConformalClassifier(fitted, 0.9, method, prefit=True, random_state=0)
            return sets.conformalize(probs, labels).predict_set(probs, options)

    return run


def cases() -> list[Ratio]:
    """Our time over MAPIE's, to fit and to apply."""
    probs, labels = sample()
    ratios = []
    for method in ("lac", "aps", "raps"):

        def ours(method: str = method) -> Any:
            return posthoc.Sets.fit(probs, labels, method=method, randomise=method != "lac")(probs)

        mine, theirs = best_times(ours, with_mapie(method, probs, labels), repeats=REPEATS)
        print(f"sets, {method}, {ROWS:,} x {CLASSES}: macc {mine:.2f} s, MAPIE {theirs:.2f} s")
        ratios.append(Ratio(f"sets: {method}, {ROWS:,} x {CLASSES}, time / MAPIE", mine / theirs, at_most=1))
    return ratios

"""Temperature scaling: time to the same optimum as scikit-learn and netcal reach."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._timing import Ratio, best_times
from macc import posthoc

# Samples, classes, and how often everything is timed.
SIZES = ((10_000, 10, 5), (10_000, 100, 5), (50_000, 1000, 2))
SCALE = 2.0


def sample(rows: int, classes: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Logits that are too confident by a known factor."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((rows, classes), dtype=np.float32)
    gumbel = -np.log(-np.log(rng.random((rows, classes), dtype=np.float32) + 1e-9) + 1e-9)
    return SCALE * logits, (logits + gumbel).argmax(1)


def with_sklearn(logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Callable[[], float]:
    """``CalibratedClassifierCV(method="temperature")`` on a frozen classifier, as its documentation says."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Logits(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """Passes logits on."""

        def fit(self, _: Any, y: Any) -> "Logits":
            """Nothing to learn but the classes."""
            self.classes_ = np.unique(y)
            return self

        def decision_function(self, x: Any) -> Any:
            """The logits."""
            return x

        def predict(self, x: Any) -> Any:
            """The class of the largest."""
            return self.classes_[x.argmax(1)]

    frozen = FrozenEstimator(Logits().fit(logits, labels))

    def fit() -> float:
        fitted = CalibratedClassifierCV(frozen, method="temperature").fit(logits, labels)
        return 1 / float(fitted.calibrated_classifiers_[0].calibrators[0].beta_)

    return fit


def with_netcal(logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Callable[[], float]:
    """netcal, which takes probabilities, in the float64 that it needs."""
    from netcal.scaling import TemperatureScaling

    scores = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    probs = scores / scores.sum(1, keepdims=True)

    def fit() -> float:
        fitted = TemperatureScaling()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted.fit(probs, labels, random_state=0)
        return 1 / float(np.ravel(fitted.temperature)[0])

    return fit


def cases() -> list[Ratio]:
    """Our time over that of the faster of the two; what each found is printed."""
    ratios = []
    for rows, classes, repeats in SIZES:
        logits, labels = sample(rows, classes)
        size = f"{rows:,} x {classes}"
        fits: dict[str, Callable[[], float]] = {
            "macc": partial(_temperature, logits, labels),
            "scikit-learn": with_sklearn(logits, labels),
            "netcal": with_netcal(logits, labels),
        }
        began = time.perf_counter()
        found = {"netcal": fits["netcal"]()}
        once = time.perf_counter() - began
        found.update({name: fit() for name, fit in fits.items() if name != "netcal"})
        # One look is enough at what takes minutes.
        raced = [name for name in fits if name != "netcal" or once < 10]
        times = dict(zip(raced, best_times(*(fits[name] for name in raced), repeats=repeats), strict=True))
        times.setdefault("netcal", once)
        shown = ", ".join(f"{name} T = {found[name]:.5f} in {1000 * times[name]:.0f} ms" for name in fits)
        print(f"temperature, {size}: {shown}")
        faster = min(times["scikit-learn"], times["netcal"])
        ratios.append(
            Ratio(f"posthoc: temperature, {size}, time / faster peer", times["macc"] / faster, at_most=1)
        )
    return ratios


def _temperature(logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    return posthoc.Temperature.fit(logits, labels).temperature

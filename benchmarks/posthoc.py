"""Time of fits: temperature scaling beside scikit-learn and netcal, every kind that probmetrics or
netcal has too beside theirs; and memory.

    python -m benchmarks.posthoc results/posthoc_speed.json
        what docs/posthoc.md says of time and memory
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks._timing import Ratio, best_times
from benchmarks.posthoc_field import Fit, methods, netcal, ours
from macc import posthoc
from macc.training.runs import processor, source_commit

# Samples, classes, and how often everything is timed.
SIZES = ((10_000, 10, 5), (10_000, 100, 5), (50_000, 1000, 2))
SCALE = 2.0
# Calibrators and the peers of the same kind, of which the faster one counts.
PEERS = {
    "Temperature": ("probmetrics temperature", "netcal temperature"),
    "EnsembleTemperature": ("probmetrics ETS",),
    "VectorScaling": ("probmetrics SVS",),
    "MatrixScaling": ("probmetrics SMS",),
    "Dirichlet": ("probmetrics SMS",),
    "Histogram": ("netcal histogram",),
    "Isotonic": ("netcal isotonic",),
}
# With 100 classes beta calibration of netcal takes a quarter of a minute.
SLOW_PEERS = {"Beta": ("netcal beta",)}
SLOW_CLASSES = 10
# What is fitted to how much, and the most that the process may hold.
LARGE = ("Temperature", "EnsembleTemperature", "VectorScaling", "MatrixScaling")
LARGE_ROWS, LARGE_CLASSES, LIMIT_MB = 50_000, 1000, 2048
FIELD_SIZES = ((5000, 10, 5), (5000, 100, 3))


def sample(rows: int, classes: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Logits that are too confident by a known factor."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((rows, classes), dtype=np.float32)
    gumbel = -np.log(-np.log(rng.random((rows, classes), dtype=np.float32) + 1e-9) + 1e-9)
    return SCALE * logits, (logits + gumbel).argmax(1)


def with_sklearn(logits: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Callable[[], float]:
    """``CalibratedClassifierCV(method="temperature")`` on a frozen classifier, as its documentation
    says.
    """
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


def like_a_network(rows: int, classes: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Logits like those of a trained network: mostly right and sure of it, with pairs of classes
    taken for each other.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes)).astype(np.float32)
    logits[np.arange(rows), labels] += rng.gamma(4.0, 1.2, rows)
    logits[np.arange(rows), labels ^ 1] += rng.gamma(1.0, 1.5, rows)
    return SCALE * logits, labels


def beside_peers() -> list[Ratio]:
    """Time on one thread of the processor over that of the faster peer, which other processes do
    not lengthen.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ratios = []
    for rows, classes, repeats in FIELD_SIZES:
        ratios += raced(rows, classes, repeats, PEERS)
        if classes <= SLOW_CLASSES:
            ratios += raced(rows, classes, 1, SLOW_PEERS)
    torch.set_num_threads(threads)
    return ratios


def raced(rows: int, classes: int, repeats: int, peers: Mapping[str, Sequence[str]]) -> list[Ratio]:
    """Ratios of calibrators and their peers, which take turns."""
    fits: dict[str, Fit] = {
        **{name: ours(name) for name in ("Histogram", "Isotonic", "Beta")},
        "netcal histogram": netcal("binning", "HistogramBinning"),
        "netcal isotonic": netcal("binning", "IsotonicRegression"),
        "netcal beta": netcal("scaling", "BetaCalibration"),
        **methods(),
    }
    logits, labels = like_a_network(rows, classes)
    names = list(dict.fromkeys(name for own, others in peers.items() for name in (own, *others)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = best_times(
            *(partial(fits[name], logits, labels) for name in names), repeats=repeats, clock=time.process_time
        )
    times = dict(zip(names, found, strict=True))
    size = f"{rows:,} x {classes}"
    print(f"fits, {size}: " + ", ".join(f"{name} {1000 * times[name]:.1f} ms" for name in names))
    ratios = []
    for name, others in peers.items():
        faster = min(others, key=times.__getitem__)
        case = f"posthoc: {name}, {size}, time / {faster}"
        ratios.append(Ratio(case, times[name] / times[faster], at_most=1))
    return ratios


def memory() -> list[Ratio]:
    """The most memory that a process holds with logits of 200 MB and the fit to them, over its
    limit.
    """
    size, ratios = f"{LARGE_ROWS:,} x {LARGE_CLASSES}", []
    for name in LARGE:
        code = (
            "import sys, time\n"
            "from benchmarks.posthoc import like_a_network\n"
            "from macc import posthoc\n"
            f"logits, labels = like_a_network({LARGE_ROWS}, {LARGE_CLASSES})\n"
            "def held(what): return next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith(what))\n"
            # The peak so far is forgotten: what made the logits is no part of the fit.
            "open('/proc/self/clear_refs', 'w').write('5')\n"
            "before, began = held('VmRSS'), time.process_time()\n"
            f"posthoc.{name}.fit(logits, labels)\n"
            "print(before, held('VmHWM'), time.process_time() - began)\n"
        )
        output = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
        )
        before, peak, seconds = map(float, output.stdout.split())
        print(
            f"memory, {size}: {name} {before / 1024:.0f} MB before, {peak / 1024:.0f} MB at most, {seconds:.0f} s"
        )
        case = f"posthoc: {name}, {size}, memory / {LIMIT_MB} MB"
        ratios.append(Ratio(case, peak / 1024 / LIMIT_MB, at_most=1))
    return ratios


def cases() -> list[Ratio]:
    """Our time over that of the peers; what each found is printed."""
    ratios = [*beside_peers(), *memory()]
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


def main(arguments: Sequence[str]) -> int:
    """Keep what the page says."""
    (path,) = map(Path, arguments)
    found = {
        "machine": f"{processor()}, one thread, torch {torch.__version__}",
        "commit": source_commit(),
        "ratios": [asdict(ratio) for ratio in (*beside_peers(), *memory())],
    }
    path.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How cost grows with samples, classes, features and masks: times of one run, and exponents fitted
to them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

import macc
from benchmarks._timing import best_times
from macc import losses, metrics
from macc.heads import Estimator, MCDropoutLinear


@dataclass(frozen=True)
class Growth:
    """Times of one thing as one size grows."""

    what: str
    of: str
    """The size that grows: ``N``, ``K``, ``D`` or ``S``."""
    fixed: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """The slope of the line through the logarithms; 1 is proportional."""
        return float(np.polyfit(np.log(self.sizes), np.log(self.seconds), 1)[0])

    @property
    def last_exponent(self) -> float:
        """The slope between the two largest sizes, where fixed costs matter least."""
        return float(np.log(self.seconds[-1] / self.seconds[-2]) / np.log(self.sizes[-1] / self.sizes[-2]))


def _growth(
    what: str, of: str, fixed: str, sizes: Sequence[int], make: Callable[[int], Callable[[], object]]
) -> Growth:
    times = best_times(*(make(size) for size in sizes), repeats=5)
    return Growth(what, of, fixed, tuple(sizes), tuple(times))


def _predictions(samples: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(samples, classes, generator=generator)
    return logits.softmax(dim=1), torch.randint(0, classes, (samples,), generator=generator)


def _sce(samples: int, classes: int) -> Callable[[], object]:
    probs, labels = _predictions(samples, classes)
    return lambda: metrics.sce(probs, labels)


def _one_pass(samples: int, classes: int) -> Callable[[], object]:
    probs, labels = _predictions(samples, classes)

    def read() -> object:
        state = metrics.Calibration(classes)
        state.update(probs, labels)
        return state.compute()

    return read


def _head(features: int, classes: int, samples: int, estimator: Estimator) -> Callable[[], object]:
    torch.manual_seed(0)
    layer = MCDropoutLinear(features, classes, samples=samples, estimator=estimator)
    x = torch.randn(256, features).relu()
    labels = torch.randint(0, classes, (256,))
    criterion = losses.CrossEntropy() + losses.MACC()

    def step() -> None:
        criterion(layer(x), labels).backward()

    return step


def _loss(samples: int, classes: int) -> Callable[[], object]:
    torch.manual_seed(0)
    mean = torch.randn(samples, classes, requires_grad=True)
    variance = torch.rand(samples, classes, requires_grad=True)
    labels = torch.randint(0, classes, (samples,))
    term = losses.MACC()
    return lambda: term(macc.LogitMoments(mean, variance), labels).backward()


def growths() -> list[Growth]:
    """Everything that is measured."""
    many, wide = (10_000, 30_000, 100_000, 300_000, 1_000_000), (10, 30, 100, 300, 1000)
    features, masks = (256, 512, 1024, 2048, 4096), (2, 5, 10, 20, 40)
    return [
        _growth("SCE", "N", "K = 10", many, lambda n: _sce(n, 10)),
        _growth("SCE", "K", "N = 20 000", wide, lambda k: _sce(20_000, k)),
        _growth("all streaming metrics", "N", "K = 10", many, lambda n: _one_pass(n, 10)),
        _growth("all streaming metrics", "K", "N = 20 000", wide, lambda k: _one_pass(20_000, k)),
        _growth("MACC term", "N", "K = 100", (128, 512, 2048, 8192), lambda n: _loss(n, 100)),
        _growth("MACC term", "K", "N = 256", (100, 300, 1000, 3000, 10_000), lambda k: _loss(256, k)),
        _growth(
            "sampled head", "D", "N = 256, K = 100, S = 10", features, lambda d: _head(d, 100, 10, "sampled")
        ),
        _growth(
            "closed-form head", "D", "N = 256, K = 100", features, lambda d: _head(d, 100, 10, "analytic")
        ),
        _growth(
            "sampled head", "S", "N = 256, K = 100, D = 512", masks, lambda s: _head(512, 100, s, "sampled")
        ),
        _growth(
            "sampled head", "K", "N = 256, D = 512, S = 10", wide, lambda k: _head(512, k, 10, "sampled")
        ),
        _growth("closed-form head", "K", "N = 256, D = 512", wide, lambda k: _head(512, k, 10, "analytic")),
    ]

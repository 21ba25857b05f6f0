"""Interleaved timing: what disturbs the machine disturbs every candidate alike."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """One measured claim."""

    case: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def limit(self) -> str:
        """What the ratio must reach, if anything on this machine."""
        if self.at_most is None and self.at_least is None:
            return ""
        return f"<= {self.at_most:g}" if self.at_most is not None else f">= {self.at_least:g}"

    @property
    def reached(self) -> bool:
        """Whether it does."""
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )


def best_times(
    *candidates: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The shortest time of each candidate over ``repeats`` rounds in which all take turns."""
    best = [float("inf")] * len(candidates)
    for candidate in candidates:
        candidate()
    for _ in range(repeats):
        for index, candidate in enumerate(candidates):
            start = clock()
            candidate()
            best[index] = min(best[index], clock() - start)
    return best

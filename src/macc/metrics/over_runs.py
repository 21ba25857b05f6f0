"""What few runs say of a method: the t-interval of a mean over seeds, and the paired t-test."""

import math
from collections.abc import Sequence


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """The t-interval of the mean over seeds; none with one.

    Example:
        >>> low, high = interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    # Scikit-learn brings scipy along, and importing the metrics should not wait for it.
    from scipy.special import stdtrit

    if len(values) < 2:
        return None
    mean, error = _mean_and_error(values)
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return mean - half, mean + half


def paired_p(differences: Sequence[float]) -> float:
    """The p-value of a paired t-test of two differences or more; NaN if equal and not 0.

    Two or three seeds may differ by the same number of samples, which says nothing about how much
    seeds vary.

    Example:
        >>> round(paired_p([1.0, 2.0, 3.0]), 3), paired_p([0.0, 0.0]), paired_p([0.1, 0.1])
        (0.074, 1.0, nan)
    """
    from scipy.special import stdtr

    mean, error = _mean_and_error(differences)
    if error <= 1e-12 * abs(mean):
        return 1.0 if mean == 0 else math.nan
    return 2 * float(stdtr(len(differences) - 1, -abs(mean) / error))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    count = len(values)
    mean = math.fsum(values) / count
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1) / count)

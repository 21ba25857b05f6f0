"""Sample weights as numbers of copies, for fits that know none."""

from typing import Any

import numpy as np
import numpy.typing as npt


def rows_by_weight(weight: npt.NDArray[np.float64], draw: np.random.RandomState) -> npt.NDArray[Any]:
    """As many row indices as rows, each as often as its share of the weight, rounded by chance.

    Example:
        >>> rows_by_weight(np.array([2.0, 0.0, 1.0, 1.0]), np.random.RandomState(0))
        array([0, 0, 2, 3])
    """
    order = draw.permutation(len(weight))  # even steps through rows of a period would miss some of them
    total = weight[order].cumsum()
    places = (np.arange(len(weight)) + draw.uniform()) / max(1, len(weight))
    return np.asarray(np.sort(order[np.searchsorted(total, places * total[-1:], side="right")]))

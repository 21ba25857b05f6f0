"""The weights of the rows of a file."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from macc.predictions.refusals import FileWords
from macc.words import quoted, shown


def weights_of(path: Path, words: FileWords, values: Any, first: int = 0) -> npt.NDArray[np.float64]:
    """The weights of rows from ``first`` on; what is no number of at least 0 is refused."""
    # Columns of arrow say so themselves; what is not there becomes NaN.
    given = np.asarray(values.to_numpy(zero_copy_only=False) if hasattr(values, "to_numpy") else values)
    try:
        found = given.astype(np.float64)
    except (ValueError, TypeError):
        found = np.array([_number(value) for value in given.tolist()])
    wrong = np.flatnonzero(~((found >= 0) & np.isfinite(found)))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"{shown(path)}, {words.place(first + at)}: the weight {quoted(str(given[at]), 40)} is no finite number of at "
            "least 0; repair it, or leave the row out"
        )
    return found


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError):
        return math.nan

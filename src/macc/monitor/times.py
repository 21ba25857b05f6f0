"""Times of rows and lengths of windows, as people and files write them."""

import re
from datetime import UTC, datetime
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from macc.words import quoted

Floats: TypeAlias = npt.NDArray[np.float64]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class TimeError(ValueError):
    """A time that means nothing, and where it stands, counted from 0."""

    def __init__(self, at: int, reason: str):
        super().__init__(reason)
        self.at = at


def seconds(text: str) -> float:
    """The length of a window in seconds.

    Example:
        >>> seconds("1d"), seconds("90m"), seconds("0.5h")
        (86400.0, 5400.0, 1800.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text)
    length = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if length <= 0:
        raise ValueError(
            f"a window is a number with s, m, h, d or w, such as 1d or 12h, got {quoted(text, 40)}"
        )
    return length


def moment(time: float) -> str:
    """A time as it is shown.

    Example:
        >>> moment(86400 * 365.0), moment(1e9 + 0.25)
        ('1971-01-01', '2001-09-09 01:46:40')
    """
    try:
        when = datetime.fromtimestamp(time, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{time:g}"
    whole = time % 86400 == 0
    return when.strftime("%Y-%m-%d" if whole else "%Y-%m-%d %H:%M:%S")


def read_times(column: Any) -> Floats:
    """Times of a column of a file, in seconds since 1970.

    Args:
        column: Numbers (seconds since 1970), ISO 8601 texts (UTC where no zone is given), or
            pyarrow's timestamps.

    Example:
        >>> read_times(["2026-03-01", "2026-03-01T12:30:00+01:00"]).tolist()
        [1772323200.0, 1772364600.0]
    """
    if not isinstance(column, list | np.ndarray):
        column = _of_arrow(column)
    if isinstance(column, np.ndarray) and column.dtype.kind in "iuf":
        values = column.astype(np.float64)
        missing = np.flatnonzero(~np.isfinite(values))
        if len(missing):
            raise TimeError(int(missing[0]), "there is no time")
        return values
    return np.array([_of_text(at, text) for at, text in enumerate(column)], dtype=np.float64)


def _of_arrow(column: Any) -> Any:
    import pyarrow as arrow

    if column.null_count:
        at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise TimeError(at, "there is no time")
    kind = column.type
    if arrow.types.is_timestamp(kind) or arrow.types.is_date(kind):
        whole = column.cast(arrow.timestamp("us"), safe=False).cast(arrow.int64())
        return whole.to_numpy(zero_copy_only=False) / 1e6
    if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
        return column.to_numpy(zero_copy_only=False)
    return [str(value) for value in column.to_pylist()]


def _of_text(at: int, text: Any) -> float:
    word = str(text).strip()
    if not word:
        raise TimeError(at, "there is no time")
    try:
        when = datetime.fromisoformat(word)
    except ValueError:
        pass
    else:
        return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    try:
        value = float(word)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise TimeError(
            at, f"{quoted(word, 40)} is no time; write it as 2026-03-01T12:30:00 or in seconds since 1970"
        )
    return value

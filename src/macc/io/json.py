"""Values as JSON."""

import json
import math
from pathlib import Path
from typing import Any

from macc.io.writing import write_bytes


def finite(value: Any) -> Any:
    """A value as JSON can hold it: null for numbers that are not finite, at any depth.

    Example:
        >>> finite({"a": [1.5, float("nan")]})
        {'a': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, in the order it has."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """A value as indented JSON; not-a-number has no place in it."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()

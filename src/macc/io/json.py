"""Values as JSON."""

import json
import math
from pathlib import Path
from typing import Any

from macc.io.writing import write_bytes
from macc.words import shown


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


def read_json(path: Path, what: str, *, largest: int) -> Any:
    """The content of a file that nobody vouches for.

    Args:
        path: The file.
        what: What it has to be, with its article.
        largest: The most bytes that such a file has.
    """
    name = shown(path)
    try:
        if path.stat().st_size > largest:
            raise ValueError(f"{name} is larger than {what} ever is ({largest >> 20} MB)")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not {what}: it is no text") from None
    try:
        return parse(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{name} is not {what}: {reason}") from None


def parse(text: str) -> Any:
    """A JSON text that nobody vouches for, whose numbers numpy can hold."""
    return json.loads(text, parse_constant=_refuse_constant, parse_int=_whole)


def read_mapping(path: Path, cure: str) -> dict[str, Any]:
    """The mapping in a file that macc wrote.

    Args:
        path: The file.
        cure: What to do if it cannot be read.
    """
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; {cure}") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({shown(error)})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged (it holds no mapping)")
    return found


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{shown(text, 30)} needs more than 64 bits")
    return int(text)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")

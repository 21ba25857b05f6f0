"""Grids inside text: ``Focal(gamma={1,2,3}) + {weight}*MACC``. Nothing is evaluated."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = int | float | str
Point = dict[str, Value]
Grids = Mapping[str, Sequence[Value]]

_HOLE = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Axis:
    """One grid: the name of what varies and the values it takes."""

    name: str
    values: tuple[Value, ...]


def axes(texts: Mapping[str, str], grids: Grids) -> list[Axis]:
    """The grids in some texts, in the order they are written.

    Args:
        texts: Texts by the key they stand under.
        grids: Values of the grids that are written by name, as in ``{weight}``.

    Example:
        >>> axes({"loss": "Focal(gamma={1,2}) + {w}*MACC"}, {"w": [1, 10]})
        [Axis(name='gamma', values=(1, 2)), Axis(name='w', values=(1, 10))]
    """
    found: dict[str, Axis] = {}
    for key, text in texts.items():
        for hole in _holes(key, text):
            axis = _axis(key, text, hole, grids)
            if axis.name in found and found[axis.name] != axis:
                raise ValueError(
                    f"{key}: two different grids vary {axis.name!r} in {text!r}; "
                    "name them under `grids` and write the names in braces"
                )
            found[axis.name] = axis
    return list(found.values())


def points(axes: Sequence[Axis]) -> list[Point]:
    """Every combination, the last axis fastest; one empty point where there is no axis.

    Example:
        >>> points([Axis("gamma", (1, 2)), Axis("p", (0.2,))])
        [{'gamma': 1, 'p': 0.2}, {'gamma': 2, 'p': 0.2}]
    """
    names = [axis.name for axis in axes]
    return [
        dict(zip(names, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))
    ]


def count(axes: Sequence[Axis]) -> int:
    """How many combinations there are, without making them."""
    return math.prod(len(axis.values) for axis in axes)


def fill(key: str, text: str, point: Point, grids: Grids) -> str:
    """The text at one point.

    Example:
        >>> fill("loss", "Focal(gamma={1,2}) + {w}*MACC", {"gamma": 2, "w": 10}, {"w": [1, 10]})
        'Focal(gamma=2) + 10*MACC'
    """
    return _HOLE.sub(lambda hole: str(point[_axis(key, text, hole, grids).name]), text)


def with_gaps(text: str) -> str:
    """The text with its grids left open.

    Example:
        >>> with_gaps("Focal(gamma={1,2}) + 10*MACC")
        'Focal(gamma=…) + 10*MACC'
    """
    return _HOLE.sub("…", text)


def _holes(key: str, text: str) -> list[re.Match[str]]:
    rest = _HOLE.sub("", text)
    if "{" in rest or "}" in rest:
        raise ValueError(f"{key}: a brace is open or nested in {text!r}; write a grid as {{1,2,3}}")
    return list(_HOLE.finditer(text))


def _axis(key: str, text: str, hole: re.Match[str], grids: Grids) -> Axis:
    inside = hole[1].strip()
    if _WORD.fullmatch(inside):
        if inside not in grids:
            there = f"there are {', '.join(grids)}" if grids else "there is none"
            raise ValueError(
                f"{key}: no grid is called {inside!r} in {text!r} ({there}); add it under `grids`"
            )
        return Axis(inside, tuple(grids[inside]))
    values = tuple(literal(item.strip(), f"{key}: the grid {hole[0]}") for item in inside.split(","))
    if len(set(values)) < len(values):
        raise ValueError(f"{key}: the grid {hole[0]} has a value twice; every value is trained once")
    before, after = text[: hole.start()].rstrip(), text[hole.end() :].lstrip()
    knob = re.search(r"(\w+)\s*=$", before)
    penalty = re.match(r"\*\s*(\w+)", after)
    if knob:
        return Axis(knob[1], values)
    return Axis(f"weight of {penalty[1]}" if penalty else key, values)


def literal(text: str, where: str) -> Value:
    """A number or a word of a grid."""
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    if _WORD.fullmatch(text):
        return text
    raise ValueError(f"{where} holds {text!r}; its values are numbers or words with commas between them")

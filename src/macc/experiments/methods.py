"""Methods as experiments write them, and those of the paper by its names: ``methods.yaml``."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, cast

from macc.io.yaml import parse
from macc.words import did_you_mean


def flat(settings: object) -> object:
    """Nested settings by dotted key; ``{0.2, 0.3}``, a mapping in YAML, becomes a grid again."""
    if not isinstance(settings, Mapping):
        return settings
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value and all(inner is None for inner in value.values()):
            found[str(key)] = "{" + ", ".join(map(str, value)) + "}"
        elif isinstance(value, Mapping):
            inside = flat(value)
            assert isinstance(inside, dict)  # noqa: S101 - a mapping stays one
            found.update({f"{key}.{inner}": text for inner, text in inside.items()})
        else:
            found[str(key)] = value
    return found


def spelled_out(value: Any, methods: Mapping[str, Any]) -> Any:
    """A method spelled out: a name of the library, a loss, or a mapping as it stands."""
    if isinstance(value, str) and value in methods:
        return {"name": value, **methods[value]}
    if isinstance(value, str):
        if re.fullmatch(r"[A-Z]{2,4}(\+\w+)*", value):
            cure = did_you_mean(value, methods)
            if cure.startswith("did you mean"):
                raise ValueError(f"no method is called {value!r}; {cure}")
        return {"loss": value}
    if isinstance(value, dict) and "method" in value:
        value = dict(value)
        name = value.pop("method")
        if not isinstance(name, str) or name not in methods:
            raise ValueError(f"no method is called {name!r}; {did_you_mean(str(name), list(methods))}")
        found = {"name": name, **methods[name], **value}
        own, given = methods[name].get("set"), value.get("set")
        if isinstance(own, Mapping) and isinstance(given, Mapping):
            both = [cast("dict[str, object]", flat(settings)) for settings in (own, given)]
            kept = {key: value for key, value in both[0].items() if key.partition(".")[0] not in both[1]}
            found["set"] = {**kept, **both[1]}
        return found
    return value


@cache
def library() -> dict[str, Any]:
    """The methods of the paper, by its names, and its grids."""
    text = (resources.files("macc") / "experiments" / "methods.yaml").read_text("utf-8")
    found = parse(text, "methods.yaml")
    methods = {
        name: {"loss": value} if isinstance(value, str) else value for name, value in found["methods"].items()
    }
    return {"grids": found["grids"], "cut": found["scales"], "methods": methods}

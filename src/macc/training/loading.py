"""Recipes from files and names: scales, overrides, errors with file, key and cure."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import (
    ValidationError,
)

from macc.io.yaml import comments, ends_in_comment, parse, read_text
from macc.training.recipe import Recipe, Scale, sentence
from macc.words import did_you_mean, quoted, shown


def names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("macc") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load(
    recipe: str | Path,
    *,
    scale: str = "full",
    loss: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
) -> Recipe:
    """Read a recipe.

    Args:
        recipe: A name of ``macc recipe list``, or the path of a YAML file.
        scale: ``"full"``, or one of the file's own ``scales``.
        loss: In place of the file's.
        seed: In place of the file's.
        overrides: ``["epochs=3", "optimiser.lr=0.01"]`` or ``{"epochs": 3, "optimiser.lr": 0.01}``,
            applied last.

    Example:
        >>> load("digits", scale="smoke", overrides=["optimiser.lr=0.01"]).optimiser.lr
        0.01
    """
    path, text = _find(recipe)
    values = parse(text, path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a mapping of keys to values; see `macc recipe show digits`")
    sources = comments(text)
    values = _scaled(values, scale, path, sources)
    given = _typed(overrides)
    if loss is not None:
        given.append(("loss", loss, "--loss"))
    if seed is not None:
        given.append(("seed", seed, "--seed"))
    spelled: dict[str, str] = {}
    for key, value, option in given:
        group = key.removesuffix(".name")
        old = _get(values, group) if group != key else {}
        if old.get("name", value) != value:
            # Another optimiser or schedule has other keys: of the old ones only those stay that
            # were given.
            _put(values, group, {name: one for name, one in old.items() if f"{group}.{name}" in spelled})
            gone = {f"{group}.{name}" for name in old} - set(spelled)
            sources = {name: said for name, said in sources.items() if name not in gone}
        _put(values, key, value)
        for known in (sources, spelled):
            for name in [name for name in known if name == key or name.startswith(f"{key}.")]:
                del known[name]
        sources[key] = option
        spelled[key] = option
    odd = [key for key in values if not isinstance(key, str)]
    if odd:
        raise ValueError(
            f"{path}: a key must be text, got {shown(repr(odd[0]))}; `macc recipe show digits` has them all"
        )
    try:
        result = Recipe(**values)
    except ValueError as error:
        raise ValueError(sentence(cast("ValidationError", error.__cause__), path, values, spelled)) from None
    result._sources = sources
    result._origin = path
    return result


def _find(recipe: str | Path) -> tuple[str, str]:
    if str(recipe) in names():
        return f"recipe {recipe}", (resources.files("macc") / "recipes" / f"{recipe}.yaml").read_text("utf-8")
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise ValueError(f"there is no file {path}; recipes that come with macc: {', '.join(names())}")
        return str(path), read_text(path)
    cure = did_you_mean(recipe, names())
    raise ValueError(f"no recipe is called {str(recipe)!r}; {cure} (a file of your own ends in .yaml)")


def _scaled(values: dict[str, Any], scale: str, path: str, sources: dict[str, str]) -> dict[str, Any]:
    """The values with the overlay of ``scale`` laid over them."""
    scales = values.pop("scales", {})
    if scale not in get_args(Scale):
        raise ValueError(f"`--scale` must be one of {', '.join(get_args(Scale))}, got {scale!r}")
    if not isinstance(scales, dict) or set(scales) - set(get_args(Scale)):
        raise ValueError(f"{path}: scales must map smoke and cpu to the values they change, got {scales!r}")
    for key in [key for key in sources if key.startswith("scales")]:
        if key.startswith(f"scales.{scale}."):
            sources[key.removeprefix(f"scales.{scale}.")] = f"scale {scale}: {sources[key]}"
        del sources[key]
    if scale == "full" or values.get("scale") == scale:
        return values
    if scale not in scales:
        raise ValueError(f"{path} has no scale {scale!r}; it has {', '.join([*scales, 'full'])}")
    changes = scales[scale] or {}
    if not isinstance(changes, dict):
        raise ValueError(
            f"{path}: scales.{scale} must map keys to the values they change, as in {{epochs: 1}}, got {changes!r}"
        )
    _overlay(values, changes, f"scale {scale}", "", sources)
    values["scale"] = scale
    sources["scale"] = f"--scale {scale}"
    return values


def _overlay(
    values: dict[str, Any], changes: Mapping[str, Any], source: str, prefix: str, sources: dict[str, str]
) -> None:
    for key, value in changes.items():
        old = values.get(key)
        if isinstance(value, dict):
            # Another optimiser or schedule has other keys: nothing of the old one stays.
            stays = isinstance(old, dict) and value.get("name", old.get("name")) == old.get("name")
            values[key] = old if stays else {}
            _overlay(values[key], value, source, f"{prefix}{key}.", sources)
        else:
            values[key] = value
            if not sources.get(f"{prefix}{key}", "").startswith(source):
                sources[f"{prefix}{key}"] = source


def _typed(overrides: Sequence[str] | Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Key and value of each override, and how errors call it."""
    if isinstance(overrides, Mapping):
        return [
            (key, value, shown(f"set {key}={json.dumps(value, default=str)}"))
            for key, value in overrides.items()
        ]
    return [(*_override(text), f"--set {shown(text)}") for text in overrides]


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"`--set` takes key=value, as in --set optimiser.lr=0.01, got {quoted(text)}")
    found = parse(value, f"--set {shown(text)}")
    # Nobody comments on a command line: a # belongs to the text, for example to the name of a file.
    return key.strip(), value.strip() if ends_in_comment(value) else found


def _get(values: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a dotted key; an empty one if there is none."""
    for part in key.split("."):
        inner = values.get(part)
        values = inner if isinstance(inner, dict) else {}
    return values


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = values.get(parent)
        values[parent] = inner if isinstance(inner, dict) else {}
        values = values[parent]
    values[last] = value


def schema() -> dict[str, Any]:
    """The JSON schema of a recipe file, for editors."""
    result = Recipe.model_json_schema()
    overlay = {"type": "object", "description": "The values this scale changes."}
    result["properties"]["scales"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"smoke": overlay, "cpu": overlay},
    }
    result["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    result["title"] = "macc recipe"
    return result

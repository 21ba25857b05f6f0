"""Reading an experiment, one of macc's or a YAML file; mistakes are one sentence."""

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError

from macc.experiments.spec import DataSet, Experiment, Method, Search
from macc.io.yaml import parse, read_text
from macc.training.recipe import Scale
from macc.words import did_you_mean, slug

FOLDERS = ("experiments/files", "paper/files")
"""Where the experiments that come with macc lie in the package; a new folder of them is a line
here.
"""


@cache
def _files() -> dict[str, Traversable]:
    """The experiments that come with macc, by name."""
    package = resources.files("macc")
    found = {
        file.name.removesuffix(".yaml"): file
        for folder in FOLDERS
        for file in package.joinpath(*folder.split("/")).iterdir()
        if file.name.endswith(".yaml")
    }
    return dict(sorted(found.items()))


def names() -> list[str]:
    """The experiments that come with macc."""
    return list(_files())


def load(
    experiment: str | Path,
    *,
    scale: str = "full",
    seeds: int | None = None,
    datasets: Sequence[str] = (),
) -> Experiment:
    """Read an experiment.

    Args:
        experiment: A name of ``macc run list``, or the path of a YAML file.
        scale: ``"smoke"``, ``"cpu"`` or ``"full"``: of the recipes, and of the file's own
            ``scales``.
        seeds: In place of the file's.
        datasets: Only these of its data sets.

    Example:
        >>> load("demo").seeds
        5
    """
    where, text, stem = _find(experiment)
    values = parse(text, where)
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be a mapping of keys to values; `macc run list` names examples")
    if scale not in get_args(Scale):
        raise ValueError(f"`--scale` must be one of {', '.join(get_args(Scale))}, got {scale!r}")
    if "scale" in values:
        raise ValueError(
            f"{where}: the scale is given with `--scale`, not in the file; `scales` may say what it changes"
        )
    scales = values.pop("scales", None) or {}
    if not isinstance(scales, dict) or set(scales) - set(get_args(Scale)):
        raise ValueError(
            f"{where}: scales must map smoke, cpu and full to the values they change, got {scales!r}"
        )
    changes = scales.get(scale) or {}
    if not isinstance(changes, dict):
        raise ValueError(
            f"{where}: scales.{scale} must map keys to the values they change, as in {{seeds: 1}}, got {changes!r}"
        )
    for key, value in changes.items():
        both = isinstance(values.get(key), dict) and isinstance(value, dict)
        values[key] = {**values[key], **value} if both else value
    values = {"name": stem, **values, "scale": scale}
    if seeds is not None:
        values["seeds"] = seeds
    try:
        found = Experiment.model_validate(values)
    except ValidationError as error:
        raise ValueError(_sentence(error, where)) from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    found._origin = where
    return _restricted(found, datasets) if datasets else found


def _restricted(experiment: Experiment, wanted: Sequence[str]) -> Experiment:
    kept = [_exact_name(experiment, name) for name in wanted]
    return experiment.model_copy(
        update={
            "datasets": [dataset for dataset in experiment.datasets if dataset.name in kept],
            "averages": {k: v for k, v in experiment.averages.items() if set(v) <= set(kept)},
        }
    )


def _exact_name(experiment: Experiment, name: str) -> str:
    """A data set by its name, or by the letters and digits of it where they name only one."""
    there = [dataset.name for dataset in experiment.datasets]
    if name in there:
        return name
    folded = _folded(name)
    found = [each for each in there if folded and _folded(each) == folded]
    if len(found) > 1:
        raise ValueError(
            f"{experiment.name}: {name!r} may be {' or '.join(map(repr, found))}; write it as the file does"
        )
    if not found:
        raise ValueError(f"{experiment.name} has no data set {name!r}; {did_you_mean(name, there)}")
    return found[0]


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _find(experiment: str | Path) -> tuple[str, str, str]:
    if str(experiment) in names():
        text = _files()[str(experiment)].read_text("utf-8")
        return f"experiment {experiment}", text, str(experiment)
    path = Path(experiment)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return str(path), read_text(path), path.stem
    raise ValueError(
        f"no experiment is called {str(experiment)!r}; {did_you_mean(str(experiment), names())} "
        "(a file of your own ends in .yaml)"
    )


def _sentence(error: ValidationError, where: str) -> str:
    """The first complaint of pydantic as one sentence with file, key, value and cure."""
    found = error.errors(include_url=False)
    # A key that is misspelt is also one that is missing: say what was written.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    keys = [str(part) for part in first["loc"]]
    key, kind = ".".join(keys), first["type"]
    if kind == "extra_forbidden":
        return f"{where}: unknown key {key!r}; {did_you_mean(keys[-1], _known_keys(keys))}"
    if kind == "missing":
        return f"{where}: the key {key!r} is missing; see `macc run list` for examples"
    if kind == "value_error":
        reason = str(first.get("ctx", {}).get("error", first["msg"]))
        return f"{where}: {key}: {reason}" if key else f"{where}: {reason}"
    reason = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{where}: {key} must be {reason[0].lower()}{reason[1:]}, got {first['input']!r}"


def _known_keys(keys: Sequence[str]) -> list[str]:
    model: type[BaseModel] = Experiment
    for key in keys[:-1]:
        models: dict[str, type[BaseModel]] = {"datasets": DataSet, "methods": Method, "search": Search}
        model = models.get(key, model)
    extra = ["scales"] if model is Experiment else []
    return [field.alias or name for name, field in model.model_fields.items() if name != "scale"] + extra


def safe_name(name: str) -> str:
    """The name of an experiment's folder."""
    return slug(name) or "experiment"

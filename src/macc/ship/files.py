"""What using a model needs, of a run folder or a shipped file without code or pickles."""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from macc import __version__, posthoc
from macc.io.json import finite, parse
from macc.io.writing import write_whole
from macc.posthoc import Calibrator, Sets, Threshold
from macc.training.building import rebuilt
from macc.training.inputs import FILE as INPUTS
from macc.training.inputs import Inputs
from macc.training.recipe import Recipe
from macc.training.runs import Run, open_run
from macc.words import shown

FORMAT = 1
SUFFIX = ".safetensors"
CALIBRATOR = "calibrator.json"
RISK = 0.05
"""The share of accepted predictions that may be wrong, where nobody says another."""

_WEIGHTS, _LOGITS, _LABELS = "model.", "val.logits", "val.labels"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model with everything that using it needs.

    Args:
        recipe: What was trained.
        inputs: What it takes, and its classes.
        weights: Of the model, by name.
        calibrator: Fitted on validation; the identity where the run has none.
        logits: Of the validation samples, ``(N, K)``.
        labels: Of the validation samples, ``(N,)``.
        metrics: As in ``metrics.json``.
        rule: From which confidence on a prediction is accepted.
        version: The version of macc that trained it.
        source: Where it was read from.
        sets: Which classes are in the set of a prediction; None where no sets are wanted.
    """

    recipe: Recipe
    inputs: Inputs
    weights: Mapping[str, Tensor]
    calibrator: Calibrator
    logits: Tensor
    labels: Tensor
    metrics: Mapping[str, Any]
    rule: Threshold
    version: str
    source: Path
    sets: Sets | None = None

    def about(self) -> dict[str, Any]:
        """All but the tensors, as what JSON can hold."""
        return {
            "macc_model": FORMAT,
            "version": self.version,
            "recipe": self.recipe.to_dict(),
            "inputs": self.inputs.to_dict(),
            "calibrator": self.calibrator.to_dict(),
            "threshold": {key: value for key, value in self.rule.to_dict().items() if key != "coverage"},
            "sets": None if self.sets is None else self.sets.to_dict(),
            "metrics": finite(dict(self.metrics)),
        }


def rule_for(
    calibrator: Calibrator, logits: Tensor, labels: Tensor, *, risk: float = RISK, confidence: float = 0.95
) -> Threshold:
    """From which calibrated confidence on validation predictions have at most a given risk."""
    return posthoc.threshold(calibrator(logits), labels, risk=risk, confidence=confidence)


def with_risk(trained: Trained, risk: float) -> Trained:
    """The model with the threshold of another risk; as it is where its own is of this risk."""
    if risk == trained.rule.risk:
        return trained
    rule = rule_for(trained.calibrator, trained.logits, trained.labels, risk=risk)
    return replace(trained, rule=rule)


def sets_for(
    trained: Trained,
    *,
    coverage: float,
    method: str = "lac",
    per_class: bool = False,
    penalty: float | None = None,
    rank: int | None = None,
) -> Sets:
    """Sets that hold the right class as often as asked, fitted after calibration."""
    probs = trained.calibrator(trained.logits)
    return Sets.fit(
        probs,
        trained.labels,
        coverage=coverage,
        method=method,
        per_class=per_class,
        penalty=penalty,
        rank=rank,
    )


def read(path: str | PathLike[str]) -> Trained:
    """A trained model from a run folder or a shipped file.

    Args:
        path: The folder or the file.
    """
    place = Path(path)
    if place.is_dir():
        return _of_run(open_run(place))
    if not place.is_file():
        raise ValueError(f"there is no run folder or shipped model {shown(place)}")
    if place.suffix in (".onnx", ".pt2"):
        reader = "onnxruntime" if place.suffix == ".onnx" else "torch.export.load"
        raise ValueError(
            f"{shown(place)} is an exported graph, which {reader} runs; macc reads run folders and {SUFFIX} files"
        )
    return _of_file(place)


def _of_run(run: Run) -> Trained:
    if not (run.path / INPUTS).is_file():
        raise ValueError(
            f"{run.path} has no {INPUTS}, which says what its model takes; the same `macc train` command adds it"
        )
    logits, labels = run.predictions("val")
    inputs = Inputs.parse(run.read_json(INPUTS), run.path / INPUTS)
    file = run.path / CALIBRATOR
    calibrator = posthoc.load(file) if file.is_file() else posthoc.Identity(inputs.num_classes)
    if not calibrator.num_classes == logits.shape[1] == inputs.num_classes:
        raise ValueError(f"{run.path} is damaged: its files differ in the number of classes")
    return Trained(
        recipe=run.recipe,
        inputs=inputs,
        weights=run.weights(),
        calibrator=calibrator,
        logits=logits,
        labels=labels,
        metrics=run.metrics,
        rule=rule_for(calibrator, logits, labels),
        version=run.environment.get("macc", __version__),
        source=run.path,
    )


def ship(trained: Trained, path: str | PathLike[str]) -> Path:
    """Write a model with everything that using it needs as one ``.safetensors`` file.

    The file holds tensors and JSON: the weights, the validation logits (for other thresholds), and
    as metadata the recipe, the classes and what the model takes, the calibrator, the threshold, the
    sets and the metrics. A checksum tells a file that was changed or damaged.

    Args:
        trained: The model.
        path: The file to write.

    Returns:
        The file.
    """
    place = Path(path)
    if place.suffix != SUFFIX:
        raise ValueError(f"a shipped model is a {SUFFIX} file, got {shown(place)}; write model{SUFFIX}")
    tensors = {f"{_WEIGHTS}{name}": value for name, value in trained.weights.items()}
    tensors |= {_LOGITS: trained.logits.float(), _LABELS: trained.labels}
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    text = json.dumps(trained.about(), allow_nan=False)
    content = save(tensors, metadata={"macc": text, "sha256": _digest(text, tensors)})
    with write_whole(place) as file:
        file.write(_in_order(content))
    return place


def _in_order(content: bytes) -> bytes:
    """The same file with its metadata sorted; safetensors' own order is random."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, ensure_ascii=False)
    text = header.encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _of_file(path: Path) -> Trained:
    name = shown(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if "macc" not in metadata:
                raise ValueError(f"{name} is not a model that macc shipped: it does not say what it holds")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{name} is not a model that macc shipped, or is damaged ({shown(error)})") from None
    if metadata.get("sha256") != _digest(metadata["macc"], tensors):
        raise ValueError(
            f"{name} was changed or damaged after it was written: its checksum differs; get it again"
        )
    try:
        about = parse(metadata["macc"])
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict) or about.get("macc_model") != FORMAT:
        raise ValueError(f"{name} was written by another version of macc; this one reads format {FORMAT}")
    try:
        return _checked(about, tensors, path)
    except (KeyError, TypeError, ValidationError) as error:
        raise ValueError(
            f"{name} is not a model that macc shipped: {shown(' '.join(str(error).split()))}"
        ) from None


def _checked(about: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> Trained:
    recipe, inputs = Recipe(**about["recipe"]), Inputs.parse(about["inputs"], path)
    if inputs.network is None and recipe.model.startswith("hf:"):
        raise ValueError(f"{shown(path)} lacks the configuration of its network {recipe.model}")
    weights = {
        name.removeprefix(_WEIGHTS): value for name, value in tensors.items() if name.startswith(_WEIGHTS)
    }
    calibrator = posthoc.from_dict(about["calibrator"])
    logits, labels = tensors[_LOGITS], tensors[_LABELS]
    if not calibrator.num_classes == logits.shape[-1] == inputs.num_classes:
        raise ValueError(f"{shown(path)} is damaged: its parts differ in the number of classes")
    # Files of earlier versions say nothing of sets.
    sets = None if about.get("sets") is None else Sets.from_dict(about["sets"])
    if sets is not None and sets.num_classes != inputs.num_classes:
        raise ValueError(f"{shown(path)} is damaged: its sets are of another number of classes")
    trained = Trained(
        recipe=recipe,
        inputs=inputs,
        weights=weights,
        calibrator=calibrator,
        logits=logits,
        labels=labels,
        metrics=dict(about["metrics"]),
        rule=TypeAdapter(Threshold).validate_python(about["threshold"]),
        version=str(about["version"]),
        source=path,
        sets=sets,
    )
    _check_sizes(trained)
    return trained


def _check_sizes(trained: Trained) -> None:
    """Compare the tensors with the network before memory is asked for: they may be huge."""
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        try:
            wanted = {
                key: value.shape
                for key, value in rebuilt(trained.recipe, trained.inputs).state_dict().items()
            }
        except ValueError as error:
            raise ValueError(f"{shown(trained.source)}: {error}") from None
    if wanted != {key: value.shape for key, value in trained.weights.items()}:
        raise ValueError(
            f"{shown(trained.source)} does not hold the weights of the network that it describes"
        )

"""``macc export``: a model as a graph for other programs, from raw input to acceptance."""

import importlib
import io
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from macc import data as datasets
from macc.data import files as data_files
from macc.io.writing import write_whole
from macc.posthoc import Sets
from macc.ship import files
from macc.ship.files import Trained
from macc.ship.network import EXPORTABLE, Network, in_sets
from macc.training.building import splits_for
from macc.training.inputs import Inputs
from macc.words import shown

TOLERANCE = 1e-4
"""The largest difference from PyTorch that an exported graph may have."""
ROUNDING = 1e-9
"""How close to its threshold a score may be for a class to be in the set of one program and not of
another.
"""
CHECKED = 64
"""How many inputs it is compared on."""

Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class Exported:
    """What was written, and how far it is from PyTorch."""

    path: Path
    difference: float
    samples: int
    real: bool
    """Whether it was compared on validation inputs, and not on random ones of the same form."""

    def __str__(self) -> str:
        what = (
            "validation inputs" if self.real else "random inputs of the recorded form (the data are not here)"
        )
        return (
            f"{shown(self.path)}: on {self.samples} {what} the largest difference from PyTorch is "
            f"{self.difference:.1e} (at most {TOLERANCE:g})"
        )


def export(
    trained: Trained, path: str | PathLike[str], *, root: str | PathLike[str] | None = None
) -> Exported:
    """Write a model as ONNX or as a ``torch.export`` program, checked against PyTorch before it
    gets its name.

    The graph takes raw inputs as the data set had them, any number at once, and gives ``labels``,
    ``confidence``, ``probs``, ``certainty`` (where the model ends in a linear layer), ``accepted``,
    and ``in_set`` where it has sets.

    Args:
        trained: The model; its ``rule`` decides what is accepted.
        path: The ``.onnx`` or ``.pt2`` to write.
        root: The folder with data files.

    Returns:
        How far the graph is from PyTorch.
    """
    place = Path(path)
    check_name(place)
    if not isinstance(trained.calibrator, EXPORTABLE):
        names = ", ".join(kind.__name__ for kind in EXPORTABLE)
        raise ValueError(
            f"the calibrator {type(trained.calibrator).__name__} cannot be part of a graph, only {names}; fit one of these, or "
            f"ship the model as {files.SUFFIX}"
        )
    write = _FORMATS[place.suffix]
    graph = _Graph(trained)
    with write_whole(place) as file, torch.no_grad(), _quiet():
        real = _validation_inputs(trained, root)
        inputs = _random_inputs(trained.inputs) if real is None else real
        expected = graph(inputs)
        content, outputs = write(graph, inputs, expected, _metadata(trained, real is not None))
        difference = _largest_difference(expected, outputs, trained.sets)
        if not difference <= TOLERANCE:
            if not expected["probs"].allclose(graph(inputs)["probs"], rtol=0, atol=0, equal_nan=True):
                raise ValueError(
                    f"the answers of {trained.recipe.model} differ from call to call, so it cannot be exported; "
                    "train a network without randomness in evaluation"
                )
            raise ValueError(
                f"the exported graph differs from PyTorch by {difference:.1e}, more than {TOLERANCE:g}, and is not "
                f"written: {trained.recipe.model} cannot be exported"
            )
        file.write(content)
    return Exported(place, difference, len(inputs), real is not None)


def check_name(path: Path) -> None:
    """Refuse a file of a kind that is not written, or in no folder, before anything is computed."""
    if path.suffix not in (*_FORMATS, files.SUFFIX):
        raise ValueError(
            f"a model is exported as {' or '.join(_FORMATS)} and shipped as {files.SUFFIX}, got {shown(path)}"
        )
    if not path.parent.is_dir():
        raise ValueError(f"{shown(path)}: the folder {shown(path.parent)} does not exist; create it first")


class _Graph(nn.Module):
    """The network with answers by name, which any program can read."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.network = Network(trained)
        for name, module in list(self.named_modules()):
            if isinstance(module, nn.AdaptiveMaxPool2d):
                self.set_submodule(name, _MaxWindows(module.output_size))  # type: ignore[arg-type]

    def forward(self, inputs: Tensor) -> Outputs:
        """Labels, confidence, probabilities, acceptance; certainty and sets if there are any."""
        return {name: value for name, value in self.network(inputs)._asdict().items() if value is not None}


def _program(graph: _Graph, inputs: Tensor) -> torch.export.ExportedProgram:
    dynamic = {0: torch.export.Dim.DYNAMIC}
    try:
        program = torch.export.export(graph, (inputs,), dynamic_shapes=(dynamic,), strict=False)
    except Exception as error:  # whatever a network does that a graph cannot hold
        raise ValueError(f"the network cannot be exported as a graph ({_first_line(error)})") from error
    for node in program.graph.nodes:  # which lines of code it came from, in which folder of this machine
        node.meta.pop("stack_trace", None)
    return program


def _onnx(
    graph: _Graph, inputs: Tensor, expected: Outputs, metadata: dict[str, str]
) -> tuple[bytes, Outputs]:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        _import(name)
    runtime: Any = importlib.import_module("onnxruntime")
    try:
        found: Any = torch.onnx.export(
            _program(graph, inputs),
            dynamo=True,
            input_names=["inputs"],
            output_names=list(expected),
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise ValueError(f"the network cannot be written as ONNX ({_first_line(error)})") from error
    model = found.model_proto
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    content = model.SerializeToString()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    values = session.run(None, {"inputs": inputs.numpy()})
    return content, {
        output.name: torch.from_numpy(value)
        for output, value in zip(session.get_outputs(), values, strict=True)
    }


def _pt2(
    graph: _Graph, inputs: Tensor, _expected: Outputs, metadata: dict[str, str]
) -> tuple[bytes, Outputs]:
    program = _program(graph, inputs)
    # The samples that it was traced with are people's data, and torch would pickle them.
    program.example_inputs = None
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={"macc.json": json.dumps(metadata)})
    content = buffer.getvalue()
    if _holds_pickle(content):
        raise ValueError(
            f"torch {torch.__version__} writes a .pt2 with a pickle in it; install a newer torch, or write .onnx"
        )
    return content, torch.export.load(io.BytesIO(content)).module()(inputs)


def _holds_pickle(content: bytes) -> bool:
    """Whether a part of the archive is an archive of its own, as ``torch.save`` writes them."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return any(
            name.endswith(".pkl") or archive.read(name)[:4] == b"PK\x03\x04" for name in archive.namelist()
        )


_FORMATS: dict[str, Callable[[_Graph, Tensor, Outputs, dict[str, str]], tuple[bytes, Outputs]]] = {
    ".onnx": _onnx,
    ".pt2": _pt2,
}


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"ONNX needs {name}: pip install 'macc-torch[export]' ({error})") from error


def _metadata(trained: Trained, real: bool) -> dict[str, str]:
    """What a user of the graph must know, by name, the larger things as JSON."""
    about = trained.about()
    inputs = {
        key: value
        for key, value in about["inputs"].items()
        if value is not None and key not in ("classes", "counts", "licence", "network", "normalisation")
    }
    found = {
        "macc": trained.version,
        "classes": json.dumps(about["inputs"]["classes"]),
        "inputs": json.dumps(inputs),
        "calibrator": about["calibrator"]["method"],
        "threshold": json.dumps(about["threshold"]),
        "sets": json.dumps(about["sets"]),
        "metrics": json.dumps(about["metrics"]),
        "compared_on": "validation inputs" if real else "random inputs",
    }
    if trained.inputs.licence is not None:
        found["data_licence"] = trained.inputs.licence
    return found


def _validation_inputs(trained: Trained, root: str | PathLike[str] | None) -> Tensor | None:
    """Some of the validation inputs, if the data are here; nothing is downloaded."""
    known = datasets.known().get(trained.recipe.dataset)
    sources = None if known is None else known.sources
    if isinstance(sources, data_files.Sources) and sources.missing(data_files.data_root(root)):
        return None
    try:
        found = splits_for(trained.recipe, None, root)
    except ValueError:
        return None
    same = Inputs.of(found, dataset=trained.recipe.dataset)
    if (same.shape, same.dtype, same.classes) != (
        trained.inputs.shape,
        trained.inputs.dtype,
        trained.inputs.classes,
    ):
        return None
    return found.val.inputs[:CHECKED].clone()


def _random_inputs(inputs: Inputs) -> Tensor:
    """Inputs of the recorded form, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    shape = (CHECKED, *inputs.shape)
    if inputs.kind == "tokens":
        dtype = torch.int32 if inputs.dtype == "int32" else torch.int64
        return torch.randint(inputs.vocabulary or 2, shape, generator=generator, dtype=dtype)
    if inputs.dtype == "uint8":
        return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    if inputs.kind == "image":
        return torch.rand(shape, generator=generator)
    values = torch.randn(shape, generator=generator)
    scaling = inputs.normalisation
    return values if scaling is None else values * torch.tensor(scaling.std) + torch.tensor(scaling.mean)


def _largest_difference(expected: Outputs, outputs: Outputs, sets: Sets | None) -> float:
    """Over all numbers; where two classes or the threshold are that close, either answer is right.

    Sets are those of the graph's own probabilities, except where a score is the threshold to the
    last digits.
    """
    if list(expected) != list(outputs):
        raise ValueError(f"the exported graph gives {', '.join(outputs)} in place of {', '.join(expected)}")
    numbers = [name for name in ("confidence", "probs", "certainty") if name in expected]
    differences = torch.cat([(expected[name] - outputs[name]).abs().flatten() for name in numbers])
    worst = float(differences.nan_to_num(nan=torch.inf).max())
    probs, confidence = expected["probs"], expected["confidence"]
    chosen = probs.gather(1, outputs["labels"].long()[:, None])[:, 0]
    far = (confidence - chosen > TOLERANCE).any()
    other = expected["accepted"] != outputs["accepted"]
    if sets is not None:
        probs = outputs["probs"]
        margin = sets.class_scores(probs.double()) - torch.tensor(sets.thresholds, dtype=torch.float64)
        wrong = in_sets(sets, probs) != outputs["in_set"]
        far |= (margin.abs() > ROUNDING)[wrong].any()
    limit = confidence[expected["accepted"]].amin() if expected["accepted"].any() else torch.inf
    return float("inf") if far or ((confidence - limit).abs() > TOLERANCE)[other].any() else worst


class _MaxWindows(nn.Module):
    """``nn.AdaptiveMaxPool2d`` for maps of a fixed size, which ONNX has no word for."""

    def __init__(self, size: int | tuple[int, int]) -> None:
        super().__init__()
        self.size = (size, size) if isinstance(size, int) else size

    def forward(self, maps: Tensor) -> Tensor:
        """The largest value in each window."""
        for dim, count in zip((2, 3), self.size, strict=True):
            side = maps.shape[dim]
            windows = [
                maps.narrow(dim, k * side // count, -(-(k + 1) * side // count) - k * side // count)
                for k in range(count)
            ]
            maps = torch.cat([window.amax(dim, keepdim=True) for window in windows], dim)
        return maps


def _first_line(error: Exception) -> str:
    return shown(next(iter(str(error).splitlines()), type(error).__name__))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says to its own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)

"""A run: the folder that training leaves, from which everything else is computed."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from macc import __version__
from macc.data import Splits
from macc.io.arrays import read_npz, write_arrays
from macc.io.json import read_mapping
from macc.io.writing import write_bytes
from macc.metrics import headline
from macc.posthoc import Calibrator
from macc.posthoc import load as load_calibrator
from macc.tables import Column, Entry, Table, Unit, html_of, with_interval
from macc.training import loading as recipes
from macc.training.recipe import Recipe, criterion_of
from macc.words import shown, slug

LOCK = ".lock"
SPREAD = "u"
"""The mean variance of the logits, among the terms of an epoch where a head gives it."""
LONGEST_WORD = 60
"""Characters of a data set's, a model's or a loss's name in the name of a folder."""
PACKAGES = ("torch", "numpy", "scikit-learn", "accelerate", "safetensors", "pydantic")


class Busy(ValueError):  # noqa: N818 - the state of a run, named as people say it
    """Another process is training the run."""


@dataclass(frozen=True)
class Run:
    """A run folder, read by name.

    Args:
        path: The folder.

    Example:
        >>> import tempfile
        >>> from macc import training
        >>> recipe = training.load("digits", scale="smoke", loss="CrossEntropy", overrides=["epochs=2"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = training.fit(recipe, out=folder)
        ...     logits, labels = run.predictions("test")
        ...     logits.shape, len(run.history)
        (torch.Size([359, 10]), 2)
    """

    path: Path

    @property
    def finished(self) -> bool:
        """Whether training and everything after it is done."""
        return (self.path / "metrics.json").is_file()

    @property
    def recipe(self) -> Recipe:
        """The complete, resolved recipe."""
        return recipes.load(self.path / "recipe.yaml")

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row an epoch; a half-written last line is left out."""
        path = self.path / "history.jsonl"
        rows = []
        for line in path.read_text().splitlines() if path.is_file() else ():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    @property
    def metrics(self) -> dict[str, Any]:
        """``{split: {metric: {value, low, high}}}``; in ``"calibrated"`` that after calibration."""
        return self.read_json("metrics.json")

    @property
    def calibrator(self) -> Calibrator | None:
        """What was fitted to validation logits; ``None`` with ``calibrate: none``, in old runs."""
        path = self.path / "calibrator.json"
        return load_calibrator(path) if path.is_file() else None

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, hardware and hashes of the first start."""
        return self.read_json("environment.json")

    def _repr_html_(self) -> str:
        recipe = self.recipe
        heading = (
            f"{recipe.label}, {recipe.model}, {recipe.loss}, seed {recipe.seed}: {shown(self.path, None)}"
        )
        if not self.finished:
            return html_of(heading, "It is not finished.")
        found = self.metrics
        raw, mended = found.get("test", {}), found.get("calibrated", {}).get("test", {})
        rows = [
            (Entry(metric.noun), *(_entry(part.get(name), metric.unit) for part in (raw, mended)))
            for name, metric in headline().items()
            if name in raw
        ]
        columns = (Column("test split", left=True), Column("as trained"), Column("calibrated"))
        return html_of(heading, Table(columns, tuple(rows)))

    def predictions(self, name: str) -> tuple[Tensor, Tensor]:
        """Logits ``(N, K)`` and labels ``(N,)`` of a split: ``"test"``, ``"digits/noise-3"``."""
        path = self.path / "predictions" / f"{name}.npz"
        if not path.is_file():
            folder = self.path / "predictions"
            there = sorted(str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.npz"))
            raise ValueError(
                f"{self.path} has no predictions {name!r}; there are {', '.join(there) or 'none yet'}"
            )
        found = read_npz(path)
        if not {"logits", "labels"} <= set(found):
            raise ValueError(f"{path} must hold `logits` and `labels`, it holds {', '.join(found)}")
        return torch.from_numpy(found["logits"]), torch.from_numpy(found["labels"])

    def weights(self) -> dict[str, Tensor]:
        """The selected weights."""
        path = self.path / "best.safetensors"
        if not path.is_file():
            raise ValueError(f"{self.path} has no best.safetensors; finish it with `macc train`")
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(
                f"{path} is damaged ({shown(error)}); delete {self.path} and train again"
            ) from error

    def write_predictions(self, name: str, **arrays: Tensor) -> Path:
        """Write arrays as ``predictions/<name>.npz``, whole or not at all."""
        path = self.path / "predictions" / f"{name}.npz"
        write_arrays(path, {key: value.numpy() for key, value in arrays.items()})
        return path

    def read_json(self, name: str) -> dict[str, Any]:
        """The mapping in one of its files."""
        return read_mapping(self.path / name, f"is {self.path} a finished run?")


def _entry(found: dict[str, float] | None, unit: Unit) -> Entry:
    """A metric of a run with its interval, where it was measured."""
    if found is None or None in (found.get(end) for end in ("value", "low", "high")):
        return Entry("–")
    return with_interval(found["value"], found["low"], found["high"], unit, found.get("noise_floor"))


def open_run(path: str | Path) -> Run:
    """A finished run by its folder."""
    run = Run(Path(path))
    if not (run.path / "recipe.yaml").is_file():
        raise ValueError(f"{run.path} is no run folder: it has no recipe.yaml")
    if not run.finished:
        raise ValueError(f"{run.path} is not finished: train it to its end first, with the same command")
    return run


def run_hash(recipe: Recipe, data: Splits | str, model: nn.Module | None = None) -> str:
    """The hash of what decides a run: recipe, data, version, weights that a user starts from.

    Values of the recipe that do not change the result are left out, see :meth:`Recipe.deciding`.

    Args:
        recipe: The resolved recipe.
        data: What it is trained on, or the digest of it.
        model: A user's own model.
    """
    own = weights_read(recipe) if model is None else _weights_digest(model)
    digest = data if isinstance(data, str) else data.digest()
    parts = [recipe.deciding(), digest, __version__, own]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _weights_digest(model: nn.Module) -> str:
    found = hashlib.sha256(repr(model).encode())
    for name, value in model.state_dict().items():
        found.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def weights_read(recipe: Recipe) -> dict[str, str] | None:
    """The SHA-256 of each local file that a recipe's model starts from; ``None`` if none."""
    library, _, place = recipe.model.partition(":")
    if recipe.pretrained is not None:
        files = [Path(recipe.pretrained).expanduser()]
    else:
        files = sorted(Path(place).glob("*.safetensors")) if library == "hf" and place else []
    found = {}
    for file in files:
        if file.is_file():  # where it is not, building the model says so
            status = file.stat()
            found[file.name] = _file_digest(file.resolve(), status.st_size, status.st_mtime_ns)
    return found or None


@cache
def _file_digest(path: Path, _size: int, _time: int) -> str:
    """The SHA-256 of a file, read once as long as its size and time stay what they are."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_path(out: str | PathLike[str], recipe: Recipe, key: str) -> Path:
    """``<out>/<dataset>-<model>-<loss>-<12 hex>``, in characters that every file system takes.

    The loss is its short name: ``digits-small_cnn-nll+macc-0123456789ab``.
    """
    words = [slug(word)[-LONGEST_WORD:] for word in (recipe.dataset, recipe.model)]
    loss = "+".join(slug(term) for term in criterion_of(recipe.loss).label.split("+"))
    return Path(out) / "-".join([*words, loss[:LONGEST_WORD], key[:12]])


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the run folder for this process, or fail; the system frees it at death."""
    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Busy(
            f"another process is training {path}; wait for it, or give another folder with --out"
        ) from None
    try:
        yield
    finally:
        lock.release()


def environment(
    *,
    device: torch.device,
    processes: int,
    data_digest: str,
    key: str,
    weights: Mapping[str, str] | None = None,
    verified: bool = True,
) -> dict[str, Any]:
    """What a result may depend on beside its recipe."""
    return {
        "macc": __version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "num_processes": processes,
        "data_sha256": data_digest,
        **({} if verified else {"data_verified": False}),
        **({} if weights is None else {"weights_sha256": dict(weights)}),
        "run_sha256": key,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """The commit of macc's own source, where it is a checkout."""
    folder = Path(__file__).parent
    command = [
        "git",
        "--no-optional-locks",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]
    try:
        # A busy machine must not make two runs of one source differ: it has a minute.
        found = subprocess.run(command, capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed between two environments, as far as it may move the last bits of a result."""
    flat = [{**environment, **environment.get("packages", {})} for environment in (before, now)]
    names = ("torch", "numpy", "processor", "threads", "device")
    return [
        f"{name} {flat[0].get(name)} then, {flat[1].get(name)} now"
        for name in names
        if flat[0].get(name) != flat[1].get(name)
    ]


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line to ``history.jsonl``."""
    with path.open("ab") as file:
        file.write(_line(row))
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write ``history.jsonl`` anew, for example without a half-written last line."""
    write_bytes(path, b"".join(map(_line, rows)))


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, allow_nan=False) + "\n").encode()

"""All that a run needs to go on, in folders that are complete or ignored, without code."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from macc.io.json import json_bytes
from macc.io.tensors import tensor_bytes
from macc.io.writing import TEMPORARY, check_space, sync_folder
from macc.words import quoted, shown

FORMAT = 3
COMPLETE = "complete"
_NAME = re.compile(r"(\d+)(?:\.(\d+))?")


class Damaged(ValueError):  # noqa: N818 - the state of a checkpoint, named as people say it
    """A checkpoint whose content is not what training wrote.

    Args:
        path: Its folder.
        reason: What is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        reason = shown(reason)
        super().__init__(f"{path} is damaged: {reason}; {_cure(path)}")
        self.path, self.reason = path, reason


def _cure(path: Path) -> str:
    return f"delete {path} to train from the start"


Number = int | Annotated[float, Field(allow_inf_nan=False)]


class _Read(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Generators(_Read):
    torch: str
    python: tuple[int, list[int], float | None]
    numpy: tuple[str, list[int], int, int, float]
    cuda: list[str] | None = None


class _Unfinished(_Read):
    sums: dict[str, Number]
    generators: _Generators


class _State(_Read):
    """The content of ``state.json``."""

    format: int
    run: str
    epoch: Annotated[int, Field(ge=0)]
    step: Annotated[int, Field(ge=0)]
    processes: Annotated[int, Field(ge=1)]
    history: list[dict[str, Number]]
    optimiser: dict[str, Number | None]
    scaler: dict[str, Number]
    unfinished: list[_Unfinished]

    @model_validator(mode="after")
    def _check(self) -> Self:
        epochs = [row.get("epoch") for row in self.history]
        if len(epochs) != self.epoch or epochs != list(range(1, len(epochs) + 1)):
            raise ValueError(f"the history does not hold the epochs 1 to {self.epoch}")
        if len(self.unfinished) != (self.processes if self.step else 0):
            raise ValueError(
                f"step {self.step} does not go with {len(self.unfinished)} states of unfinished epochs"
            )
        return self


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run after ``epoch`` whole epochs and ``step`` steps of the next.

    Args:
        run: The hash of the run it belongs to.
        epoch: Whole epochs done.
        step: Steps of the next epoch done; 0 at the end of an epoch.
        processes: How many processes trained.
        history: The rows of all whole epochs.
        model: State dict of what is trained.
        criterion: State dict of the loss: its warm-up counters.
        optimiser: What the optimiser keeps of each parameter, by its number; its settings are the
            recipe's.
        scaler: State of the gradient scaler, with fp16.
        unfinished: Of an unfinished epoch, for each process: ``sums`` of the loss and its terms
            over the steps done, and the states of its ``generators``.
    """

    run: str
    epoch: int
    step: int = 0
    processes: int = 1
    history: list[dict[str, Any]]
    model: Mapping[str, Tensor]
    criterion: Mapping[str, Tensor]
    optimiser: Mapping[int, Mapping[str, Any]]
    scaler: Mapping[str, Any] = field(default_factory=dict)
    unfinished: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its folder, named by the number of epochs, with the step where one is unfinished."""
        return f"{self.epoch}.{self.step}" if self.step else str(self.epoch)


def save(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write a checkpoint below ``folder`` and then remove the older ones.

    The files are written and synced beside their place; ``complete``, with their checksums, is the
    last of them, and only then does the folder get its name.
    """
    tensors, rest = _split_optimiser(checkpoint.optimiser)
    state = {
        "format": FORMAT,
        "run": checkpoint.run,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "processes": checkpoint.processes,
        "history": checkpoint.history,
        "optimiser": rest,
        "scaler": dict(checkpoint.scaler),
        "unfinished": checkpoint.unfinished,
    }
    contents = {
        "model.safetensors": tensor_bytes(checkpoint.model),
        "optimiser.safetensors": tensor_bytes(tensors),
        "criterion.safetensors": tensor_bytes(checkpoint.criterion),
        "state.json": json_bytes(state),
    }
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents[COMPLETE] = json_bytes(sums)
    folder.mkdir(parents=True, exist_ok=True)
    check_space(folder, sum(map(len, contents.values())))
    temporary, target = folder / f"{TEMPORARY}{checkpoint.name}", folder / checkpoint.name
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        for name, content in contents.items():
            with (temporary / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    remove_others(folder, target)
    return target


def remove_others(folder: Path, kept: Path | None) -> None:
    """Remove every checkpoint but one, and what a killed process left of them."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path != kept:
            # First what makes it count, so that a checkpoint half removed is none.
            (path / COMPLETE).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints below ``folder``, newest first; a kill leaves an older one."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and (path / COMPLETE).is_file():
            found[int(match[1]), int(match[2] or 0)] = path
    return [found[key] for key in sorted(found, reverse=True)]


def read(path: Path, *, run: str, processes: int) -> Checkpoint:
    """Read and check a checkpoint.

    Raises:
        Damaged: If it is not what training wrote.
        ValueError: If it is of another run, of another format or of another number of processes.
    """
    contents = _verified(path)
    state = _state(path, contents["state.json"])
    if state.run != run:
        raise ValueError(
            f"{path} belongs to another run ({shown(state.run, 12)}, this one is {run[:12]}): "
            f"its recipe, data or version of macc differ; {_cure(path)}"
        )
    if state.processes != processes:
        raise ValueError(
            f"{path} was written by {state.processes} processes and there are {processes}; "
            f"start as many as before, or {_cure(path)}"
        )
    try:
        tensors = {
            part: load(contents[f"{part}.safetensors"]) for part in ("model", "optimiser", "criterion")
        }
    except SafetensorError as error:
        raise Damaged(path, str(error)) from error
    checkpoint = Checkpoint(
        run=run,
        epoch=state.epoch,
        step=state.step,
        processes=processes,
        history=state.history,
        model=tensors["model"],
        criterion=tensors["criterion"],
        optimiser=_joined_optimiser(path, {**tensors["optimiser"], **state.optimiser}),
        scaler=state.scaler,
        unfinished=[one.model_dump(exclude_none=True) for one in state.unfinished],
    )
    if checkpoint.name != path.name:
        raise Damaged(path, f"state.json is that of {checkpoint.name}")
    return checkpoint


def _state(path: Path, content: bytes) -> _State:
    try:
        values = json.loads(content)
        written = values.get("format")
    except (ValueError, AttributeError, RecursionError):
        raise Damaged(path, "state.json cannot be read") from None
    if written != FORMAT:
        raise ValueError(
            f"{path} is of checkpoint format {shown(repr(written))} and this version reads {FORMAT}; {_cure(path)}"
        )
    try:
        return _State.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(["state.json", *map(str, first["loc"])])
        raise Damaged(path, f"{place}: {first['msg'].removeprefix('Value error, ')}") from None


def _verified(path: Path) -> dict[str, bytes]:
    try:
        sums = json.loads((path / COMPLETE).read_bytes())
        contents = {name: (path / name).read_bytes() for name in sums if Path(name).name == name}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Damaged(path, f"its file {COMPLETE!r} cannot be read") from None
    except OSError as error:
        raise Damaged(path, f"{error.filename}: {error.strerror}") from None
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sums[name]:
            raise Damaged(path, f"{name} does not match its checksum")
    missing = {"model.safetensors", "optimiser.safetensors", "criterion.safetensors", "state.json"} - set(
        contents
    )
    if missing:
        raise Damaged(path, f"it lacks {min(missing)}")
    return contents


def _split_optimiser(state: Mapping[int, Mapping[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an optimiser's state by flat name, and the rest as plain values."""
    flat = {f"{index}.{name}": value for index, values in state.items() for name, value in values.items()}
    tensors = {name: value for name, value in flat.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in flat.items() if name not in tensors}


def _joined_optimiser(path: Path, flat: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in flat.items():
        index, _, name = key.partition(".")
        if not index.isdecimal() or not index.isascii():
            raise Damaged(path, f"the optimiser has no parameter {quoted(index)}")
        state.setdefault(int(index), {})[name] = value
    return state


def load_module(module: torch.nn.Module, state: Mapping[str, Tensor], where: Path | str) -> None:
    """Load a state dict; what does not fit is one sentence."""
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise ValueError(f"{where} does not fit the model: {first}") from None

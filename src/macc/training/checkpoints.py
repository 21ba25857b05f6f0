"""Everything a run needs to go on, in folders that are complete or ignored, and nothing that can run code."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from macc._writing import TEMPORARY, sync_folder
from macc.training._files import check_space, json_bytes, tensor_bytes

FORMAT = 2
COMPLETE = "complete"
_NAME = re.compile(r"(\d+)(?:\.(\d+))?")


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
        optimiser: State dict of the optimiser.
        scaler: State of the gradient scaler, with fp16.
        unfinished: Of an unfinished epoch, for each process: ``sums`` of the loss and its terms over the steps
            done, and the states of its ``generators``.
    """

    run: str
    epoch: int
    step: int = 0
    processes: int = 1
    history: list[dict[str, Any]]
    model: Mapping[str, Tensor]
    criterion: Mapping[str, Tensor]
    optimiser: Mapping[str, Any]
    scaler: Mapping[str, Any] = field(default_factory=dict)
    unfinished: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its folder, named by the number of epochs, with the step where one is unfinished."""
        return f"{self.epoch}.{self.step}" if self.step else str(self.epoch)


def save(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write a checkpoint below ``folder`` and then remove the older ones.

    The files are written and synced beside their place; ``complete``, with their checksums, is the last of
    them, and only then does the folder get its name.
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


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint below ``folder``."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and (path / COMPLETE).is_file():
            found[int(match[1]), int(match[2] or 0)] = path
    return found[max(found)] if found else None


def read(path: Path, *, run: str, processes: int) -> Checkpoint:
    """Read and check a checkpoint.

    Raises:
        ValueError: If it is damaged, of another run, of another format or of another number of processes.
    """
    cure = f"delete {path} to train from the start"
    contents = _verified(path, cure)
    state = json.loads(contents["state.json"])
    if state.get("format") != FORMAT:
        raise ValueError(
            f"{path} is of checkpoint format {state.get('format')!r} and this version reads {FORMAT}; {cure}"
        )
    if state["run"] != run:
        raise ValueError(
            f"{path} belongs to another run ({state['run'][:12]}, this one is {run[:12]}): "
            f"its recipe, data or version of macc differ; {cure}"
        )
    if state["processes"] != processes:
        raise ValueError(
            f"{path} was written by {state['processes']} processes and there are {processes}; "
            f"start as many as before, or {cure}"
        )
    try:
        tensors = {
            part: load(contents[f"{part}.safetensors"]) for part in ("model", "optimiser", "criterion")
        }
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}); {cure}") from error
    return Checkpoint(
        run=run,
        epoch=state["epoch"],
        step=state["step"],
        processes=processes,
        history=state["history"],
        model=tensors["model"],
        criterion=tensors["criterion"],
        optimiser=_joined_optimiser(tensors["optimiser"], state["optimiser"]),
        scaler=state["scaler"],
        unfinished=state["unfinished"],
    )


def _verified(path: Path, cure: str) -> dict[str, bytes]:
    try:
        sums = json.loads((path / COMPLETE).read_bytes())
        contents = {name: (path / name).read_bytes() for name in sums if Path(name).name == name}
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"{path} is damaged: its file {COMPLETE!r} cannot be read; {cure}") from None
    except OSError as error:
        raise ValueError(f"{path} is damaged: {error.filename}: {error.strerror}; {cure}") from None
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sums[name]:
            raise ValueError(f"{path} is damaged: {name} does not match its checksum; {cure}")
    missing = {"model.safetensors", "optimiser.safetensors", "criterion.safetensors", "state.json"} - set(
        contents
    )
    if missing:
        raise ValueError(f"{path} is no checkpoint of macc: it lacks {min(missing)}; {cure}")
    return contents


def _split_optimiser(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an optimiser's state dict by flat name, and the rest as plain values."""
    tensors, plain = {}, {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            else:
                plain[f"{index}.{name}"] = value
    return tensors, {"groups": state["param_groups"], "plain": plain}


def _joined_optimiser(tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **rest["plain"]}.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    groups = [
        {key: tuple(value) if key == "betas" else value for key, value in group.items()}
        for group in rest["groups"]
    ]
    return {"state": state, "param_groups": groups}


def load_module(module: torch.nn.Module, state: Mapping[str, Tensor], where: Path) -> None:
    """Load a state dict; what does not fit is one sentence."""
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise ValueError(f"{where} does not fit the model: {first}") from None

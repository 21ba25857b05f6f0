"""What a run folder's files are written with."""

import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from macc._writing import replacing

SPARE_BYTES = 16 * 2**20


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_space(path.parent, len(content))
    with replacing(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, in the order it has."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """A value as indented JSON; not-a-number has no place in it."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write an uncompressed ``.npz``; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_bytes(path, buffer.getvalue())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a ``.safetensors`` file; equal tensors give equal bytes."""
    write_bytes(path, tensor_bytes(tensors))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name in the safetensors format, shared ones written twice."""
    return save({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})


def check_space(folder: Path, size: int) -> None:
    """Refuse to start writing what the disk has no room for."""
    free = shutil.disk_usage(folder).free
    needed = size + SPARE_BYTES
    if free < needed:
        raise OSError(
            ENOSPC, f"{needed / 1e6:.1f} MB are needed and {free / 1e6:.1f} MB are free", str(folder)
        )


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """A full disk as one sentence that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in (ENOSPC, EDQUOT, EFBIG):
            raise
        raise ValueError(
            f"the disk of {folder} is full ({error.strerror}); nothing that was written is lost: "
            "free some space and give the same command again"
        ) from error


@contextmanager
def full_memory_explained() -> Iterator[None]:
    """Too little memory as one sentence that says what needs less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On the CPU torch has no class of its own for it.
        wanted = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(
            error
        )
        if not wanted:
            raise
        raise ValueError(
            "there is not enough memory for a batch; lower batch_size or eval_batch_size, raise accumulate, or lower "
            "image_size or head.samples"
        ) from error

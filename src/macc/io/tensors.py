"""Tensors in the safetensors format, which holds numbers and nothing that could run."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from macc.io.writing import write_bytes


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a ``.safetensors`` file; equal tensors give equal bytes."""
    write_bytes(path, tensor_bytes(tensors))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors by name in the safetensors format, shared ones written twice."""
    return save({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})

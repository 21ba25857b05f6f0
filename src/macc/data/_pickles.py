"""Reading the pickles of published data sets without letting them run anything.

A pickle may name any function of any package and call it. This reader knows plain containers, text,
bytes, numbers and numpy arrays of numbers; whatever else a file names is refused before it is
looked up. Arrays are rebuilt here from their bytes, so that no state from a file reaches numpy's
own machinery.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from macc.words import shown


class _Number:
    """Stands in for ``numpy.dtype``: a kind of number, then the order of its bytes."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        name = _text(code)
        if name not in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"):
            raise pickle.UnpicklingError(f"an array of {name!r}, which is no number")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if _text(state[1]) == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Stands in for an array under construction, which numpy fills from a state."""

    def __init__(self, *_: object) -> None:
        self.values = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, number, fortran, content = state
        if isinstance(content, str):
            content = content.encode("latin1")
        if not isinstance(number, _Number) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array that is not made of numbers")
        if math.prod(shape) * number.dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} and {len(content)} bytes")
        order: Any = "F" if fortran else "C"
        # Over a bytearray the array is writable, as torch wants it.
        self.values = np.ndarray(shape, number.dtype, buffer=bytearray(content), order=order)


def _text(value: bytes | str) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in the protocols of Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """The same, for bytes of length 0."""
    return b""


# Numpy moved `core` to `_core`; files written before and after name the same thing differently.
# `numpy.ndarray` itself is only ever an argument, and so need not be anything.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Number,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}, which data does not need")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - the signature is pickle's
        raise pickle.UnpicklingError("an object outside the file")


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """The dictionary in a pickle; its keys as text, its arrays as numpy's.

    Args:
        content: The bytes of the file.
        path: Where they come from, for errors.
    """
    try:
        value = _Restricted(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is damaged, or holds what no data file needs: {shown(error)}; refused"
        ) from error
    except Exception as error:  # any bytes may be in a file, and so any error may come out of it
        raise ValueError(
            f"{path} is damaged or cut ({type(error).__name__}: {shown(error)}); delete it and get it again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not the dictionary that it should")
    return {
        key.decode() if isinstance(key, bytes) else str(key): item.values
        if isinstance(item, _Array)
        else item
        for key, item in value.items()
    }

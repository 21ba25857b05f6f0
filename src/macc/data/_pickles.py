"""Reading the pickles of published data sets without letting them run anything.

A pickle may name any function of any package and call it. This reader knows plain containers, text,
bytes, numbers and numpy arrays; whatever else a file names is refused before it is looked up.
"""

import io
import pickle
from codecs import encode
from pathlib import Path
from typing import Any

import numpy as np


def _empty_array(kind: type, shape: tuple[int, ...], _dtype: bytes | str) -> "np.ndarray[Any, Any]":
    """Numpy's first step of rebuilding an array; a file that asks for memory in it is refused."""
    if kind is not np.ndarray or tuple(shape) != (0,):
        raise pickle.UnpicklingError("an array that does not start empty")
    return np.ndarray((0,), dtype=np.uint8)


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in the protocols of Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding}")
    return encode(text, "latin1")


# Numpy moved `core` to `_core`; files written before and after name the same thing differently.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}, which data does not need")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:  # noqa: ARG002 - the signature is pickle's
        raise pickle.UnpicklingError("an object outside the file")


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """The dictionary in a pickle; its keys as text.

    Args:
        content: The bytes of the file.
        path: Where they come from, for errors.
    """
    try:
        value = _Restricted(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is damaged, or holds what no data file needs: {error}; refused") from error
    except Exception as error:  # any bytes may be in a file, and so any error may come out of it
        raise ValueError(
            f"{path} is damaged or cut ({type(error).__name__}: {error}); delete it and get it again"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not the dictionary that it should")
    return {key.decode() if isinstance(key, bytes) else str(key): item for key, item in value.items()}

"""All randomness of an epoch as a function of (seed, epoch, rank)."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch


def derived_seed(*parts: int | str) -> int:
    """A seed of 63 bits that depends on every part.

    Example:
        >>> derived_seed(0, 1) != derived_seed(1, 0)
        True
    """
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_everything(*parts: int | str) -> None:
    """Seed the generators of torch (every device), Python and numpy."""
    seed = derived_seed(*parts)
    torch.manual_seed(seed)
    random.seed(seed)
    # The legacy generator is the one that a user's own module may draw from.
    np.random.seed(seed % 2**32)  # noqa: NPY002


def generator_states() -> dict[str, Any]:
    """The state of every generator, as values that JSON holds."""
    version, words, gauss = random.getstate()
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))  # noqa: NPY002
    states = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "python": [version, list(words), gauss],
        "numpy": [name, keys.tolist(), *rest],
    }
    if torch.cuda.is_available():
        states["cuda"] = [state.numpy().tobytes().hex() for state in torch.cuda.get_rng_state_all()]
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Put every generator back to where :func:`generator_states` saw it."""
    torch.set_rng_state(_bytes(states["torch"]))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_bytes(state) for state in states["cuda"]])


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the caller's generators as they were."""
    states = generator_states()
    try:
        yield
    finally:
        restore_generators(states)


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)

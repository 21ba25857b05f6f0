"""Too little memory, explained."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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

"""A few rows of predictions at a time, so few that the processor's cache holds them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache

import torch
from torch import Tensor

# 2 MB of float32 and 4 of float64, which stay in the cache that cores share; fewer cost more in
# calls than they save. Elsewhere launches are what costs.
_CPU_ELEMENTS = 2**19
_DEVICE_ELEMENTS = 2**24
# Each thread keeps its last CPU memory: new memory costs a page fault every 4 kB, which small
# batches feel.
_kept = threading.local()


class Block:
    """Some checked rows; what is made of them is made when it is asked for, and is good until the
    next block.

    Args:
        scores: Probabilities or logits, ``(M, K)``.
        labels: Class indices.
        weights: Of each row, if they have any.
        memory: Float64, ``(M, K)``, to be written to.
        from_logits: The scores are logits.
        normalise: Rows are to be divided by their sums.
    """

    def __init__(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        memory: Tensor,
        *,
        from_logits: bool,
        normalise: bool,
    ):
        self.labels, self.weights = labels, weights
        self._memory = memory
        if from_logits:
            memory.copy_(scores)
            memory -= memory.amax(1, keepdim=True)
            memory -= row_sums(memory.exp()).log_()[:, None]
            # Without underflow, which the logarithm of a probability would have.
            self.log_likelihood = memory.gather(1, labels[:, None])[:, 0]
            memory.exp_()
            scores = memory
        elif normalise:
            memory.copy_(scores)
            memory /= memory.sum(1, keepdim=True)
            scores = memory
        narrow = scores.dtype in (torch.float16, torch.bfloat16)
        self.given = (scores.float() if narrow else scores).contiguous()
        """Probabilities, in float32 or float64 as they came."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def probs(self) -> Tensor:
        """The same in float64; overwritten by the next block."""
        return self.given if self.given.dtype == torch.float64 else self._memory.copy_(self.given)

    @cached_property
    def label_probs(self) -> Tensor:
        """The probability of each label, float64 ``(M,)``."""
        return self.given.gather(1, self.labels[:, None])[:, 0].double()

    @cached_property
    def log_likelihood(self) -> Tensor:
        """Its logarithm."""
        return self.label_probs.log()


def rows_at_once(num_samples: int, num_classes: int, device: torch.device) -> int:
    """How many rows a block has."""
    elements = _CPU_ELEMENTS if device.type == "cpu" else _DEVICE_ELEMENTS
    return min(num_samples, max(1, elements // num_classes))


def row_sums(rows: Tensor) -> Tensor:
    """The sum of each row, many times as fast as torch's where rows are short."""
    return torch.mv(rows, ones(rows.shape[1], rows.dtype, rows.device))


@lru_cache(maxsize=8)
def ones(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Not to be written to."""
    with torch.inference_mode(False):
        return torch.ones(size, dtype=dtype, device=device)


@contextmanager
def memory(size: int, device: torch.device) -> Iterator[Tensor]:
    """Float64 memory that nobody else uses until it is given back."""
    kept: Tensor | None = vars(_kept).pop("memory", None) if device.type == "cpu" else None
    if kept is None or kept.numel() < size:
        with torch.inference_mode(False):  # what inference mode makes cannot be written to outside it
            kept = torch.empty(size, dtype=torch.float64, device=device)
    try:
        yield kept[:size]
    finally:
        if device.type == "cpu":
            _kept.memory = kept

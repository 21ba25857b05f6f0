"""Batch statistics over the global batch.

Sums and counts are reduced across processes, in the backward pass too. Each process then holds the
loss of the whole batch, its gradient is the number of processes times its own rows' share, and the
average that DDP takes is the gradient of one process on all rows, whatever the sizes of the shards.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch import distributed as dist


def _alone(sync: bool) -> bool:
    return not (sync and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


class _SumOverProcesses(torch.autograd.Function):
    """All-reduce whose gradient is one too; torch's own is deprecated and does not compile."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ARG004 - autograd's signature
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def _sum_over_processes(values: Tensor) -> Tensor:
    return cast("Tensor", _SumOverProcesses.apply(values))  # type: ignore[no-untyped-call]


def batch_mean(values: Tensor, *, sync: bool, known: Tensor | None = None) -> Tensor:
    """Mean over the rows of ``(N, …)``, of all processes if ``sync``.

    Where ``known``, of the shape of the values, is false, a value is left out; a mean of none is 0.
    """
    if known is None:
        if _alone(sync):
            return values.mean(dim=0)
        total = values.sum(dim=0)
        count = torch.full((1,), float(values.shape[0]), dtype=total.dtype, device=total.device)
    else:
        total, count = values.where(known, 0).sum(dim=0), known.sum(dim=0).to(values.dtype)
        if _alone(sync):
            return total / count.clamp(min=1)
    reduced = _sum_over_processes(torch.cat([total.reshape(-1), count.reshape(-1)]))
    total_of_all, count_of_all = reduced[: total.numel()], reduced[total.numel() :]
    return (total_of_all / count_of_all.clamp(min=1)).reshape(total.shape)


def all_rows(values: Tensor, *, sync: bool) -> Tensor:
    """The rows of ``(N, …)`` of all processes by rank, if ``sync``; shards may be uneven."""
    if _alone(sync):
        return values
    # Uneven `all_gather` aborts the process on gloo: each rank adds its rows to its own place in
    # zeros.
    mine = torch.tensor([values.shape[0]], device=values.device)
    sizes = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, mine)
    counts = [int(size) for size in sizes]
    before = sum(counts[: dist.get_rank()])
    after = sum(counts) - before - values.shape[0]
    shape = values.shape[1:]
    padded = torch.cat([values.new_zeros((before, *shape)), values, values.new_zeros((after, *shape))])
    return _sum_over_processes(padded)

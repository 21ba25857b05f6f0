"""Batch norm over the batch of all processes, on the CPU; torch has it for GPUs only."""

from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from macc.losses.distributed import batch_mean


def share_batch_norm(model: nn.Module) -> None:
    """Make every batch norm of a model use the statistics of all processes, in place.

    Names and state stay those of the layer; in evaluation it is the layer itself.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = MethodType(_shared_forward, module)  # type: ignore[method-assign]


def _shared_forward(self: _BatchNorm, x: Tensor) -> Tensor:
    if not self.training:
        return type(self).forward(self, x)
    rows = x.movedim(1, -1).flatten(0, -2).float()
    mean = batch_mean(rows, sync=True)
    centred = rows - mean
    # From centred values: a difference of two large means would lose digits.
    variance = batch_mean(centred.square(), sync=True)
    _move_statistics(self, mean.detach(), variance.detach(), len(rows) * torch.distributed.get_world_size())
    result = centred * (variance + self.eps).rsqrt()
    if self.affine:
        result = result * self.weight + self.bias
    return result.reshape(x.shape[0], *x.shape[2:], -1).movedim(-1, 1).to(x.dtype)


@torch.no_grad()
def _move_statistics(layer: _BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    layer.num_batches_tracked.add_(1)
    share = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean, share)
    layer.running_var.lerp_(variance * (count / max(1, count - 1)), share)

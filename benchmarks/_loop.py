"""The plainest training loop: tensors in memory, SGD, a cosine schedule."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def fit(
    model: nn.Module,
    criterion: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    batch_size: int = 64,
    lr: float = 0.05,
    weight_decay: float = 5e-4,
    on_epoch: Callable[[int], None] | None = None,
) -> None:
    """Train ``model`` in place; all randomness is torch's global generator.

    Args:
        model: A classifier, with or without an MC-dropout head.
        criterion: What to minimise.
        inputs: All of the training inputs, ``(N, …)``.
        labels: Their class indices, ``(N,)``.
        epochs: Passes over the data.
        batch_size: Rows a step; a last, smaller batch is left out, because batch statistics of few
            rows are noise.
        lr: Learning rate at the start of the cosine.
        weight_decay: L2 penalty.
        on_epoch: Called with the number of each finished epoch.
    """
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=weight_decay)
    steps = len(labels) // batch_size
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * steps)
    model.train()
    for epoch in range(epochs):
        for rows in torch.split(torch.randperm(len(labels))[: steps * batch_size], batch_size):
            optimiser.zero_grad()
            criterion(model(inputs[rows]), labels[rows]).backward()
            optimiser.step()
            schedule.step()
        if on_epoch:
            on_epoch(epoch + 1)
    model.eval()

"""Moments of logits with labels, as a head gives them in training."""

import torch

from macc import LogitMoments


def random_batch(rows=40, classes=6, seed=0):
    """Mean and variance of logits in double precision, and labels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    variance = 2 * torch.rand(rows, classes, generator=generator, dtype=torch.float64)
    return LogitMoments(logits, variance), torch.randint(0, classes, (rows,), generator=generator)

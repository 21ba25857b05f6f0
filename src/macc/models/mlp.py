"""Networks for features: a linear classifier and one with hidden layers."""

from collections.abc import Sequence

from torch import nn


def linear(*, num_classes: int, in_channels: int) -> nn.Sequential:
    """A linear classifier, on frozen embeddings a linear probe; ``in_channels`` is the number of
    input values.

    Inputs of more axes are flattened.

    Example:
        >>> import torch
        >>> tuple(linear(num_classes=7, in_channels=2048)(torch.zeros(5, 2048)).shape)
        (5, 7)
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels, num_classes))


def mlp(*, num_classes: int, in_channels: int, hidden: Sequence[int] = (256, 256)) -> nn.Sequential:
    """A classifier with hidden ReLU layers; ``in_channels`` is the number of input values.

    Inputs of more axes are flattened.

    Example:
        >>> import torch
        >>> tuple(mlp(num_classes=7, in_channels=64)(torch.zeros(5, 1, 8, 8)).shape)
        (5, 7)
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = in_channels
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, num_classes))

"""Plain convolutional networks that train in seconds and in minutes."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def small_cnn(*, num_classes: int, in_channels: int = 1) -> nn.Sequential:
    """Two convolutions and a hidden layer of 64 features, each with batch norm, for images of any
    size.

    Example:
        >>> import torch
        >>> tuple(small_cnn(num_classes=10)(torch.zeros(5, 1, 8, 8)).shape)
        (5, 10)
    """
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64, bias=False),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, num_classes),
    )


def cnn(*, num_classes: int, in_channels: int = 1) -> nn.Sequential:
    """Three convolutions of 16, 32 and 64 channels and a hidden layer of 128 features, for images
    of 24 pixels or more.

    Example:
        >>> import torch
        >>> tuple(cnn(num_classes=10)(torch.zeros(5, 1, 28, 28)).shape)
        (5, 10)
    """
    return _three_convolutions((16, 32, 64), num_classes, in_channels)


def cnn_wide(*, num_classes: int, in_channels: int = 1) -> nn.Sequential:
    """As :func:`cnn`, with 32, 64 and 128 channels."""
    return _three_convolutions((32, 64, 128), num_classes, in_channels)


def _three_convolutions(channels: Sequence[int], num_classes: int, in_channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise([in_channels, *channels]):
        # Before the norm, pooling leaves it a quarter of the values.
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [convolution, nn.MaxPool2d(2), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(
        *layers,
        nn.AdaptiveMaxPool2d(3),
        nn.Flatten(),
        nn.Linear(channels[-1] * 3 * 3, 128, bias=False),
        nn.BatchNorm1d(128),
        nn.ReLU(),
        nn.Linear(128, num_classes),
    )

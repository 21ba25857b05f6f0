"""Residual networks.

Parameter names are torchvision's (``conv1``, ``bn1``, ``layer1.0.conv1``, ``downsample.0``,
``fc``), so that its weight files load.
"""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

Stem = Literal["small", "imagenet"]


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv_bn(inputs, planes, 3, stride)
        self.conv2, self.bn2 = _conv_bn(planes, planes, 3)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(N, inputs, H, W)`` to ``(N, planes, H/stride, W/stride)``."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.downsample(x)
        return self.relu(out)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 ones, four times as wide outside as inside."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv_bn(inputs, planes, 1)
        self.conv2, self.bn2 = _conv_bn(planes, planes, 3, stride)
        self.conv3, self.bn3 = _conv_bn(planes, planes * self.expansion, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, planes * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(N, inputs, H, W)`` to ``(N, 4 planes, H/stride, W/stride)``."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out)) + self.downsample(x)
        return self.relu(out)  # type: ignore[no-any-return]


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    # An Identity has no parameters, so the names in a state dict stay torchvision's.
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(*_conv_bn(inputs, outputs, 1, stride))


class ResNet(nn.Module):
    """A residual network.

    Args:
        block: The residual block.
        blocks: Number of blocks in each stage; every stage after the first halves the image.
        planes: Inner width of each stage.
        num_classes: ``K``.
        in_channels: Channels of the input.
        stem: ``"small"`` is one 3×3 convolution, for images of 32 or 64 pixels; ``"imagenet"`` is a
            7×7 convolution and a pooling that together shrink the image four times.
        pool: Side of the grid that the last stage's map is averaged to; features are ``pool²``
            times as many.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        planes: Sequence[int],
        *,
        num_classes: int,
        in_channels: int,
        stem: Stem = "small",
        pool: int = 1,
    ) -> None:
        super().__init__()
        width = planes[0]
        kernel, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1, self.bn1 = _conv_bn(in_channels, width, kernel, stride)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.num_stages = len(blocks)
        for stage, (count, inner) in enumerate(zip(blocks, planes, strict=True), start=1):
            layers: list[nn.Module] = []
            for index in range(count):
                layers.append(block(width, inner, stride=2 if stage > 1 and index == 0 else 1))
                width = inner * block.expansion
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(pool)
        self.fc = nn.Linear(width * pool**2, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images ``(N, C, H, W)`` to logits ``(N, K)``."""
        return self.fc(self.avgpool(self.last_map(x)).flatten(1))  # type: ignore[no-any-return]

    def last_map(self, x: Tensor) -> Tensor:
        """Maps images ``(N, C, H, W)`` to what the last stage makes of them."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, self.num_stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        return x


def resnet20(*, num_classes: int, in_channels: int = 3) -> ResNet:
    """The CIFAR ResNet-20: basic blocks, 64 features, 0.27 M parameters.

    Reference:
        He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016, section 4.2.
    """
    return ResNet(BasicBlock, (3, 3, 3), (16, 32, 64), num_classes=num_classes, in_channels=in_channels)


def resnet56(*, num_classes: int, in_channels: int = 3) -> ResNet:
    """The paper's ResNet-56: bottleneck blocks, 256 features, 0.59 M parameters, 87 M
    multiply-adds.

    The network that calibration papers train under this name; the classic ResNet-56 has basic
    blocks.
    """
    return ResNet(Bottleneck, (6, 6, 6), (16, 32, 64), num_classes=num_classes, in_channels=in_channels)


def resnet110(*, num_classes: int, in_channels: int = 3) -> ResNet:
    """ResNet-110 of bottleneck blocks, not of basic ones: 256 features, 1.15 M parameters."""
    return ResNet(Bottleneck, (12, 12, 12), (16, 32, 64), num_classes=num_classes, in_channels=in_channels)


def resnet18(*, num_classes: int, in_channels: int = 3) -> ResNet:
    """The ImageNet ResNet-18: 512 features, 11.7 M parameters at 1000 classes.

    Weight files of torchvision load:
    ``build("resnet18", num_classes=7, pretrained="resnet18-f37072fd.pth")``.

    Reference:
        He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016.
    """
    return ResNet(
        BasicBlock,
        (2, 2, 2, 2),
        (64, 128, 256, 512),
        num_classes=num_classes,
        in_channels=in_channels,
        stem="imagenet",
    )


def resnet50(*, num_classes: int, in_channels: int = 3) -> ResNet:
    """The ImageNet ResNet-50: 2048 features, 25.6 M parameters at 1000 classes; torchvision's
    weights load.

    Reference:
        He et al., *Deep Residual Learning for Image Recognition*, CVPR 2016.
    """
    return ResNet(
        Bottleneck,
        (3, 4, 6, 3),
        (64, 128, 256, 512),
        num_classes=num_classes,
        in_channels=in_channels,
        stem="imagenet",
    )


def resnet50_tiny(*, num_classes: int, in_channels: int = 3) -> ResNet:
    """The paper's ResNet-50 for Tiny-ImageNet: 3×3 stem, 8192 features, 25.1 M parameters."""
    return ResNet(
        Bottleneck,
        (3, 4, 6, 3),
        (64, 128, 256, 512),
        num_classes=num_classes,
        in_channels=in_channels,
        pool=2,
    )

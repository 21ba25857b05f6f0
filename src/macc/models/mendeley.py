"""The paper's network for chest X-rays: a frozen ImageNet ResNet-50 under a convolutional head."""

from torch import Tensor, nn
from torch.nn import functional as F

from macc.heads import Head
from macc.models.resnet import Bottleneck, ResNet

# Half of the 26 × 26 map that images of 832 pixels leave; adaptive pooling makes it of any other.
SIDE = 13
DROPOUT = 0.5


class MendeleyHead(nn.Module):
    """A 1×1 convolution, a pooling and three linear layers, dropout before the last two.

    The dropout before the last layer gives way to an MC-dropout head: :func:`macc.attach` puts its
    own there.

    Args:
        features: Channels of the backbone's last map.
        num_classes: ``K``.
        always: Drop in evaluation too.
    """

    def __init__(self, features: int, num_classes: int, *, always: bool) -> None:
        super().__init__()
        self.reduce = nn.Sequential(
            nn.Conv2d(features, 512, 1),
            nn.BatchNorm2d(512),
            nn.ReLU(inplace=True),
            nn.AdaptiveMaxPool2d(SIDE),
        )
        self.fc1, self.bn1 = nn.Linear(512 * SIDE**2, 256), nn.BatchNorm1d(256)
        self.fc2, self.bn2 = nn.Linear(256, 64), nn.BatchNorm1d(64)
        self.out = nn.Linear(64, num_classes)
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``(N, features, H, W)`` to logits ``(N, K)``."""
        dropping = self.training or self.always
        x = F.relu(self.bn1(self.fc1(self.reduce(x).flatten(1))))
        x = F.relu(self.bn2(self.fc2(F.dropout(x, DROPOUT, dropping))))
        if not isinstance(self.out, Head):
            x = F.dropout(x, DROPOUT, dropping)
        return self.out(x)  # type: ignore[no-any-return]


class Mendeley(ResNet):
    """An ImageNet ResNet-50 whose classifier ``fc`` is a :class:`MendeleyHead`; grey images enter
    as three channels.

    Args:
        num_classes: ``K``.
        always: Drop in evaluation too.
    """

    trained = "fc"
    """What a frozen backbone leaves to train, where it is more than the last layer."""

    def __init__(self, *, num_classes: int, always: bool) -> None:
        super().__init__(
            Bottleneck,
            (3, 4, 6, 3),
            (64, 128, 256, 512),
            num_classes=num_classes,
            in_channels=3,
            stem="imagenet",
        )
        self.avgpool = nn.Identity()  # type: ignore[assignment]
        self.fc = MendeleyHead(self.fc.in_features, num_classes, always=always)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """Maps images ``(N, 1 or 3, H, W)`` to logits ``(N, K)``."""
        return self.fc(self.last_map(x.expand(-1, 3, -1, -1)))  # type: ignore[no-any-return]


def mendeley(*, num_classes: int) -> Mendeley:
    """The paper's network for chest X-rays: ResNet-50 under a head of 64 last features, for images
    of any size.

    Made to be frozen up to its head (:func:`macc.models.freeze` knows which): 23.3 M parameters
    train. Weight files of torchvision's ResNet-50 load into the backbone. An attached MC-dropout
    head takes the place of the dropout before the last layer.
    """
    return Mendeley(num_classes=num_classes, always=False)


def mendeley_dropout(*, num_classes: int) -> Mendeley:
    """The same with dropout in evaluation too, a mistake of published code on which published
    numbers rest.

    Predictions then differ from call to call.
    """
    return Mendeley(num_classes=num_classes, always=True)

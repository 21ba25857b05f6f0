"""Networks as people write them, small enough for any test."""

import torch
from torch import nn

IMAGES = torch.zeros(2, 3, 8, 8)


class Body(nn.Module):
    """Images to 6 features."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.bn = nn.BatchNorm2d(6)

    def forward(self, x):
        return self.bn(self.conv(x)).relu().mean((2, 3))


class Cnn(Body):
    """A hand-written network whose classifier is called as `attribute` says; `after` goes on with
    the logits.
    """

    def __init__(self, attribute="fc", classifier=None, after=None):
        super().__init__()
        self.attribute = attribute
        self.add_module(attribute, classifier or nn.Linear(6, 4))
        self.after = after

    def forward(self, x):
        logits = self.get_submodule(self.attribute)(super().forward(x))
        return self.after(logits) if self.after else logits

"""The networks of the paper, by name.

A model is a function ``name(*, num_classes, in_channels)`` imported here; :func:`build` finds it by that line.
"""

from macc.models._build import build as build
from macc.models.resnet import resnet20 as resnet20
from macc.models.resnet import resnet56 as resnet56
from macc.models.small_cnn import small_cnn as small_cnn

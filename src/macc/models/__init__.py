"""The networks of the paper, and any other, by name.

A network is a function ``name(*, num_classes, ...)`` imported here; :func:`build` finds it by that
line.
"""

from macc.models._build import build as build
from macc.models._build import known as known
from macc.models._freeze import freeze as freeze
from macc.models._freeze import unfreeze as unfreeze
from macc.models.mendeley import mendeley as mendeley
from macc.models.mendeley import mendeley_dropout as mendeley_dropout
from macc.models.mlp import linear as linear
from macc.models.mlp import mlp as mlp
from macc.models.resnet import resnet18 as resnet18
from macc.models.resnet import resnet20 as resnet20
from macc.models.resnet import resnet50 as resnet50
from macc.models.resnet import resnet50_tiny as resnet50_tiny
from macc.models.resnet import resnet56 as resnet56
from macc.models.resnet import resnet110 as resnet110
from macc.models.small_cnn import cnn as cnn
from macc.models.small_cnn import cnn_wide as cnn_wide
from macc.models.small_cnn import small_cnn as small_cnn
from macc.models.text import gpcnn as gpcnn

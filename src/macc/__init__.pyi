from macc import data as data
from macc import losses as losses
from macc import metrics as metrics
from macc import models as models
from macc import posthoc as posthoc
from macc import ship as ship
from macc import training as training
from macc.heads import LogitMoments as LogitMoments
from macc.heads import MCDropout as MCDropout
from macc.heads import MCDropoutConv2d as MCDropoutConv2d
from macc.heads import MCDropoutLinear as MCDropoutLinear
from macc.heads import attach as attach
from macc.heads import conventional_moments as conventional_moments
from macc.heads import detach as detach
from macc.heads import moments as moments
from macc.metrics import evaluate as evaluate
from macc.ship import load as load

__version__: str

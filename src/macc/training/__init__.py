"""Training that can be left alone: recipes, runs that survive being killed, and the paper's
selection rule.

``fit`` trains a recipe, with a model and data of your own if you give them, and returns a
:class:`Run`.
"""

from macc.training._interrupts import Interrupted as Interrupted
from macc.training.fitting import fit as fit
from macc.training.loading import load as load
from macc.training.loading import names as names
from macc.training.predictions import ensemble as ensemble
from macc.training.predictions import predict as predict
from macc.training.recipe import Recipe as Recipe
from macc.training.runs import Busy as Busy
from macc.training.runs import Run as Run
from macc.training.runs import open_run as open_run

"""From a finished run to a model in use: predictors, files, graphs, model cards."""

from macc.ship.exporting import check_name as check_name
from macc.ship.exporting import export as export
from macc.ship.files import ship as ship
from macc.ship.model_card import card as card
from macc.ship.predictor import Prediction as Prediction
from macc.ship.predictor import Predictor as Predictor
from macc.ship.predictor import load as load

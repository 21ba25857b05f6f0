"""Measuring calibration: pure functions of probabilities and labels, torch or numpy."""

from macc.metrics._calibration_errors import classwise_ece as classwise_ece
from macc.metrics._calibration_errors import ece as ece
from macc.metrics._calibration_errors import mce as mce
from macc.metrics._calibration_errors import sce as sce
from macc.metrics._scores import accuracy as accuracy
from macc.metrics._scores import brier as brier
from macc.metrics._scores import nll as nll

"""Measuring calibration: pure functions of probabilities and labels, torch or numpy."""

from macc.metrics._calibration_errors import ace as ace
from macc.metrics._calibration_errors import classwise_ece as classwise_ece
from macc.metrics._calibration_errors import ece as ece
from macc.metrics._calibration_errors import ks_error as ks_error
from macc.metrics._calibration_errors import mce as mce
from macc.metrics._calibration_errors import over_confidence as over_confidence
from macc.metrics._calibration_errors import rmsce as rmsce
from macc.metrics._calibration_errors import sce as sce
from macc.metrics._calibration_errors import smooth_ece as smooth_ece
from macc.metrics._calibration_errors import tace as tace
from macc.metrics._calibration_errors import under_confidence as under_confidence
from macc.metrics._scores import BrierDecomposition as BrierDecomposition
from macc.metrics._scores import accuracy as accuracy
from macc.metrics._scores import aurc as aurc
from macc.metrics._scores import auroc as auroc
from macc.metrics._scores import brier as brier
from macc.metrics._scores import brier_decomposition as brier_decomposition
from macc.metrics._scores import coverage_at_risk as coverage_at_risk
from macc.metrics._scores import eaurc as eaurc
from macc.metrics._scores import failure_auroc as failure_auroc
from macc.metrics._scores import nll as nll
from macc.metrics._scores import risk_at_coverage as risk_at_coverage

"""Measuring calibration: metrics of probabilities and labels, torch or numpy.

This namespace is the registry of metrics, and their order here is that of every printed table. A
new metric is one declaration beside its formula and one line here: ``evaluate``, ``compare``,
``check``, streaming, tables, reports and the command line find it by that line.
"""

# ruff: noqa: I001 - the order means something

from macc.metrics._metric import Metric as Metric
from macc.metrics._metric import headline as headline
from macc.metrics._metric import headline_error as headline_error
from macc.metrics._metric import headline_errors as headline_errors
from macc.metrics._metric import metric as metric
from macc.metrics._metric import metrics_of as metrics_of
from macc.metrics._metric import registry as registry
from macc.tables import Unit as Unit

from macc.metrics._scores import accuracy as accuracy
from macc.metrics._scores import nll as nll
from macc.metrics._refinement import refinement as refinement
from macc.metrics._scores import brier as brier
from macc.metrics._scores import brier_calibration as brier_calibration
from macc.metrics._scores import brier_refinement as brier_refinement
from macc.metrics._positive import positive_brier as positive_brier
from macc.metrics._scores import auroc as auroc
from macc.metrics._positive import positive_ece as positive_ece
from macc.metrics._positive import positive_mce as positive_mce
from macc.metrics._positive import positive_smooth_ece as positive_smooth_ece
from macc.metrics._calibration_errors import ece as ece
from macc.metrics._calibration_errors import over_confidence as over_confidence
from macc.metrics._calibration_errors import under_confidence as under_confidence
from macc.metrics._calibration_errors import mce as mce
from macc.metrics._calibration_errors import rmsce as rmsce
from macc.metrics._calibration_errors import rmsce_debiased as rmsce_debiased
from macc.metrics._calibration_errors import smooth_ece as smooth_ece
from macc.metrics._calibration_errors import ks_error as ks_error
from macc.metrics._calibration_errors import sce as sce
from macc.metrics._adaptive import ace as ace
from macc.metrics._adaptive import tace as tace
from macc.metrics.selective import failure_auroc as failure_auroc
from macc.metrics.selective import failure_auroc_by_certainty as failure_auroc_by_certainty
from macc.metrics.selective import aurc as aurc
from macc.metrics.selective import eaurc as eaurc
from macc.metrics.selective import risk_at_coverage as risk_at_coverage
from macc.metrics.selective import coverage_at_risk as coverage_at_risk

from macc.metrics._calibration_errors import classwise_ece as classwise_ece
from macc.metrics._scores import BrierDecomposition as BrierDecomposition
from macc.metrics._scores import brier_decomposition as brier_decomposition

from macc.metrics.intervals import Estimate as Estimate
from macc.metrics._report import Bin as Bin
from macc.metrics._report import Report as Report
from macc.metrics._significance import calibration_tests as calibration_tests
from macc.metrics.groups import GroupReport as GroupReport
from macc.metrics.groups import evaluate_groups as evaluate_groups
from macc.metrics._evaluate import evaluate as evaluate
from macc.metrics.labels import LabelReport as LabelReport
from macc.metrics.labels import LabelRow as LabelRow
from macc.metrics.labels import evaluate_labels as evaluate_labels
from macc.metrics.comparing import Comparison as Comparison
from macc.metrics.comparing import Difference as Difference
from macc.metrics.comparing import compare as compare
from macc.metrics.comparing import holm as holm
from macc.metrics.streaming import Calibration as Calibration

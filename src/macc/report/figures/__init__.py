"""Figures of calibration, drawn with matplotlib but without its global state.

Each draws one panel: into the ``ax`` given, or into a new figure, which it returns. ``macc plot``
lays out several of them for run folders and prediction files.
"""

from macc.report.figures._certainty import certainty_gap as certainty_gap
from macc.report.figures._certainty import sce_by_certainty as sce_by_certainty
from macc.report.figures._curves import convergence as convergence
from macc.report.figures._curves import risk_coverage as risk_coverage
from macc.report.figures._curves import severity_curve as severity_curve
from macc.report.figures._curves import training_curve as training_curve
from macc.report.figures._estimates import estimates as estimates
from macc.report.figures._over_time import over_time as over_time
from macc.report.figures._samples import Said as Said
from macc.report.figures._samples import sample_image as sample_image
from macc.report.figures._trade_offs import pareto as pareto
from macc.report.figures.reliability import confidence_histogram as confidence_histogram
from macc.report.figures.reliability import reliability_diagram as reliability_diagram
from macc.report.figures.reliability import reliability_diagrams as reliability_diagrams
from macc.report.figures.reliability import wrong_confidence as wrong_confidence

"""Repairing confidence without training: maps from logits to probabilities, fitted to validation
data.

``X.fit(logits, labels)`` returns a fitted, frozen calibrator; calling it gives probabilities. A new
calibrator is one file and one line here; ``load``, the command line and the contract tests find it
by that line.
"""

from macc.posthoc._base import Calibrator as Calibrator
from macc.posthoc._base import from_dict as from_dict
from macc.posthoc._base import load as load
from macc.posthoc._best import Best as Best
from macc.posthoc._best import best as best
from macc.posthoc._best import by_name as by_name
from macc.posthoc._beta import Beta as Beta
from macc.posthoc._binned import Histogram as Histogram
from macc.posthoc._binned import Isotonic as Isotonic
from macc.posthoc._coverage import Coverage as Coverage
from macc.posthoc._curves import Platt as Platt
from macc.posthoc._curves import Quadratic as Quadratic
from macc.posthoc._curves import Spline as Spline
from macc.posthoc._ensemble import EnsembleTemperature as EnsembleTemperature
from macc.posthoc._grouped import Grouped as Grouped
from macc.posthoc._identity import Identity as Identity
from macc.posthoc._label_thresholds import LabelThreshold as LabelThreshold
from macc.posthoc._label_thresholds import LabelThresholds as LabelThresholds
from macc.posthoc._label_thresholds import label_thresholds as label_thresholds
from macc.posthoc._linear import Dirichlet as Dirichlet
from macc.posthoc._linear import MatrixScaling as MatrixScaling
from macc.posthoc._linear import VectorScaling as VectorScaling
from macc.posthoc._local import LocalTemperature as LocalTemperature
from macc.posthoc._meta import MetaCal as MetaCal
from macc.posthoc._mixture import Mixture as Mixture
from macc.posthoc._module import CalibratorModule as CalibratorModule
from macc.posthoc._sets import Sets as Sets
from macc.posthoc._temperature import Temperature as Temperature
from macc.posthoc._threshold import Check as Check
from macc.posthoc._threshold import Threshold as Threshold
from macc.posthoc._threshold import check as check
from macc.posthoc._threshold import threshold as threshold
from macc.posthoc._venn_abers import VennAbers as VennAbers

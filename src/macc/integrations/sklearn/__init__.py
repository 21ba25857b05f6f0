"""For scikit-learn: a network with a calibration loss, calibrators around any classifier."""

from macc.integrations.sklearn._calibrated import Calibrated as Calibrated
from macc.integrations.sklearn._classifier import MACCClassifier as MACCClassifier

"""For scikit-learn: a network trained with a calibration loss, and our calibrators around any
classifier.
"""

from macc.integrations.sklearn._calibrated import Calibrated as Calibrated
from macc.integrations.sklearn._classifier import MACCClassifier as MACCClassifier

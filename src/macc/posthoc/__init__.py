"""Repairing confidence without training: maps from logits to probabilities, fitted to validation data.

``X.fit(logits, labels)`` returns a fitted, frozen calibrator; calling it gives probabilities. A new
calibrator is one file and one line here; ``load``, the command line and the contract tests find it by
that line.
"""

from macc.posthoc._base import Calibrator as Calibrator
from macc.posthoc._base import load as load
from macc.posthoc._temperature import Temperature as Temperature

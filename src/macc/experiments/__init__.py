"""Comparisons of methods over data sets and seeds: the paper's tables, the demo, and your own.

``run`` does all that an experiment needs and returns what it found.
"""

from macc.experiments.estimates import Cost as Cost
from macc.experiments.estimates import estimate as estimate
from macc.experiments.loading import load as load
from macc.experiments.loading import names as names
from macc.experiments.result import Result as Result
from macc.experiments.result import load_result as load_result
from macc.experiments.running import run as run
from macc.experiments.spec import Experiment as Experiment
from macc.experiments.tables import render as render

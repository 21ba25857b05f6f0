"""Comparisons of methods over data sets and seeds: the paper's tables, the demo, and your own.

``run`` does all that an experiment needs and returns what it found.
"""

from macc.experiments._file import Experiment as Experiment
from macc.experiments._file import load as load
from macc.experiments._file import names as names
from macc.experiments._paper import paper_tables as paper_tables
from macc.experiments._result import Result as Result
from macc.experiments._result import load_result as load_result
from macc.experiments._run import run as run
from macc.experiments._tables import render as render

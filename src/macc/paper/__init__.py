"""What exists only to reproduce the MACC paper: its experiment files, printed values, timing and
figures.

Nothing else in the package imports it, except the command line.
"""

from macc.paper.figures import draw as draw
from macc.paper.printed import paper_tables as paper_tables
from macc.paper.printed import value as value
from macc.paper.timing import time_epochs as time_epochs

"""Task losses and penalties, composed as ``task + weight * penalty``.

Losses take logits, never probabilities. A new loss is one file and one line here; the parser, the
listings and the contract tests find it by that line.
"""

from macc.losses._acls import ACLS as ACLS
from macc.losses._avuc import AvUC as AvUC
from macc.losses._binary_cross_entropy import BinaryCrossEntropy as BinaryCrossEntropy
from macc.losses._binary_focal import BinaryFocal as BinaryFocal
from macc.losses._brier import Brier as Brier
from macc.losses._bsce_gra import BSCEGRA as BSCEGRA
from macc.losses._clue import CLUE as CLUE
from macc.losses._cross_entropy import CrossEntropy as CrossEntropy
from macc.losses._dca import DCA as DCA
from macc.losses._dual_focal import DualFocal as DualFocal
from macc.losses._entropy import EntropyPenalty as EntropyPenalty
from macc.losses._flsd import FLSD as FLSD
from macc.losses._focal import Focal as Focal
from macc.losses._label_smoothing import LabelSmoothing as LabelSmoothing
from macc.losses._macc import MACC as MACC
from macc.losses._mbls import MbLS as MbLS
from macc.losses._mdca import MDCA as MDCA
from macc.losses._mmce import MMCE as MMCE
from macc.losses._soft_ece import SoftECE as SoftECE
from macc.losses._terms import BatchPenalty as BatchPenalty
from macc.losses._terms import Criterion as Criterion
from macc.losses._terms import Penalty as Penalty
from macc.losses._terms import Task as Task
from macc.losses._terms import count_steps as count_steps
from macc.losses._text import parse as parse

"""Files of predictions: what columns and labels mean; read whole or in batches."""

from macc.predictions.array_files import read_variance as read_variance
from macc.predictions.groups import groups_of as groups_of
from macc.predictions.groups import groups_of_rows as groups_of_rows
from macc.predictions.label_files import ManyLabels as ManyLabels
from macc.predictions.label_files import read_labels as read_labels
from macc.predictions.maps import Maps as Maps
from macc.predictions.measuring import compared as compared
from macc.predictions.measuring import in_batches as in_batches
from macc.predictions.measuring import measured as measured
from macc.predictions.opening import open_any as open_any
from macc.predictions.opening import open_source as open_source
from macc.predictions.parts import files_of as files_of
from macc.predictions.parts import stream_files as stream_files
from macc.predictions.source import Loaded as Loaded
from macc.predictions.source import Source as Source
from macc.predictions.source import check_same_files as check_same_files
from macc.predictions.source import check_same_samples as check_same_samples
from macc.predictions.streaming import stream as stream
from macc.predictions.streaming import stream_comparison as stream_comparison

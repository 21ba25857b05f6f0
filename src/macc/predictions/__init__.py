"""Files of predictions: what their columns and labels mean, read whole or in batches of any number of rows."""

from macc.predictions.array_files import read_variance as read_variance
from macc.predictions.groups import read_groups as read_groups
from macc.predictions.opening import open_source as open_source
from macc.predictions.source import Loaded as Loaded
from macc.predictions.source import Source as Source
from macc.predictions.source import check_same_files as check_same_files
from macc.predictions.source import check_same_samples as check_same_samples
from macc.predictions.streaming import stream as stream
from macc.predictions.streaming import stream_comparison as stream_comparison

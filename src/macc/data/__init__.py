"""Data sets in their splits, verified and fast to feed.

``load(name)`` reads one; ``splits.batches("train", ...)`` feeds it. A new set is one file and one line here;
``load``, ``macc data list`` and the contract tests find it by that line.
"""

from macc.data._batches import Batches as Batches
from macc.data._batches import augment as augment
from macc.data._datasets import Dataset as Dataset
from macc.data._datasets import known as known
from macc.data._datasets import load as load
from macc.data._parts import Augmentation as Augmentation
from macc.data._parts import Normalisation as Normalisation
from macc.data._parts import Part as Part
from macc.data._splits import Splits as Splits
from macc.data.arrays import arrays as arrays
from macc.data.cifar import cifar10 as cifar10
from macc.data.cifar import cifar100 as cifar100
from macc.data.digits import digits as digits
from macc.data.fashion_mnist import fashion_mnist as fashion_mnist
from macc.data.folder import folder as folder
from macc.data.synthetic import synthetic as synthetic

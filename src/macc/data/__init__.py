"""Data sets in their splits, verified and fast to feed.

``load(name)`` reads one; ``splits.batches("train", ...)`` feeds it. A new set is one file and one
line here; ``load``, ``macc data list`` and the contract tests find it by that line.
"""

from macc.data import corruptions as corruptions
from macc.data._batches import Batches as Batches
from macc.data._batches import augment as augment
from macc.data._datasets import Dataset as Dataset
from macc.data._datasets import known as known
from macc.data._datasets import load as load
from macc.data._images import read_images as read_images
from macc.data._parts import Augmentation as Augmentation
from macc.data._parts import Normalisation as Normalisation
from macc.data._parts import Part as Part
from macc.data._parts import Resizing as Resizing
from macc.data._splits import Kind as Kind
from macc.data._splits import Splits as Splits
from macc.data._splits import vocabulary as vocabulary
from macc.data._tokeniser import Tokeniser as Tokeniser
from macc.data.arrays import arrays as arrays
from macc.data.chest_xray import chest_xray as chest_xray
from macc.data.chest_xray import chest_xray_augmented_val as chest_xray_augmented_val
from macc.data.chest_xray import chest_xray_features as chest_xray_features
from macc.data.cifar import cifar10 as cifar10
from macc.data.cifar import cifar100 as cifar100
from macc.data.cifar_c import cifar10_c as cifar10_c
from macc.data.cifar_c import cifar100_c as cifar100_c
from macc.data.digits import digits as digits
from macc.data.fashion_mnist import fashion_mnist as fashion_mnist
from macc.data.files import MissingFilesError as MissingFilesError
from macc.data.folder import folder as folder
from macc.data.newsgroups import newsgroups as newsgroups
from macc.data.newsgroups import newsgroups_floor as newsgroups_floor
from macc.data.pacs import pacs_a as pacs_a
from macc.data.pacs import pacs_a_features as pacs_a_features
from macc.data.pacs import pacs_b_art as pacs_b_art
from macc.data.pacs import pacs_b_art_features as pacs_b_art_features
from macc.data.pacs import pacs_b_cartoon as pacs_b_cartoon
from macc.data.pacs import pacs_b_cartoon_features as pacs_b_cartoon_features
from macc.data.pacs import pacs_b_photo as pacs_b_photo
from macc.data.pacs import pacs_b_photo_features as pacs_b_photo_features
from macc.data.pacs import pacs_b_sketch as pacs_b_sketch
from macc.data.pacs import pacs_b_sketch_features as pacs_b_sketch_features
from macc.data.regenerated import cifar10_c_regen as cifar10_c_regen
from macc.data.regenerated import cifar100_c_regen as cifar100_c_regen
from macc.data.regenerated import tiny_imagenet_c_regen as tiny_imagenet_c_regen
from macc.data.svhn import svhn as svhn
from macc.data.synthetic import synthetic as synthetic
from macc.data.tiny_imagenet import tiny_imagenet as tiny_imagenet
from macc.data.tiny_imagenet import tiny_imagenet_c as tiny_imagenet_c
from macc.data.tiny_imagenet import tiny_imagenet_legacy_val as tiny_imagenet_legacy_val

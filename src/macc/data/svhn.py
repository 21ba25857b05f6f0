"""SVHN, from its MATLAB files."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from macc.data._datasets import dataset
from macc.data._parts import Part
from macc.data._splits import Splits, check_sizes, seeded_split
from macc.data.cifar import NORMALISATION
from macc.data.files import Download, Sources, check_md5, data_root
from macc.words import shown

SIZES = (65_932, 7_325, 26_032)
MD5 = {
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
MEGABYTES = (182, 64)
SOURCES = Sources(
    folder=".",
    files=MD5,
    downloads=tuple(
        Download(
            name=f"./{name}", url=f"http://ufldl.stanford.edu/housenumbers/{name}", md5=md5, megabytes=size
        )
        for (name, md5), size in zip(MD5.items(), MEGABYTES, strict=True)
    ),
)
# Deflate makes data at most about so many times smaller.
MOST_PACKED = 1100


@dataset(
    summary="house numbers, 32 × 32, colour",
    kind="image",
    num_classes=10,
    shape=(3, 32, 32),
    sizes=SIZES,
    licence="non-commercial",
    sources=SOURCES,
)
def svhn(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """SVHN, cropped digits: 65 932 training, 7 325 validation and 26 032 test images of 32 × 32
    pixels.

    The extra training images are not used. The file's label 10 is the digit 0.

    Args:
        root: The folder that holds ``train_32x32.mat`` and ``test_32x32.mat``.
        verify: Check every file's MD5 before it is opened.

    Reference:
        Netzer et al., *Reading Digits in Natural Images with Unsupervised Feature Learning*, 2011.
    """
    folder = SOURCES.prepare("svhn", data_root(root), verify=verify)
    everything = _read(folder / "train_32x32.mat", verify=verify)
    in_val, in_train = seeded_split(len(everything), 0.1)
    splits = Splits(
        name="svhn",
        kind="image",
        classes=tuple(str(digit) for digit in range(10)),
        train=everything.take(in_train),
        val=everything.take(in_val),
        test=_read(folder / "test_32x32.mat", verify=verify),
        # The paper's code base uses the statistics of CIFAR-10, and no augmentation.
        normalisation=NORMALISATION,
    )
    if verify:
        check_sizes(splits, SIZES)
    return splits


def _read(path: Path, *, verify: bool) -> Part:
    from scipy.io import loadmat, whosmat

    if verify:
        check_md5(path, MD5[path.name])
    with _damage_explained(path):
        forms = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    shape, kind = forms.get("X", ((), "nothing"))
    if shape[:3] != (32, 32, 3) or len(shape) != 4 or kind != "uint8":
        raise ValueError(f"{path} must hold X as uint8 (32, 32, 3, N), got {kind} {shape}")
    if shape[3] * 3072 > MOST_PACKED * path.stat().st_size:
        raise ValueError(f"{path} says it holds {shape[3]} images, more than fit into its size; refused")
    if forms.get("y", ((), ""))[0] != (shape[3], 1):
        raise ValueError(
            f"{path} must hold y as one label for each of its {shape[3]} images; it may be damaged or cut"
        )
    with _damage_explained(path):
        found = loadmat(path, variable_names=("X", "y"))
    labels = found["y"].astype(np.int64).ravel()
    if labels.size and not (labels.min() >= 0 and labels.max() <= 10):
        raise ValueError(f"the labels in {path} must lie in 1 … 10, got {labels.min()} … {labels.max()}")
    images = torch.from_numpy(np.ascontiguousarray(found["X"].transpose(3, 2, 0, 1)))
    return Part(inputs=images, labels=torch.from_numpy(labels % 10))


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # any bytes may be in a file, and so any error may come out of it
        raise ValueError(
            f"{path} is damaged or cut ({type(error).__name__}: {shown(error)}); delete it and get it again"
        ) from error

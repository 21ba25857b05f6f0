"""CIFAR-10 and CIFAR-100, from the files of their authors' Python version."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macc.data._datasets import dataset
from macc.data._parts import Augmentation, Normalisation, Part
from macc.data._pickles import read_pickle
from macc.data._splits import Splits, check_sizes, seeded_split
from macc.data.files import Download, Sources, data_root, read_file

SIZES = (45_000, 5_000, 10_000)
# The paper's code base uses the statistics of CIFAR-10 for CIFAR-100 too.
NORMALISATION = Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
AUGMENTATION = Augmentation(pad=4, flip=True)
LICENCE = "none stated"

CIFAR10 = Sources(
    folder="cifar-10-batches-py",
    files={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    downloads=(
        Download(
            name="cifar-10-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            megabytes=170,
        ),
    ),
)
CIFAR100 = Sources(
    folder="cifar-100-python",
    files={
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
    downloads=(
        Download(
            name="cifar-100-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            megabytes=169,
        ),
    ),
)


@dataset(
    summary="photographs, 32 × 32, colour",
    kind="image",
    num_classes=10,
    shape=(3, 32, 32),
    sizes=SIZES,
    licence=LICENCE,
    sources=CIFAR10,
)
def cifar10(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """CIFAR-10: 45 000 training, 5 000 validation and 10 000 test images of 32 × 32 pixels.

    Args:
        root: The folder that holds ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``.
        verify: Check every file's MD5 before it is opened.

    Reference:
        Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009.
    """
    return _read(
        "cifar10",
        CIFAR10,
        root,
        verify=verify,
        train=[f"data_batch_{k}" for k in range(1, 6)],
        test="test_batch",
        meta="batches.meta",
        label_key="labels",
        names_key="label_names",
    )


@dataset(
    summary="photographs, 32 × 32, colour",
    kind="image",
    num_classes=100,
    shape=(3, 32, 32),
    sizes=SIZES,
    licence=LICENCE,
    sources=CIFAR100,
)
def cifar100(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """CIFAR-100 with its 100 fine classes: 45 000 training, 5 000 validation and 10 000 test
    images.

    Args:
        root: The folder that holds ``cifar-100-python`` or ``cifar-100-python.tar.gz``.
        verify: Check every file's MD5 before it is opened.

    Reference:
        Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009.
    """
    return _read(
        "cifar100",
        CIFAR100,
        root,
        verify=verify,
        train=["train"],
        test="test",
        meta="meta",
        label_key="fine_labels",
        names_key="fine_label_names",
    )


def _read(
    name: str,
    sources: Sources,
    root: str | PathLike[str] | None,
    *,
    verify: bool,
    train: list[str],
    test: str,
    meta: str,
    label_key: str,
    names_key: str,
) -> Splits:
    folder = sources.prepare(name, data_root(root), verify=verify)

    def content(file: str) -> dict[str, Any]:
        path = folder / file
        return read_pickle(read_file(path, md5=sources.files[file] if verify else None), path)

    classes = _names(content(meta).get(names_key), folder / meta, names_key)
    pieces = [_images(content(file), folder / file, label_key) for file in train]
    everything = Part(
        inputs=torch.cat([images for images, _ in pieces]), labels=torch.cat([labels for _, labels in pieces])
    )
    in_val, in_train = seeded_split(len(everything), 0.1)
    images, labels = _images(content(test), folder / test, label_key)
    splits = Splits(
        name=name,
        kind="image",
        classes=classes,
        train=everything.take(in_train),
        val=everything.take(in_val),
        test=Part(inputs=images, labels=labels),
        normalisation=NORMALISATION,
        augmentation=AUGMENTATION,
    )
    if verify:
        check_sizes(splits, SIZES)
    return splits


def _names(found: Any, path: Path, key: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, bytes | str) for name in found):
        raise ValueError(f"{path} holds no list of class names under {key!r}; it is not the published file")
    return tuple(name.decode() if isinstance(name, bytes) else name for name in found)


def _images(content: dict[str, Any], path: Path, label_key: str) -> tuple[Tensor, Tensor]:
    pixels, labels = content.get("data"), content.get(label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise ValueError(f"{path} must hold 'data' as uint8 (N, 3072), got {found}")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise ValueError(f"{path} must hold {label_key!r} as a list of class indices")
    if len(labels) != len(pixels):
        raise ValueError(f"{path} holds {len(pixels)} images and {len(labels)} labels; each image needs one")
    images = torch.from_numpy(np.ascontiguousarray(pixels)).view(-1, 3, 32, 32)
    return images, torch.tensor(labels, dtype=torch.int64)

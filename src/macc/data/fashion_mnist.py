"""Fashion-MNIST, from its IDX files."""

import gzip
import io
import struct
import zlib
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from macc.data._datasets import dataset
from macc.data._parts import Normalisation, Part
from macc.data._shifts import noise_and_rotation
from macc.data._splits import Splits, check_sizes, seeded_split
from macc.data.files import Download, Sources, compare_md5, data_root, read_file
from macc.io.arrays import DEFLATE
from macc.words import shown

SIZES = (54_000, 6_000, 10_000)
FOLDER = "FashionMNIST/raw"
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
# What they unpack to, whoever packed them: MD5 and bytes.
CONTENT = {
    "train-images-idx3-ubyte": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", 47_040_016),
    "train-labels-idx1-ubyte": ("9018921c3c673c538a1fc5bad174d6f9", 60_008),
    "t10k-images-idx3-ubyte": ("8181f5470baa50b63fa0f6fddb340f0a", 7_840_016),
    "t10k-labels-idx1-ubyte": ("15d484375f8d13e6eb1aabb0c3f46965", 10_008),
}
MEGABYTES = (26, 1, 5, 1)
URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
SOURCES = Sources(
    folder=FOLDER,
    files=MD5,
    downloads=tuple(
        Download(name=f"{FOLDER}/{name}", url=f"{URL}/{name}", md5=md5, megabytes=size)
        for (name, md5), size in zip(MD5.items(), MEGABYTES, strict=True)
    ),
)
CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


@dataset(
    summary="articles of clothing, 28 × 28, grey; five levels each of noise and rotation",
    kind="image",
    num_classes=10,
    shape=(1, 28, 28),
    sizes=SIZES,
    licence="MIT",
    sources=SOURCES,
    levels=True,
)
def fashion_mnist(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """Fashion-MNIST: 54 000 training, 6 000 validation and 10 000 test images of 28 × 28 pixels.

    Shifted test sets: ``noise-1`` … ``noise-5`` (Gaussian noise) and ``rotation-1`` …
    ``rotation-5`` (10 to 50 degrees), the same at every call.

    Args:
        root: The folder that holds ``FashionMNIST/raw``, as torchvision leaves it. The files that
            Linux distributions pack (``/usr/share/datasets/fashion-mnist``) do as well, copied or
            linked there.
        verify: Check the MD5 of what the files hold, packed or not, and by whomever.

    Reference:
        Xiao, Rasul and Vollgraf, *Fashion-MNIST*, arXiv:1708.07747, 2017.
    """
    folder = SOURCES.prepare("fashion_mnist", data_root(root), verify=verify)

    def part(which: str) -> Part:
        images = _read_idx(folder, f"{which}-images-idx3-ubyte", axes=3, verify=verify)
        labels = _read_idx(folder, f"{which}-labels-idx1-ubyte", axes=1, verify=verify)
        if len(images) != len(labels):
            raise ValueError(
                f"{folder} holds {len(images)} {which} images and {len(labels)} labels; each image needs one"
            )
        return Part(inputs=images.unsqueeze(1), labels=labels.long())

    everything = part("train")
    in_val, in_train = seeded_split(len(everything), 0.1)
    test = part("t10k")
    splits = Splits(
        name="fashion_mnist",
        kind="image",
        classes=CLASSES,
        train=everything.take(in_train),
        val=everything.take(in_val),
        test=test,
        shifts=noise_and_rotation(test),
        normalisation=Normalisation((0.2860,), (0.3530,)),
    )
    if verify:
        check_sizes(splits, SIZES)
    return splits


def _read_idx(folder: Path, name: str, *, axes: int, verify: bool) -> Tensor:
    """An array behind a header: two zeros, the type (8), the number of axes, their lengths."""
    md5, size = CONTENT[name]
    path = folder / f"{name}.gz"
    if path.is_file():
        content = _unzipped(path, read_file(path, md5=None), axes, most=size if verify else None)
    else:
        path = folder / name
        content = read_file(path, md5=None)
    if verify:
        compare_md5(path, content, md5)
    head = 4 + 4 * axes
    if len(content) < head or content[:4] != bytes((0, 0, 8, axes)):
        raise ValueError(f"{path} does not start like an IDX file of {axes} axes; delete it and get it again")
    shape = struct.unpack(f">{axes}I", content[4:head])
    expected = int(np.prod(shape, dtype=object)) + head
    if len(content) != expected:
        raise ValueError(
            f"{path} should have {expected} bytes by its header and has {len(content)}; "
            "it is damaged or cut: delete it and get it again"
        )
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8, offset=head).reshape(shape))


def _unzipped(path: Path, content: bytes, axes: int, *, most: int | None) -> bytes:
    """The unpacked bytes; one too many where there are more than ``most`` or than announced."""
    head = 4 + 4 * axes
    try:
        with gzip.open(io.BytesIO(content)) as file:
            # A small file can announce any size.
            if most is not None:
                return file.read(most + 1)
            start = file.read(head)
            if len(start) < head:
                return start
            announced = int(np.prod(struct.unpack(f">{axes}I", start[4:]), dtype=object))
            return start + file.read(min(announced, DEFLATE * len(content), 2**31) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut ({shown(error)}); delete it and get it again") from error

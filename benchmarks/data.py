"""Feeding: whole-batch tensor operations against one Pillow image at a time in worker processes."""

import random
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from benchmarks._timing import Ratio
from macc import data

IMAGES = 10_000
BATCH = 128
# So many of ours take about as long as one of theirs: both then meet the same disturbances.
EPOCHS = 15


class _OneByOne(Dataset[tuple[Tensor, int]]):
    """The usual way: a Pillow image per sample, padded, cropped, mirrored, made a tensor,
    normalised.
    """

    def __init__(self, part: data.Part, normalisation: data.Normalisation, pad: int) -> None:
        self.images = part.inputs.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = part.labels.tolist()
        self.mean = torch.tensor(normalisation.mean).view(3, 1, 1)
        self.std = torch.tensor(normalisation.std).view(3, 1, 1)
        self.pad = pad

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[index])
        width, height = image.size
        padded = ImageOps.expand(image, self.pad)
        left, top = random.randint(0, 2 * self.pad), random.randint(0, 2 * self.pad)
        image = padded.crop((left, top, left + width, top + height))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
        return (values - self.mean) / self.std, self.labels[index]


def _cifar10() -> data.Splits:
    """The real set where it is, else random pixels of its size; the time does not depend on
    them.
    """
    try:
        return data.load("cifar10").subset(train=IMAGES, seed=0)
    except ValueError:
        generator = torch.Generator().manual_seed(0)

        def part(count: int) -> data.Part:
            pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator)
            return data.Part(inputs=pixels.to(torch.uint8), labels=torch.arange(count) % 10)

        return data.Splits(
            name="cifar10",
            kind="image",
            classes=tuple(str(k) for k in range(10)),
            train=part(IMAGES),
            val=part(10),
            test=part(10),
            normalisation=data.Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
            augmentation=data.Augmentation(pad=4, flip=True),
        )


def _ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> float:
    """Median over rounds of their time for each of ours: the two of a round meet the same
    disturbances.
    """

    def seconds(candidate: Callable[[], object]) -> float:
        start = time.perf_counter()
        candidate()
        return time.perf_counter() - start

    ours()
    theirs()
    return statistics.median(seconds(theirs) / seconds(ours) for _ in range(repeats))


def feeding(repeats: int = 7) -> Iterator[Ratio]:
    """An epoch of CIFAR-10 batches with crop and mirror."""
    splits = _cifar10()
    if splits.augmentation is None or splits.normalisation is None:
        raise ValueError("the benchmark needs a set with augmentation and normalisation")
    batches = splits.batches("train", batch_size=BATCH, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(
        _OneByOne(splits.train, splits.normalisation, splits.augmentation.pad),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )

    def ours() -> None:
        for _ in range(EPOCHS):
            for _ in batches:
                pass

    def theirs() -> None:
        for _ in loader:
            pass

    # One thread against two workers and the process that collects from them.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ratio = _ratio(ours, theirs, repeats)
    torch.set_num_threads(threads)
    yield Ratio(
        "CIFAR-10 with crop and mirror, images/s of one thread over a DataLoader with Pillow and 2 workers",
        EPOCHS * ratio,
        at_least=10,
    )


def cases() -> Iterator[Ratio]:
    """Every claim about data."""
    yield from feeding()

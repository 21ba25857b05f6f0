"""Batches cut, augmented and normalised as whole-batch tensor operations on the training device.

All randomness of an epoch is drawn at its start from the generator given, on the CPU: what happens
to an image depends neither on the batch size nor on the device, and breaking off an epoch leaves
the generator where a complete one would.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from macc.data._parts import Augmentation, Normalisation, Part

# CIFAR with its mirror images takes 432 MB; larger sets get their borders batch by batch.
BORDERED_BYTES = 512 * 10**6


@dataclass(frozen=True, kw_only=True)
class _Draws:
    """What happens to each of ``N`` images."""

    turns: Tensor | None
    top: Tensor | None
    left: Tensor | None
    mirrored: Tensor | None

    @classmethod
    def draw(cls, augmentation: Augmentation, count: int, generator: torch.Generator) -> "_Draws":
        def integers(high: int) -> Tensor:
            return torch.randint(high, (count,), generator=generator)

        return cls(
            turns=integers(4) if augmentation.rotate else None,
            top=integers(2 * augmentation.pad + 1) if augmentation.pad else None,
            left=integers(2 * augmentation.pad + 1) if augmentation.pad else None,
            mirrored=integers(2) if augmentation.flip else None,
        )

    def __getitem__(self, chosen: slice) -> "_Draws":
        return _Draws(
            **{name: None if value is None else value[chosen] for name, value in vars(self).items()}
        )


def augment(images: Tensor, augmentation: Augmentation, *, generator: torch.Generator) -> Tensor:
    """Turn, mirror and crop a batch at random.

    Args:
        images: ``(N, C, H, W)``, of any dtype, on any device.
        augmentation: What may happen to them.
        generator: Source of all randomness, on the CPU.

    Returns:
        Images of the same shape and dtype.

    Example:
        >>> images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
        >>> augment(images, Augmentation(pad=1), generator=torch.Generator().manual_seed(0))
        tensor([[[[0, 3, 4],
                  [0, 6, 7],
                  [0, 0, 0]]]], dtype=torch.uint8)
    """
    _check_generator(generator)
    return _apply(images, augmentation, _Draws.draw(augmentation, len(images), generator))


def _apply(images: Tensor, augmentation: Augmentation, draws: _Draws) -> Tensor:
    if images.ndim != 4:
        raise ValueError(f"only images (N, C, H, W) can be augmented, got shape {tuple(images.shape)}")
    if draws.turns is not None:
        images = _turn(images, draws.turns.to(images.device))
    if draws.mirrored is None and draws.top is None:
        return images
    return _Bordered.around(images, augmentation).crops(torch.arange(len(images)), draws)


def _turn(images: Tensor, turns: Tensor) -> Tensor:
    if images.shape[2] != images.shape[3]:
        raise ValueError(
            f"only square images can be turned by 90 degrees, got {images.shape[2]} × {images.shape[3]}; "
            "set rotate=False"
        )
    turned = torch.stack([images.rot90(k, dims=(2, 3)) for k in range(4)])
    flat = turns * len(images) + torch.arange(len(images), device=images.device)
    return turned.flatten(0, 1).index_select(0, flat)


@dataclass(frozen=True, kw_only=True)
class _Bordered:
    """Images, and their mirror images, with a border of zeros, of which a crop is a part.

    Every row of a crop is a window of ``W`` neighbouring values in the buffer: one `index_select`
    of windows, which copies whole rows, is ten times faster than a gather of single pixels.

    Args:
        buffer: ``(1 or 2, N, C, H + 2 pad, W + 2 pad)``.
        height: ``H``.
        width: ``W``.
    """

    buffer: Tensor
    height: int
    width: int

    @classmethod
    def around(cls, images: Tensor, augmentation: Augmentation) -> "_Bordered":
        count, channels, height, width = images.shape
        pad = augmentation.pad
        buffer = images.new_zeros(1 + augmentation.flip, count, channels, height + 2 * pad, width + 2 * pad)
        inner = buffer[..., pad : pad + height, pad : pad + width]
        inner[0] = images
        if augmentation.flip:
            inner[1] = images.flip(3)
        return cls(buffer=buffer, height=height, width=width)

    def crops(self, chosen: Tensor, draws: _Draws) -> Tensor:
        """Crops of the images at ``chosen``, ``(n, C, H, W)``."""
        _, count, channels, high, wide = self.buffer.shape
        area = high * wide
        start = chosen * (channels * area)
        if draws.mirrored is not None:
            start += draws.mirrored * (count * channels * area)
        if draws.top is not None and draws.left is not None:
            start += draws.top * wide + draws.left
        rows = torch.arange(0, channels * area, area)[:, None] + torch.arange(0, self.height * wide, wide)
        picked = (start[:, None] + rows.view(-1)).view(-1).to(self.buffer.device, non_blocking=True)
        windows = self.buffer.view(-1).as_strided((self.buffer.numel() - self.width + 1, self.width), (1, 1))
        return windows.index_select(0, picked).view(len(chosen), channels, self.height, self.width)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """An epoch of ``(inputs, labels)`` every time it is iterated.

    Args:
        part: The samples, on any device; ``part.to(device)`` first is fastest for small sets.
        batch_size: Samples in a batch.
        generator: Shuffles, and draws the augmentation; without one, samples come in order,
            unchanged. Its state at the start of an epoch reproduces that epoch.
        augmentation: Random changes of images; needs a generator.
        normalisation: Applied last; without one, uint8 images are scaled to ``[0, 1]``.
        device: Where the batches are wanted; where the samples are, if not given.
        drop_last: Leave out a last batch that is smaller than the others.
        rank: Which of the equal shares of every batch this process takes.
        processes: Number of processes that share every batch; rows that do not divide among them
            are left out.

    Example:
        >>> part = Part(inputs=torch.zeros(10, 1, 8, 8, dtype=torch.uint8), labels=torch.arange(10))
        >>> batches = Batches(part=part, batch_size=4, generator=torch.Generator().manual_seed(0))
        >>> [(tuple(x.shape), y.tolist()) for x, y in batches]
        [((4, 1, 8, 8), [...]), ((4, 1, 8, 8), [...]), ((2, 1, 8, 8), [...])]
        >>> len(batches)
        3
    """

    part: Part
    batch_size: int
    generator: torch.Generator | None = None
    augmentation: Augmentation | None = None
    normalisation: Normalisation | None = None
    device: torch.device | str | None = None
    drop_last: bool = False
    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.processes:
            raise ValueError(
                f"`rank` must lie in [0, {self.processes - 1}] for {self.processes} processes, got {self.rank}"
            )
        if self.batch_size % self.processes:
            raise ValueError(
                f"a batch of {self.batch_size} cannot be shared equally by {self.processes} processes; "
                "choose a multiple"
            )
        if self.generator is not None:
            _check_generator(self.generator)
        elif self.augmentation is not None:
            raise ValueError(
                "augmentation is random and needs a `generator`: torch.Generator().manual_seed(seed)"
            )
        if not len(self):
            raise ValueError(
                f"{len(self.part)} samples give no batch of {self.batch_size}; "
                "make the batch smaller" + (" or set drop_last=False" if self.drop_last else "")
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.part), self.batch_size)
        return whole + bool(rest >= self.processes and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch()

    def epoch(self, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """An epoch without its first ``skip`` batches: what is left of one that was broken off."""
        count, home = len(self.part), self.part.inputs.device
        device = home if self.device is None else torch.device(self.device)
        order = draws = None
        if self.generator is not None:
            order = torch.randperm(count, generator=self.generator)
            if self.augmentation is not None:
                draws = _Draws.draw(self.augmentation, count, self.generator)
        for start in range(skip * self.batch_size, len(self) * self.batch_size, self.batch_size):
            rows = min(self.batch_size, count - start) // self.processes
            cut = slice(start + self.rank * rows, start + (self.rank + 1) * rows)
            if order is None:
                inputs, labels = self.part.inputs[cut], self.part.labels[cut]
            else:
                labels = self.part.labels.index_select(0, order[cut].to(home))
                if draws is not None and self._bordered is not None:
                    inputs = self._bordered.crops(order[cut], draws[cut])
                else:
                    # index_select copies whole samples; indexing with [] would copy value by value.
                    inputs = self.part.inputs.index_select(0, order[cut].to(home))
            inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, copy=True)
            if draws is not None and self.augmentation is not None and self._bordered is None:
                inputs = _apply(inputs, self.augmentation, draws[cut])
            yield self._prepared(inputs), labels

    @cached_property
    def _bordered(self) -> _Bordered | None:
        """All images with borders to cut crops from, made once where they are small."""
        wanted, images = self.augmentation, self.part.inputs
        if wanted is None or wanted.rotate or not (wanted.pad or wanted.flip) or images.ndim != 4:
            return None
        count, channels, height, width = images.shape
        values = count * channels * (height + 2 * wanted.pad) * (width + 2 * wanted.pad) * (1 + wanted.flip)
        if values * images.element_size() > BORDERED_BYTES:
            return None
        return _Bordered.around(images if self.device is None else images.to(self.device), wanted)

    def _prepared(self, inputs: Tensor) -> Tensor:
        # Always a copy, so that a batch changed in place leaves the data as they are.
        if self.normalisation is not None:
            return self.normalisation(inputs)
        if inputs.dtype == torch.uint8:
            return inputs.to(torch.float32).div_(255)
        return inputs.to(torch.float32 if inputs.is_floating_point() else torch.int64, copy=True)


def _check_generator(generator: torch.Generator) -> None:
    if generator.device.type != "cpu":
        raise ValueError(
            f"the generator must live on the CPU, got one on {generator.device}; "
            "the same seed then gives the same batches on every device"
        )

"""One split of a data set, and how its inputs are prepared: plain values, no code of a trainer.

Shape legend: ``N`` samples, ``C`` channels, ``H`` × ``W`` pixels, ``D`` features, ``L`` tokens,
``K`` classes.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

Resizing = Literal["fit", "centre", "squash"]
"""How images get their size.

``"fit"`` scales the shorter side and cuts out the centre, ``"centre"`` cuts the centre out of
images that are large enough and fits others, ``"squash"`` scales both sides.
"""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Random changes of training images; the batches apply them to whole batches at once.

    Args:
        pad: Pixels of zeros around the image, of which a random crop of the old size is taken.
        flip: Mirror every second image, left to right.
        rotate: Turn by 0, 90, 180 or 270 degrees; images must be square.

    Example:
        >>> Augmentation(pad=4, flip=True)
        Augmentation(pad=4, flip=True, rotate=False)
    """

    pad: int = 0
    flip: bool = False
    rotate: bool = False

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"`pad` must be a number of pixels, at least 0, got {self.pad}")


@dataclass(frozen=True)
class Normalisation:
    """Mean and deviation to subtract and divide by: of a channel of images, or of a feature.

    Images are scaled to ``[0, 1]`` first, so the values are in that unit.

    Args:
        mean: One value per channel or feature.
        std: As many, all above 0.

    Example:
        >>> Normalisation((0.5,), (0.25,))(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).flatten()
        tensor([2., 2., 2., 2.])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"`mean` and `std` must be of one length, got {len(self.mean)} and {len(self.std)}"
            )
        if not all(value > 0 for value in self.std):
            raise ValueError(f"`std` must be above 0 everywhere, got {min(self.std)}")

    @classmethod
    def fit(cls, inputs: Tensor) -> "Normalisation":
        """Mean and standard deviation of training inputs: images by channel, features by column.

        What never varies is divided by 1.

        Example:
            >>> Normalisation.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
            Normalisation(mean=(2.0, 5.0), std=(1.0, 1.0))
        """
        if inputs.dtype == torch.uint8:
            mean, variance = _byte_moments(inputs)
        else:
            # By columns or channels, in double: features may have any scale.
            columns = inputs.double().transpose(0, 1).flatten(1)
            mean, variance = columns.mean(dim=1), columns.var(dim=1, correction=0)
        std = torch.where(variance > 1e-24, variance.sqrt(), torch.ones_like(variance))
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, inputs: Tensor) -> Tensor:
        """Normalised float32 inputs: images by channel, ``(N, C, H, W)``, features by column."""
        if inputs.shape[1] != len(self.mean):
            what = "channels" if inputs.ndim == 4 else "features"
            raise ValueError(
                f"the inputs have {inputs.shape[1]} {what}, the normalisation has {len(self.mean)}; "
                "give one mean and one standard deviation for each"
            )
        unit = 255.0 if inputs.dtype == torch.uint8 else 1.0
        mean, scale = _constants(self, unit, inputs.ndim, inputs.device)
        # In place, and the mean first: subtracting two large quotients would lose digits.
        return inputs.to(torch.float32, copy=True).sub_(mean).mul_(scale)


@lru_cache(maxsize=16)
def _constants(
    normalisation: Normalisation, unit: float, axes: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What to subtract and to multiply with; kept, because making them takes time."""
    shape = (1, -1, *(1,) * (axes - 2))
    mean, std = (torch.tensor(value, device=device) for value in (normalisation.mean, normalisation.std))
    return (unit * mean).view(shape), (1 / (unit * std)).view(shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Inputs and labels of one split.

    Args:
        inputs: Images ``(N, C, H, W)`` (uint8, or float in ``[0, 1]``), features ``(N, D)`` or
            tokens ``(N, L)``.
        labels: Class indices, ``(N,)``, int64.
        probs: The true class probabilities ``(N, K)``, where they are known (synthetic data).

    Example:
        >>> part = Part(inputs=torch.zeros(6, 2), labels=torch.tensor([0, 1, 0, 1, 0, 0]))
        >>> len(part), part.counts(2).tolist()
        (6, [4, 2])
    """

    inputs: Tensor
    labels: Tensor
    probs: Tensor | None = None

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            raise ValueError(
                f"`labels` must be one int64 class index per sample, got {self.labels.dtype} "
                f"of shape {tuple(self.labels.shape)}"
            )
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"there are {len(self.inputs)} inputs and {len(self.labels)} labels; each input needs one label"
            )
        if self.probs is not None and (self.probs.ndim != 2 or len(self.probs) != len(self.labels)):
            raise ValueError(
                f"`probs` must be (N, K) with N = {len(self.labels)}, got {tuple(self.probs.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Part({len(self)} × {tuple(self.inputs.shape[1:])} {self.inputs.dtype})"

    def counts(self, num_classes: int) -> Tensor:
        """How many samples each class has, ``(K,)``."""
        return torch.bincount(self.labels.cpu(), minlength=num_classes)

    def take(self, indices: Tensor) -> "Part":
        """The samples at ``indices``, in that order."""
        return Part(
            inputs=self.inputs.index_select(0, indices),
            labels=self.labels.index_select(0, indices),
            probs=None if self.probs is None else self.probs.index_select(0, indices),
        )

    def to(self, device: torch.device | str) -> "Part":
        """The same samples on a device; small sets train fastest where the model is."""
        probs = None if self.probs is None else self.probs.to(device)
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device), probs=probs)

    def subset(self, size: int, *, seed: int) -> "Part":
        """``size`` samples drawn without replacement, in the old order and shares of classes.

        Example:
            >>> part = Part(inputs=torch.zeros(90, 2), labels=torch.arange(90) % 3)
            >>> part.subset(9, seed=0).counts(3).tolist()
            [3, 3, 3]
        """
        if not 0 < size <= len(self):
            raise ValueError(f"a subset must have between 1 and {len(self)} samples, got {size}")
        counts = self.counts(1)
        wanted = shares(counts, size)
        return self._draw(wanted, seed)

    def make_imbalanced(self, factor: float, *, seed: int) -> "Part":
        """Exponentially fewer samples of each next class, ``1 / factor`` of the first in the last.

        Class ``k`` of ``K`` keeps at most ``n_max · factor^(−k / (K − 1))`` samples, and at least
        one.

        Example:
            >>> part = Part(inputs=torch.zeros(300, 2), labels=torch.arange(300) % 3)
            >>> part.make_imbalanced(100, seed=0).counts(3).tolist()
            [100, 10, 1]
        """
        if factor < 1:
            raise ValueError(f"`factor` must be at least 1 (largest class : smallest class), got {factor}")
        counts = self.counts(1)
        if len(counts) < 2:
            raise ValueError("imbalance needs at least two classes with samples")
        steps = torch.arange(len(counts)) / (len(counts) - 1)
        limit = (counts.max() * factor**-steps).round().long().clamp(min=1)
        return self._draw(torch.minimum(counts, limit), seed)

    def with_label_noise(self, rate: float, *, num_classes: int, seed: int) -> "Part":
        """A share ``rate`` of the labels replaced by another class, each other class as likely.

        Example:
            >>> part = Part(inputs=torch.zeros(100, 2), labels=torch.zeros(100, dtype=torch.int64))
            >>> (part.with_label_noise(0.2, num_classes=10, seed=0).labels != 0).sum()
            tensor(20)
        """
        if not 0 <= rate <= 1:
            raise ValueError(f"`rate` must be a share of the labels in [0, 1], got {rate}")
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(self), generator=generator)[: round(rate * len(self))]
        # Adding 1 … K−1 modulo K reaches every class but the old one.
        steps = torch.randint(1, num_classes, (len(chosen),), generator=generator)
        labels = self.labels.clone()
        labels[chosen] = (labels[chosen] + steps.to(labels.device)) % num_classes
        # The true probabilities are those of the clean labels and no longer describe these.
        return replace(self, labels=labels, probs=None)

    def _draw(self, wanted: Tensor, seed: int) -> "Part":
        """``wanted[k]`` samples of class ``k``."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        labels = self.labels.cpu()[order]
        kept = [order[labels == k][:count] for k, count in enumerate(wanted.tolist())]
        return self.take(torch.cat(kept).sort().values.to(self.labels.device))


def _byte_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel in ``[0, 1]``, exactly, from counts of the 256 values.

    In pieces, because the images of a folder need not fit into memory.
    """
    counts = torch.stack(
        [
            sum(
                (torch.bincount(piece[:, k].flatten(), minlength=256) for piece in torch.split(images, 1024)),
                torch.zeros(256, dtype=torch.int64),
            )
            for k in range(images.shape[1])
        ]
    ).double()
    values = torch.arange(256, dtype=torch.float64) / 255
    share = counts / counts.sum(dim=1, keepdim=True)
    mean = share @ values
    return mean, (share * (values - mean[:, None]).square()).sum(dim=1)


def shares(counts: Tensor, size: int) -> Tensor:
    """``size`` divided in proportion to ``counts``, the largest remainders rounded up."""
    exact = counts * size
    shares = exact // counts.sum()
    remainder = exact - shares * counts.sum()
    # Stable, so that equal remainders go to the classes that come first, on every platform.
    first = torch.argsort(remainder, descending=True, stable=True)[: size - int(shares.sum())]
    shares[first] += 1
    return shares

"""Made-up data of known class probabilities, so that calibration can be judged exactly."""

from os import PathLike

import torch

from macc.data._datasets import dataset
from macc.data._parts import Part
from macc.data._splits import Splits


@dataset(
    summary="Gaussian features of any number, true probabilities known",
    kind="features",
    num_classes=4,
    sizes=(2000, 500, 2000),
    licence="none",
)
def synthetic(
    *,
    root: str | PathLike[str] | None = None,  # noqa: ARG001
    verify: bool = True,  # noqa: ARG001
    train: int = 2000,
    val: int = 500,
    test: int = 2000,
    num_classes: int = 4,
    num_features: int = 16,
    sharpness: float = 2.0,
    seed: int = 0,
) -> Splits:
    r"""Gaussian features with labels drawn from a known softmax: the ``.probs`` of each part are
    the truth.

    .. math:: x \sim N(0, I), \qquad p = \mathrm{softmax}(\mathrm{sharpness} \cdot W x), \qquad y \sim p,

    with rows of ``W`` of unit length. A model that reports ``p`` is perfectly calibrated and as
    accurate as any can be.

    Args:
        root: Not used: there are no files.
        verify: Not used: there is nothing to check.
        train: Number of training samples.
        val: Number of validation samples.
        test: Number of test samples.
        num_classes: ``K``.
        num_features: ``D``.
        sharpness: 0 makes all classes equally likely; the larger, the fewer samples are ambiguous.
        seed: Of the weights, the features and the labels.

    Example:
        >>> splits = synthetic(train=100, num_classes=3)
        >>> splits.train.inputs.shape, splits.train.probs.shape
        (torch.Size([100, 16]), torch.Size([100, 3]))
    """
    for name, value in (("train", train), ("val", val), ("test", test), ("num_features", num_features)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}")
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be at least 2, got {num_classes}")
    if sharpness < 0:
        raise ValueError(f"`sharpness` must be at least 0, got {sharpness}")
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(num_features, num_classes, generator=generator)
    weight /= weight.norm(dim=0, keepdim=True)

    def draw(count: int) -> Part:
        features = torch.randn(count, num_features, generator=generator)
        probs = (sharpness * features @ weight).softmax(dim=-1)
        labels = torch.multinomial(probs, 1, generator=generator).squeeze(1)
        return Part(inputs=features, labels=labels, probs=probs)

    return Splits(
        name="synthetic",
        kind="features",
        classes=tuple(f"class {k}" for k in range(num_classes)),
        train=draw(train),
        val=draw(val),
        test=draw(test),
    )

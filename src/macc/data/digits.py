"""Handwritten digits that come with scikit-learn: the default everywhere a user gives no data."""

from os import PathLike

import torch

from macc.data._datasets import dataset
from macc.data._parts import Normalisation, Part
from macc.data._shifts import noise_and_rotation
from macc.data._splits import Splits, stratified_split


@dataset(
    summary="handwritten digits, 8 × 8, grey; five levels each of noise and rotation",
    kind="image",
    num_classes=10,
    sizes=(1295, 143, 359),
    licence="CC BY 4.0",
    levels=True,
)
def digits(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:  # noqa: ARG001
    """1797 handwritten digits of 8 × 8 pixels, embedded in scikit-learn: no file, no network.

    Shifted test sets: ``noise-1`` … ``noise-5`` (Gaussian noise) and ``rotation-1`` …
    ``rotation-5`` (10 to 50 degrees), the same at every call.

    Args:
        root: Not used: there are no files.
        verify: Not used: there is nothing to check.

    Example:
        >>> splits = digits()
        >>> len(splits.train), len(splits.val), len(splits.test)
        (1295, 143, 359)
        >>> list(splits.shifts)[:5]
        ['noise-1', 'noise-2', 'noise-3', 'noise-4', 'noise-5']

    Reference:
        Alpaydin and Kaynak, *Optical Recognition of Handwritten Digits*, UCI, 1998.
    """
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    # The file counts 0 … 16 dark dots per pixel.
    images = torch.from_numpy(pixels).view(-1, 1, 8, 8).mul(255 / 16).round().to(torch.uint8)
    everything = Part(inputs=images, labels=torch.from_numpy(targets).long())
    in_test, rest = stratified_split(everything.labels, 0.2)
    in_val, in_train = (rest[group] for group in stratified_split(everything.labels[rest], 0.1))
    test = everything.take(in_test)
    return Splits(
        name="digits",
        kind="image",
        classes=tuple(str(digit) for digit in range(10)),
        train=everything.take(in_train),
        val=everything.take(in_val),
        test=test,
        shifts=noise_and_rotation(test),
        normalisation=Normalisation((0.3056,), (0.3759,)),
    )

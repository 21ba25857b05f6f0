"""Single samples: an image with what one or several models say of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.report.figures.style import figure_of, panel, plain
from macc.words import documented

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Said(NamedTuple):
    """What a model says of a sample: a class, and how sure it is."""

    predicted: str
    confidence: float


@documented
def sample_image(
    image: Tensor, label: str, said: Mapping[str, Said], *, ax: "Axes | None" = None
) -> "Figure":
    """Draw an image, its class, and what each model predicts for it and how confidently.

    Args:
        image: ``(C, H, W)``, uint8 or in ``[0, 1]``.
        label: Its true class.
        said: Predicted class and confidence, by the name of the model.

    Returns:
        The figure.

    Example:
        >>> figure = sample_image(torch.zeros(3, 8, 8), "dog", {"NLL": Said("cat", 0.93)})
        >>> figure.axes[0].get_xlabel()
        'NLL: cat ✗ 93.0 %'
    """
    with panel(ax, (2.2, 2.8)) as ax:
        ax.imshow(picture(image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        ax.set_title(plain(label), fontsize=10)
        ax.set(xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set_visible(False)
        lines = [
            f"{plain(name)}: {plain(predicted)} {'✓' if predicted == label else '✗'} {100 * confidence:.1f} %"
            for name, (predicted, confidence) in said.items()
        ]
        ax.set_xlabel("\n".join(lines), fontsize=8)
    return figure_of(ax)


def picture(image: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """An image as bytes, ``(H, W, 3)`` or ``(H, W)``."""
    values = (
        image if image.dtype == torch.uint8 else image.float().clamp(0, 1).mul(255).round().to(torch.uint8)
    )
    array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = values.permute(1, 2, 0).cpu().numpy()
    if array.shape[2] == 1:
        return array[..., 0]
    if array.shape[2] == 3:
        return array
    # Two channels or more than three are no colours: show their mean.
    mean: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = array.mean(axis=2).round().astype(np.uint8)
    return mean


class Contrast(NamedTuple):
    """Samples on which two models differ most: those both get right, and those both get wrong."""

    gains: list[int]
    drops: list[int]


@documented
def contrast(probs_a: Tensor, probs_b: Tensor, labels: Tensor, count: int) -> Contrast:
    """The samples of the paper's first figure: where confidence of B is most above and below A.

    Gains are looked for among samples that both models get right, drops among those that both get
    wrong.

    Args:
        probs_a: Probabilities ``(N, K)`` of model A.
        probs_b: The same of model B.
        count: How many of each, at most.

    Example:
        >>> a = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.8, 0.2]])
        >>> b = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
        >>> contrast(a, b, torch.tensor([0, 0, 1]), 1)
        Contrast(gains=[0], drops=[2])
    """
    confidence_a, class_a = probs_a.max(dim=1)
    confidence_b, class_b = probs_b.max(dim=1)
    change = confidence_b - confidence_a
    right = (class_a == labels) & (class_b == labels)
    wrong = (class_a != labels) & (class_b != labels)

    def largest(values: Tensor, mask: Tensor) -> list[int]:
        order = torch.where(mask, values, -torch.inf).argsort(descending=True, stable=True)
        return [int(i) for i in order[: min(count, int(mask.sum()))] if values[i] > 0]

    return Contrast(largest(change, right), largest(-change, wrong))

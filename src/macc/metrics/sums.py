"""Sums over any number of samples, from which metrics are computed; their memory does not grow with
the samples.

The gap of a bin is a sum over its samples, so sums are all that values need. For intervals, each
sample is put at random into one of a fixed number of groups, and sums are kept by group: resampling
groups stands in for resampling samples, because a group's sums vary as those of samples do. One
group is the plain form. Sums add up, so parts of a file, or of a cluster's work, are merged by
adding.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.metrics._metric import metrics_of
from macc.metrics._resampling.means import scores_by_outcome
from macc.metrics._scores import squared_distances
from macc.metrics.binning import (
    ClassGaps,
    TopBins,
    bin_sums,
    effective_sizes,
    width_index,
)
from macc.metrics.blocks import Block, Doubles, Floats, Integers
from macc.metrics.fine_cells import BinnedArea, CellCounts, cells_per_octave, num_cells
from macc.metrics.inputs import Predictions

GROUPS = 1024
"""Groups of sums that have intervals."""

# Sums of every group, bin and class: groups are fewer where classes are many, 32 MB at most.
_CLASS_SUMS = 2**22
_FEWEST_CLASS_GROUPS = 64

# What blocks are summed into at once; the rest is kept by those that sum it.
_BY_SAMPLE = {
    "scores",
    "top",
    "weights",
    "positive",
    "positive_brier",
    "top_gaps",
    "positive_gaps",
    "by_outcome",
    "class_samples",
    "class_weights",
}

# What is kept by group, and what by group of the classes' gaps.
_BY_GROUP = ("scores", "top_gaps", "positive_gaps", "positive_brier")
_BY_CLASS_GROUP = ("class_gaps", "class_samples")


def shapes(num_classes: int, bins: int, *, groups: int, positive: bool) -> dict[str, tuple[int, ...]]:
    """The sums that are kept, and their shapes; most are needed for intervals only."""
    found: dict[str, tuple[int, ...]] = {
        # By group: samples, right ones, sum of NLL, of Brier scores; infinite NLLs are counted
        # alone.
        "scores": (groups, 5),
        # By bin: samples, their confidence, right ones, the variance of labels drawn from the
        # probabilities, and the sum of squared weights.
        "top": (5, bins),
        "class_gaps": (_class_groups(num_classes, bins, groups), bins, num_classes),
        # How many images samples are pixels of; 0 of rows.
        "images": (1,),
        # The sum of squared weights; rows, those of relative weights, and those that were repeated.
        "weights": (4,),
    }
    if positive:
        found |= {"positive": (5, bins), "positive_brier": (groups,)}
    if groups == 1:
        return found
    cells = num_cells(cells_per_octave(num_classes))
    found |= {
        "top_gaps": (groups, bins),
        # NLL and Brier score if all predictions were right, and if they were wrong.
        "by_outcome": (2, 2),
        "class_samples": found["class_gaps"][:1],
        "class_null": (bins, num_classes),
        "totals": (num_classes,),
        # By class: samples, and the sum of their squared weights.
        "class_weights": (2, num_classes),
        "hits": (num_classes, cells),
        "all": (num_classes, cells),
    }
    return found | ({"positive_gaps": (groups, bins)} if positive else {})


def _class_groups(num_classes: int, bins: int, groups: int) -> int:
    if groups == 1:
        return 1
    wanted = _CLASS_SUMS // (bins * num_classes)
    return max(_FEWEST_CLASS_GROUPS, 1 << int(math.log2(max(1, min(groups, wanted)))))


class Means(NamedTuple):
    """Means over samples."""

    accuracy: float
    nll: float
    brier: float


class Sums:
    """All that is kept of the samples so far, as float64 ``parts`` that add up.

    Args:
        num_classes: Number of classes K.
        bins: Number of bins of equal width.
        groups: Number of groups of samples; intervals need many.
        positive: The positive class of two.
    """

    def __init__(self, num_classes: int, bins: int, *, groups: int = 1, positive: int | None = None):
        self.num_classes, self.bins, self.groups, self.positive_class = num_classes, bins, groups, positive
        sizes = shapes(num_classes, bins, groups=groups, positive=positive is not None)
        with torch.inference_mode(False):  # what inference mode makes cannot be written to outside it
            self.parts = {
                name: torch.zeros(size, dtype=torch.float64, device="cpu") for name, size in sizes.items()
            }

    def add(
        self,
        given: Predictions,
        random: np.random.Generator | None = None,
        images: Tensor | None = None,
    ) -> None:
        """Add samples in one pass over them; refused ones leave everything as it was.

        Args:
            given: The samples; weights, if they have any, are relative, and not scaled yet.
            random: Draws their groups, where there are several.
            images: ``(N,)`` numbers from 0 on of the images that samples are pixels of: those of
                one share a group.
        """
        start, of_image = 0, None
        if images is not None and random is not None:
            of_image = random.integers(self.groups, size=int(images.max()) + 1)
        class_groups = len(self.parts["class_gaps"])
        gaps = ClassGaps(self.num_classes, self.bins, class_groups)
        cells = None if self.groups == 1 else CellCounts(self.num_classes, weighted=given.weights is not None)
        # Added at the end, when all values are known to be good.
        new = {name: np.zeros(self.parts[name].shape) for name in _BY_SAMPLE & self.parts.keys()}
        for block in given.blocks():
            group = None
            if cells is not None and random is not None:
                end = start + len(block)
                if of_image is None or images is None:
                    group = random.integers(self.groups, size=end - start)
                else:
                    group = of_image[images[start:end].numpy()]
                start = end
                cells.add(block)
            gaps.add(block, None if group is None else group % class_groups)
            self._add_block(new, block, group)
        parts = self.parts
        for name, sums in new.items():
            parts[name] += torch.from_numpy(sums)
        if images is not None:
            parts["images"] += len(torch.unique(images))
        parts["class_gaps"] += gaps.by_group()
        if cells is not None:
            parts["class_null"] += gaps.spread()
            parts["totals"] += gaps.totals()
            parts["hits"] += torch.from_numpy(cells.hits)
            parts["all"] += torch.from_numpy(cells.all)

    def _add_block(self, new: dict[str, Doubles], block: Block, group: Integers | None) -> None:
        """Add the sums over the samples of a block, and over those of each group."""
        weights, confidence = block.weights, block.rows.highest
        log_likelihood, distances = block.log_likelihood, squared_distances(block)
        infinite = np.isinf(log_likelihood)
        each = np.ones(len(block)) if weights is None else weights
        for column, values in enumerate(
            (each, block.right, -np.where(infinite, 0, log_likelihood), distances, infinite)
        ):
            weighed = values if weights is None or column in (0, 4) else values * weights
            new["scores"][:, column] += self._by_group(weighed, group)
        self._add_bins(new, "top", confidence, block.right, group, weights)
        squares = each if weights is None else weights**2
        relative = 0 if weights is None else len(weights)
        new["weights"] += squares.sum(), len(block), relative, 0
        if self.positive_class is not None:
            chance, is_one = block.of_class(self.positive_class), block.labels == self.positive_class
            self._add_bins(new, "positive", chance, is_one, group, weights)
            squared = (chance - is_one) ** 2
            new["positive_brier"] += self._by_group(squared if weights is None else squared * weights, group)
        if group is not None:
            by_outcome = scores_by_outcome(torch.from_numpy(block.confidence), self.num_classes).numpy()
            new["by_outcome"] += by_outcome.sum(-1) if weights is None else by_outcome @ weights
            class_groups = len(new["class_samples"])
            new["class_samples"] += np.bincount(group % class_groups, weights, minlength=class_groups)
            for row, of in enumerate((None, squares)):
                new["class_weights"][row] += np.bincount(block.labels, of, minlength=self.num_classes)

    def repeated(self, samples: int) -> None:
        """Take note that so many of all samples are others repeated."""
        self.parts["weights"][3] += samples

    def _add_bins(
        self,
        new: dict[str, Doubles],
        name: str,
        confidence: Floats,
        right: npt.NDArray[np.bool_],
        group: Integers | None,
        weights: Doubles | None,
    ) -> None:
        """Gaps of every group and bin; counts, sums and variances of every bin."""
        bins = self.bins
        at = width_index(confidence, bins)
        confidence = confidence.astype(np.float64)
        summed = bin_sums(at, confidence, right, bins, weights)
        variance, gap = confidence * (1 - confidence), right - confidence
        squares = summed[0]
        if weights is not None:
            variance, gap = variance * weights**2, gap * weights
            squares = np.bincount(at, weights**2, minlength=bins)
        new[name][:3] += summed
        new[name][3] += np.bincount(at, variance, minlength=bins)
        new[name][4] += squares
        if group is not None:
            at += group * bins
            gaps = np.bincount(at, gap, minlength=self.groups * bins)
            new[f"{name}_gaps"] += gaps.reshape(self.groups, bins)

    def _by_group(self, values: npt.NDArray[Any], group: Integers | None) -> Any:
        if group is None:
            return np.count_nonzero(values) if values.dtype == np.bool_ else values.sum()
        return np.bincount(group, values, minlength=self.groups)

    def merge(self, other: "Sums", random: np.random.Generator) -> None:
        """Add other sums, their groups numbered anew at random.

        Both gave their first samples to the same groups, and groups of many small parts would be
        few.
        """
        for names in (_BY_GROUP, _BY_CLASS_GROUP):
            order = torch.from_numpy(random.permutation(len(self.parts[names[0]])))
            for name in self.parts.keys() & set(names):
                self.parts[name] += other.parts[name][order]
        for name in self.parts.keys() - {*_BY_GROUP, *_BY_CLASS_GROUP}:
            self.parts[name] += other.parts[name]

    def having(self, parts: Mapping[str, Tensor]) -> "Sums":
        """Sums of the same kind with these parts."""
        found = Sums(self.num_classes, self.bins, groups=self.groups, positive=self.positive_class)
        found.parts = dict(parts)
        return found

    @property
    def count(self) -> int:
        """How many samples were seen; repeated ones count as often as they are."""
        return round(float(self.parts["weights"][1]))

    @property
    def total(self) -> float:
        """The sum of their weights, which is their number where they have none."""
        return float(self.parts["scores"][:, 0].sum())

    @property
    def relative(self) -> bool:
        """Whether weights are relative."""
        return bool(self.parts["weights"][2] > 0)

    @property
    def kind_of_weights(self) -> str | None:
        """Whole or relative, or None where nothing was seen of weights other than 1."""
        relative, repeated = (self.parts["weights"][2:] > 0).tolist()
        if relative and repeated:
            raise ValueError(
                "some weights were whole numbers, which are repeated samples, and others were not; make every "
                "Calibration with relative_weights=True"
            )
        return "relative" if relative else "whole" if repeated else None

    @property
    def size(self) -> float:
        """How many samples of equal weights vary as much as these."""
        return self.total**2 / float(self.parts["weights"][0]) if self.relative else self.count

    def _binned(self, name: str) -> TopBins:
        """The sums of bins, relative weights scaled to the effective number of samples."""
        found = self.parts[name][:3]
        return TopBins(*(found * (self.size / self.total) if self.relative else found))

    def bin_sizes(self, name: str) -> Tensor:
        """How many samples of equal weights say as much as a bin of ``top`` or ``positive``."""
        return effective_sizes(self.parts[name][0], self.parts[name][4])

    @property
    def images(self) -> int:
        """How many images had pixels among them; 0 where samples are rows."""
        return round(float(self.parts["images"]))

    @property
    def means(self) -> Means:
        """Accuracy, NLL and Brier score."""
        total = self.parts["scores"].sum(0)
        if float(total[4]) > 0:
            total[2] = math.inf
        return Means(*(total[1:4] / total[0]).tolist())

    @property
    def top(self) -> TopBins:
        """The bins of confidence."""
        return self._binned("top")

    @property
    def positive(self) -> TopBins:
        """The bins of the probability of the positive class."""
        return self._binned("positive")

    @property
    def positive_brier(self) -> float:
        """Mean squared error of that probability."""
        return float(self.parts["positive_brier"].sum()) / self.total

    @property
    def class_gaps(self) -> Tensor:
        """The gaps of every bin and class, ``(bins, K)``."""
        return self.parts["class_gaps"].sum(0)

    @property
    def area(self) -> BinnedArea | None:
        """The area under the ROC curve, where fine cells are kept."""
        if self.groups == 1:
            return None
        squares = self.parts["class_weights"][1].numpy() if self.relative else None
        return BinnedArea.of(self.parts["hits"].numpy(), self.parts["all"].numpy(), squares)

    def values(self) -> dict[str, Any]:
        """Every metric that can be computed from these sums, ``classwise_ece`` and ``count``."""
        if self.count == 0:
            raise ValueError("no samples were given yet; call update(probs, labels) before compute()")
        found = {
            name: metric.streamed(self)
            for name, metric in metrics_of(self.num_classes).items()
            if metric.streamed is not None
        }
        return {
            **{name: value for name, value in found.items() if value is not None},
            "classwise_ece": self.class_gaps.abs().sum(0) / self.total,
            "count": self.count,
        }

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
import torch
from torch import Tensor

from macc.metrics._metric import metrics_of
from macc.metrics._resampling.means import scores_by_outcome
from macc.metrics._scores import squared_distances
from macc.metrics.binning import (
    ClassGaps,
    TopBins,
    TopLabels,
    bin_index,
    effective_sizes,
    top_bins,
    top_of_block,
)
from macc.metrics.fine_cells import BinnedArea, CellCounts, cells_per_octave, num_cells
from macc.metrics.inputs import Predictions

GROUPS = 1024
"""Groups of sums that have intervals."""

# Sums of every group, bin and class: groups are fewer where classes are many, 32 MB at most.
_CLASS_SUMS = 2**22
_FEWEST_CLASS_GROUPS = 64

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
    """All that is kept of the samples seen so far, as float64 ``parts``; those of two sets of
    samples add up.

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
        start, of_image, weights = 0, None, None if given.weights is None else given.weights.cpu()
        if images is not None and random is not None:
            of_image = random.integers(self.groups, size=int(images.max()) + 1)
        class_groups = len(self.parts["class_gaps"])
        gaps = ClassGaps(self.num_classes, self.bins, class_groups)
        cells = None if self.groups == 1 else CellCounts(self.num_classes, weighted=weights is not None)
        tops, ones, scores, groups = [], [], [], []
        for block in given.blocks():
            group = None
            if cells is not None and random is not None:
                end = start + len(block.labels)
                if of_image is None or images is None:
                    group = torch.from_numpy(random.integers(self.groups, size=end - start))
                else:
                    group = torch.from_numpy(of_image)[images[start:end]]
                start = end
                groups.append(group)
                cells.add(block)
            gaps.add(block, None if group is None else group % class_groups)
            tops.append(top_of_block(block))
            scores.append((block.log_likelihood, squared_distances(block)))
            if self.positive_class is not None:
                ones.append(block.given[:, self.positive_class].double())
        grouped = torch.cat(groups) if groups else None
        parts, top = self.parts, TopLabels(*(torch.cat(part).cpu() for part in zip(*tops, strict=True)))
        log_likelihood, distances = (torch.cat(part).cpu() for part in zip(*scores, strict=True))
        infinite = log_likelihood.isinf()
        each = (
            torch.ones_like(distances),
            top.correct,
            -log_likelihood.masked_fill(infinite, 0.0),
            distances,
        )
        sums = [self._by_group(values, grouped, weights) for values in each]
        parts["scores"] += torch.stack([*sums, self._by_group(infinite.double(), grouped)], dim=1)
        if images is not None:
            parts["images"] += len(torch.unique(images))
        parts["class_gaps"] += gaps.by_group()
        self._add_bins("top", top, grouped, weights)
        each_weight = torch.ones_like(top.correct) if weights is None else weights
        relative = 0 if weights is None else len(weights)
        parts["weights"] += torch.tensor(
            [float(each_weight.square().sum()), len(each_weight), relative, 0],
            dtype=torch.float64,
            device="cpu",  # whatever the default device is
        )
        if self.positive_class is not None:
            one = TopLabels(torch.cat(ones).cpu(), (given.labels == self.positive_class).double().cpu())
            self._add_bins("positive", one, grouped, weights)
            squared = (one.confidence - one.correct).square()
            parts["positive_brier"] += self._by_group(squared, grouped, weights)
        if cells is not None and grouped is not None:
            by_outcome = scores_by_outcome(top.confidence, self.num_classes)
            parts["by_outcome"] += by_outcome.sum(-1) if weights is None else by_outcome @ weights
            parts["class_samples"] += torch.bincount(grouped % class_groups, weights, minlength=class_groups)
            labels = given.labels.cpu()
            parts["class_weights"] += torch.stack(
                [
                    torch.bincount(labels, of, minlength=self.num_classes)
                    for of in (None, each_weight.square())
                ]
            )
            parts["class_null"] += gaps.spread()
            parts["totals"] += gaps.totals()
            parts["hits"] += torch.from_numpy(cells.hits)
            parts["all"] += torch.from_numpy(cells.all)

    def repeated(self, samples: int) -> None:
        """Take note that so many of all samples are others repeated."""
        self.parts["weights"][3] += samples

    def _add_bins(self, name: str, samples: TopLabels, group: Tensor | None, weights: Tensor | None) -> None:
        """Gaps of every group and bin; counts, sums and variances of every bin."""
        bins, confidence = self.bins, samples.confidence
        at = bin_index(confidence, bins)
        summed = top_bins(samples, at, bins, weights)
        variance, gap = confidence * (1 - confidence), samples.correct - confidence
        squares = summed.samples
        if weights is not None:
            variance, gap = variance * weights.square(), gap * weights
            squares = torch.bincount(at, weights.square(), minlength=bins)
        variance = torch.bincount(at, variance, minlength=bins)
        self.parts[name] += torch.stack([*summed, variance, squares])
        if group is not None:
            gaps = torch.bincount(group * bins + at, gap, minlength=self.groups * bins)
            self.parts[f"{name}_gaps"] += gaps.view(self.groups, bins)

    def _by_group(self, values: Tensor, group: Tensor | None, weights: Tensor | None = None) -> Tensor:
        values = values if weights is None else values * weights
        return values.sum()[None] if group is None else torch.bincount(group, values, minlength=self.groups)

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

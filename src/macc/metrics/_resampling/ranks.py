"""What confidence ranks: the risk-coverage curve, and areas under the ROC curve."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from macc.metrics._resampling.cells import TopCells
from macc.metrics._resampling.samples import GROUPS, Resampling
from macc.metrics._scores import class_aurocs
from macc.metrics.binning import TopLabels, columns
from macc.metrics.inputs import Predictions
from macc.metrics.intervals import LargestCoverage, Ordinary, Sampled
from macc.metrics.selective import answered_samples

# Beyond this many ranks, resampled areas under the ROC curve are linear in the counts.
_RANKED_ELEMENTS = 300_000_000

COVERAGE = 0.9
RISK = 0.05
# Of what share of the samples each of the selective metrics is a mean, in the order of ``Selective``: an error
# that was not seen may be any of them. The first and the last are no means.
_MEAN_OVER = (math.inf, 1.0, 1.0, COVERAGE, math.inf)


class Selective(NamedTuple):
    """What the risk-coverage curve says."""

    failure_auroc: Sampled
    aurc: Sampled
    eaurc: Sampled
    risk_at_coverage: Sampled
    coverage_at_risk: Sampled


def selective(top: TopLabels, cells: TopCells, resampling: Resampling) -> Selective:
    # Groups differ in size, so a resample may have a few samples more.
    curve = RankedCurve(cells.last_of_ties, most=resampling.num_samples + resampling.grouped * GROUPS)
    coarse = curve.metrics(cells.samples[None], cells.wrong[None])
    if resampling.grouped:
        confidence, order = top.confidence.sort()
        last = (confidence.diff(append=confidence.new_tensor([2.0])) > 0).nonzero()[:, 0]
        exact, wrong = RankedCurve(last, most=resampling.num_samples), 1 - top.correct[order]
    else:
        exact, wrong = curve, cells.wrong
    every = torch.ones_like(wrong)
    seen = exact.metrics(every[None], wrong[None])
    resampled = [curve.metrics(*counts) for counts in cells.counts()]
    found = []
    for i, share in enumerate(_MEAN_OVER):
        # Cells of several samples stand for the noise of the curve, and not for its value.
        draws = torch.cat([part[i] for part in resampled]) + (seen[i] - coarse[i])
        found.append(Ordinary(float(seen[i]), draws.clamp(0, 1), resampling.num_samples * share))
    answered, errors = exact.errors(every[None], wrong[None])
    failure_auroc, aurc, eaurc, risk, coverage = found
    largest = LargestCoverage(coverage.value, coverage.deviation(), answered[0], errors[0], RISK)
    return Selective(failure_auroc, aurc, eaurc, risk, largest)


class RankedCurve:
    """The risk-coverage curve of samples that count any number of times each.

    Between two distinct confidences errors are spread evenly, so the risk at the k-th sample is
    ``(E_a + (k - a) s) / k`` with slope ``s``, and its sum over a group is closed in harmonic numbers.

    Args:
        last_of_ties: Which of the cells, in rising order of confidence, are the last of those of equal confidence.
        most: The most samples there can be.
    """

    def __init__(self, last_of_ties: Tensor, *, most: int):
        # Answers are given from the top: the first of equal ones ends them there.
        first = torch.nn.functional.pad(last_of_ties[:-1] + 1, (1, 0))
        self._ends = (int(last_of_ties[-1]) - first).flip(0)
        self._harmonic = torch.zeros(most + 1, dtype=torch.float64)
        self._harmonic[1:] = torch.arange(1, most + 1, dtype=torch.float64).reciprocal_().cumsum_(0)

    def errors(self, samples: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
        """How many samples are answered down to each confidence, and how many of them wrongly, ``(R, G)``."""
        answered, errors = (part.flip(1).cumsum_(1)[:, self._ends] for part in (samples, wrong))
        return answered, errors

    def metrics(self, samples: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The metrics of ``Selective``, ``(R,)`` each, for cells of so many samples, so many of them wrong, ``(R, C)``."""
        end, errors = self.errors(samples, wrong)
        num_samples = end[:, -1]
        start = torch.nn.functional.pad(end, (1, 0))[:, :-1]
        errors_before = torch.nn.functional.pad(errors, (1, 0))[:, :-1]
        size, wrong = end - start, errors - errors_before
        slope = wrong / size.clamp(min=1)
        harmonic = self._harmonic[end.long()] - self._harmonic[start.long()]
        area = (wrong + (errors_before - start * slope) * harmonic).sum(1) / num_samples
        all_wrong = errors[:, -1]
        all_right = num_samples - all_wrong
        tail = self._harmonic[num_samples.long()] - self._harmonic[all_right.round().long()]
        best = (all_wrong - all_right * tail) / num_samples
        beaten = ((size - wrong) * (all_wrong[:, None] - errors + wrong / 2)).sum(1)
        answered = torch.tensor(
            [[float(answered_samples(COVERAGE, int(count)))] for count in num_samples], dtype=torch.float64
        )
        at = torch.searchsorted(end, answered).clamp(max=end.shape[1] - 1)
        risk = (errors_before + (answered - start) * slope).gather(1, at) / answered
        within = (errors <= RISK * end + 1e-9) & (end > 0)
        return (
            beaten / (all_wrong * all_right),  # 0 / 0, undefined, when all are right or wrong
            area,
            (area - best).clamp(min=0),
            risk[:, 0],
            torch.where(within, end, 0.0).amax(1) / num_samples,
        )


def resampled_auroc(given: Predictions, resampling: Resampling) -> Ordinary:
    probs = given.scores
    areas = class_aurocs(probs, given.labels)
    value = float(areas.nanmean())
    if math.isnan(value):
        return Ordinary(value, torch.full((resampling.resamples,), math.nan))
    if probs.numel() * resampling.resamples > _RANKED_ELEMENTS:
        influence = auroc_influence(probs, given.labels, areas)
        return Ordinary(value, (value + resampling.means(influence[:, None])[:, 0]).clamp(0, 1))
    ranks = [
        _Ranks(values[0], given.labels == classes[0])
        for classes, values in single_columns(probs)
        if not bool(areas[classes[0]].isnan())
    ]
    resampled = []
    for counts in resampling.counts():
        sums, defined = torch.zeros(2, len(counts), dtype=torch.float64)
        for rank in ranks:
            found = rank.areas(counts)
            sums += found.nan_to_num(0.0)
            defined += ~found.isnan()
        resampled.append(sums / defined)
    return Ordinary(value, torch.cat(resampled))


def single_columns(probs: Tensor) -> Iterator[tuple[range, Tensor]]:
    for classes, values in columns(probs):
        for j, row in zip(classes, values, strict=True):
            yield range(j, j + 1), row[None]


class _Ranks:
    """The order of one class's probabilities, to find its area for any counts."""

    def __init__(self, scores: Tensor, positive: Tensor):
        ordered, self._order = scores.sort()
        self._negative = (~positive[self._order]).double()
        own = ordered[positive[self._order]]
        self._own = positive[self._order].nonzero()[:, 0]
        self._first = torch.searchsorted(ordered, own, right=False)
        self._behind = torch.searchsorted(ordered, own, right=True)

    def areas(self, counts: Tensor) -> Tensor:
        """Area ``(R,)`` for counts ``(R, N)``, ``nan`` where a resample has one kind only."""
        counts = counts[:, self._order]
        below = torch.nn.functional.pad((counts * self._negative).cumsum(1), (1, 0))
        own = counts[:, self._own]
        beaten = (own * (below[:, self._first] + below[:, self._behind])).sum(1) / 2
        return beaten / (own.sum(1) * below[:, -1])


def auroc_influence(probs: Tensor, labels: Tensor, areas: Tensor) -> Tensor:
    """First-order effect ``(N,)`` of counting a sample once more on the mean area, times N.

    A positive adds the share of negatives it beats, a negative the share of positives that beat it,
    each less the area and divided by how common its kind is.
    """
    defined = int((~areas.isnan()).sum())
    influence = torch.zeros(len(labels), dtype=torch.float64)
    for classes, values in single_columns(probs):
        area = areas[classes[0]]
        if bool(area.isnan()):
            continue
        ordered, order = values[0].sort()
        positive = (labels == classes[0])[order].double()
        last = torch.ones_like(ordered, dtype=torch.bool)
        last[:-1] = ordered[1:] > ordered[:-1]
        ties = last.cumsum(0) - last.long()
        shares = []
        for kind in (positive, 1 - positive):
            # Of each tied value: the share of the kind that lies below it, ties counting half.
            end = kind.cumsum(0)[last]
            shares.append((end + torch.nn.functional.pad(end, (1, 0))[:-1])[ties] / (2 * end[-1]))
        of_kind = positive.mean()
        change = torch.where(
            positive > 0, (shares[1] - area) / of_kind, (1 - shares[0] - area) / (1 - of_kind)
        )
        influence[order] += change / defined
    return influence

"""What confidence ranks: the risk-coverage curve, and areas under the ROC curve."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics._resampling.cells import TopCells
from macc.metrics._resampling.samples import GROUPS, Resampling
from macc.metrics._scores import class_aurocs
from macc.metrics.binning import TopLabels, columns
from macc.metrics.inputs import Predictions
from macc.metrics.intervals import LargestCoverage, Ordinary, Sampled
from macc.metrics.selective import Answered, answered, whole_harmonic

# Of more probabilities, resampled areas under the ROC curve are linear in the counts.
_RANKED_ELEMENTS = 30_000

COVERAGE = 0.9
RISK = 0.05
# Of what share of the samples each of the selective metrics is a mean, in the order of
# ``Selective``: an error that was not seen may be any of them. The first and the last are no means.
_MEAN_OVER = (math.inf, 1.0, 1.0, COVERAGE, math.inf)


class Selective(NamedTuple):
    """What the risk-coverage curve says."""

    failure_auroc: Sampled
    aurc: Sampled
    eaurc: Sampled
    risk_at_coverage: Sampled
    coverage_at_risk: Sampled


def selective(top: TopLabels, cells: TopCells, resampling: Resampling) -> Selective:
    # Answers are given from the top: the first of equal ones ends them there.
    first = torch.nn.functional.pad(cells.last_of_ties[:-1] + 1, (1, 0))
    ends = (int(cells.last_of_ties[-1]) - first).flip(0)
    exact = answered(top, resampling.weights)
    # Groups differ in size, so a resample may have a few samples more.
    harmonic = (
        whole_harmonic(resampling.num_samples + resampling.grouped * GROUPS)
        if resampling.weights is None
        else exact.harmonic
    )

    def curve(samples: Tensor, wrong: Tensor) -> Answered:
        answers, errors = (part.flip(1).cumsum_(1)[:, ends] for part in (samples, wrong))
        return Answered(answers, errors, harmonic)

    seen, coarse = _metrics(exact), _metrics(curve(cells.samples[None], cells.wrong[None]))
    resampled = _metrics(curve(*cells.counts))
    found = []
    for i, share in enumerate(_MEAN_OVER):
        # Cells of several samples stand for the noise of the curve, and not for its value.
        draws = resampled[i] + (seen[i] - coarse[i])
        found.append(Ordinary(float(seen[i]), draws.clamp(0, 1), resampling.size * share))
    failure_auroc, aurc, eaurc, risk, coverage = found
    largest = LargestCoverage(coverage.value, coverage.deviation(), exact.samples[0], exact.wrong[0], RISK)
    return Selective(failure_auroc, aurc, eaurc, risk, largest)


def _metrics(curve: Answered) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The metrics of ``Selective``, ``(R,)`` each."""
    return (
        curve.right_above_wrong(),
        curve.area,
        curve.excess(),
        curve.risk_at(COVERAGE),
        curve.coverage_at(RISK),
    )


def resampled_auroc(given: Predictions, resampling: Resampling) -> Ordinary:
    probs = given.scores
    areas = class_aurocs(probs, given.labels, given.weights)
    value = float(areas.nanmean())
    if math.isnan(value):
        return Ordinary(value, torch.full((resampling.resamples,), math.nan))
    if probs.numel() > _RANKED_ELEMENTS:
        influence = auroc_influence(probs, given.labels, areas, given.weights)
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


def auroc_influence(probs: Tensor, labels: Tensor, areas: Tensor, weights: Tensor | None = None) -> Tensor:
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
        order, last = _rising(values[0])
        positive = (labels == classes[0]).index_select(0, order).double()
        each = torch.ones_like(positive) if weights is None else weights[order]
        ties = last.cumsum(0) - last.long()
        shares = []
        for kind in (positive * each, (1 - positive) * each):
            # Of each tied value: the share of the kind that lies below it, ties counting half.
            end = kind.cumsum(0)[last]
            shares.append((end + torch.nn.functional.pad(end, (1, 0))[:-1])[ties] / (2 * end[-1]))
        of_kind = (positive * each).mean() / each.mean()
        change = torch.where(
            positive > 0, (shares[1] - area) / of_kind, (1 - shares[0] - area) / (1 - of_kind)
        )
        influence[order] += change / defined
    return influence


def _rising(probs: Tensor) -> tuple[Tensor, Tensor]:
    """The order of probabilities as float32, and where the last of equal ones are."""
    # Values and places sorted as one number take a fifth of the time of a sort that returns places.
    bits = probs.float().abs().numpy().view(np.uint32).astype(np.uint64)
    pairs = np.sort((bits << np.uint64(32)) | np.arange(len(bits), dtype=np.uint64))
    order = (pairs & np.uint64(2**32 - 1)).astype(np.int64)
    pairs >>= np.uint64(32)
    return torch.from_numpy(order), torch.from_numpy(np.append(pairs[1:] > pairs[:-1], True))

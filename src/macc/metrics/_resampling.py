"""Every metric of one set of predictions under the same resamples."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macc.metrics._calibration_errors import (
    largest_running_gap,
    max_gap,
    residuals_on_grid,
    root_mean_square_gap,
    smooth_error,
)
from macc.metrics._scores import answered_samples, class_aurocs, squared_distances
from macc.metrics.binning import (
    ClassCells,
    TopBins,
    TopLabels,
    adaptive_cells,
    bin_index,
    class_labels,
    columns,
    inner_edges,
    top_bins,
    width_cells,
)
from macc.metrics.inputs import Predictions
from macc.metrics.intervals import (
    Deviation,
    Estimate,
    Gaps,
    LargestCoverage,
    LargestGap,
    Ordinary,
    Sampled,
    Share,
    Unbinned,
    l1,
    norm_of_gaps,
    plausible,
    quantile,
    unseen_share,
)

# 8 MB of float64, of which a few copies live at once.
_CHUNK_ELEMENTS = 2**20
# Beyond this many samples, random groups of samples are resampled, and confidences are looked at in fine cells.
_UNGROUPED_SAMPLES = 10_000
_GROUPS = 4096
_CELLS = 1024
# Labels drawn from the probabilities: as many sets as resamples while they are cheap.
_NULL_LABELS = 10_000_000
_FEWEST_NULL_DRAWS = 200
# Resampled smooth errors need less precision than the one they are about: fewer cells, and
# bandwidths from a table of 129, each 7 % wider than the last.
_GRID = 512
_HALVINGS = 7
# Beyond this many ranks, resampled areas under the ROC curve are linear in the counts.
_RANKED_ELEMENTS = 300_000_000

WORST_BRIER = 2.0
COVERAGE = 0.9
RISK = 0.05
# Of what share of the samples each of the selective metrics is a mean, in the order of ``Selective``: an error
# that was not seen may be any of them. The first and the last are no means.
_MEAN_OVER = (math.inf, 1.0, 1.0, COVERAGE, math.inf)


@dataclass(frozen=True)
class Resampling:
    """Repeatable resamples of ``num_samples`` samples: the same object always gives the same ones."""

    num_samples: int
    resamples: int
    seed: int

    @property
    def grouped(self) -> bool:
        """Whether groups of samples are resampled in place of samples."""
        return self.num_samples > _UNGROUPED_SAMPLES

    def counts(self) -> Iterator[Tensor]:
        """Yield ``(R, N)`` counts, how often each resample holds each sample, a few resamples at a time."""
        if self.grouped:
            groups, counts = self.groups
            yield from (
                part[:, groups] for part in torch.split(counts, max(1, _CHUNK_ELEMENTS // self.num_samples))
            )
        else:
            yield from self._counts(self.num_samples, self._generator(0))

    def means(self, values: Tensor) -> Tensor:
        """Means ``(R, C)`` over resampled samples of values ``(N, C)``."""
        if not self.grouped:
            return torch.cat([counts @ values for counts in self.counts()]) / self.num_samples
        groups, counts = self.groups
        sums = torch.zeros(counts.shape[1], values.shape[1], dtype=torch.float64).index_add_(
            0, groups, values
        )
        return counts @ sums / self.drawn[:, None]

    @cached_property
    def drawn(self) -> Tensor:
        """How many samples each resample holds, ``(R,)``, because groups differ in size by one sample."""
        groups, counts = self.groups
        return counts @ torch.bincount(groups, minlength=counts.shape[1]).double()

    def null_hits(self, confidence: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, N)`` outcomes that are right as often as their confidence says."""
        generator = self._generator(1)
        for rows in self.chunks(self.num_samples):
            shape = rows, self.num_samples
            draws = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
            yield (draws < confidence).double()

    def null_sums(self, samples: Tensor, confidence: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, C)``, how many of so many samples are right that are so as often as their confidence says."""
        random = np.random.default_rng([self.seed, 1])
        size, chance = samples.long().numpy(), confidence.clamp(max=1).numpy()
        for rows in self.chunks(len(size)):
            yield torch.from_numpy(random.binomial(size, chance, size=(rows, len(size)))).double()

    def null_labels(self, given: Predictions) -> Tensor:
        """Labels ``(N, S)`` drawn from the probabilities of each sample: one set of them where many take too long."""
        generator = self._generator(2)
        draws = min(self.resamples, max(_FEWEST_NULL_DRAWS, _NULL_LABELS // self.num_samples))
        if _FEWEST_NULL_DRAWS * self.num_samples > _NULL_LABELS:
            draws = 1
        kind = _smallest_type(given.num_classes)
        drawn = []
        for block in given.blocks():
            # Rounding must not draw a class beyond the last: rows sum to 1 only nearly.
            for cumulative in torch.split(block.probs.cumsum(1), max(1, _CHUNK_ELEMENTS // draws)):
                shape = len(cumulative), draws
                uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
                labels = torch.searchsorted(cumulative, uniform.mul_(cumulative[:, -1:]))
                drawn.append(labels.clamp_(max=given.num_classes - 1).to(kind))
        return torch.cat(drawn)

    @cached_property
    def groups(self) -> tuple[Tensor, Tensor]:
        """Group of each sample, ``(N,)``, and counts ``(R, G)``, how often each resample holds each group.

        Up to 10 000 samples every sample is its own group. Beyond, means of random groups are as
        good as samples to resample from, and their number no longer grows.
        """
        generator = self._generator(3)
        if self.grouped:
            groups, size = torch.randperm(self.num_samples, generator=generator) % _GROUPS, _GROUPS
        else:
            groups, size = torch.arange(self.num_samples), self.num_samples
        return groups, torch.cat(list(self._counts(size, generator)))

    @cached_property
    def multipliers(self) -> Tensor:
        """Normal numbers ``(R, G)`` that make noise of one set of labels drawn from the probabilities."""
        shape = self.resamples, self.groups[1].shape[1]
        return torch.randn(shape, generator=self._generator(1), dtype=torch.float64, device="cpu")

    def chunks(self, size: int) -> Iterator[int]:
        """How many resamples of ``size`` numbers to take at a time."""
        step = max(1, _CHUNK_ELEMENTS // size)
        for start in range(0, self.resamples, step):
            yield min(step, self.resamples - start)

    def _counts(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        for rows in self.chunks(size):
            draws = torch.randint(size, (rows, size), generator=generator)
            draws += torch.arange(rows)[:, None] * size
            yield torch.bincount(draws.flatten(), minlength=rows * size).view(rows, size).double()

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 4 + stream)


def _smallest_type(num_classes: int) -> torch.dtype:
    """The type of labels drawn two hundred times for every sample."""
    for kind in (torch.int8, torch.int16):
        if num_classes - 1 <= torch.iinfo(kind).max:
            return kind
    return torch.int32


class Sample(NamedTuple):
    """What one pass over the predictions leaves of each sample, float64 ``(N,)``."""

    top: TopLabels
    log_likelihood: Tensor
    squared_distance: Tensor


def one_pass(given: Predictions) -> Sample:
    """Read the predictions once."""
    parts: list[list[Tensor]] = [[], [], [], []]
    for block in given.blocks():
        predicted = block.probs.argmax(1)
        values = (
            block.probs.gather(1, predicted[:, None])[:, 0],
            (predicted == block.labels).double(),
            block.log_likelihood,
            squared_distances(block),
        )
        for part, value in zip(parts, values, strict=True):
            part.append(value)
    confidence, correct, log_likelihood, squared = map(torch.cat, parts)
    return Sample(TopLabels(confidence, correct), log_likelihood, squared)


class Draws:
    """What resampling shows of one set of predictions; each part is made when the first metric asks for it.

    Args:
        given: Predictions on the CPU.
        bins: Number of bins.
        resampling: The resamples; predictions of the same samples share them.
        positive: The positive class of two; class 1 by default.
        certainty: Certainty ``(N,)`` of the predicted class, for the metric that is about it.
        confidence: Level of the intervals of single classes, which are left out without it.
    """

    def __init__(
        self,
        given: Predictions,
        *,
        bins: int,
        resampling: Resampling,
        positive: int | None = None,
        certainty: Tensor | None = None,
        confidence: float | None = None,
    ):
        self._given, self._bins, self._resampling = given, bins, resampling
        self._positive_class = 1 if positive is None else positive
        self._certainty, self._confidence = certainty, confidence

    @cached_property
    def sample(self) -> Sample:
        """What one pass over the predictions leaves of each sample."""
        return one_pass(self._given)

    @cached_property
    def scores(self) -> "MeanScores":
        """Accuracy, NLL and Brier score."""
        return _means(self.sample, self._given.num_classes, self._resampling)

    @cached_property
    def _cells(self) -> "TopCells":
        return TopCells(self.sample.top, self._bins, self._resampling)

    @cached_property
    def curve(self) -> "Selective":
        """The risk-coverage curve of confidence."""
        return _selective(self.sample.top, self._cells, self._resampling)

    @cached_property
    def by_certainty(self) -> Sampled:
        """How well certainty ranks right above wrong predictions."""
        assert self._certainty is not None  # noqa: S101 - asked for only where it is known
        ranked = TopLabels(self._certainty, self.sample.top.correct)
        return _selective(
            ranked, TopCells(ranked, self._bins, self._resampling), self._resampling
        ).failure_auroc

    @cached_property
    def auroc(self) -> Sampled:
        """The area under the ROC curve, averaged over classes."""
        return _auroc(self._given, self._resampling)

    @cached_property
    def top(self) -> "BinErrors":
        """The errors of the bins of confidence."""
        return _binned_errors(self.sample.top, self._cells, self._bins)

    @cached_property
    def smooth_ece(self) -> Sampled:
        """The smooth error of the predicted class."""
        return _smooth_ece(self.sample.top, self._cells)

    @cached_property
    def ks_error(self) -> Sampled:
        """The largest cumulative gap of the predicted class."""
        return _ks_error(self.sample.top, self._cells)

    @cached_property
    def positive(self) -> "PositiveDraws":
        """The probability of the positive class of two."""
        one = class_labels(self._given.blocks(), self._positive_class)
        return PositiveDraws(one, self._bins, self._resampling)

    @cached_property
    def _class_draws(self) -> "ClassDraws":
        labels = self._resampling.null_labels(self._given)
        return ClassDraws(self._given.labels, self._bins, self._resampling, labels)

    @cached_property
    def classes(self) -> "ClassErrors":
        """The errors of all classes in bins of equal width."""
        return _equal_width(self._given.matrix(), self.sample, self._class_draws, self._confidence)

    def adaptive(self, threshold: float | None) -> Sampled:
        """The mean error of all classes in bins of equal mass, of the probabilities above a threshold."""
        return _adaptive(self._given.matrix(), threshold, self._class_draws)


def _means(sample: Sample, num_classes: int, resampling: Resampling) -> "MeanScores":
    columns_ = torch.stack([sample.top.correct, -sample.log_likelihood, sample.squared_distance])
    # A label of probability 0 makes NLL infinite wherever it is drawn, and 0 times infinity is 0 here.
    infinite = columns_.isinf()
    finite = resampling.means(torch.where(infinite, 0.0, columns_).T)
    resampled = torch.where(resampling.means(infinite.double().T) > 0, math.inf, finite).T
    values = [float(column.mean()) for column in columns_]
    return mean_scores(
        values,
        resampled,
        scores_by_outcome(sample.top.confidence, num_classes).mean(-1),
        resampling.num_samples,
    )


def scores_by_outcome(confidence: Tensor, num_classes: int) -> Tensor:
    """NLL and Brier score ``(2, 2, N)`` of predictions if they are right, and if they are wrong.

    All classes but the predicted one are taken to share evenly what its confidence leaves, which is
    all that is known of classes that were never seen in its place.
    """
    # A confidence that was rounded to 1 was not 1: an error costs much, not everything.
    rest = (1 - confidence).clamp(min=torch.finfo(torch.float64).eps)
    other = rest / (num_classes - 1)
    squares = confidence.square() + rest * other
    right = torch.stack([-confidence.log(), squares + 1 - 2 * confidence])
    return torch.stack([right, torch.stack([-other.log(), squares + 1 - 2 * other])])


class MeanScores(NamedTuple):
    """Means over samples."""

    accuracy: Sampled
    nll: Sampled
    brier: Sampled


def mean_scores(
    values: Iterable[float], resampled: Iterable[Tensor], by_outcome: Tensor, num_samples: int
) -> MeanScores:
    """Accuracy, NLL and Brier score.

    Args:
        values: The three.
        resampled: ``(3, R)`` the same of resamples.
        by_outcome: Mean :func:`scores_by_outcome`.
        num_samples: Number of samples N.
    """
    ends = [(0.0, 1.0), *zip(*by_outcome.tolist(), strict=True)]
    accuracy, nll, brier = (
        Ordinary(value, draws, num_samples, min(least, value), max(most, value))
        for value, draws, (least, most) in zip(values, resampled, ends, strict=True)
    )
    return MeanScores(Share(accuracy, num_samples), nll, brier)


class TopCells:
    """The predicted classes in rising order of their confidence, as cells whose sums can be resampled.

    Up to 10 000 samples every sample is a cell. Beyond, a cell holds neighbours: cells are cut at the edges of the
    bins, at those of the grid of the smooth error, and so that none has more than a thousandth of the
    samples unless their confidences are equal. Values are always those of the samples; what resampling
    adds to them needs no finer look.
    """

    def __init__(self, top: TopLabels, bins: int, resampling: Resampling):
        self._top, self._bins, self._resampling = top, bins, resampling

    @cached_property
    def _order(self) -> Tensor:
        """Order of samples that are cells themselves."""
        return self._top.confidence.argsort(stable=True)

    @cached_property
    def _cell(self) -> Tensor:
        """Cell of each sample, ``(N,)``, where cells hold several."""
        confidence = self._top.confidence
        ordered = confidence.sort().values
        cuts = torch.arange(1, _CELLS) * len(ordered) // _CELLS
        grid = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
        edges = torch.cat([inner_edges(self._bins, ordered.device), grid, ordered[cuts]]).sort().values
        cell = torch.bucketize(confidence, edges)
        filled = torch.bincount(cell, minlength=len(edges) + 1) > 0
        return (filled.cumsum(0) - 1)[cell]

    @cached_property
    def samples(self) -> Tensor:
        """How many samples each cell has."""
        return self._sums(torch.ones_like(self._top.confidence))

    @cached_property
    def wrong(self) -> Tensor:
        """How many of them are wrong."""
        return self._sums(1 - self._top.correct)

    @cached_property
    def confidence(self) -> Tensor:
        """The mean confidence of each cell."""
        return self._sums(self._top.confidence) / self.samples

    @cached_property
    def residuals(self) -> Tensor:
        """What is right less what was claimed, of each cell, as a share of all samples."""
        return self._sums(self._top.correct - self._top.confidence) / self._resampling.num_samples

    @cached_property
    def last_of_ties(self) -> Tensor:
        """The last of cells of equal confidence."""
        return (self.confidence.diff(append=self.confidence.new_tensor([2.0])) > 0).nonzero()[:, 0]

    @cached_property
    def bin_ends(self) -> tuple[Tensor, Tensor]:
        """Which bins have samples, and the last cell of each."""
        index = bin_index(self._top.confidence, self._bins)
        of_cell = index[self._order]
        if self._resampling.grouped:
            of_cell = index.new_zeros(len(self.samples)).index_copy_(0, self._cell, index)
        ends = (of_cell.diff(append=of_cell.new_tensor([self._bins])) > 0).nonzero()[:, 0]
        return of_cell[ends], ends

    def counts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield how many samples, and how many wrong ones, each cell has in some resamples, ``(R, C)``."""
        if self._resampling.grouped:
            both = self._by_group(torch.ones_like(self._top.correct)), self._by_group(1 - self._top.correct)
            for counts in self._group_counts():
                yield counts @ both[0], counts @ both[1]
        else:
            for counts in self._resampling.counts():
                samples = counts[:, self._order]
                yield samples, samples * self.wrong

    def noise(self) -> Iterator[Tensor]:
        """Yield residuals of the cells in some resamples less those seen, as shares of all samples, ``(R, C)``."""
        if self._resampling.grouped:
            by_group = self._by_group(self._top.correct - self._top.confidence)
            parts = zip(self._group_counts(), torch.split(self._resampling.drawn, self._step), strict=True)
            for counts, drawn in parts:
                yield counts @ by_group / drawn[:, None] - self.residuals
        else:
            for counts in self._resampling.counts():
                yield (counts[:, self._order] - 1) * self.residuals

    def null(self) -> Iterator[Tensor]:
        """Yield the same of outcomes that are right as often as their confidence says."""
        size = self._resampling.num_samples
        if self._resampling.grouped:
            for right in self._resampling.null_sums(self.samples, self.confidence):
                yield (right - self.samples * self.confidence) / size
        else:
            for hits in self._resampling.null_hits(self._top.confidence):
                yield (hits - self._top.confidence)[:, self._order] / size

    @property
    def _step(self) -> int:
        return max(1, _CHUNK_ELEMENTS // len(self.samples))

    def _group_counts(self) -> Iterator[Tensor]:
        return iter(torch.split(self._resampling.groups[1], self._step))

    def _sums(self, values: Tensor) -> Tensor:
        return torch.bincount(self._cell, values) if self._resampling.grouped else values[self._order]

    def _by_group(self, values: Tensor) -> Tensor:
        """Sums of each group and cell, ``(G, C)``."""
        groups, counts = self._resampling.groups
        shape = counts.shape[1], len(self.samples)
        return torch.bincount(groups * shape[1] + self._cell, values, minlength=shape[0] * shape[1]).view(
            shape
        )


class Selective(NamedTuple):
    """What the risk-coverage curve says."""

    failure_auroc: Sampled
    aurc: Sampled
    eaurc: Sampled
    risk_at_coverage: Sampled
    coverage_at_risk: Sampled


def _selective(top: TopLabels, cells: TopCells, resampling: Resampling) -> Selective:
    # Groups differ in size, so a resample may have a few samples more.
    curve = RankedCurve(cells.last_of_ties, most=resampling.num_samples + resampling.grouped * _GROUPS)
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


def _auroc(given: Predictions, resampling: Resampling) -> Ordinary:
    probs = given.matrix()
    areas = class_aurocs(probs, given.labels)
    value = float(areas.nanmean())
    if math.isnan(value):
        return Ordinary(value, torch.full((resampling.resamples,), math.nan))
    if probs.numel() * resampling.resamples > _RANKED_ELEMENTS:
        influence = auroc_influence(probs, given.labels, areas)
        return Ordinary(value, (value + resampling.means(influence[:, None])[:, 0]).clamp(0, 1))
    ranks = [
        _Ranks(values[0], given.labels == classes[0])
        for classes, values in _single_columns(probs)
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


def _single_columns(probs: Tensor) -> Iterator[tuple[range, Tensor]]:
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
    for classes, values in _single_columns(probs):
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


def _binned_errors(top: TopLabels, cells: TopCells, bins: int) -> "BinErrors":
    filled, ends = cells.bin_ends

    def by_bin(residuals: Tensor) -> Tensor:
        sums = residuals.new_zeros(len(residuals), bins)
        sums[:, filled] = residuals.cumsum(1)[:, ends].diff(dim=1, prepend=sums[:, :1])
        return sums

    noise, null = (torch.cat([by_bin(part) for part in draws]) for draws in (cells.noise(), cells.null()))
    return errors_of_bins(top_bins(top, bin_index(top.confidence, bins), bins), noise, null)


class PositiveDraws:
    """The errors of the probability of one class of two."""

    def __init__(self, one: TopLabels, bins: int, resampling: Resampling):
        self._one, self._bins, self._resampling = one, bins, resampling
        self._cells = TopCells(one, bins, resampling)

    @cached_property
    def brier(self) -> Sampled:
        """The mean squared error of the probability."""
        one, resampling = self._one, self._resampling
        squared = (one.confidence - one.correct).square()
        resampled = resampling.means(squared[:, None])[:, 0]
        # Half the Brier score of both classes.
        ends = scores_by_outcome(one.confidence.maximum(1 - one.confidence), 2)[:, 1].mean(-1) / 2
        return Ordinary(float(squared.mean()), resampled, resampling.num_samples, *ends.tolist())

    @cached_property
    def bins(self) -> "BinErrors":
        """The errors of the bins of the probability."""
        return _binned_errors(self._one, self._cells, self._bins)

    @cached_property
    def smooth_ece(self) -> Sampled:
        """The smooth error of the probability."""
        return _smooth_ece(self._one, self._cells)


class BinErrors(NamedTuple):
    """The errors of bins of equal width."""

    ece: Sampled
    mce: Sampled
    rmsce: Sampled
    rmsce_debiased: Sampled
    over_confidence: Sampled
    under_confidence: Sampled


def errors_of_bins(binned: TopBins, noise: Tensor, null: Tensor) -> BinErrors:
    """The errors of confidence bins, from the noise of their gaps and from gaps of labels drawn by chance.

    Args:
        binned: Sums over the samples of each bin.
        noise: ``(R, bins)`` resampled gaps minus those seen, as shares of all samples.
        null: ``(S, bins)`` gaps of labels drawn from the probabilities, as shares of all samples.
    """
    count = float(binned.samples.sum())
    gaps = binned.gaps / count
    shares = (binned.samples / count).clamp(min=1 / count)

    # The gap of one more sample, were it wrong, were it right, and the larger of both; none in empty bins.
    claimed = binned.confidence / binned.samples
    adds = {-1: claimed, 1: 1 - claimed, 0: torch.maximum(claimed, 1 - claimed)}

    def sampled(norm: Callable[[Tensor], Tensor], sign: int = 0) -> Gaps:
        return norm_of_gaps(
            norm,
            gaps,
            noise,
            null,
            size=binned.samples.sum(),
            adds=adds[sign].nan_to_num(),
            sign=sign,
        )

    rmsce = sampled(lambda d: (d.square() / shares).sum(-1).sqrt())
    return BinErrors(
        ece=sampled(l1),
        mce=LargestGap(max_gap(binned), binned, null),
        rmsce=rmsce,
        rmsce_debiased=Debiased(root_mean_square_gap(binned, debiased=True), rmsce),
        over_confidence=sampled(lambda d: (-d).clamp(min=0).sum(-1), sign=-1),
        under_confidence=sampled(lambda d: d.clamp(min=0).sum(-1), sign=1),
    )


def _smooth_ece(top: TopLabels, cells: TopCells) -> Unbinned:
    def on_grid(residuals: Tensor) -> Tensor:
        return residuals_on_grid(cells.confidence, residuals, _GRID)

    residual = (top.correct - top.confidence)[None]
    value = float(smooth_error(residuals_on_grid(top.confidence, residual) / len(top.confidence)))
    noise, null = (torch.cat([on_grid(part) for part in draws]) for draws in (cells.noise(), cells.null()))
    seen = on_grid(cells.residuals[None])[0]
    slope = _smooth_slope(seen, value, -noise)
    return Unbinned(value, _smooth_errors(noise), _smooth_errors(null), slope, len(top.confidence))


def _ks_error(top: TopLabels, cells: TopCells) -> Unbinned:
    last = cells.last_of_ties
    seen = cells.residuals.cumsum(0)[last]
    at = seen.abs().argmax()

    def largest(residuals: Tensor) -> Tensor:
        running = residuals.cumsum(1)[:, last]
        return torch.stack([running.abs().amax(1), running[:, at] * (1 if seen[at] >= 0 else -1)], dim=1)

    noise, null = (torch.cat([largest(part) for part in draws]) for draws in (cells.noise(), cells.null()))
    return Unbinned(largest_running_gap(top), noise[:, 0], null[:, 0], -noise[:, 1], len(top.confidence))


@dataclass(frozen=True)
class Debiased:
    """The debiased root mean square error, with the interval of the plain one: both aim at one truth."""

    value: float
    plain: Gaps

    def estimate(self, confidence: float) -> Estimate:
        """The plain interval, widened where needed to contain the debiased value."""
        of = self.plain.estimate(confidence)
        return Estimate(self.value, min(of.low, self.value), max(of.high, self.value), of.noise_floor)

    def deviation(self) -> Deviation:
        """That of the plain form, less what debiasing took away."""
        least, most = self.plain.deviation()
        return Deviation(*(part + self.value - self.plain.value for part in (least, most)))


def _smooth_errors(residuals: Tensor) -> Tensor:
    """:func:`smooth_error` of many rows ``(R, cells)``: bisection in a table, then interpolation."""
    cells = residuals.shape[1]
    spectrum = torch.fft.rfft(torch.cat([residuals, residuals.flip(-1)], dim=-1))
    bandwidths = torch.logspace(-4, 0, 2**_HALVINGS + 1, dtype=torch.float64)
    frequency = math.pi * torch.arange(cells + 1, dtype=torch.float64)
    # Below e^-40 nothing is left, and numbers too small for normal arithmetic are slow.
    table = torch.exp((-((frequency * bandwidths[:, None]) ** 2) / 2).clamp(min=-40))
    low = torch.zeros(len(residuals), dtype=torch.int64)
    high = torch.full_like(low, 2**_HALVINGS)
    above = torch.zeros(len(residuals), dtype=torch.float64)
    below = -torch.ones_like(above)
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        smoothed = torch.fft.irfft(spectrum * table[middle], n=2 * cells)[:, :cells]
        excess = smoothed.abs().sum(1) - bandwidths[middle]
        too_narrow = excess > 0
        low, high = torch.where(too_narrow, middle, low), torch.where(too_narrow, high, middle)
        above, below = torch.where(too_narrow, excess, above), torch.where(too_narrow, below, excess)
    share = above / (above - below)
    return bandwidths[low] + share * (bandwidths[high] - bandwidths[low])


def _smooth_slope(residuals: Tensor, bandwidth: float, noise: Tensor) -> Tensor:
    """First-order change of the smooth error at a fixed bandwidth, which bounds that at its own."""
    cells = len(residuals)
    frequency = math.pi * torch.arange(cells + 1, dtype=torch.float64)
    damping = torch.exp(-((frequency * bandwidth) ** 2) / 2)

    def smoothed(rows: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.rfft(torch.cat([rows, rows.flip(-1)], dim=-1))
        rebuilt: Tensor = torch.fft.irfft(spectrum * damping, n=2 * cells)
        return rebuilt[..., :cells]

    return smoothed(noise) @ smoothed(residuals).sign()


@dataclass(frozen=True)
class ClassDraws:
    """Labels, and what is needed to resample the gaps of classes; ``null_labels`` ``(N, S)`` are drawn from the probabilities."""

    labels: Tensor
    bins: int
    resampling: Resampling
    null_labels: Tensor

    @property
    def most_classes(self) -> int:
        """How many classes to look at together, because each takes all resamples of all its bins."""
        return max(1, _CHUNK_ELEMENTS // (self.resampling.resamples * (self.bins + 1)))

    def noise(self, cells: ClassCells) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gaps ``(M, B)`` of some classes, their noise and null gaps, and shares of samples; bins all of them leave empty are left out."""
        num_classes, num_samples = cells.bin.shape
        filled = torch.bincount(cells.bin.flatten() + 1, minlength=self.bins + 1)[1:] > 0
        filled[0] = True  # nothing may count at all
        bins = int(filled.sum())
        # Entries that do not count fall in one more bin, which is dropped at the end.
        place = torch.nn.functional.pad(torch.where(filled, filled.cumsum(0) - 1, bins), (1, 0), value=bins)
        cell = place[cells.bin + 1]
        cell += torch.arange(num_classes)[:, None] * (bins + 1)
        size = num_classes * (bins + 1)
        classes = torch.arange(cells.classes.start, cells.classes.stop)[:, None]
        residuals = self._by_group((self.labels == classes).double() - cells.values, cell, size)
        if self.null_labels.shape[1] > 1:
            null = self._drawn(cells, cell, size)
        else:
            drawn = self._by_group((self.null_labels[:, 0] == classes).double() - cells.values, cell, size)
            null = self.resampling.multipliers @ drawn
            # One label for each sample shows how cells vary together; how much each does is known.
            spread = torch.bincount(
                cell.flatten(), (cells.values * (1 - cells.values)).flatten(), minlength=size
            )
            null *= (
                spread.clamp(min=0) / drawn.square().sum(0).clamp(min=torch.finfo(null.dtype).tiny)
            ).sqrt()
        gaps = residuals.sum(0)
        samples = torch.bincount(cell.flatten(), minlength=size).double()
        sums = gaps, self.resampling.groups[1] @ residuals - gaps, null, samples
        gaps, noise, null, shares = (
            part.view(*part.shape[:-1], num_classes, bins + 1)[..., :bins] / num_samples for part in sums
        )
        return gaps, noise, null, shares

    def _by_group(self, values: Tensor, cell: Tensor, size: int) -> Tensor:
        """Sums ``(G, size)`` of values ``(M, N)`` whose cells are given."""
        groups, counts = self.resampling.groups
        num_groups = counts.shape[1]
        at = cell + groups * size
        return torch.bincount(at.flatten(), values.flatten(), minlength=num_groups * size).view(
            num_groups, size
        )

    def _drawn(self, cells: ClassCells, cell: Tensor, size: int) -> Tensor:
        """Gaps ``(S, size)`` of each set of drawn labels."""
        first, draws = cells.classes.start, self.null_labels.shape[1]
        null = torch.zeros(draws * size, dtype=torch.int64)
        start = 0
        # A few samples at a time: places in all draws of all samples would take ten times their memory.
        for labels in torch.split(self.null_labels, max(1, _CHUNK_ELEMENTS // draws)):
            inside = (labels >= first) & (labels < cells.classes.stop)
            sample, draw = inside.nonzero(as_tuple=True)
            drawn = draw * size + cell[labels[sample, draw].long() - first, sample + start]
            null += torch.bincount(drawn, minlength=draws * size)
            start += len(labels)
        return null.view(draws, size) - torch.bincount(cell.flatten(), cells.values.flatten(), minlength=size)


class MeanOfClasses:
    """The mean of the errors of classes that come a few at a time, and the estimate of each."""

    def __init__(self, confidence: float | None):
        self._confidence = confidence
        self._sums: list[Gaps] = []
        self._count = 0
        self.estimates: list[Estimate] = []

    def add(self, errors: Gaps) -> None:
        """Take in the errors of some classes, the last axis."""
        self._sums.append(Gaps(*(part.sum(-1) for part in errors)))
        self._count += errors.seen.shape[-1]
        if self._confidence is not None:
            self.estimates += [error.estimate(self._confidence) for error in errors.per_class()]

    def mean(self) -> Gaps:
        """Average over all classes: what holds for each class's error holds so for their mean.

        One more sample adds to the errors of two classes, its own and the one it was taken for.
        """
        mean = Gaps(*(torch.stack(parts).sum(0) / self._count for parts in zip(*self._sums, strict=True)))
        return mean._replace(unseen=mean.unseen * 2 / self._count)


def _equal_width(probs: Tensor, sample: Sample, draws: ClassDraws, confidence: float | None) -> "ClassErrors":
    num_samples = len(draws.labels)
    errors = MeanOfClasses(confidence)
    squares: list[SquaredGaps] = []
    for cells in width_cells(probs, draws.bins, draws.most_classes):
        gaps, noise, null, shares = draws.noise(cells)
        errors.add(norm_of_gaps(l1, gaps, noise, null, size=cells.kept))
        squares.append(SquaredGaps.of(gaps, noise, null, shares, num_samples))
    calibration = SquaredGaps(*(torch.stack(parts).sum(0) for parts in zip(*squares, strict=True)))
    # One more sample adds to two classes, its own and the one it was taken for.
    calibration = calibration._replace(unseen=calibration.unseen * 2 / probs.shape[1])
    by_group = torch.bincount(draws.resampling.groups[0], sample.squared_distance)
    resampled = draws.resampling.groups[1] @ by_group / draws.resampling.drawn
    ends = scores_by_outcome(sample.top.confidence, probs.shape[1])[:, 1].mean(-1).tolist()
    brier = Ordinary(float(sample.squared_distance.mean()), resampled, num_samples, *ends)
    least, most = calibration.deviation()
    of_brier = brier.deviation()
    refinement = Refinement(
        max(0.0, brier.value - calibration.value), Deviation(of_brier.least - most, of_brier.most - least)
    )
    return ClassErrors(errors.estimates, errors.mean(), calibration, refinement)


class ClassErrors(NamedTuple):
    """The errors of all classes in bins of equal width, and of each of them."""

    each: list[Estimate]
    sce: Sampled
    brier_calibration: Sampled
    brier_refinement: Sampled


@dataclass(frozen=True)
class Refinement:
    """What is left of the Brier score: too small by as much as noise makes the calibration part too large."""

    value: float
    deviations: Deviation

    def estimate(self, confidence: float) -> Estimate:
        """The value less what resampling says it may be off by."""
        tail = (1 - confidence) / 2
        low = self.value - quantile(self.deviations.most, 1 - tail)
        high = self.value - quantile(self.deviations.least, tail)
        return Estimate(self.value, max(0.0, min(low, self.value)), min(WORST_BRIER, max(high, self.value)))

    def deviation(self) -> Deviation:
        """As resampled."""
        return self.deviations


class SquaredGaps(NamedTuple):
    """Sums of squared gaps over shares of samples: the square of a norm, by which it is bounded."""

    seen: Tensor
    null: Tensor
    shrunk: Tensor
    shrunk_noisy: Tensor
    shrunk_null: Tensor
    grown: Tensor
    grown_noisy: Tensor
    unseen: Tensor

    @classmethod
    def of(cls, gaps: Tensor, noise: Tensor, null: Tensor, shares: Tensor, num_samples: int) -> "SquaredGaps":
        """Sum over the bins of all given classes."""
        shares = shares.clamp(min=1 / num_samples)

        def by_class(values: Tensor) -> Tensor:
            return (values.square() / shares).sum(-1)

        def total(values: Tensor) -> Tensor:
            return by_class(values).sum(-1)

        noise = -noise
        shrunk, grown = plausible(lambda values: by_class(values).sqrt(), gaps, noise)
        return cls(
            total(gaps),
            total(null),
            total(shrunk),
            total(shrunk + noise),
            total(shrunk + null),
            total(grown),
            total(grown + noise),
            len(gaps) * unseen_share(len(noise), num_samples).square(),
        )

    @property
    def value(self) -> float:
        """The sum of the sample."""
        return float(self.seen)

    def estimate(self, confidence: float) -> Estimate:
        """The squared ends of the norm's interval."""
        root = Gaps(
            self.seen.sqrt(),
            self.null.sqrt(),
            self.shrunk_noisy.sqrt() - self.shrunk.sqrt(),
            self.shrunk_null.sqrt() - self.shrunk.sqrt(),
            self.grown_noisy.sqrt() - self.grown.sqrt(),
            self.unseen.sqrt(),
        ).estimate(confidence, largest=math.sqrt(WORST_BRIER))
        low, high = root.low**2, min(WORST_BRIER, root.high**2)
        return Estimate(self.value, min(low, self.value), max(high, self.value), float(self.null.mean()))

    def deviation(self) -> Deviation:
        """Between what shrunk and grown gaps show; noise enters squares more, the larger the gaps."""
        shrunk, grown = self.shrunk_noisy - self.shrunk, self.grown_noisy - self.grown
        linear = 2 * (self.seen * self.unseen).sqrt()
        return Deviation(
            torch.minimum(shrunk, grown) - linear - self.unseen, torch.maximum(shrunk, grown) + linear
        )


def _adaptive(probs: Tensor, threshold: float | None, draws: ClassDraws) -> Gaps:
    num_samples = len(draws.labels)
    errors = MeanOfClasses(None)
    for cells in adaptive_cells(probs, draws.bins, threshold, draws.most_classes):
        gaps, noise, null, _ = draws.noise(cells)
        # Gaps are means over all samples, and this error is one over those that count.
        weight = (num_samples / cells.kept.clamp(min=1).double())[:, None]
        # Nothing is known of a class of which no sample counts, and it has no error.
        size = torch.where(cells.kept > 0, cells.kept, math.inf)
        errors.add(norm_of_gaps(l1, gaps * weight, noise * weight, null * weight, size=size))
    return errors.mean()

"""Every metric of one set of predictions under the same resamples."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from macc.metrics._binning import (
    ClassCells,
    TopBins,
    TopLabels,
    adaptive_cells,
    bin_index,
    class_labels,
    columns,
    top_bins,
    width_cells,
)
from macc.metrics._calibration_errors import (
    max_gap,
    residuals_on_grid,
    root_mean_square_gap,
    smooth_error,
)
from macc.metrics._inputs import Predictions
from macc.metrics._intervals import (
    Deviation,
    Estimate,
    Gaps,
    LargestCoverage,
    LargestGap,
    Ordinary,
    Sampled,
    Unbinned,
    l1,
    norm_of_gaps,
    plausible,
    quantile,
)
from macc.metrics._scores import answered_samples, class_aurocs, squared_distances

# 32 MB of float64, of which a few copies live at once.
_CHUNK_ELEMENTS = 2**22
# Beyond this many samples, gaps of classes are resampled by random groups of samples.
_UNGROUPED_SAMPLES = 10_000
_GROUPS = 4096
# Labels drawn from the probabilities: as many sets as resamples while they are cheap.
_NULL_LABELS = 10_000_000
_FEWEST_NULL_DRAWS = 200
_DRAWN_ELEMENTS = 2**24
# Resampled smooth errors need less precision than the one they are about: fewer cells, and
# bandwidths from a table of 129, each 7 % wider than the last.
_GRID = 512
_HALVINGS = 7
# Beyond this many ranks, resampled areas under the ROC curve are linear in the counts.
_RANKED_ELEMENTS = 300_000_000

COVERAGE = 0.9
RISK = 0.05
THRESHOLD = 0.01

MEANS = ("accuracy", "nll", "brier")
SELECTIVE = ("failure_auroc", "aurc", "eaurc", "risk_at_coverage", "coverage_at_risk")
BINNED = {"ece", "over_confidence", "under_confidence", "mce", "rmsce", "rmsce_debiased"}
EQUAL_WIDTH = {"sce", "brier_calibration", "brier_refinement"}
CLASSWISE = {*EQUAL_WIDTH, "ace", "tace"}
# Of two classes only.
POSITIVE = {"positive_brier", "positive_ece", "positive_mce", "positive_smooth_ece"}
# In the order of printed tables.
METRICS = (
    *("accuracy", "nll", "brier", "brier_calibration", "brier_refinement", "positive_brier", "auroc"),
    *("positive_ece", "positive_mce", "positive_smooth_ece"),
    *(
        "ece",
        "over_confidence",
        "under_confidence",
        "mce",
        "rmsce",
        "rmsce_debiased",
        "smooth_ece",
        "ks_error",
    ),
    *("sce", "ace", "tace"),
    *("failure_auroc", "aurc", "eaurc", "risk_at_coverage", "coverage_at_risk"),
)


def metrics_of(num_classes: int) -> tuple[str, ...]:
    """The metrics that predictions of so many classes have, in the order of printed tables."""
    return METRICS if num_classes == 2 else tuple(name for name in METRICS if name not in POSITIVE)


@dataclass(frozen=True)
class Resampling:
    """Repeatable resamples of ``num_samples`` samples: the same object always gives the same ones."""

    num_samples: int
    resamples: int
    seed: int

    def counts(self) -> Iterator[Tensor]:
        """Yield ``(R, N)`` counts, how often each resample holds each sample, a few resamples at a time."""
        return self._counts(self.num_samples, self._generator(0))

    def null_hits(self, confidence: Tensor) -> Iterator[Tensor]:
        """Yield ``(S, N)`` outcomes that are right as often as their confidence says."""
        generator = self._generator(1)
        for rows in self._chunks(self.num_samples):
            shape = rows, self.num_samples
            draws = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
            yield (draws < confidence).double()

    def null_labels(self, given: Predictions) -> Tensor:
        """Labels ``(N, S)`` drawn from the probabilities of each sample."""
        generator = self._generator(2)
        draws = min(self.resamples, max(_FEWEST_NULL_DRAWS, _NULL_LABELS // self.num_samples))
        kind = _smallest_type(given.num_classes)
        drawn = []
        for block in given.blocks():
            # Rounding must not draw a class beyond the last: rows sum to 1 only nearly.
            for cumulative in torch.split(block.probs.cumsum(1), max(1, _DRAWN_ELEMENTS // draws)):
                shape = len(cumulative), draws
                uniform = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
                labels = torch.searchsorted(cumulative, uniform.mul_(cumulative[:, -1:]))
                drawn.append(labels.clamp_(max=given.num_classes - 1).to(kind))
        return torch.cat(drawn)

    def groups(self) -> tuple[Tensor, Tensor]:
        """Group of each sample, ``(N,)``, and counts ``(R, G)``, how often each resample holds each group.

        Up to 10 000 samples every sample is its own group. Beyond, means of random groups are as
        good as samples to resample from, and their number no longer grows.
        """
        generator = self._generator(3)
        if self.num_samples <= _UNGROUPED_SAMPLES:
            groups, size = torch.arange(self.num_samples), self.num_samples
        else:
            groups, size = torch.randperm(self.num_samples, generator=generator) % _GROUPS, _GROUPS
        return groups, torch.cat(list(self._counts(size, generator)))

    def _counts(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        for rows in self._chunks(size):
            draws = torch.randint(size, (rows, size), generator=generator)
            draws += torch.arange(rows)[:, None] * size
            yield torch.bincount(draws.flatten(), minlength=rows * size).view(rows, size).double()

    def _chunks(self, size: int) -> Iterator[int]:
        step = max(1, _CHUNK_ELEMENTS // size)
        for start in range(0, self.resamples, step):
            yield min(step, self.resamples - start)

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


def sample_metrics(
    given: Predictions,
    wanted: Iterable[str],
    *,
    bins: int,
    resampling: Resampling,
    on_step: Callable[[str], None],
    positive: int | None = None,
) -> tuple[dict[str, Sampled], Gaps | None]:
    """Resample the wanted metrics, and the class-wise errors behind ``sce`` when it is wanted.

    Args:
        given: Predictions on the CPU.
        wanted: Names from ``METRICS``.
        bins: Number of bins.
        resampling: The resamples; predictions of the same samples share them.
        on_step: Called with the name of each part before it is computed.
        positive: The positive class of two; class 1 by default.
    """
    names = set(wanted)
    found: dict[str, Sampled] = {}
    classwise = None
    on_step("scores")
    sample = one_pass(given)
    if names & set(MEANS):
        found.update(_means(sample, resampling))
    if names & set(SELECTIVE):
        on_step("selective prediction")
        found.update(_selective(sample.top, resampling))
    if "auroc" in names:
        on_step("auroc")
        found["auroc"] = _auroc(given, resampling)
    if names & BINNED:
        on_step("binned errors")
        found.update(_binned_errors(sample.top, bins, resampling))
    if names & POSITIVE:
        on_step("positive class")
        one = class_labels(given.blocks(), 1 if positive is None else positive)
        found.update(_positive(one, names, bins, resampling))
    for name, unbinned in (("smooth_ece", _smooth_ece), ("ks_error", _ks_error)):
        if name in names:
            on_step(name)
            found[name] = unbinned(sample.top, resampling)
    if names & CLASSWISE:
        on_step("labels by chance")
        draws = ClassDraws(given.labels, bins, *resampling.groups(), resampling.null_labels(given))
        probs = given.matrix()
        if names & EQUAL_WIDTH:
            on_step("class-wise errors")
            classwise, parts = _equal_width(probs, sample.squared_distance, draws)
            found.update(parts)
        for name, threshold in (("ace", None), ("tace", THRESHOLD)):
            if name in names:
                on_step("adaptive errors")
                found[name] = _adaptive(probs, threshold, draws).mean()
    return {name: found[name] for name in METRICS if name in names}, classwise


def count_steps(wanted: Iterable[str]) -> int:
    """How often :func:`sample_metrics` will call ``on_step``."""
    names = set(wanted)
    alone = len(names & {"auroc", "smooth_ece", "ks_error", "ace", "tace"})
    return (
        1
        + alone
        + sum(bool(names & group) for group in (set(SELECTIVE), BINNED, POSITIVE, CLASSWISE, EQUAL_WIDTH))
    )


def _means(sample: Sample, resampling: Resampling) -> dict[str, Sampled]:
    columns_ = torch.stack([sample.top.correct, -sample.log_likelihood, sample.squared_distance])
    # A label of probability 0 makes NLL infinite wherever it is drawn, and 0 times infinity is 0 here.
    infinite = columns_.isinf().double()
    finite = torch.where(columns_.isinf(), 0.0, columns_)
    resampled = torch.cat(
        [
            torch.where(infinite @ counts.T > 0, math.inf, finite @ counts.T / resampling.num_samples)
            for counts in resampling.counts()
        ],
        dim=1,
    )
    return {
        name: Ordinary(float(column.mean()), draws)
        for name, column, draws in zip(MEANS, columns_, resampled, strict=True)
    }


def _selective(top: TopLabels, resampling: Resampling) -> dict[str, Sampled]:
    curve = RankedCurve(top)
    seen = curve.resampled(torch.ones(1, resampling.num_samples, dtype=torch.float64))
    resampled = [curve.resampled(counts) for counts in resampling.counts()]
    found: dict[str, Sampled] = {
        name: Ordinary(float(seen[name]), torch.cat([part[name] for part in resampled])) for name in SELECTIVE
    }
    answered, wrong = curve.errors(torch.ones(1, resampling.num_samples, dtype=torch.float64))
    found["coverage_at_risk"] = LargestCoverage(
        found["coverage_at_risk"].value, found["coverage_at_risk"].deviation(), answered[0], wrong[0], RISK
    )
    return found


class RankedCurve:
    """The risk-coverage curve of samples that count any number of times each.

    Between two distinct confidences errors are spread evenly, so the risk at the k-th sample is
    ``(E_a + (k - a) s) / k`` with slope ``s``, and its sum over a group is closed in harmonic numbers.
    """

    def __init__(self, top: TopLabels):
        confidence, self._order = top.confidence.sort(descending=True)
        self._wrong = 1 - top.correct[self._order]
        last = torch.ones_like(confidence, dtype=torch.bool)
        last[:-1] = confidence[1:] < confidence[:-1]
        self._last = last.nonzero()[:, 0]
        whole = torch.arange(1, len(confidence) + 1, dtype=torch.float64)
        self._harmonic = torch.cat([whole.new_zeros(1), whole.reciprocal().cumsum(0)])

    def errors(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """How many samples are answered down to each confidence, and how many of them wrongly, ``(R, G)``."""
        counts = counts[:, self._order]
        return counts.cumsum(1)[:, self._last], (counts * self._wrong).cumsum(1)[:, self._last]

    def resampled(self, counts: Tensor) -> dict[str, Tensor]:
        """The selective metrics ``(R,)`` for counts ``(R, N)``."""
        num_samples = counts.shape[1]
        end, errors = self.errors(counts)
        start = torch.nn.functional.pad(end, (1, 0))[:, :-1]
        errors_before = torch.nn.functional.pad(errors, (1, 0))[:, :-1]
        size, wrong = end - start, errors - errors_before
        slope = wrong / size.clamp(min=1)
        harmonic = self._harmonic[end.long()] - self._harmonic[start.long()]
        area = (wrong + (errors_before - start * slope) * harmonic).sum(1) / num_samples
        all_wrong = errors[:, -1]
        all_right = num_samples - all_wrong
        tail = self._harmonic[-1] - self._harmonic[all_right.round().long()]
        best = (all_wrong - all_right * tail) / num_samples
        beaten = ((size - wrong) * (all_wrong[:, None] - errors + wrong / 2)).sum(1)
        answered = answered_samples(COVERAGE, num_samples)
        at = torch.searchsorted(end, end.new_full((len(end), 1), answered)).clamp(max=end.shape[1] - 1)
        risk = (errors_before + (answered - start) * slope).gather(1, at)[:, 0] / answered
        within = (errors <= RISK * end + 1e-9) & (end > 0)
        return {
            "failure_auroc": beaten
            / (all_wrong * all_right),  # 0 / 0, undefined, when all are right or wrong
            "aurc": area,
            "eaurc": (area - best).clamp(min=0),
            "risk_at_coverage": risk,
            "coverage_at_risk": torch.where(within, end, 0.0).amax(1) / num_samples,
        }


def _auroc(given: Predictions, resampling: Resampling) -> Ordinary:
    probs = given.matrix()
    areas = class_aurocs(probs, given.labels)
    value = float(areas.nanmean())
    if math.isnan(value):
        return Ordinary(value, torch.full((resampling.resamples,), math.nan))
    if probs.numel() * resampling.resamples > _RANKED_ELEMENTS:
        influence = auroc_influence(probs, given.labels, areas)
        return Ordinary(
            value,
            torch.cat([value + counts @ influence / len(influence) for counts in resampling.counts()]).clamp(
                0, 1
            ),
        )
    ranks = [_Ranks(values[0], given.labels == classes[0]) for classes, values in _single_columns(probs)]
    resampled = [
        torch.stack([rank.areas(counts) for rank in ranks]).nanmean(0) for counts in resampling.counts()
    ]
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
    num_samples = len(labels)
    defined = int((~areas.isnan()).sum())
    influence = torch.zeros(num_samples, dtype=torch.float64)
    for classes, values in _single_columns(probs):
        area, positive = areas[classes[0]], labels == classes[0]
        if bool(area.isnan()):
            continue
        share = positive.double().mean()
        up, down = values[0][positive].sort().values, values[0][~positive].sort().values
        for rows, others, of_kind in ((positive, down, share), (~positive, up, 1 - share)):
            own = values[0][rows]
            placed = torch.searchsorted(others, own, right=False) + torch.searchsorted(
                others, own, right=True
            )
            beaten = placed.double() / (2 * len(others))
            influence[rows] += ((beaten if others is down else 1 - beaten) - area) / of_kind / defined
    return influence


def _noise(top: TopLabels, resampling: Resampling, sums: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Sums, as means over samples, of resampled residuals less those seen, and of null residuals.

    Args:
        top: The predicted classes.
        resampling: The resamples.
        sums: Maps residuals ``(R, N)`` to ``(R, C)``.
    """
    residual = top.correct - top.confidence
    noise = [sums((counts - 1) * residual) for counts in resampling.counts()]
    null = [sums(hits - top.confidence) for hits in resampling.null_hits(top.confidence)]
    return torch.cat(noise) / resampling.num_samples, torch.cat(null) / resampling.num_samples


def _binned_errors(top: TopLabels, bins: int, resampling: Resampling) -> dict[str, Sampled]:
    index = bin_index(top.confidence, bins)
    binned = top_bins(top, index, bins)
    membership = torch.nn.functional.one_hot(index, bins).double()
    noise, null = _noise(top, resampling, lambda residuals: residuals @ membership)
    return errors_of_bins(binned, noise, null)


def _positive(one: TopLabels, names: set[str], bins: int, resampling: Resampling) -> dict[str, Sampled]:
    found: dict[str, Sampled] = {}
    if "positive_brier" in names:
        squared = (one.confidence - one.correct).square()
        resampled = torch.cat([counts @ squared for counts in resampling.counts()])
        found["positive_brier"] = Ordinary(float(squared.mean()), resampled / resampling.num_samples)
    if names & {"positive_ece", "positive_mce"}:
        binned = _binned_errors(one, bins, resampling)
        found |= {"positive_ece": binned["ece"], "positive_mce": binned["mce"]}
    if "positive_smooth_ece" in names:
        found["positive_smooth_ece"] = _smooth_ece(one, resampling)
    return found


def errors_of_bins(binned: TopBins, noise: Tensor, null: Tensor) -> dict[str, Sampled]:
    """The errors of confidence bins, from the noise of their gaps and from gaps of labels drawn by chance.

    Args:
        binned: Sums over the samples of each bin.
        noise: ``(R, bins)`` resampled gaps minus those seen, as shares of all samples.
        null: ``(S, bins)`` gaps of labels drawn from the probabilities, as shares of all samples.
    """
    count = float(binned.samples.sum())
    gaps = binned.gaps / count
    shares = (binned.samples / count).clamp(min=1 / count)

    def sampled(norm: Callable[[Tensor], Tensor], sign: int = 0) -> Gaps:
        return norm_of_gaps(norm, gaps, noise, null, sign=sign)

    rmsce = sampled(lambda d: (d.square() / shares).sum(-1).sqrt())
    return {
        "ece": sampled(l1),
        "mce": LargestGap(max_gap(binned), binned, null),
        "rmsce": rmsce,
        "rmsce_debiased": Debiased(root_mean_square_gap(binned, debiased=True), rmsce),
        "over_confidence": sampled(lambda d: (-d).clamp(min=0).sum(-1), sign=-1),
        "under_confidence": sampled(lambda d: d.clamp(min=0).sum(-1), sign=1),
    }


def _smooth_ece(top: TopLabels, resampling: Resampling) -> Unbinned:
    def on_grid(residuals: Tensor) -> Tensor:
        return residuals_on_grid(top.confidence, residuals, _GRID)

    residual = (top.correct - top.confidence)[None]
    value = float(smooth_error(residuals_on_grid(top.confidence, residual) / resampling.num_samples))
    noise, null = _noise(top, resampling, on_grid)
    seen = on_grid(residual)[0] / resampling.num_samples
    return Unbinned(value, _smooth_errors(noise), _smooth_errors(null), _smooth_slope(seen, value, noise))


def _ks_error(top: TopLabels, resampling: Resampling) -> Unbinned:
    confidence, order = top.confidence.sort()
    last_of_ties = (confidence.diff(append=confidence.new_tensor([2.0])) > 0).nonzero()[:, 0]
    seen = (top.correct - top.confidence)[order].cumsum(0)[last_of_ties]
    at = seen.abs().argmax()

    def largest(residuals: Tensor) -> Tensor:
        running = residuals[:, order].cumsum(1)[:, last_of_ties]
        return torch.stack([running.abs().amax(1), running[:, at] * seen[at].sign()], dim=1)

    noise, null = _noise(top, resampling, largest)
    value = float(seen[at].abs()) / resampling.num_samples
    return Unbinned(value, noise[:, 0], null[:, 0], noise[:, 1])


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
    """Labels, and what is needed to resample the gaps of classes.

    ``groups`` ``(N,)`` and ``counts`` ``(R, G)`` say how often each resample holds each group of samples;
    ``null_labels`` ``(N, S)`` are drawn from the probabilities.
    """

    labels: Tensor
    bins: int
    groups: Tensor
    counts: Tensor
    null_labels: Tensor

    def noise(self, cells: ClassCells) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gaps ``(M, bins)`` of some classes, their noise and null gaps, and resampled shares of samples."""
        num_classes, num_samples = cells.bin.shape
        first, draws = cells.classes.start, self.null_labels.shape[1]
        size = num_classes * (self.bins + 1)
        # Entries that do not count fall in one more bin, which is dropped at the end.
        cell = torch.where(cells.bin < 0, self.bins, cells.bin)
        cell += torch.arange(num_classes)[:, None] * (self.bins + 1)
        hits = self.labels == torch.arange(first, cells.classes.stop)[:, None]
        at = (cell + self.groups * size).flatten()
        num_groups = self.counts.shape[1]
        residuals = torch.bincount(at, (hits.double() - cells.values).flatten(), minlength=num_groups * size)
        residuals = residuals.view(num_groups, size)
        claimed = torch.bincount(cell.flatten(), cells.values.flatten(), minlength=size)
        null = torch.zeros(draws * size, dtype=torch.int64)
        start = 0
        # A few samples at a time: places in all draws of all samples would take ten times their memory.
        for labels in torch.split(self.null_labels, max(1, _CHUNK_ELEMENTS // draws)):
            inside = (labels >= first) & (labels < cells.classes.stop)
            sample, draw = inside.nonzero(as_tuple=True)
            drawn = draw * size + cell[labels[sample, draw].long() - first, sample + start]
            null += torch.bincount(drawn, minlength=draws * size)
            start += len(labels)
        null = null.view(draws, size) - claimed
        gaps = residuals.sum(0)
        samples = torch.bincount(cell.flatten(), minlength=size).double()
        sums = gaps, self.counts @ residuals - gaps, null, samples
        gaps, noise, null, shares = (
            part.view(*part.shape[:-1], num_classes, self.bins + 1)[..., : self.bins] / num_samples
            for part in sums
        )
        return gaps, noise, null, shares


def _equal_width(
    probs: Tensor, squared_distance: Tensor, draws: ClassDraws
) -> tuple[Gaps, dict[str, Sampled]]:
    num_samples = len(draws.labels)
    errors: list[Gaps] = []
    squares: list[SquaredGaps] = []
    for cells in width_cells(probs, draws.bins):
        gaps, noise, null, shares = draws.noise(cells)
        errors.append(norm_of_gaps(l1, gaps, noise, null))
        squares.append(SquaredGaps.of(gaps, noise, null, shares.clamp(min=1 / num_samples)))
    classwise = Gaps(*(torch.cat(parts, dim=-1) for parts in zip(*errors, strict=True)))
    calibration = SquaredGaps(*(torch.stack(parts).sum(0) for parts in zip(*squares, strict=True)))
    by_group = torch.bincount(draws.groups, squared_distance, minlength=draws.counts.shape[1])
    brier = squared_distance.mean()
    least, most = calibration.deviation()
    noise_of_brier = draws.counts @ by_group / num_samples - brier
    return classwise, {
        "sce": classwise.mean(),
        "brier_calibration": calibration,
        "brier_refinement": Refinement(
            float(brier - calibration.seen), Deviation(noise_of_brier - most, noise_of_brier - least)
        ),
    }


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
        return Estimate(self.value, min(low, self.value), max(high, self.value))

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

    @classmethod
    def of(cls, gaps: Tensor, noise: Tensor, null: Tensor, shares: Tensor) -> "SquaredGaps":
        """Sum over the bins of all given classes."""

        def total(values: Tensor) -> Tensor:
            return (values.square() / shares).sum((-1, -2))

        shrunk, grown = plausible(gaps, noise)
        return cls(
            total(gaps),
            total(null),
            total(shrunk),
            total(shrunk + noise),
            total(shrunk + null),
            total(grown),
            total(grown + noise),
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
        ).estimate(confidence, largest=math.sqrt(2))
        low, high = root.low**2, root.high**2
        return Estimate(self.value, min(low, self.value), max(high, self.value), float(self.null.mean()))

    def deviation(self) -> Deviation:
        """Between what shrunk and grown gaps show; noise enters squares more, the larger the gaps."""
        shrunk, grown = self.shrunk_noisy - self.shrunk, self.grown_noisy - self.grown
        return Deviation(torch.minimum(shrunk, grown), torch.maximum(shrunk, grown))


def _adaptive(probs: Tensor, threshold: float | None, draws: ClassDraws) -> Gaps:
    num_samples = len(draws.labels)
    errors = []
    for cells in adaptive_cells(probs, draws.bins, threshold):
        gaps, noise, null, _ = draws.noise(cells)
        # Gaps are means over all samples, and this error is one over those that count.
        weight = (num_samples / cells.kept.clamp(min=1).double())[:, None]
        errors.append(norm_of_gaps(l1, gaps * weight, noise * weight, null * weight))
    return Gaps(*(torch.cat(parts, dim=-1) for parts in zip(*errors, strict=True)))

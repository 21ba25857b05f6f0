"""What is kept of any number of samples so that metrics *with intervals* can be told in constant memory.

Each sample is put at random into one of a fixed number of groups, and sums are kept by group: resampling
groups stands in for resampling samples, because a group's sums vary as those of samples do. Sums add up,
so parts of a file, or of a cluster's work, are merged by adding.
"""

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.io.arrays import read_npz
from macc.io.writing import write_whole
from macc.metrics._metric import Metric, metrics_of
from macc.metrics._report import (
    ClassRow,
    Positive,
    Report,
    check_confidence,
    check_names,
    check_resamples,
    reliability_bins,
)
from macc.metrics._resampling.classes import MeanOfClasses
from macc.metrics._resampling.gaps import BinErrors, errors_of_bins
from macc.metrics._resampling.means import MeanScores, mean_scores, scores_by_outcome
from macc.metrics._scores import auroc, squared_distances
from macc.metrics.binning import TopBins, TopLabels, bin_index, class_labels, top_of_block
from macc.metrics.inputs import Array, Block, check_bins, class_names, positive_index, predictions
from macc.metrics.intervals import Deviation, Estimate, Ordinary, Sampled, l1, norm_of_gaps
from macc.tables import number, thousands

_GROUPS = 1024
# Sums of every group, bin and class: groups are fewer where classes are many, 32 MB at most.
_CLASS_SUMS = 2**22
_FEWEST_CLASS_GROUPS = 64
# More bins of all classes would take gigabytes.
_MOST_CLASS_BINS = 2**18
_FORMAT = 3

# Fine cells for areas under the ROC curve: 64 an octave of p, or of 1 - p above one half, down to 2^-24; fewer
# where classes are many, so that the cells of all take 32 MB or little more.
_CELLS_PER_OCTAVE = 64
_OCTAVES = 24
_FINE_CELLS = 2**22

# What is kept by group, and what by group of the classes' gaps.
_BY_GROUP = ("scores", "top_gaps", "positive_gaps", "positive_brier")
_BY_CLASS_GROUP = ("class_gaps", "class_samples")


def _cells_per_octave(num_classes: int) -> int:
    """How finely the probabilities of each of so many classes are told apart: a power of 2."""
    found = _CELLS_PER_OCTAVE
    while found > 1 and num_classes * _num_cells(found) > _FINE_CELLS:
        found //= 2
    return found


def _num_cells(per_octave: int) -> int:
    return 2 * ((_OCTAVES - 1) * per_octave + 1)


def _shapes(num_classes: int, bins: int, *, positive: bool) -> dict[str, tuple[int, ...]]:
    """The sums that are kept, and their shapes."""
    wanted = _CLASS_SUMS // (bins * num_classes)
    class_groups = max(_FEWEST_CLASS_GROUPS, 2 ** int(math.log2(max(1, min(_GROUPS, wanted)))))
    cells = _num_cells(_cells_per_octave(num_classes))
    shapes: dict[str, tuple[int, ...]] = {
        # By group: samples, right ones, sum of NLL, of Brier scores; infinite NLLs are counted alone.
        "scores": (_GROUPS, 5),
        "top_gaps": (_GROUPS, bins),
        # By bin: samples, their confidence, right ones, and the variance of labels drawn from the probabilities.
        "top": (4, bins),
        # NLL and Brier score if all predictions were right, and if they were wrong.
        "by_outcome": (2, 2),
        "class_gaps": (class_groups, bins, num_classes),
        "class_samples": (class_groups,),
        "class_null": (bins, num_classes),
        "totals": (num_classes,),
        "hits": (num_classes, cells),
        "all": (num_classes, cells),
    }
    if positive:
        shapes |= {"positive_gaps": (_GROUPS, bins), "positive": (4, bins), "positive_brier": (_GROUPS,)}
    return shapes


class StreamedPositive(NamedTuple):
    """The errors of the probability of the positive class of two."""

    brier: Sampled
    bins: BinErrors


class StreamedClasses(NamedTuple):
    """The errors of each class, and their mean."""

    each: list[Estimate]
    sce: Sampled


class StreamedDraws(NamedTuple):
    """What the metrics that stream read, under the names that :class:`macc.metrics._resampling.Draws` has for it."""

    scores: MeanScores
    auroc: "BinnedArea"
    top: BinErrors
    positive: StreamedPositive | None
    classes: StreamedClasses


class Partial:
    """Sums of the samples seen so far: ``update`` with batches, ``merge`` others, ``report`` at any time.

    Args:
        num_classes: Number of classes K.
        bins: Number of bins of equal width.
        classes: Names of the classes.
        positive: The positive class of two, by its index or name; class 1 by default.
        seed: Of the groups; predictions of the same samples share groups when they share the seed.
    """

    def __init__(
        self,
        num_classes: int,
        bins: int = 15,
        *,
        classes: Sequence[str] | None = None,
        positive: int | str | None = None,
        seed: int = 0,
    ):
        check_bins(bins)
        if num_classes * bins > _MOST_CLASS_BINS:
            raise ValueError(
                f"{thousands(num_classes)} classes in {thousands(bins)} bins are too many to measure in batches: at most "
                f"{thousands(_MOST_CLASS_BINS // bins)} can be; raise --max-rows-in-memory and leave --state out"
            )
        self.num_classes = num_classes
        self.bins = bins
        self.classes = class_names(classes, num_classes)
        self.positive = positive_index(positive, self.classes)
        self._random = np.random.default_rng(seed)
        self.sums: dict[str, Any] = {
            name: np.zeros(shape)
            for name, shape in _shapes(num_classes, bins, positive=self.positive is not None).items()
        }
        self._class_groups = len(self.sums["class_samples"])

    @property
    def num_samples(self) -> int:
        """How many samples were seen."""
        return round(float(self.sums["scores"][:, 0].sum()))

    def update(
        self, probs: Array, labels: Array, *, from_logits: bool = False, normalise: bool = False
    ) -> None:
        """Take in a batch."""
        given = predictions(probs, labels, from_logits=from_logits, normalise=normalise)
        if given.num_classes != self.num_classes:
            raise ValueError(
                f"a batch has {given.num_classes} classes, and those before it have {self.num_classes}"
            )
        for block in given.blocks():
            self._add(block, self._random.integers(_GROUPS, size=len(block.labels)))

    def _add(self, block: Block, group: npt.NDArray[np.int64]) -> None:
        sums, size = self.sums, self.num_classes
        top = top_of_block(block)
        correct = top.correct.numpy()
        losses = -block.log_likelihood.numpy()
        infinite = np.isinf(losses)
        for i, values in enumerate(
            (
                None,
                correct,
                np.where(infinite, 0.0, losses),
                squared_distances(block).numpy(),
                infinite.astype(np.float64),
            )
        ):
            sums["scores"][:, i] += np.bincount(group, values, minlength=_GROUPS)
        self._add_bins("top", top, group)
        sums["by_outcome"] += scores_by_outcome(top.confidence, size).sum(-1).numpy()
        if self.positive is not None:
            one = class_labels([block], self.positive)
            self._add_bins("positive", one, group)
            wrong = (one.confidence - one.correct).square().numpy()
            sums["positive_brier"] += np.bincount(group, wrong, minlength=_GROUPS)
        self._add_classes(block, group % self._class_groups)
        cells = fine_cells(block.probs.numpy(), _cells_per_octave(size))
        shape = sums["all"].shape
        cells += np.arange(size) * shape[1]
        sums["all"] += np.bincount(cells.ravel(), minlength=math.prod(shape)).reshape(shape)
        own = np.take_along_axis(cells, block.labels.numpy()[:, None], axis=1)[:, 0]
        sums["hits"] += np.bincount(own, minlength=math.prod(shape)).reshape(shape)

    def _add_bins(self, name: str, samples: TopLabels, group: npt.NDArray[np.int64]) -> None:
        """Gaps of every group and bin; counts, sums and variances of every bin."""
        bins = self.bins
        confidence, correct = samples.confidence.numpy(), samples.correct.numpy()
        at = bin_index(samples.confidence, bins).numpy()
        gaps = np.bincount(group * bins + at, correct - confidence, minlength=_GROUPS * bins)
        self.sums[f"{name}_gaps"] += gaps.reshape(_GROUPS, bins)
        for i, values in enumerate((None, confidence, correct, confidence * (1 - confidence))):
            self.sums[name][i] += np.bincount(at, values, minlength=bins)

    def _add_classes(self, block: Block, group: npt.NDArray[np.int64]) -> None:
        """Gaps of every group, bin and class.

        As in ``ClassGaps``, only entries above the first bin are looked for; the first bin has the rest.
        """
        bins, size, groups = self.bins, self.num_classes, self._class_groups
        probs, labels = block.probs.numpy(), block.labels.numpy()
        flat = probs.reshape(-1)
        above = np.flatnonzero(flat > 1 / bins)
        row, column, value = above // size, above % size, flat[above]
        cell = bin_index(torch.from_numpy(value), bins).numpy() * size + column
        cells = bins * size
        minus = _sums(group[row] * cells + cell, value, groups * cells)
        own = bin_index(block.label_probs, bins).numpy() * size + labels
        plus = np.bincount(group * cells + own, minlength=groups * cells)
        gaps = (plus - minus).reshape(groups, bins, size)
        by_group = torch.zeros(groups, size, dtype=torch.float64, device="cpu")
        by_group.index_add_(0, torch.from_numpy(group), block.probs)
        gaps[:, 0] -= by_group.numpy() - minus.reshape(groups, bins, size).sum(1)
        self.sums["class_gaps"] += gaps
        self.sums["class_samples"] += np.bincount(group, minlength=groups)
        spread = _sums(cell, value * (1 - value), cells).reshape(bins, size)
        total = probs.sum(0)
        # Squares of all entries, less those above: what the first bin has.
        squares = np.einsum("ij,ij->j", probs, probs)
        spread[0] += total - squares - spread.sum(0)
        self.sums["class_null"] += spread.clip(min=0)
        self.sums["totals"] += total

    def merge(self, other: "Partial", random: np.random.Generator) -> None:
        """Add what another one has seen, its groups numbered anew at random.

        Both gave their first samples to the same groups, and groups of many small parts would be few.
        """
        mine, theirs = (
            (self.num_classes, self.bins, self.classes, self.positive),
            (other.num_classes, other.bins, other.classes, other.positive),
        )
        kinds = ("classes", "bins", "names of classes", "positive classes")
        for what, one, two in zip(kinds, mine, theirs, strict=True):
            if one != two:
                raise ValueError(f"cannot merge states of other {what}: {_shown(one)} and {_shown(two)}")
        for names in (_BY_GROUP, _BY_CLASS_GROUP):
            order = random.permutation(len(self.sums[names[0]]))
            for name in self.sums.keys() & set(names):
                self.sums[name] += other.sums[name][order]
        for name in self.sums.keys() - {*_BY_GROUP, *_BY_CLASS_GROUP}:
            self.sums[name] += other.sums[name]

    def report(
        self, *, confidence: float = 0.95, metrics: Sequence[str] | None = None, resamples: int = 1000
    ) -> Report:
        """Everything that streams, with intervals; the notes name the rest.

        Args:
            confidence: Level of the intervals.
            metrics: Names to measure; all that stream by default.
            resamples: Number of resamples.
        """
        check_confidence(confidence)
        wanted = check_streamed(metrics, self.num_classes)
        with torch.device("cpu"):  # whatever the default device is
            draws = self.draws(resamples=resamples, confidence=confidence)
            estimates = {name: metric.sample(draws).estimate(confidence) for name, metric in wanted.items()}
        count = self.num_samples
        labels = self.sums["hits"].sum(1)
        rows = tuple(
            ClassRow(name, round(n), n / count, total / count, estimate)
            for name, n, total, estimate in zip(
                self.classes, labels.tolist(), self.sums["totals"].tolist(), draws.classes.each, strict=True
            )
        )
        positive = None
        if self.positive is not None:
            positive = Positive(
                self.classes[self.positive],
                reliability_bins(self._bin_sums("positive"), self.bins, confidence),
            )
        notes = []
        if "auroc" in wanted:
            error = draws.auroc.error
            most = number(error, auroc.unit, error, suffix=True)
            cells = thousands(self.sums["all"].shape[1])
            notes.append(f"AUROC from {cells} cells a class is within {most} of the exact value.")
        if metrics is None:
            notes.append(left_out(wanted, self.num_classes))
        return Report(
            estimates,
            rows if "sce" in wanted else (),
            reliability_bins(self._bin_sums("top"), self.bins, confidence),
            count,
            self.num_classes,
            confidence,
            tuple(notes),
            positive,
        )

    def _bin_sums(self, name: str) -> TopBins:
        return TopBins(*torch.from_numpy(self.sums[name][:3]))

    def draws(self, *, resamples: int = 1000, confidence: float | None = None) -> "StreamedDraws":
        """What resampling groups shows; of single classes where a level for their intervals is given."""
        check_resamples(resamples)
        count = self.num_samples
        if count == 0:
            raise ValueError("no samples were seen; there is nothing to report")
        scores = torch.from_numpy(self.sums["scores"])
        draws, samples = _draws(scores[:, 0], resamples)
        values = (scores[:, 1:4].sum(0) / count).tolist()
        resampled = (draws @ scores[:, 1:4]).T / samples
        if float(scores[:, 4].sum()) > 0:
            values[1] = resampled[1] = math.inf
        by_outcome = torch.from_numpy(self.sums["by_outcome"]) / count
        positive = None
        if self.positive is not None:
            squares = torch.from_numpy(self.sums["positive_brier"])
            # Half the Brier score of both classes.
            ends = (by_outcome[:, 1] / 2).tolist()
            positive = StreamedPositive(
                brier=Ordinary(float(squares.sum()) / count, draws @ squares / samples, count, *ends),
                # Seeds from 2 on belong to the classes.
                bins=self._binned("positive", draws, samples, resamples, 0),
            )
        classwise = self._classwise(resamples, confidence)
        return StreamedDraws(
            scores=mean_scores(values, resampled, by_outcome, count),
            auroc=BinnedArea.of(self.sums["hits"], self.sums["all"]),
            top=self._binned("top", draws, samples, resamples, 1),
            positive=positive,
            classes=StreamedClasses(classwise.estimates, classwise.mean()),
        )

    def _binned(self, name: str, draws: Tensor, samples: Tensor, resamples: int, seed: int) -> BinErrors:
        count = self.num_samples
        by_group = torch.from_numpy(self.sums[f"{name}_gaps"])
        gaps = by_group.sum(0) / count
        noise = draws @ by_group / samples[:, None] - gaps
        null = _normal(self.sums[name][3], seed, resamples) / count
        return errors_of_bins(self._bin_sums(name), noise, null)

    def _classwise(self, resamples: int, confidence: float | None) -> MeanOfClasses:
        count = self.num_samples
        draws, samples = _draws(torch.from_numpy(self.sums["class_samples"]), resamples)
        errors = MeanOfClasses(confidence)
        # A few classes at a time: draws times bins times classes would be large.
        step = max(1, 2**22 // (resamples * self.bins))
        for start in range(0, self.num_classes, step):
            some = slice(start, start + step)
            by_group = torch.from_numpy(self.sums["class_gaps"][:, :, some]).transpose(1, 2)
            gaps = by_group.sum(0) / count
            flat = draws @ by_group.reshape(self._class_groups, -1)
            noise = (flat / samples[:, None]).view(-1, *gaps.shape) - gaps
            null = _normal(self.sums["class_null"][:, some].T, 2 + start, resamples) / count
            errors.add(norm_of_gaps(l1, gaps, noise, null, size=torch.full(gaps.shape[:1], count)))
        return errors

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all; :meth:`load` reads it."""
        about = {
            "macc_state": _FORMAT,
            "num_classes": self.num_classes,
            "bins": self.bins,
            "classes": self.classes,
            "positive": self.positive,
        }
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, about=text, **self.sums)
        with write_whole(path) as file:
            file.write(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "Partial":
        """Read a state that nobody vouches for."""
        if not zipfile.is_zipfile(path):
            raise ValueError(f"{path} is not a state written by macc evaluate --state")
        arrays = read_npz(path, {"about", *_shapes(2, 1, positive=True)})
        try:
            about = json.loads(arrays.pop("about").tobytes())
            size, bins, classes = about["num_classes"], about["bins"], about["classes"]
            usable = about["macc_state"] == _FORMAT and type(size) is int and isinstance(classes, list)
            usable = usable and len(classes) == size and all(isinstance(name, str) for name in classes)
            check_bins(bins)
            # Nothing is allocated from a number in the file before the arrays are known to have its size.
            if not usable or size < 2 or not _are_sums(arrays, size, bins):
                raise ValueError
            state = cls(size, bins, classes=classes, positive=about["positive"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(
                f"{path} is not a state that this version of macc can read; write it anew"
            ) from None
        if not _is_possible(arrays, state.positive):
            raise ValueError(f"{path} holds sums that no samples can have; write it anew")
        state.sums = {name: arrays[name].copy() for name in state.sums}
        return state


def _are_sums(arrays: dict[str, npt.NDArray[Any]], num_classes: int, bins: int) -> bool:
    """Whether these are the sums of so many classes and bins, all of them numbers."""
    shapes = _shapes(num_classes, bins, positive=num_classes == 2)
    return arrays.keys() == shapes.keys() and all(
        arrays[name].shape == shape
        and arrays[name].dtype == np.float64
        and bool(np.isfinite(arrays[name]).all())
        for name, shape in shapes.items()
    )


def _is_possible(sums: dict[str, npt.NDArray[np.float64]], positive: int | None) -> bool:
    """Whether samples can have these sums: those that count the same samples agree, and none passes what they allow."""
    samples, right, loss, squared, infinite = sums["scores"].T
    count = samples.sum()
    slack = 1e-6 * (1 + count)  # sums of so many numbers are rounded
    hits, every = sums["hits"], sums["all"]
    counted = [samples, right, infinite, sums["class_samples"], hits, every]
    gaps_of_classes = sums["class_gaps"]
    found = [
        _within(right, 0, samples),
        _within(infinite, 0, samples),
        _within(loss, -slack, np.inf),
        _within(squared, -slack, 2 * samples + slack),
        _within(sums["by_outcome"], -slack, [[np.inf, 2 * count + slack]]),
        sums["class_samples"].sum() == count,
        _within(np.abs(gaps_of_classes).sum(1), 0, sums["class_samples"][:, None] + slack),
        _within(gaps_of_classes.sum((0, 1)) - (hits.sum(1) - sums["totals"]), -slack, slack),
        _within(sums["class_null"], 0, np.inf),
        _within(sums["class_null"].sum(0), 0, count / 4 + slack),
        _within(sums["totals"], 0, count + slack),
        # Rows of bfloat16 may sum to 1 within 2 %.
        _within(sums["totals"].sum(), 0.98 * count - slack, 1.02 * count + slack),
        _within(hits, 0, every),
        bool((every.sum(1) == count).all()) and hits.sum() == count,
    ]
    parts = [("top", right.sum())]
    if positive is not None:
        parts.append(("positive", hits[positive].sum()))
        found.append(_within(sums["positive_brier"], -slack, samples + slack))
    for name, number_right in parts:
        filled, claimed, correct, spread = sums[name]
        gaps, bins = sums[f"{name}_gaps"], len(filled)
        counted += [filled, correct]
        low, high = np.arange(bins) / bins, np.arange(1, bins + 1) / bins
        found += [
            filled.sum() == count and correct.sum() == number_right,
            _within(correct, 0, filled),
            _within(claimed, filled * low - slack, filled * high + slack),
            _within(spread, -slack, filled / 4 + slack),
            _within(np.abs(gaps).sum(1), 0, samples + slack),
            _within(gaps.sum(0) - (correct - claimed), -slack, slack),
        ]
    return all(found) and all(bool(((part >= 0) & (part == part.round())).all()) for part in counted)


def _within(values: Any, low: Any, high: Any) -> bool:
    """Whether all values lie between their limits."""
    return bool(((values >= low) & (values <= high)).all())


@dataclass(frozen=True)
class BinnedArea:
    """Mean area under the ROC curve of classes against the rest, from fine cells of their probabilities.

    Samples of one cell count as ties, which changes the area by ``error`` at most. ``spread`` is its
    standard deviation if the areas of all classes moved together, which is the most there can be.
    """

    value: float
    error: float
    spread: float

    @classmethod
    def of(cls, hits: npt.NDArray[np.float64], all_: npt.NDArray[np.float64]) -> "BinnedArea":
        """From how many samples of each class, and of all, each cell holds."""
        areas, errors, spreads = [], [], []
        for up, both in zip(hits, all_, strict=True):
            down = both - up
            if up.sum() == 0 or down.sum() == 0:
                continue
            pos, neg = up / up.sum(), down / down.sum()
            beaten = neg.cumsum() - neg / 2
            missed = 1 - (pos.cumsum() - pos / 2)
            area = float(pos @ beaten)
            variance = (pos @ (beaten - area) ** 2) / up.sum() + (neg @ (missed - area) ** 2) / down.sum()
            areas.append(area)
            errors.append(float(pos @ neg) / 2)
            spreads.append(math.sqrt(variance))
        if not areas:
            return cls(math.nan, math.nan, math.nan)
        return cls(*(float(np.mean(part)) for part in (areas, errors, spreads)))

    def estimate(self, confidence: float) -> Estimate:
        """Normal limits, widened by what the cells may hide."""
        if math.isnan(self.value):
            return Estimate(math.nan, math.nan, math.nan)
        half = NormalDist().inv_cdf((1 + confidence) / 2) * self.spread + self.error
        return Estimate(self.value, max(0.0, self.value - half), min(1.0, self.value + half))

    def deviation(self) -> Deviation:
        """None: how the areas of two models vary together is not kept."""
        return Deviation(torch.empty(0), torch.empty(0))


def merged(paths: Sequence[Path]) -> Partial:
    """The states of several files put together, one at a time."""
    places = [path.resolve() for path in paths]
    twice = next((path for k, path in enumerate(paths) if places[k] in places[:k]), None)
    if twice is not None:
        raise ValueError(f"{twice} is named twice, and its samples would count twice; name each state once")
    # What the files hold gives their order and the numbers of their groups, so that the order of their names is all one.
    order = sorted((_digest(path), path) for path in paths)
    seed = int.from_bytes(hashlib.sha256(b"".join(digest for digest, _ in order)).digest())
    random = np.random.default_rng(seed)
    state = Partial.load(order[0][1])
    for _, path in order[1:]:
        other = Partial.load(path)
        try:
            state.merge(other, random)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return state


def _digest(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path} does not exist, or is no file")
    return hashlib.sha256(path.read_bytes()).digest()


def fine_cells(probs: npt.NDArray[np.float64], per_octave: int = _CELLS_PER_OCTAVE) -> npt.NDArray[np.int64]:
    """A fine cell of each probability, rising with it; the first bits of a float64 are its logarithm."""
    last = _num_cells(per_octave) - 1
    upper = probs > 0.5
    bits = np.where(upper, 1 - probs, probs).view(np.int64)
    bits >>= 52 - (per_octave.bit_length() - 1)
    bits -= (1023 - _OCTAVES) * per_octave
    np.clip(bits, 0, last // 2, out=bits)
    return np.where(upper, last - bits, bits)


def check_streamed(metrics: Sequence[str] | None, num_classes: int) -> dict[str, Metric[Any]]:
    """The metrics asked for, all that stream by default; those that cannot be told from sums are refused."""
    if metrics is None:
        return {name: metric for name, metric in metrics_of(num_classes).items() if metric.streams}
    wanted = check_names(metrics, num_classes)
    for name, metric in wanted.items():
        if not metric.streams:
            raise ValueError(
                f"{name} needs all samples in memory; raise --max-rows-in-memory, or leave it out"
            )
    return wanted


def left_out(measured: Collection[str], num_classes: int) -> str:
    names = ", ".join(name for name in metrics_of(num_classes) if name not in measured)
    return f"Left out, because they need all samples in memory: {names}."


def _draws(samples: Tensor, resamples: int) -> tuple[Tensor, Tensor]:
    """How often each resample holds each group, float64 ``(R, G)``, and how many samples that makes, ``(R,)``.

    Where groups are empty, as they are for few samples, so may be resamples of them: those say nothing.
    """
    groups = len(samples)
    random = np.random.default_rng(groups)
    drawn = random.integers(groups, size=(resamples, groups)) + np.arange(resamples)[:, None] * groups
    counts = np.bincount(drawn.ravel(), minlength=resamples * groups).reshape(resamples, groups)
    draws = torch.from_numpy(counts.astype(np.float64))
    drawn_samples = draws @ samples
    return draws[drawn_samples > 0], drawn_samples[drawn_samples > 0]


def _normal(variance: npt.NDArray[np.float64], seed: int, resamples: int) -> Tensor:
    """Sums of many labels drawn from their probabilities are normal, with this variance."""
    drawn = np.random.default_rng([7, seed]).normal(size=(resamples, *variance.shape))
    return torch.from_numpy(drawn * np.sqrt(variance))


def _sums(
    cells: npt.NDArray[np.int64], values: npt.NDArray[np.float64], size: int
) -> npt.NDArray[np.float64]:
    """Sum of the values of each cell; of no values, numpy's are integers."""
    return np.bincount(cells, values, minlength=size).astype(np.float64, copy=False)


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""Sets of classes that contain the right one as often as asked: split conformal prediction."""

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from macc.io.json import read_json
from macc.io.writing import write_whole
from macc.metrics.inputs import Array, like, predictions, score_rows
from macc.metrics.temperature import blocks
from macc.posthoc._base import are_names, whole_only
from macc.posthoc._coverage import Coverage, CoverageRow, place_of
from macc.tables import Displayed, thousands
from macc.words import did_you_mean, documented, listed, quoted, shown

Floats: TypeAlias = npt.NDArray[np.float64]

METHODS = ("lac", "aps", "raps")
_FORMAT = 1
_LARGEST_FILE = 2**28
# Those of Angelopoulos et al.
_PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)
_TUNING_SHARE = 0.2
# The draws of the fit, of the sets and of what tunes RAPS are apart.
_FIT, _SETS, _TUNE = range(3)


@dataclass(frozen=True, eq=False)
class Sets(Displayed):
    r"""Sets of classes that contain the right class with a given probability.

    Each class of a sample gets a score :math:`s(x, k)`, and a set holds the classes whose score is
    at most a threshold: the :math:`\lceil (n + 1) c \rceil`-th smallest score of the right classes
    of the n samples it was fitted to. If new samples and those of the fit are exchangeable (drawn
    from one source, in any order), the right class of a new sample is in its set with probability
    at least c. **Nothing else is supposed**: the model may be as wrong as it likes, its sets are
    then large. Where new samples come from elsewhere nothing is promised, and :meth:`measure` shows
    how far coverage falls.

    With :math:`p_{(1)} \ge p_{(2)} \ge …` the sorted probabilities and :math:`r` the rank of class
    :math:`k`:

    - ``lac``: :math:`s = 1 - p_k`. The smallest sets on average; easy samples may get an empty one.
    - ``aps``: :math:`s = p_{(1)} + … + p_{(r)} - u\,p_{(r)}`. Larger sets that follow the
      difficulty of the sample.
    - ``raps``: the same plus :math:`λ \max(0, r - r_0)`, which keeps improbable classes out.

    ``u`` is 0, or with ``randomise`` uniform in (0, 1) for each sample: coverage is then no larger
    than asked, and sets are smaller. ``per_class`` takes a threshold for each class from the
    samples of that class, so that coverage is promised for each class.

    Reference:
        Sadinle, Lei and Wasserman, *Least Ambiguous Set-Valued Classifiers*, JASA 2019; Romano,
        Sesia and Candès, *Classification with Valid and Adaptive Coverage*, NeurIPS 2020;
        Angelopoulos, Bates, Jordan and Malik, *Uncertainty Sets for Image Classifiers using
        Conformal Prediction*, ICLR 2021.
    """

    method: str
    coverage: float
    thresholds: tuple[float, ...]
    """One for all classes, or one for each; infinite where too few samples were there, so that
    every set has the class.
    """
    counts: tuple[int, ...]
    """How many samples each threshold comes from."""
    num_classes: int
    seed: int | None = None
    """Of the random numbers of ``randomise``; None without them."""
    penalty: float = 0.0
    rank: int = 0

    def __post_init__(self) -> None:
        _check_options(self.method, self.coverage)
        for name in ("num_classes", "rank"):
            if not _whole(getattr(self, name)):
                raise ValueError(f"Sets.{name} must be a whole number, got {shown(getattr(self, name), 40)}")
        if self.seed is not None and not _whole(self.seed):
            raise ValueError(f"Sets.seed must be a whole number, got {shown(self.seed, 40)}")
        if len(self.thresholds) not in (1, self.num_classes) or len(self.counts) != len(self.thresholds):
            raise ValueError(
                f"Sets needs one threshold and count, or one for each of {self.num_classes} classes"
            )
        if not all(isinstance(value, float) and not math.isnan(value) for value in self.thresholds):
            raise ValueError("Sets.thresholds must be numbers")
        if not all(_whole(count) for count in self.counts):
            raise ValueError("Sets.counts must be whole numbers")
        if not (isinstance(self.penalty, float | int) and 0 <= self.penalty < math.inf):
            raise ValueError(f"Sets.penalty must be a number of at least 0, got {shown(self.penalty, 40)}")

    @classmethod
    @documented
    def fit(
        cls,
        probs: Array,
        labels: Array,
        *,
        coverage: float = 0.9,
        method: str = "lac",
        per_class: bool = False,
        randomise: bool = False,
        seed: int = 0,
        penalty: float | None = None,
        rank: int | None = None,
        from_logits: bool = False,
        normalise: bool = False,
        weights: Array | None = None,
    ) -> "Sets":
        """Find the thresholds from samples that the model was not trained on.

        Args:
            coverage: How often the right class has to be in the set, in ``(0, 1)``.
            method: ``"lac"``, ``"aps"`` or ``"raps"``.
            per_class: Promise the coverage for each class.
            randomise: Draw a random number for each sample (``aps`` and ``raps``).
            seed: Of these numbers.
            penalty: λ of ``raps``; with ``rank``, chosen on a fifth of the samples if not given.
            rank: From which rank on ``raps`` adds the penalty.
            weights: How often each sample counts, ``(N,)``: whole numbers, which are repeated
                samples.

        Returns:
            The fitted sets; calling them gives sets of other samples.

        Example:
            >>> import numpy as np
            >>> from macc import posthoc
            >>> rng = np.random.default_rng(0)
            >>> logits = 2 * rng.normal(size=(4000, 5))
            >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
            >>> sets = posthoc.Sets.fit(logits[:2000], labels[:2000], coverage=0.9, from_logits=True)
            >>> sets(logits[2000:2003], from_logits=True).astype(int)
            array([[0, 0, 0, 0, 1],
                   [0, 1, 0, 0, 0],
                   [1, 0, 0, 1, 0]])
            >>> seen = sets.measure(logits[2000:], labels[2000:], from_logits=True)
            >>> round(seen.coverage, 3), round(seen.mean_size, 2)
            (0.902, 2.1)
        """
        _check_options(method, coverage)
        if randomise and method == "lac":
            raise ValueError("lac has nothing to randomise; use aps or raps, or leave it out")
        if (penalty is not None or rank is not None) and method != "raps":
            raise ValueError(f"penalty and rank are those of raps, and the method is {method}")
        if (penalty is None) != (rank is None):
            raise ValueError("give penalty and rank of raps together, or neither")
        given = predictions(probs, labels, from_logits=from_logits, normalise=normalise, weights=weights)
        given = given.repeated()
        whole_only("Sets", given.weights)
        matrix, truth = given.matrix().cpu(), given.labels.cpu()
        empty = cls(method, coverage, (math.inf,), (0,), given.num_classes, seed if randomise else None)
        if penalty is not None and rank is not None:
            empty = replace(empty, penalty=penalty, rank=rank)
        elif method == "raps":
            matrix, truth, empty = _tuned(matrix, truth, empty)
        scores = empty._label_scores(matrix, truth, _FIT)
        every = range(given.num_classes)
        groups = [scores[truth.numpy() == k] for k in every] if per_class else [scores]
        found = tuple(_order_statistic(group, coverage) for group in groups)
        _warn_of_few(found, groups, coverage)
        return replace(empty, thresholds=found, counts=tuple(map(len, groups)))

    @property
    def per_class(self) -> bool:
        """Whether coverage is promised for each class."""
        return len(self.thresholds) > 1

    @documented
    def __call__(
        self, probs: Array, *, from_logits: bool = False, normalise: bool = False, first: int = 0
    ) -> Any:
        """The sets of some samples.

        Args:
            first: Which row of all of them the first one is: the random number of a row depends on
                its place.

        Returns:
            Booleans ``(N, K)`` of the kind of the input: whether the class is in the set.
        """
        rows = score_rows(probs, from_logits=from_logits)
        self._check_classes(rows)
        anything = torch.zeros(len(rows), dtype=torch.int64)
        matrix = predictions(rows, anything, from_logits=from_logits, normalise=normalise).matrix().cpu()
        return like(self._sets(matrix, first), probs)

    @documented
    def measure(
        self,
        probs: Array,
        labels: Array,
        *,
        confidence: float = 0.95,
        from_logits: bool = False,
        normalise: bool = False,
        classes: Sequence[str] | None = None,
        weights: Array | None = None,
    ) -> Coverage:
        """See how often the sets of other samples contain the right class.

        Args:
            classes: Names of the classes.
            weights: How often each sample counts, ``(N,)``: whole numbers, which are repeated
                samples.

        Returns:
            Coverage with exact limits, sizes and empty sets, of all and of each class; ``print``
            shows a table.
        """
        if not 0 < confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
        given = predictions(probs, labels, from_logits=from_logits, normalise=normalise, weights=weights)
        given = given.repeated()
        whole_only("Sets", given.weights)
        self._check_classes(given.scores)
        truth = given.labels.cpu()
        held = self._sets(given.matrix().cpu(), 0)
        sizes, inside = held.sum(1), held.gather(1, truth[:, None])[:, 0]
        names = list(classes or map(str, range(self.num_classes)))
        parts = [CoverageRow.of("all", inside, sizes, confidence)]
        parts += [
            CoverageRow.of(name, inside[truth == k], sizes[truth == k], confidence)
            for k, name in enumerate(names)
        ]
        return Coverage(self, confidence, parts[0], tuple(parts[1:]))

    def save(self, path: Path | str, *, classes: Sequence[str] | None = None) -> None:
        """Write the thresholds as JSON, whole or not at all; :meth:`load` reads them.

        Args:
            path: The file.
            classes: Names of the classes in the order of the fit, which ``macc sets`` compares.
        """
        names = {} if classes is None else {"classes": list(classes)}
        with write_whole(Path(path)) as file:
            file.write(json.dumps({**self.to_dict(), **names}, allow_nan=False).encode() + b"\n")

    @classmethod
    def load(cls, path: Path | str) -> "Sets":
        """Read what :meth:`save` wrote; nothing in the file can run code."""
        return load_sets(path)[0]

    def to_dict(self) -> dict[str, Any]:
        """The fields as what JSON can hold; an infinite threshold is null."""
        finite = [None if math.isinf(value) else value for value in self.thresholds]
        return {"macc_sets": _FORMAT, **asdict(self), "thresholds": finite, "counts": list(self.counts)}

    @classmethod
    def from_dict(cls, content: Any) -> "Sets":
        """What :meth:`to_dict` gave; the names of the classes beside it are left to others."""
        if not isinstance(content, dict) or content.get("macc_sets") != _FORMAT:
            raise ValueError(f"it does not say 'macc_sets': {_FORMAT}")
        fields = {name: value for name, value in content.items() if name not in ("macc_sets", "classes")}
        for name in ("thresholds", "counts"):
            if not isinstance(fields.get(name), list):
                raise ValueError(f"it lacks the list {name!r}")
        limits = [math.inf if value is None else value for value in fields["thresholds"]]
        fields |= {"thresholds": tuple(limits), "counts": tuple(fields["counts"])}
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(shown(error)) from None

    def _parts(self) -> list[str]:
        return [self._said()]

    def _said(self) -> str:
        kind = {
            "lac": "LAC",
            "aps": "APS",
            "raps": f"RAPS (penalty {self.penalty:g} from rank {self.rank} on)",
        }
        drawn = "" if self.seed is None else f", randomised with seed {self.seed}"
        wanted = f"{100 * self.coverage:g} %"
        if self.per_class:
            fewest = min(self.counts)
            return (
                f"{kind[self.method]}{drawn}: {wanted} coverage of each class, fitted to {thousands(sum(self.counts))} "
                f"samples, at least {thousands(fewest)} a class"
            )
        return (
            f"{kind[self.method]}{drawn}: {wanted} coverage, threshold {self.thresholds[0]:.6g}, "
            f"fitted to {thousands(self.counts[0])} samples"
        )

    def _check_classes(self, rows: Tensor) -> None:
        if rows.shape[1] != self.num_classes:
            raise ValueError(
                f"there are {rows.shape[1]} classes, and the sets were fitted to {self.num_classes}; "
                "use predictions of the model they were fitted to"
            )

    def _sets(self, matrix: Tensor, first: int) -> Tensor:
        """Which classes are in the set of each row, ``(N, K)``."""
        limits = torch.tensor(self.thresholds, dtype=torch.float64)
        held = torch.empty(matrix.shape, dtype=torch.bool)
        for part, scores in self._scores(matrix, _SETS, first):
            torch.le(scores, limits, out=held[part])
        return held

    def _label_scores(self, matrix: Tensor, labels: Tensor, stage: int) -> Floats:
        """The score of the right class of each row."""
        parts = [s.gather(1, labels[part, None])[:, 0] for part, s in self._scores(matrix, stage, 0)]
        return torch.cat(parts).numpy()

    def _scores(self, matrix: Tensor, stage: int, first: int) -> Iterator[tuple[slice, Tensor]]:
        """The scores of all classes, some rows at a time."""
        for part in blocks(matrix):
            rows = matrix[part].double()
            drawn = None
            if self.seed is not None:
                drawn = torch.from_numpy(uniform(self.seed, stage, first + part.start, len(rows)))
            yield part, self.class_scores(rows, drawn)

    def class_scores(self, probs: Tensor, drawn: Tensor | None = None) -> Tensor:
        """The score of every class, in tensor operations that a graph can hold.

        Args:
            probs: Probabilities ``(N, K)`` in the precision to compute in.
            drawn: The random number of each row, ``(N,)``.
        """
        if self.method == "lac":
            return 1 - probs
        # ONNX has no word for a stable order; its own puts the first of equal classes first too.
        if torch.compiler.is_compiling():
            ordered, order = torch.sort(probs, dim=1, descending=True)
        else:
            ordered, order = torch.sort(probs, dim=1, descending=True, stable=True)
        scores = ordered.cumsum(1)
        if drawn is not None:
            scores = scores - drawn[:, None] * ordered
        if self.penalty:
            ranks = torch.arange(1, self.num_classes + 1, device=probs.device)
            scores = scores + self.penalty * (ranks - self.rank).clamp(min=0)
        return torch.empty_like(scores).scatter(1, order, scores)


def load_sets(path: Path | str) -> tuple[Sets, list[str] | None]:
    """The sets of a file, and the names of the classes where the file has them."""
    path = Path(path)
    content = read_json(path, "a file of sets", largest=_LARGEST_FILE)
    try:
        sets = Sets.from_dict(content)
        classes = content.get("classes")
        if classes is not None and not are_names(classes, sets.num_classes):
            raise ValueError(f"'classes' must name its {sets.num_classes} classes")
    except ValueError as error:
        raise ValueError(f"{shown(path)} is not a file of sets: {error}") from None
    return sets, classes


def uniform(seed: int, stage: int, first: int, count: int) -> Floats:
    """Random numbers in [0, 1) of some rows, the same however rows are read."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, stage]))
    return np.random.Generator(bits.advance(first)).random(count)


def _tuned(matrix: Tensor, labels: Tensor, empty: Sets) -> tuple[Tensor, Tensor, Sets]:
    """RAPS with the penalty of the smallest sets, and the samples left for its threshold."""
    rng = np.random.default_rng([empty.seed or 0, _TUNE])
    order = torch.from_numpy(rng.permutation(len(matrix)))
    few = math.ceil(_TUNING_SHARE * len(matrix))
    if few == len(matrix):
        raise ValueError(
            "raps chooses its penalty on a fifth of the samples; give more of them, or penalty and rank"
        )
    some, rest = matrix[order[:few]], order[few:]
    truth = labels[order[:few]]
    right = some.gather(1, truth[:, None])
    ranks = ((some > right).sum(1) + 1).numpy()
    limit = _order_statistic(ranks.astype(np.float64), empty.coverage)
    rank = empty.num_classes if math.isinf(limit) else int(limit)
    sizes = []
    for penalty in _PENALTIES:
        tried = replace(empty, penalty=penalty, rank=rank)
        limit = _order_statistic(tried._label_scores(some, truth, _TUNE), empty.coverage)
        sizes.append(float(replace(tried, thresholds=(limit,))._sets(some, 0).double().sum(1).mean()))
    return matrix[rest], labels[rest], replace(empty, penalty=_PENALTIES[int(np.argmin(sizes))], rank=rank)


def _order_statistic(scores: Floats, coverage: float) -> float:
    place = place_of(len(scores), coverage)
    return float(np.partition(scores, place - 1)[place - 1]) if place <= len(scores) else math.inf


def _warn_of_few(found: tuple[float, ...], groups: Sequence[Floats], coverage: float) -> None:
    few = [str(k) for k, value in enumerate(found) if math.isinf(value)]
    if not few:
        return
    needed = next(n for n in range(1, 10**9) if place_of(n, coverage) <= n)
    whose = f"class {listed(few)} has" if len(groups) > 1 else "there are"
    what = "it is in every set" if len(groups) > 1 else "every set has every class"
    warnings.warn(
        f"{whose} fewer than the {thousands(needed)} samples that a coverage of {100 * coverage:g} % needs; {what}",
        stacklevel=3,
    )


def _check_options(method: Any, coverage: Any) -> None:
    if method not in METHODS:
        raise ValueError(f"no sets are called {quoted(method)}; {did_you_mean(method, METHODS)}")
    if not (isinstance(coverage, float) and 0 < coverage < 1):
        raise ValueError(f"coverage must lie between 0 and 1, got {shown(coverage, 40)}; 0.9 is 90 %")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

"""How often sets of classes contain the right one, seen on other samples."""

import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from torch import Tensor

from macc.metrics.intervals import clopper_pearson
from macc.tables import Column, Displayed, Entry, Table, thousands
from macc.words import class_called, listed

if TYPE_CHECKING:
    from macc.posthoc._sets import Sets


@dataclass(frozen=True)
class CoverageRow:
    """How often sets of some samples contain the right class, and how large they are."""

    name: str
    samples: int
    covered: int
    low: float
    high: float
    classes_in_sets: int
    empty: int
    single: int

    @classmethod
    def of(cls, name: str, inside: Tensor, sizes: Tensor, confidence: float) -> "CoverageRow":
        """Of samples of which these are covered, by sets of these sizes."""
        count, covered = len(inside), int(inside.sum())
        low, high = map(float, clopper_pearson(covered, count, (1 - confidence) / 2))
        return cls(
            name,
            count,
            covered,
            low,
            high,
            int(sizes.sum()),
            int((sizes == 0).sum()),
            int((sizes == 1).sum()),
        )

    @property
    def coverage(self) -> float:
        """Share of the samples whose set has the right class."""
        return self.covered / self.samples if self.samples else math.nan

    @property
    def mean_size(self) -> float:
        """How many classes a set has."""
        return self.classes_in_sets / self.samples if self.samples else math.nan

    def row(self) -> tuple[Entry, ...]:
        """A line of the table."""
        if not self.samples:
            return (Entry(self.name), Entry("0", 0), *[Entry("–")] * 5)
        ends = f"{100 * self.low:.1f} – {100 * self.high:.1f}"
        return (
            Entry(self.name),
            Entry(thousands(self.samples), self.samples),
            Entry(f"{100 * self.coverage:.1f} %", self.coverage, below=(ends,)),
            Entry(ends),
            Entry(f"{self.mean_size:.2f}", self.mean_size),
            *(
                Entry(f"{100 * count / self.samples:.1f} %", count / self.samples)
                for count in (self.single, self.empty)
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields, the coverage and the mean size."""
        return {**asdict(self), "coverage": self.coverage, "mean_size": self.mean_size}


@dataclass(frozen=True)
class Coverage(Displayed):
    """What sets did on other samples; ``print`` shows a table and a verdict."""

    sets: "Sets"
    confidence: float
    all: CoverageRow
    classes: tuple[CoverageRow, ...]

    @property
    def coverage(self) -> float:
        """Share of the samples whose set has the right class."""
        return self.all.coverage

    @property
    def mean_size(self) -> float:
        """How many classes a set has."""
        return self.all.mean_size

    @property
    def fell_short(self) -> list[CoverageRow]:
        """Where coverage is lower than chance explains, if samples were like those of the fit.

        The coverage of a threshold is then at least a Beta number, and how many of m samples are
        covered at least a Beta-binomial number, which has an exact lower limit. Classes share the
        error probability.
        """
        from scipy.stats import betabinom

        judged = self.classes if self.sets.per_class else (self.all,)
        found = []
        for group, limit, count in zip(judged, self.sets.thresholds, self.sets.counts, strict=True):
            place = place_of(count, self.sets.coverage)
            if math.isinf(limit) or not group.samples:
                continue
            chance = betabinom.cdf(group.covered, group.samples, place, count + 1 - place)
            if chance < (1 - self.confidence) / len(judged):
                found.append(group)
        return found

    def to_dict(self) -> dict[str, Any]:
        """All numbers, of all samples and of each class."""
        return {
            "sets": self.sets.to_dict(),
            "confidence": self.confidence,
            "all": self.all.to_dict(),
            "classes": [group.to_dict() for group in self.classes],
            "fell_short": [group.name for group in self.fell_short],
        }

    def table(self) -> Table:
        """All samples, then each class."""
        columns = (
            Column("", left=True),
            Column("samples"),
            Column("coverage"),
            Column(f"{100 * self.confidence:g} % interval", on_page=False),
            Column("mean size", better="lower"),
            Column("one class"),
            Column("empty"),
        )
        return Table(columns, (self.all.row(), *(group.row() for group in self.classes)))

    def verdict(self) -> str:
        """Whether coverage is what was asked for, in words."""
        wanted = f"{100 * self.sets.coverage:g} %"
        short = self.fell_short
        if not short:
            return (
                f"Coverage is what {wanted} allows for. It holds for new samples drawn from the same source as those "
                "of the fit, and for no others."
            )
        where = listed([class_called(group.name) for group in short]) if self.sets.per_class else "the sets"
        return (
            f"Coverage is below {wanted} for {where}, by more than chance explains: these samples are unlike those "
            "of the fit. Fit the sets to samples like these."
        )

    def _parts(self) -> list[Table | str]:
        return [str(self.sets), self.table(), self.verdict()]


def place_of(count: int, coverage: float) -> int:
    """Which of the sorted scores is the threshold, from 1; if too few, more than there are."""
    # In decimal digits: (n + 1) times 0.9 in binary may be a hair above a whole number.
    return math.ceil((count + 1) * Decimal(repr(float(coverage))))

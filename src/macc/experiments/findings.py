"""Sentences: which method is best, does MACC beat what it must? Every claim is tested."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from macc import losses, metrics
from macc.experiments import grid
from macc.experiments.catalog import LocalDataSet
from macc.experiments.columns import column, compared, main
from macc.experiments.ledger import Ledger
from macc.experiments.measure import RunPredictions
from macc.experiments.result import LEVEL, Cell, PairedTest, Result
from macc.experiments.spec import RULE_TEXT, Method, half_of
from macc.metrics.comparing import paired
from macc.metrics.intervals import MeanOfSets
from macc.metrics.over_runs import interval, paired_p
from macc.training.recipe import HeadSettings, criterion_of

JUDGED = "ece"
"""The metric of the sentences about MACC; of the other main metrics they say the verdicts alone."""
MOST_NAMED = 4
WHY = {
    "task": "its own task loss",
    "dropout": "the same head with single-pass dropout",
    "competitor": "the best other method",
    "temperature": "cross-entropy with temperature scaling",
}
BETTER, SAME, WORSE = (
    "significantly better than",
    "no significant difference from",
    "significantly worse than",
)
BY_CHANCE = (
    "Where chance alone is named, the error is no larger than a perfectly calibrated model may show on as many samples; "
    "no method counts as significantly better than one with such an error."
)


def add_findings(result: Result, ledger: Ledger, predictions: RunPredictions | None = None) -> None:
    """Test the best method of every column against all, every MACC method against its rivals.

    Args:
        result: Has the cells; the tests and sentences are added.
        ledger: The trainings behind it.
        predictions: Those that were measured already, if any.
    """
    tests = _Tests(result, ledger, predictions or RunPredictions())
    for block in result.blocks():
        for names in result.stages:
            of_metrics = {
                metric: _against_all(result, names, *block, metric, tests.paired) for metric in tests.metrics
            }
            result.comparisons += [row for rows in of_metrics.values() for row in rows]
            result.findings += [
                _best_sentence(result, rows) for name, rows in of_metrics.items() if rows and name in main()
            ]
        if block[0] not in ledger.catalog:  # an average
            continue
        dataset = ledger.catalog[block[0]]
        for method in ledger.trained(dataset):
            if _is_macc(ledger, dataset, method):
                rivals = _others(ledger, dataset, method)
                for name, others in ((method.title, rivals), _calibrated(result, method.title, rivals)):
                    rows = _compare(result, others, *block, name, tests.paired)
                    result.comparisons += rows
                    if rows:
                        result.findings.append(_sentence(result, *block, name, rows))
    if any("chance alone" in text for text in result.findings):
        result.findings.append(BY_CHANCE)
    if (
        any(dataset.tests for dataset in ledger.catalog.datasets)
        and not result.comparisons
        and result.kind == "table"
    ):
        result.findings.append("Only one method has results, so there is nothing to compare.")


Paired = Callable[[Cell, Cell, str], PairedTest]
"""Tests two cells of one column; the text is what the second is to the first."""


class _Tests:
    """Paired tests of the cells of a result: over seeds, or over test samples of one run each."""

    def __init__(self, result: Result, ledger: Ledger, predictions: RunPredictions) -> None:
        self.result, self.ledger, self.predictions = result, ledger, predictions
        self.metrics = compared(result.columns)

    def paired(self, a: Cell, b: Cell, why: str) -> PairedTest:
        """Test A against B."""
        if len(a.values) > 1 and len(a.values) == len(b.values):
            low, high, p, basis = *_over_seeds(a, b), "seeds"
        elif len(a.values) == len(b.values) == 1 and a.dataset in self.ledger.catalog:
            row = paired(self._resampled(a), self._resampled(b), confidence=0.95)
            low, high, p, basis = row.low, row.high, row.p, "samples"
        else:
            low, high, p, basis = math.nan, math.nan, math.nan, "none"
        larger = a if a.mean > b.mean else b
        if larger.by_chance and not math.isnan(p):
            p = 1.0  # an error that chance alone may give is not worse than any other
        return PairedTest(
            dataset=a.dataset,
            test=a.test,
            rule=a.rule,
            metric=a.metric,
            a=a.method,
            b=b.method,
            why=why,
            difference=a.mean - b.mean,
            low=low,
            high=high,
            p=p,
            p_holm=p,
            basis=basis,
        )

    def _resampled(self, cell: Cell) -> MeanOfSets:
        """What resampling the test samples shows of a cell of one model."""
        base = self.result.calibrated.get(cell.method)
        if base is None:
            method = self.ledger.experiment.method(cell.method)
            base = method.title if method.of is None else method.of
        else:
            method = Method(name=cell.method, of=base, posthoc="calibrator")
        wanted = (cell.dataset, base, cell.rule)
        runs = [
            self.ledger.run_in(run.folder)
            for run in self.result.runs
            if (run.dataset, run.method, run.rule) == wanted
        ]
        names = self.ledger.catalog[cell.dataset].tests[cell.test]
        return self.predictions.sampled(method, runs, names, self.metrics)[cell.metric]


def _over_seeds(a: Cell, b: Cell) -> tuple[float, float, float]:
    """Ends of the interval of A minus B, and the p-value of a paired t-test over seeds.

    Chance alone makes a calibration error positive: by its noise floor where a model is perfectly
    calibrated, and by less the larger the true error is. How much of the floor to subtract is
    therefore not known. If the true errors are the same, the method with the lower floor has the
    lower error, and the method with the higher floor has the lower error above its floor. So the
    difference must be significant in both ways, with and without the floors, and the larger p-value
    counts.
    """
    differences = [x - y for x, y in zip(a.values, b.values, strict=True)]
    ways = [differences]
    if a.floor is not None and b.floor is not None:
        ways.append([each - (a.floor - b.floor) for each in differences])
    ends = [interval(way) or (math.nan, math.nan) for way in ways]
    p_values = [paired_p(way) for way in ways]
    means = [math.fsum(way) for way in ways]
    if any(map(math.isnan, p_values)):
        p = math.nan
    elif min(means) < 0 < max(means):
        p = 1.0
    else:
        p = max(p_values)
    return min(low for low, _ in ends), max(high for _, high in ends), p


def _is_higher_better(metric: str) -> bool:
    return column(metric).better == "higher"


def _against() -> list[str]:
    """The metrics in which a MACC method has to beat others."""
    return [name for name in main() if not _is_higher_better(name)]


def _against_all(
    result: Result,
    names: Sequence[str],
    dataset: str,
    test: str,
    rule: str,
    metric: str,
    test_pair: Paired,
) -> list[PairedTest]:
    """The one of some methods with the best mean against every other one."""
    cells = [result.cell(dataset, test, name, metric, rule) for name in names]
    there = [cell for cell in cells if cell is not None and math.isfinite(cell.mean)]
    if len(there) < 2:
        return []
    best = (max if _is_higher_better(metric) else min)(there, key=lambda cell: cell.mean)
    rows = [test_pair(best, cell, "best") for cell in there if cell is not best]
    corrected = of_the_best([row.p for row in rows])
    return [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def of_the_best(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of the best method for their number and for the choice of the best.

    Any of the m methods might have come out best. For each of them Holm's procedure at level α/m
    with one-sided tests, whose p-values are half of these, keeps the chance of a false claim below
    α/m: below α for all together.

    Example:
        >>> of_the_best([0.01])
        [0.01]
        >>> [round(p, 3) for p in of_the_best([0.01, 0.02])]
        [0.03, 0.03]
    """
    methods = len(p_values) + 1
    return metrics.holm([p if math.isnan(p) else min(1.0, p * methods / 2) for p in p_values])


def _criteria(ledger: Ledger, dataset: LocalDataSet, method: Method) -> list[losses.Task | losses.Criterion]:
    """The loss of a method at every point of its grid."""
    texts = [
        grid.fill("loss", method.loss or "", point, ledger.grids(dataset))
        for point in ledger.points(dataset, method)
    ]
    return [criterion_of(half_of(text, 2)) for text in dict.fromkeys(texts)]


def _tasks(ledger: Ledger, dataset: LocalDataSet, method: Method) -> set[str]:
    """The task losses of a method, written out: focal losses with other gammas are other losses."""
    return {str(criterion.task) for criterion in _criteria(ledger, dataset, method)}


def _is_macc(ledger: Ledger, dataset: LocalDataSet, method: Method) -> bool:
    return _criteria(ledger, dataset, method)[0].needs_moments


def _apart_from_head(method: Method) -> dict[str, object]:
    """What a method sets beside its head: its task loss has to have the same."""
    return {key: value for key, value in method.settings.items() if key.split(".")[0] != "head"}


def _masks(ledger: Ledger, dataset: LocalDataSet, method: Method) -> int:
    """How many dropout masks a step a method is trained with; none without a head."""
    if method.p_of is not None:
        return 1
    head = ledger.recipe(ledger.job(dataset, method, ledger.points(dataset, method)[0], ledger.seeds[0])).head
    return head.samples if isinstance(head, HeadSettings) else 0


def _others(ledger: Ledger, dataset: LocalDataSet, method: Method) -> dict[str, list[str]]:
    """What a MACC method is tested against, by what it is to it."""
    tasks = _tasks(ledger, dataset, method)
    found: dict[str, list[str]] = {why: [] for why in WHY}
    for other in ledger.methods(dataset):
        base = other if other.of is None else ledger.experiment.method(other.of)
        criterion, masks = _criteria(ledger, dataset, base)[0], _masks(ledger, dataset, base)
        if other.of is not None:
            if other.posthoc == "temperature" and isinstance(criterion, losses.CrossEntropy) and not masks:
                found["temperature"].append(other.title)
            continue
        if criterion.needs_moments:
            continue
        alone = isinstance(criterion, losses.Task) and _tasks(ledger, dataset, base) == tasks
        alone = alone and _apart_from_head(other) == _apart_from_head(method)
        if not masks:
            found["task" if alone else "competitor"].append(other.title)
        elif alone and masks == 1:
            found["dropout"].append(other.title)
    return found


def _calibrated(result: Result, name: str, rivals: dict[str, list[str]]) -> tuple[str, dict[str, list[str]]]:
    """A method after its calibrator, and what it is tested against after theirs."""
    then = {base: title for title, base in result.calibrated.items()}
    after = {why: [then[other] for other in others if other in then] for why, others in rivals.items()}
    return then.get(name, ""), after


def _compare(
    result: Result,
    rivals: dict[str, list[str]],
    dataset: str,
    test: str,
    rule: str,
    name: str,
    test_pair: Paired,
) -> list[PairedTest]:
    """A MACC method against what it must beat, metric by metric."""
    found = []
    for metric in _against():
        own = result.cell(dataset, test, name, metric, rule)
        if own is None:
            continue
        rows, family = [], []
        for why, others in rivals.items():
            cells = [
                cell
                for other in others
                if (cell := result.cell(dataset, test, other, metric, rule)) is not None
                and len(cell.values) == len(own.values)
            ]
            if cells:
                rows.append(test_pair(own, min(cells, key=lambda cell: cell.mean), why))
                # Which of several is the best was seen on the test itself.
                p = rows[-1].p
                family.append(p if math.isnan(p) else min(1.0, len(cells) * p))
        corrected = metrics.holm(family)
        found += [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]
    return found


class Wording:
    """The words for one column of a block: its noun, its unit, and where it stands."""

    def __init__(self, result: Result, dataset: str, test: str, rule: str, metric: str) -> None:
        self.result, self.key = result, (dataset, test, rule, metric)
        found = column(metric, result.units.get(metric))
        self.noun, self.unit = found.heading, found.unit
        self.place = self.where = dataset if test == "test" else f"{dataset}, {test}"
        if len(result.rules(dataset)) > 1:
            self.where += f" (selected by {RULE_TEXT[rule]})"

    def cell(self, name: str) -> Cell:
        """The cell of a method."""
        dataset, test, rule, metric = self.key
        cell = self.result.cell(dataset, test, name, metric, rule)
        assert cell is not None  # noqa: S101 - it was compared
        return cell

    def number(self, value: float) -> str:
        """A value with its unit."""
        return f"{self.unit.write(value)}{self.unit.suffix}"

    def value(self, name: str) -> str:
        """The mean of a method; with its floor where it is no more than chance gives."""
        cell = self.cell(name)
        text = self.number(cell.mean)
        near = cell.by_chance and cell.floor is not None
        return f"{text}; chance alone gives {self.number(cell.floor or 0)}" if near else text

    def tested(self, row: PairedTest) -> str:
        """What a method was tested against, with its value and the p-value."""
        return f"{named(row.b)} ({self.value(row.b)}; {_p(row.p_holm)})"


def _best_sentence(result: Result, rows: list[PairedTest]) -> str:
    """Which method is best in one column, and whether that is clear."""
    first = rows[0]
    words = Wording(result, first.dataset, first.test, first.rule, first.metric)
    where = f"{words.where}, after calibration" if first.a in result.calibrated else words.where
    own = f"{named(first.a)} ({words.value(first.a)})"
    better = [row for row in rows if row.p_holm < LEVEL]
    others = [row for row in rows if row not in better]
    if not others:
        whom = words.tested(first) if len(rows) == 1 else f"every other method ({limit(better, '≤')})"
        return f"{where}: {own} has the best {words.noun}, {BETTER} {whom}."
    said = []
    if len(better) == 1:
        said.append(f"{BETTER} {words.tested(better[0])}")
    elif better:
        said.append(f"{BETTER} {_and([named(row.b) for row in better])} ({limit(better, '≤')})")
    if len(others) <= MOST_NAMED:
        said.append(f"{SAME} {_and([words.tested(row) for row in others])}")
    elif better:
        said.append(f"{SAME} {_and([named(row.b) for row in others])} ({limit(others, '≥')})")
    else:
        said.append(f"{SAME} any other method ({limit(others, '≥')})")
    end = "highest" if _is_higher_better(first.metric) else "lowest"
    return f"{where}: no clear best {words.noun}. {own} has the {end}: {'; '.join(said)}."


def _sentence(result: Result, dataset: str, test: str, rule: str, name: str, rows: list[PairedTest]) -> str:
    """How a MACC method stands to what it must beat."""
    words = Wording(result, dataset, test, rule, JUDGED)
    verdicts: dict[str, list[str]] = {BETTER: [], SAME: [], WORSE: []}
    compared_with = set()
    for row in rows:
        if row.metric != JUDGED:
            continue
        compared_with.add(row.why)
        whom = WHY[row.why]
        rates = [result.dropout(dataset, title, rule) for title in (row.a, row.b)]
        if row.why == "dropout" and None not in rates and rates[0] != rates[1]:
            whom = f"single-pass dropout at another rate, {rates[1]:g} where it has {rates[0]:g},"
        verdicts[verdict_of(row)].append(f"{whom} {words.tested(row)}")
    said = [f"{verdict} {_and(whom)}" for verdict, whom in verdicts.items() if whom]
    absent = [why for key, why in WHY.items() if key not in compared_with]
    first = (test, rule) == (result.tests[dataset][0], result.rules(dataset)[0])
    missing = (
        f" It is not compared with {_and(absent)}: this experiment has none."
        if absent and first and name not in result.calibrated
        else ""
    )
    own = f"{named(name)} ({words.noun} {words.value(name)})"
    return f"{words.where}, {own}: {'; '.join(said)}.{_also(rows)}{missing}"


def verdict_of(row: PairedTest) -> str:
    """How A stands to B: significantly better, no significant difference or significantly worse."""
    if row.p_holm >= LEVEL or math.isnan(row.p_holm):
        return SAME
    return BETTER if (row.difference > 0) == _is_higher_better(row.metric) else WORSE


def _also(rows: list[PairedTest]) -> str:
    """The verdicts by the other metrics."""
    texts = []
    for metric in _against():
        mine = [row for row in rows if row.metric == metric]
        if metric == JUDGED or not mine:
            continue
        whom = {word: [named(row.b) for row in mine if verdict_of(row) == word] for word in (BETTER, WORSE)}
        said = "; ".join(f"{word} {_and(names)}" for word, names in whom.items() if names)
        texts.append(f" {column(metric).heading}: {said or 'no significant difference'}.")
    return "".join(texts)


def _p(value: float) -> str:
    if math.isnan(value):
        return "not tested"
    return "p < 0.001, Holm" if value < 0.001 else f"p = {value:.3f}, Holm"


def limit(rows: Sequence[PairedTest], sign: str) -> str:
    """The largest (≤) or the smallest (≥) of several p-values."""
    tested = [row.p_holm for row in rows if not math.isnan(row.p_holm)]
    if not tested:
        return "not tested"
    extreme, towards = (max(tested), math.ceil) if sign == "≤" else (min(tested), math.floor)
    if len(set(tested)) == 1 or extreme < 0.001:
        return _p(extreme)
    return f"p {sign} {towards(1000 * extreme) / 1000:.3f}, Holm"


def named(title: str) -> str:
    """A method's name, in quotes where a comma in it would end it."""
    return f"“{title}”" if "," in title else title


def _and(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"

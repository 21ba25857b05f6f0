"""Sentences: does MACC beat its own task loss, plain dropout, the best competitor and temperature scaling, or not?"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from macc import losses, metrics
from macc.experiments import _grids, _measure
from macc.experiments._file import RULES, Method, Rule, half_of
from macc.experiments._result import Cell, Comparison, Result, interval, paired_p
from macc.experiments._runs import Case, Plan
from macc.metrics._compare import paired, sampled_means
from macc.metrics._intervals import MeanOfSets
from macc.training.recipe import Head

JUDGED = "ece"
"""The metric of the sentences; of SCE and NLL they say the verdicts alone."""
TESTED = ("ece", "sce", "nll")
LEVEL = 0.05
Resampled = Callable[[str, str, str, str], dict[str, MeanOfSets]]
"""What resampling shows of a run, by its folder, the method, data set and test."""
RULE_TEXT = {"val_accuracy": "validation accuracy, the paper's rule", "val_nll": "validation NLL"}
_WHY = {
    "task": "its own task loss",
    "dropout": "the same head with single-pass dropout",
    "competitor": "the best other method",
    "temperature": "cross-entropy with temperature scaling",
}


def add_findings(result: Result, plan: Plan) -> None:
    """Test every MACC method against what it must beat, and say how it went."""

    @cache
    def resampled(folder: str, title: str, dataset: str, test: str) -> dict[str, MeanOfSets]:
        names = plan.case(dataset).tests[test]
        method, run = plan.experiment.method(title), plan.run_in(folder)
        cells = [_measure.read_after(method, run, name) for name in names]
        return sampled_means(cells, TESTED, from_logits=True)

    for case in plan.cases:
        for test in case.tests:
            for rule in (rule for rule in RULES if rule in result.rules(case.name)):
                for method in plan.trained(case):
                    if _is_macc(plan, case, method):
                        _compare(result, plan, case, test, rule, method, resampled)
    for block in result.blocks():
        rows = [c for c in result.comparisons if (c.dataset, c.test, c.rule) == block]
        for name in dict.fromkeys(row.a for row in rows):
            mine = [row for row in rows if row.a == name]
            result.findings.append(_sentence(result, *block, name, mine))
    if any(case.tests for case in plan.cases) and not result.comparisons and result.kind == "table":
        result.findings.append(
            "No method of this comparison has the MACC term beside another to test it against."
        )


def _criteria(plan: Plan, case: Case, method: Method) -> list[losses.Task | losses.Criterion]:
    """The loss of a method at every point of its grid."""
    texts = [
        _grids.fill("loss", method.loss or "", point, plan.grids(case)) for point in plan.points(case, method)
    ]
    return [losses.parse(half_of(text, 2)) for text in dict.fromkeys(texts)]


def _tasks(plan: Plan, case: Case, method: Method) -> set[str]:
    """The task losses of a method, written out: focal losses with other gammas are other losses."""
    return {str(criterion.task) for criterion in _criteria(plan, case, method)}


def _is_macc(plan: Plan, case: Case, method: Method) -> bool:
    return _criteria(plan, case, method)[0].needs_moments


def _apart_from_head(method: Method) -> dict[str, object]:
    """What a method sets beside its head: with another schedule a loss is not the task loss of a method."""
    return {key: value for key, value in method.settings.items() if key.split(".")[0] != "head"}


def _masks(plan: Plan, case: Case, method: Method) -> int:
    """How many dropout masks a step a method is trained with; none without a head."""
    if method.p_of is not None:
        return 1
    head = plan.recipe(plan.job(case, method, plan.points(case, method)[0], plan.seeds[0])).head
    return head.samples if isinstance(head, Head) else 0


def _others(plan: Plan, case: Case, method: Method) -> dict[str, list[Method]]:
    """What a MACC method is tested against, by what it is to it."""
    tasks = _tasks(plan, case, method)
    found: dict[str, list[Method]] = {why: [] for why in _WHY}
    for other in plan.methods(case):
        base = other if other.of is None else plan.experiment.method(other.of)
        criterion, masks = _criteria(plan, case, base)[0], _masks(plan, case, base)
        if other.of is not None:
            if other.posthoc == "temperature" and isinstance(criterion, losses.CrossEntropy) and not masks:
                found["temperature"].append(other)
            continue
        if criterion.needs_moments:
            continue
        alone = isinstance(criterion, losses.Task) and _tasks(plan, case, base) == tasks
        alone = alone and _apart_from_head(other) == _apart_from_head(method)
        if not masks:
            found["task" if alone else "competitor"].append(other)
        elif alone and masks == 1:
            found["dropout"].append(other)
    return found


def _compare(
    result: Result, plan: Plan, case: Case, test: str, rule: Rule, method: Method, resampled: Resampled
) -> None:
    rivals = _others(plan, case, method)
    for metric in TESTED:
        own = result.cell(case.name, test, method.title, metric, rule)
        if own is None:
            continue
        rows, family = [], []
        for why, others in rivals.items():
            cells = [
                cell
                for other in others
                if (cell := result.cell(case.name, test, other.title, metric, rule)) is not None
                and len(cell.values) == len(own.values)
            ]
            if cells:
                best = min(cells, key=lambda cell: cell.mean)
                rows.append(_tested(result, plan, own, best, why, resampled))
                # Which of several is the best was seen on the test itself.
                p = rows[-1].p
                family.append(p if math.isnan(p) else min(1.0, len(cells) * p))
        corrected = metrics.holm(family)
        result.comparisons += [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _tested(result: Result, plan: Plan, own: Cell, other: Cell, why: str, resampled: Resampled) -> Comparison:
    differences = [a - b for a, b in zip(own.values, other.values, strict=True)]
    ends, basis = interval(differences), "seeds"
    if ends is None:
        a, b = (
            resampled(_folder(result, plan, cell), cell.method, cell.dataset, cell.test)[cell.metric]
            for cell in (own, other)
        )
        row, basis = paired(a, b, confidence=0.95), "samples"
        ends, p = (row.low, row.high), row.p
    else:
        p = paired_p(differences)
    return Comparison(
        dataset=own.dataset,
        test=own.test,
        rule=own.rule,
        metric=own.metric,
        a=own.method,
        b=other.method,
        why=why,
        difference=own.mean - other.mean,
        low=ends[0],
        high=ends[1],
        p=p,
        p_holm=p,
        basis=basis,
    )


def _folder(result: Result, plan: Plan, cell: Cell) -> str:
    """The run behind a cell of one seed."""
    method = plan.experiment.method(cell.method)
    base = method.title if method.of is None else method.of
    return next(
        run.folder
        for run in result.runs
        if (run.dataset, run.method, run.rule) == (cell.dataset, base, cell.rule)
    )


def _sentence(result: Result, dataset: str, test: str, rule: str, name: str, rows: list[Comparison]) -> str:
    shown = _measure.shown(JUDGED, result.units.get(JUDGED))
    own = result.cell(dataset, test, name, JUDGED, rule)
    assert own is not None  # noqa: S101 - it was compared

    def text(value: float) -> str:
        return f"{shown.scale * value:.{shown.digits}f}"

    verdicts: dict[str, list[str]] = {"beats": [], "cannot be told from": [], "loses to": []}
    named = set()
    for row in rows:
        if row.metric != JUDGED:
            continue
        other = result.cell(dataset, test, row.b, JUDGED, rule)
        assert other is not None  # noqa: S101 - it was compared
        named.add(row.why)
        whom = _WHY[row.why]
        rates = [result.dropout(dataset, title, rule) for title in (row.a, row.b)]
        if row.why == "dropout" and None not in rates and rates[0] != rates[1]:
            whom = f"single-pass dropout at another rate, {rates[1]:g} where it has {rates[0]:g},"
        verdicts[_verdict(row)].append(f"{whom} {row.b} ({text(other.mean)}, p {_p(row.p_holm)})")
    said = [f"{verdict} {_and(whom)}" for verdict, whom in verdicts.items() if whom]
    absent = [why for key, why in _WHY.items() if key not in named]
    where = dataset if test == "test" else f"{dataset}, {test}"
    by = f", by {RULE_TEXT[rule]}" if len(result.rules(dataset)) > 1 else ""
    first = (test, rule) == (result.tests[dataset][0], result.rules(dataset)[0])
    missing = (
        f" It is not compared with {_and(absent)}: this experiment has none." if absent and first else ""
    )
    return (
        f"{where}{by}: {name} (ECE {text(own.mean)} {shown.unit}) {'; it '.join(said)}.{_also(rows)}{missing}"
    )


def _verdict(row: Comparison) -> str:
    if row.p_holm >= LEVEL or math.isnan(row.p_holm):
        return "cannot be told from"
    return "beats" if row.difference < 0 else "loses to"


def _also(rows: list[Comparison]) -> str:
    """The verdicts by the other metrics: whom it beats and to whom it loses."""
    texts = []
    for metric in TESTED:
        mine = [row for row in rows if row.metric == metric]
        if metric == JUDGED or not mine:
            continue
        whom = {word: [row.b for row in mine if _verdict(row) == word] for word in ("beats", "loses to")}
        said = " and ".join(f"{word} {_and(names)}" for word, names in whom.items() if names)
        texts.append(f"by {_measure.shown(metric).label} it {said or 'can be told from none of them'}")
    text = "; ".join(texts)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _p(value: float) -> str:
    if math.isnan(value):
        return "not known"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _and(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"

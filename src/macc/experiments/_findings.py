"""Sentences: does MACC beat its own task loss, plain dropout, the best competitor and temperature scaling, or not?"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from macc import losses, metrics
from macc.experiments import _grids, _measure
from macc.experiments._file import Method, half_of
from macc.experiments._result import Cell, Comparison, Result, interval, paired_p
from macc.experiments._runs import Case, Plan

JUDGED = "ece"
"""The metric of the sentences; of SCE and NLL they say the verdicts alone."""
TESTED = ("ece", "sce", "nll")
LEVEL = 0.05
RULE_TEXT = {"val_accuracy": "validation accuracy, the paper's rule", "val_nll": "validation NLL"}
_WHY = {
    "task": "its own task loss",
    "dropout": "the same head with single-pass dropout",
    "competitor": "the best other method",
    "temperature": "cross-entropy with temperature scaling",
}


def add_findings(result: Result, plan: Plan) -> None:
    """Test every MACC method against what it must beat, and say how it went."""
    for case in plan.cases:
        for test in case.tests:
            for rule in result.rules(case.name):
                for method in plan.trained(case):
                    if _is_macc(plan, case, method):
                        _compare(result, plan, case, test, rule, method)
    for dataset, test, rule in result.blocks():
        rows = [c for c in result.comparisons if (c.dataset, c.test, c.rule) == (dataset, test, rule)]
        for name in dict.fromkeys(row.a for row in rows):
            mine = [row for row in rows if row.a == name]
            result.findings.append(_sentence(result, dataset, test, rule, name, mine))
    if any(case.tests for case in plan.cases) and not result.comparisons and result.kind == "table":
        result.findings.append(
            "No method of this comparison has the MACC term beside another to test it against."
        )


def _criterion(plan: Plan, case: Case, method: Method) -> losses.Task | losses.Criterion:
    grids = plan.grids(case)
    point = plan.points(case, method)[0]
    return losses.parse(half_of(_grids.fill("loss", method.loss or "", point, grids), 2))


def _is_macc(plan: Plan, case: Case, method: Method) -> bool:
    return _criterion(plan, case, method).needs_moments


def _apart_from_head(method: Method) -> dict[str, object]:
    """What a method sets beside its head: with another schedule a loss is not the task loss of a method."""
    return {key: value for key, value in method.settings.items() if key.split(".")[0] != "head"}


def _others(plan: Plan, case: Case, method: Method) -> dict[str, list[Method]]:
    """What a MACC method is tested against, by what it is to it."""
    task = _criterion(plan, case, method).task
    found: dict[str, list[Method]] = {why: [] for why in _WHY}
    for other in plan.methods(case):
        if other.of is not None:
            base = plan.experiment.method(other.of)
            plain = isinstance(_criterion(plan, case, base), losses.CrossEntropy) and not _dropout(base)
            if other.posthoc == "temperature" and plain:
                found["temperature"].append(other)
            continue
        criterion = _criterion(plan, case, other)
        if criterion.needs_moments:
            continue
        alone = isinstance(criterion, losses.Task) and type(criterion) is type(task)
        alone = alone and _apart_from_head(other) == _apart_from_head(method)
        if alone and _dropout(other):
            found["dropout"].append(other)
        elif alone:
            found["task"].append(other)
        elif not _dropout(other):
            found["competitor"].append(other)
    return found


def _dropout(method: Method) -> bool:
    """Whether a method without variance trains with a dropout head, as the control does."""
    return method.p_of is not None or any(key.split(".")[0] == "head" for key in method.settings)


def _compare(result: Result, plan: Plan, case: Case, test: str, rule: str, method: Method) -> None:
    @cache
    def resampled(a: str, b: str) -> metrics.Comparison:
        return _paired_over_samples(result, plan, case, test, rule, (a, b))

    for metric in TESTED:
        own = result.cell(case.name, test, method.title, metric, rule)
        if own is None:
            continue
        rows = []
        for why, others in _others(plan, case, method).items():
            cells = [
                cell
                for other in others
                if (cell := result.cell(case.name, test, other.title, metric, rule)) is not None
                and len(cell.values) == len(own.values)
            ]
            if cells:
                best = min(cells, key=lambda cell: cell.mean)
                rows.append(_tested(own, best, why, resampled))
        corrected = metrics.holm([row.p for row in rows])
        result.comparisons += [replace(row, p_holm=p) for row, p in zip(rows, corrected, strict=True)]


def _tested(
    own: Cell, other: Cell, why: str, resampled: Callable[[str, str], metrics.Comparison]
) -> Comparison:
    differences = [a - b for a, b in zip(own.values, other.values, strict=True)]
    ends, basis = interval(differences), "seeds"
    if ends is None:
        row, basis = resampled(own.method, other.method)[own.metric], "samples"
        shift = (own.mean - other.mean) - row.value  # cells are averaged, not pooled
        ends, p = (row.low + shift, row.high + shift), row.p
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


def _paired_over_samples(
    result: Result, plan: Plan, case: Case, test: str, rule: str, pair: tuple[str, str]
) -> metrics.Comparison:
    """With one run each: a paired bootstrap over the samples of all cells of the test, of all metrics at once."""
    both = []
    for title in pair:
        method = plan.experiment.method(title)
        base = method.title if method.of is None else method.of
        member = next(
            run for run in result.runs if (run.dataset, run.method, run.rule) == (case.name, base, rule)
        )
        run = plan.run_in(member.folder)
        both.append(_measure.pooled([_measure.read_after(method, run, name) for name in case.tests[test]]))
    (a, labels), (b, _) = both
    return metrics.compare(a, b, labels, metrics=list(TESTED), from_logits=True)


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
        verdicts[_verdict(row)].append(f"{_WHY[row.why]} {row.b} ({text(other.mean)}, p {_p(row.p_holm)})")
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

"""What is left of each loss once a temperature has mended its scale, over data sets: tables and a
figure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._results import Verdict, heading, read, save, versus
from macc import metrics
from macc.experiments.result import Result
from macc.report.figures.style import FAINT, GREEN, VERMILLION, grid, style

BASE = "NLL"
RULES = {
    "last": "The last epoch",
    "val_refinement": "The epoch of the least validation NLL after temperature scaling",
}
METRICS = {
    "nll": (1, 3, -1),
    "brier": (1, 3, -1),
    "sce": (1000, 1, -1),
    "ece": (100, 1, -1),
    "accuracy": (100, 1, 1),
}
"""What a value is multiplied by for print, its digits, and whether more of it is better."""
LABELS = {"nll": "NLL", "brier": "Brier", "sce": "SCE e-3", "ece": "ECE %", "accuracy": "accuracy %"}


@dataclass(frozen=True)
class Study:
    """A data set of experiments that have the same columns, and what a reader calls it."""

    title: str
    experiments: tuple[str, ...]
    dataset: str
    test: str  # what the short tables show


STUDIES = (
    Study("Fashion-MNIST", ("fashion",), "Fashion-MNIST", "in domain"),
    Study("all of Fashion-MNIST", ("fashion_whole",), "Fashion-MNIST", "in domain"),
    Study("all of CIFAR-10", ("cifar10_whole",), "CIFAR10", "in domain"),
    Study("digits", ("features",), "digits", "in domain"),
    Study("chest X-rays", ("chest_xray_after",), "chest X-rays", "in domain"),
    Study("20 Newsgroups", ("newsgroups_bag",), "20 Newsgroups", "in domain"),
    Study("PACS, shifted", ("features",), "PACS", "cartoon and sketch"),
)
"""In the order of the columns; those that were not run are left out."""


def then(method: str) -> str:
    """A method after temperature scaling."""
    return f"{method}, then temperature"


def trained(result: Result) -> list[str]:
    """The methods as they were trained."""
    return result.stages[0]


def found_of(study: Study) -> list[Result]:
    """The results of a data set that there are."""
    return [
        result
        for result in map(read, study.experiments)
        if result is not None and study.dataset in result.datasets
    ]


def judged(
    result: Result,
    dataset: str,
    test: str,
    rule: str,
    metric: str,
    pairs: Sequence[tuple[str, str]],
) -> list[tuple[Verdict | None, str]]:
    """Of pairs of methods: the difference, and whether the first is better, at 5 % after Holm's
    correction over the pairs.
    """
    verdicts = [versus(result, dataset, test, rule, metric, *pair) for pair in pairs]
    corrected = iter(metrics.holm([each.p for each in verdicts if each is not None]))
    direction = METRICS[metric][2]
    return [(each, "" if each is None else each.sign(direction, next(corrected))) for each in verdicts]


def value(result: Result, dataset: str, test: str, rule: str, metric: str, method: str) -> float:
    """A mean over seeds."""
    cell = result.cell(dataset, test, method, metric, rule)
    if cell is None:
        raise ValueError(
            f"results/{result.name}.json has no {metric} of {method!r} on {dataset}, {test!r} by {rule}"
        )
    return cell.mean


def number(metric: str, mean: float, *, signed: bool = False) -> str:
    """A value as it is printed."""
    times, digits, _ = METRICS[metric]
    return f"{times * mean:{'+' if signed else ''}.{digits}f}"


def against_base(
    result: Result, dataset: str, test: str, rule: str, metric: str
) -> dict[str, tuple[Verdict | None, str]]:
    """Every method after a temperature against cross-entropy after one."""
    others = [method for method in trained(result) if method != BASE]
    pairs = [(then(method), then(BASE)) for method in others]
    return dict(zip(others, judged(result, dataset, test, rule, metric, pairs), strict=True))


def tables(name: str) -> str:
    """Every method of an experiment as trained and after a temperature, by both rules, each held
    against cross-entropy.
    """
    result = read(name)
    if result is None:
        return "Not run yet."
    lines = [heading(result)]
    if result.left_out:
        lines += ["", f"Left out: {'; '.join(result.left_out)}."]
    for dataset in result.datasets:
        for rule, words in RULES.items():
            where = f"{dataset}. " if len(result.datasets) > 1 else ""
            lines += ["", f"{where}{words}:", "", *_table(result, dataset, rule)]
    return "\n".join(lines)


def _table(result: Result, dataset: str, rule: str) -> list[str]:
    methods = trained(result)
    first, *shifted = result.tests[dataset]
    heads = ["", "as trained: NLL", "temperature", "**then temperature: NLL**"]
    heads += [LABELS[metric] for metric in METRICS if metric != "nll"]
    heads += [f"NLL, {test}" for test in shifted]
    rows = {
        method: [
            method,
            number("nll", value(result, dataset, first, rule, "nll", method)),
            f"{value(result, dataset, first, rule, 'temperature', then(method)):.2f}",
        ]
        for method in methods
    }
    places = [(first, metric) for metric in METRICS] + [(test, "nll") for test in shifted]
    for test, metric in places:
        verdicts = against_base(result, dataset, test, rule, metric)
        for method, row in rows.items():
            _, mark = verdicts.get(method, (None, ""))
            mean = value(result, dataset, test, rule, metric, then(method))
            row.append(number(metric, mean) + (f" `{mark}`" if mark else ""))
    return [
        f"| {' | '.join(heads)} |",
        "|---|" + "--:|" * (len(heads) - 1),
        *(f"| {' | '.join(row)} |" for row in rows.values()),
    ]


def columns() -> Iterator[tuple[Study, list[Result]]]:
    """The data sets that were run."""
    for study in STUDIES:
        results = found_of(study)
        if results:
            yield study, results


def headline() -> str:
    """Of each method on each data set: NLL after a temperature minus that of cross-entropy after
    one, last epoch.
    """
    shown = list(columns())
    rows: dict[str, dict[str, str]] = {}
    for study, results in shown:
        for result in results:
            verdicts = against_base(result, study.dataset, study.test, "last", "nll")
            for method, (verdict, mark) in verdicts.items():
                row = rows.setdefault(method, {})
                if verdict is not None and study.title not in row:
                    row[study.title] = f"{number('nll', verdict.difference, signed=True)} `{mark}`"
    order = sorted(rows, key=lambda method: ("MACC" in method, method.startswith("FL")))
    lines = [
        f"| then a temperature | {' | '.join(study.title for study, _ in shown)} |",
        "|---|" + "--:|" * len(shown),
    ]
    levels = [_level(study, results) for study, results in shown]
    lines.append(f"| cross-entropy (NLL): its NLL | {' | '.join(levels)} |")
    for method in order:
        fields = (rows[method].get(study.title, "") for study, _ in shown)
        lines.append(f"| {method} | {' | '.join(fields)} |")
    counts = [", ".join(str(result.seeds) for result in results) for _, results in shown]
    return "\n".join([*lines, f"| seeds | {' | '.join(counts)} |"])


def _level(study: Study, results: Sequence[Result]) -> str:
    means = (value(result, study.dataset, study.test, "last", "nll", then(BASE)) for result in results)
    return ", ".join(number("nll", mean) for mean in means)


def small() -> str:
    """What is better than cross-entropy on digits and fixed features, after a temperature each:
    what a sentence begins with, or nothing where none was run.
    """
    parts = []
    for study, results in columns():
        for result in results:
            if result.name not in ("features", "chest_xray_after", "newsgroups_bag"):
                continue
            marks = against_base(result, study.dataset, study.test, "last", "nll")
            better = [method for method, (_, mark) in marks.items() if mark == "+"]
            worse = [method for method, (_, mark) in marks.items() if mark == "-"]
            parts.append(
                f"{study.title}: better {', '.join(better) or 'none'}, "
                f"worse {', '.join(worse) or 'none'} of {len(marks)}"
            )
    return "".join(f"NLL after it, on {part}; " for part in parts)


def draw(path: Path) -> None:
    """NLL after a temperature minus that of cross-entropy after one, with 95 % intervals."""
    shown = list(columns())
    methods = list(
        dict.fromkeys(
            method
            for _, results in shown
            for result in results
            for method in trained(result)
            if method != BASE
        )
    )
    order = sorted(methods, key=lambda method: ("MACC" in method, method.startswith("FL")))
    with style():
        figure, axes = grid(
            1, len(shown), (3.4 if len(shown) == 1 else 2.5, 1.0 + 0.27 * len(order)), sharey=True
        )
        for ax, (study, results) in zip(axes[0], shown, strict=True):
            placed: set[str] = set()
            for result in results:
                for method, (verdict, mark) in against_base(
                    result, study.dataset, study.test, "last", "nll"
                ).items():
                    if verdict is None or method in placed or result.seeds < 3:
                        continue  # two seeds give an interval wider than the page
                    placed.add(method)
                    height = order.index(method)
                    colour = {"+": GREEN, "-": VERMILLION}.get(mark, FAINT)
                    ax.plot([verdict.low, verdict.high], [height, height], color=colour, lw=1.4)
                    fill = "none" if colour == FAINT else "full"  # seen in grey too
                    ax.plot(verdict.difference, height, "o", color=colour, ms=5, fillstyle=fill)
            ax.axvline(0, color=FAINT, lw=0.8)
            ax.set_title(study.title)
            ax.set_yticks(range(len(order)), order)
            ax.set_ylim(len(order) - 0.5, -0.5)
            ax.locator_params(axis="x", nbins=4)
            ax.set_xlabel("difference in NLL\n← better    worse →")
        save(figure, path)

"""The pages of results and of performance: collects what experiments found and writes the pages'
tables.

    python -m benchmarks.evidence collect RUNS
        result.json of RUNS/experiments into results/
    python -m benchmarks.evidence certainty RUNS DATA
        certainty of the runs with dropout into results/
    python -m benchmarks.evidence repair LOGITS.npz
        the README's picture, before and after a temperature
    python -m benchmarks.evidence write
        results/*.json into the pages

The pages' tables come from the committed JSON alone; a test sees to it that they agree.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from benchmarks import calibrated, ensembles, fashion, people, posthoc_field, posthoc_page
from benchmarks._results import IMAGES, RESULTS, ROOT, heading, read, save, versus
from benchmarks._timing import Ratio
from benchmarks.scaling import Growth
from macc import evaluate, experiments, losses, metrics, posthoc, training
from macc.experiments.result import Cell, Result
from macc.metrics.over_runs import interval
from macc.report.figures import reliability_diagrams
from macc.report.figures._certainty import Groups, draw_groups, groups_by_certainty
from macc.report.figures.style import BLUE, FAINT, VERMILLION, grid, line_look, style
from macc.report.sources import open_sources

TABLES = ROOT / "docs" / "results-tables.md"
SPEED = RESULTS / "performance.json"
WRITTEN = (
    "results",
    "results-after-temperature",
    "results-as-trained",
    "performance",
    "which-method",
    "posthoc",
)
PAGES = (*(ROOT / "docs" / f"{name}.md" for name in WRITTEN), ROOT / "README.md")
CERTAINTY = RESULTS / "certainty.json"
WAYS = {"conventional": "N whole passes", "efficient": "one pass, N masks"}
"""The ways to get moments of N masks, and what a figure calls them."""
COMPARED = ("digits", "chest_xray", "pacs_a", "pacs_b", "newsgroups", "cifar10")
AFTER = (
    "fashion",
    "fashion_settings",
    "fashion_losses",
    "fashion_whole",
    "features",
    "chest_xray_after",
    "newsgroups_bag",
    "cifar10_whole",
)
"""What is told after a temperature; what was not run is left out."""
ORDER = (*AFTER, *COMPARED, "ablation", "cifar10_search")
METRICS = {"ece": -1, "sce": -1, "nll": -1, "accuracy": 1}
"""What is compared, and whether more of it is better."""
RULES = {"val_accuracy": "accuracy, the paper's rule", "val_nll": "NLL"}
CONTROL = "with dropout"
RIVALS = {
    "task loss": {"NLL+MACC": "NLL", "LS+MACC": "LS", "FL+MACC": "FL"},
    CONTROL: {"NLL+MACC": "NLL+dropout", "LS+MACC": "LS+dropout", "FL+MACC": "FL+dropout"},
    "FL+MDCA": {},
    "NLL+MbLS": {},
    "NLL+TS": {},
}
"""What MACC is held against: the rival of each form of it, or one for all."""
OTHER_RATE = "with dropout, another rate"
TALLIED = ("task loss", CONTROL, OTHER_RATE, *list(RIVALS)[2:])

Block = tuple[Result, str, str, str]
"""An experiment's result, and the data set, test and rule of one of its tables."""


def main(arguments: Sequence[str]) -> int:
    """``collect RUNS``, ``certainty RUNS DATA``, ``repair LOGITS.npz`` or ``write``."""
    if arguments[:1] == ["collect"] and len(arguments) == 2:
        collect(Path(arguments[1]))
    elif arguments[:1] == ["certainty"] and len(arguments) == 3:
        collect_certainty(Path(arguments[1]), Path(arguments[2]))
    elif arguments[:1] == ["repair"] and len(arguments) == 2:
        draw_repair(Path(arguments[1]), IMAGES / "before-after.svg")
    elif list(arguments) == ["write"]:
        TABLES.write_text(tables_page())
        draw_growth(IMAGES / "growth.svg")
        draw_timing(IMAGES / "timing.svg")
        draw_certainty(IMAGES / "certainty.svg")
        draw_differences(IMAGES / "differences.svg")
        calibrated.draw(IMAGES / "after-temperature.svg")
        fashion.draw_training(IMAGES / "mechanism.svg")
        posthoc_field.draw(posthoc_page.without_choice(), IMAGES / "posthoc_field.svg")
        for page in PAGES:
            page.write_text(filled(page.read_text()))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


def collect(runs: Path) -> None:
    """Copy the results of the experiments in ``results/``."""
    names = [*(file.stem for file in sorted(RESULTS.glob("*.yaml"))), "timing"]
    for name in names:
        for scale in ("full", "cpu"):
            source = runs / "experiments" / f"{name}-{scale}" / "result.json"
            if source.is_file():
                write_result(experiments.load_result(source), RESULTS / f"{name}.json")


def write_result(result: Result, path: Path) -> None:
    """Write a result to be committed."""
    text = json.dumps(rounded(json.loads(experiments.render(result, "json"))), separators=(",", ":"))
    path.write_text(text.replace('},{"', '},\n{"') + "\n")
    print(f"{path.relative_to(ROOT)}: {len(text) // 1000} kB", flush=True)


def collect_certainty(runs: Path, data: Path) -> None:
    """SCE by certainty on the test sets, of cross-entropy trained with dropout alone: the paper's
    figure 2.

    Of runs that are not among ``runs`` what was found before stays.
    """
    before = {(row["data"], row["seed"]): row for row in json.loads(CERTAINTY.read_text())}
    rows = []
    for name in COMPARED:
        result = read(name)
        for run in result.runs if result is not None else ():
            if (run.method, run.rule) != ("NLL+dropout", "val_accuracy"):
                continue
            key = (data_name(name, run.dataset), run.seed)
            if not (runs / run.folder).is_dir():
                rows += [before[key]] if key in before else []
                continue
            with TemporaryDirectory() as folder:
                trained = training.open_run(runs / run.folder)
                training.predict(trained, out=folder, moments=True, root=data)
                moments, labels = open_sources([Path(folder) / "test.npz"])[0].moments()
            groups = groups_by_certainty(moments.mean, labels, moments.certainty, from_logits=True)
            rows.append({"data": key[0], "seed": key[1], "samples": len(labels), **asdict(groups)})
            print(f"{run.dataset}, seed {run.seed}: {len(groups.sce)} groups", flush=True)
    text = json.dumps(rounded(rows), separators=(",", ":"))
    CERTAINTY.write_text(text.replace('},{"data"', '},\n{"data"') + "\n")


def data_name(experiment: str, dataset: str) -> str:
    """What a reader calls the data."""
    names = {
        "chest_xray": "chest X-rays",
        "pacs_a": "PACS, photo to cartoon and sketch",
        "cifar10": "CIFAR-10",
    }
    if experiment == "pacs_b":
        return f"PACS, {'each domain' if dataset == 'Average' else dataset.lower()} to the others"
    return names.get(experiment, dataset)


def rounded(value: Any) -> Any:
    """Numbers to seven digits: more are noise, and take room."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def tables_page() -> str:
    """All tables, as ``macc run --format md`` prints them."""
    parts = [
        "# All tables of the results",
        "",
        "Written from `results/*.json` by `python -m benchmarks.evidence write`.",
    ]
    for name in ORDER:
        result = read(name)
        if result is not None:
            parts += ["", f"## `{name}`", "", experiments.render(result, "md")]
    return "\n".join(parts) + "\n"


def filled(page: str) -> str:
    """The page with every ``<!-- begin NAME -->`` block written anew."""

    def block(match: re.Match[str]) -> str:
        own: dict[str, Callable[[], str]] = {
            "ratios": ratios,
            "growth": growth,
            "timing": timing,
            "ablation": ablation,
            "certainty": certainty,
            "summary": summary,
            "values": values,
            "gain": gain,
            "counts": counts,
            "headline": calibrated.headline,
            **{f"after_{name}": partial(calibrated.tables, name) for name in AFTER},
            "simpler": fashion.simpler,
            "during": fashion.during,
            "ensembles": ensembles.table,
            "people": people.table,
            "claims": claims,
            "rates": fashion.rates,
            "which": which,
            **posthoc_page.BLOCKS,
        }
        text = own.get(match[1], lambda: matrix(match[1]))()
        return f"<!-- begin {match[1]} -->\n{text}\n<!-- end -->"

    return re.sub(r"<!-- begin (\w+) -->\n.*?<!-- end -->", block, page, flags=re.DOTALL)


def ratios() -> str:
    """Every ratio of ``make bench``, as kept."""
    found = json.loads(SPEED.read_text())
    lines = [
        f"{found['machine']}, commit `{found['commit']}`:",
        "",
        "| case | ratio | must be |",
        "|---|--:|---|",
    ]
    for row in found["ratios"]:
        ratio = Ratio(row["case"], row["value"], row["at_most"], row["at_least"])
        mark = "" if ratio.reached else " (missed)"
        lines.append(f"| {ratio.case} | {ratio.value:.3g} | {ratio.limit.replace('<', '&lt;')}{mark} |")
    return "\n".join(lines)


def growth() -> str:
    """How cost grows: the fitted exponents."""
    lines = [
        "| what | grows | at | from | to | times | exponent | at the end |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in json.loads(SPEED.read_text())["growth"]:
        one = Growth(row["what"], row["of"], row["fixed"], tuple(row["sizes"]), tuple(row["seconds"]))
        more = one.seconds[-1] / one.seconds[0]
        sizes = f"{one.sizes[0]:,} | {one.sizes[-1]:,}".replace(",", " ")
        lines.append(
            f"| {one.what} | {one.of} | {one.fixed} | {sizes} | {more:.1f} | {one.exponent:.2f} | {one.last_exponent:.2f} |"
        )
    return "\n".join(lines)


def timing() -> str:
    """Whole epochs by each way to get moments."""
    return experiments.render(experiments.load_result(RESULTS / "timing.json"), "md")


def certainty_groups() -> dict[str, list[tuple[int, Groups]]]:
    """Of each data set, for each seed: the number of samples, and the groups."""
    found: dict[str, list[tuple[int, Groups]]] = {}
    for row in json.loads(CERTAINTY.read_text()):
        estimates = tuple(metrics.Estimate(**estimate) for estimate in row["sce"])
        groups = Groups(row["size"], tuple(row["certainty"]), estimates)
        found.setdefault(row["data"], []).append((row["samples"], groups))
    return found


def certainty() -> str:
    """Correlations of certainty and SCE, and SCE less what chance gives, over seeds."""
    lines = [
        "| test set | samples | groups | seeds | Pearson's r | Spearman's | r, chance taken off |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, seeds in certainty_groups().items():
        samples, first = seeds[0]
        rows = [
            (*found, above)
            for _, groups in seeds
            if (found := groups.correlation()) is not None and (above := beyond_chance(groups)) is not None
        ]
        spans = [
            f"{min(values):+.2f}" + (f" … {max(values):+.2f}" if len(values) > 1 else "")
            for values in zip(*rows, strict=True)
        ]
        lines.append(f"| {name} | {samples} | {len(first.sce)} | {len(seeds)} | {' | '.join(spans)} |")
    return "\n".join(lines)


def beyond_chance(groups: Groups) -> float | None:
    """Pearson's correlation of certainty with SCE less its noise floor."""
    above = tuple(replace(one, value=one.value - (one.noise_floor or 0)) for one in groups.sce)
    found = replace(groups, sce=above).correlation()
    return None if found is None else found[0]


def draw_certainty(path: Path) -> None:
    """SCE against certainty, the first seed of each data set; of PACS one way is enough."""
    found = {
        name: seeds[0][1] for name, seeds in certainty_groups().items() if not name.endswith("the others")
    }
    with style():
        figure, rows = grid(-(-len(found) // 3), 3, (3.4, 3.0))
        axes = [ax for row in rows for ax in row]
        for ax, (name, groups) in zip(axes, found.items(), strict=False):
            draw_groups(groups, ax)
            ax.set_title(f"{name}\n{len(groups.sce)} groups of about {groups.size} samples")
            if (legend := ax.get_legend()) is not None:
                legend.remove()
        for ax in axes[len(found) :]:
            ax.set_axis_off()
        save(figure, path)


def draw_repair(logits: Path, path: Path) -> None:
    """A network's reliability on one half of its test logits, before and after a temperature fitted
    to the other half.
    """
    with np.load(logits, allow_pickle=False) as file:
        scores, labels = torch.from_numpy(file["logits"]), torch.from_numpy(file["labels"])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    fitted, measured = order.chunk(2)
    temperature = posthoc.Temperature.fit(scores[fitted], labels[fitted])
    reports = {
        "as trained": evaluate(scores[measured].softmax(-1), labels[measured], metrics=["ece"]),
        "after macc calibrate": evaluate(temperature(scores[measured]), labels[measured], metrics=["ece"]),
    }
    save(reliability_diagrams(reports), path)


def draw_growth(path: Path) -> None:
    """Times against sizes, both logarithmic, a panel for each size."""
    rows = json.loads(SPEED.read_text())["growth"]
    titles = {"N": "samples N", "K": "classes K", "D": "features D", "S": "masks S"}
    with style():
        figure, (axes,) = grid(1, len(titles), (2.9, 4.2))
        for ax, (of, title) in zip(axes, titles.items(), strict=True):
            mine = [row for row in rows if row["of"] == of]
            for index, row in enumerate(mine):
                first = row["seconds"][0]
                ax.plot(
                    row["sizes"],
                    [s / first for s in row["seconds"]],
                    label=f"{row['what']},\n{row['fixed']}",
                    **line_look(index, len(row["sizes"])),
                )
            ax.set_xscale("log")
            ax.set_yscale("log", base=2)
            if of in ("D", "S"):
                ax.set_xticks(mine[0]["sizes"], [str(size) for size in mine[0]["sizes"]])
                ax.minorticks_off()
            ax.yaxis.set_major_formatter("{x:g}")
            ax.set(xlabel=title, ylabel="time, the first size = 1" if of == "N" else "")
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False)
            ax.grid()
        save(figure, path)


def draw_timing(path: Path) -> None:
    """Time of an epoch against the number of masks, by each way to get moments."""
    rows = experiments.load_result(RESULTS / "timing.json").timings
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    with style():
        figure, (axes,) = grid(1, len(names), (4, 3.4))
        for ax, name in zip(axes, names, strict=True):
            mine = [row for row in rows if row["dataset"] == name]
            for index, (moments, words) in enumerate(WAYS.items()):
                times = {
                    row["masks"]: row["times the task loss alone"]
                    for row in mine
                    if row["moments"] == moments
                }
                ax.plot(list(times), list(times.values()), label=words, **line_look(index, len(times)))
            (exact,) = (row["times the task loss alone"] for row in mine if row["moments"] == "closed form")
            ax.axhline(exact, color=FAINT, ls="--", lw=1, label="closed form")
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xticks([2, 5, 10, 20], ["2", "5", "10", "20"])
            ax.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
            ax.minorticks_off()
            ax.set(title="CIFAR-10" if name == "CIFAR10" else name, xlabel="masks N")
            ax.grid()
        axes[0].set_ylabel("time of an epoch, task loss alone = 1")
        axes[0].legend()
        save(figure, path)


def draw_differences(path: Path) -> None:
    """MACC minus its task loss and minus the dropout control in ECE, over seeds: a panel a task
    loss and rule.
    """
    blocks = [
        (result, dataset, test, rule)
        for result in filter(None, map(read, COMPARED))
        for dataset, test, rule in chosen_blocks(result)
    ]
    with style():
        figure, axes = grid(2, 3, (3.1, 3.3), sharex=True, sharey="row")
        for row, (rule, words) in zip(axes, RULES.items(), strict=True):
            mine = [block for block in blocks if block[3] == rule]
            for ax, method in zip(row, RIVALS[CONTROL], strict=True):
                _differences_of(ax, method, mine)
                ax.set_title(f"{method}, selected by {words.partition(',')[0]}")
        for ax in axes[1]:
            ax.set_xlabel("difference in ECE (points)\n← MACC better    worse →")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        save(figure, path)


def _differences_of(ax: Axes, method: str, blocks: Sequence[Block]) -> None:
    """Means and 95 % t-intervals of paired differences, a line a test set."""
    looks = {
        "task loss": ("o", BLUE, -0.16, "against the task loss alone"),
        CONTROL: ("s", VERMILLION, 0.16, "against the task loss with dropout"),
    }
    for title, (marker, colour, offset, words) in looks.items():
        for place, (result, dataset, test, rule) in enumerate(blocks):
            found = versus(result, dataset, test, rule, "ece", method, RIVALS[title][method])
            if found is not None:
                height = place + offset
                ax.plot([100 * found.low, 100 * found.high], [height, height], color=colour, lw=1.2)
                ax.plot(100 * found.difference, height, marker, color=colour, ms=4.5, label=words)
                words = "_again"  # names with an underscore are left out of legends
    ax.axvline(0, color=FAINT, lw=0.8)
    ax.set_xscale("symlog", linthresh=2, linscale=0.8)
    ax.set_xticks([-50, -10, -2, 0, 2, 10, 50])
    ax.xaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    ax.grid(axis="x")
    ax.set_yticks(range(len(blocks)), titles(blocks))
    ax.set_ylim(len(blocks) - 0.5, -0.5)


def matrix(name: str) -> str:
    """MACC against each rival on every test of a data set, by both rules of selection."""
    result = read(name)
    if result is None:
        return "Not run yet."
    lines = [heading(result), ""]
    lines += [f"| | | {' | '.join(RIVALS)} |", "|---|---|" + "---|" * len(RIVALS)]
    for dataset, test, rule in chosen_blocks(result):
        for method in result.methods:
            if "+MACC" in method:
                cells = compared(result, dataset, test, rule, method)
                if any(cells):
                    lines.append(f"| {label(dataset, test, rule)} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ablation() -> str:
    """Mean u and ECE of every setting on every test, held against plain cross-entropy, by both
    rules of selection.
    """
    result = experiments.load_result(RESULTS / "ablation.json")
    lines = [heading(result)]
    for rule, words in RULES.items():
        lines += ["", f"Epochs selected by validation {words}:", "", *_ablation_table(result, rule)]
    return "\n".join(lines)


def _ablation_table(result: Result, rule: str) -> list[str]:
    heads, rows = [""], [[method] for method in result.methods]
    for dataset in result.datasets:
        heads += [f"u, {dataset}", *(f"ECE, {test}" for test in result.tests[dataset])]
        for row in rows:
            method = row[0]
            spread = result.cell(dataset, result.tests[dataset][0], method, "u", rule)
            row.append("" if spread is None else f"{spread.mean:.2f}")
            for test in result.tests[dataset]:
                own = result.cell(dataset, test, method, "ece", rule)
                found = versus(result, dataset, test, rule, "ece", method, "NLL") if method != "NLL" else None
                sign = "" if found is None else f" `{found.sign(-1, found.p)}`"
                row.append("" if own is None else f"{100 * own.mean:.2f}{sign}")
    return [
        f"| {' | '.join(heads)} |",
        "|---|" + "--:|" * (len(heads) - 1),
        *(f"| {' | '.join(r)} |" for r in rows),
    ]


def chosen_blocks(result: Result) -> Iterator[tuple[str, str, str]]:
    """Every table, but of tests or data sets that an average sums up only the average."""
    for dataset, test, rule in result.blocks():
        summed = "Average" in result.tests[dataset] and test != "Average"
        if not summed and not ("Average" in result.datasets and dataset != "Average"):
            yield dataset, test, rule


def label(dataset: str, test: str, rule: str) -> str:
    """Data set and test, and how was selected where not by the paper's rule."""
    return f"{dataset}, {where_of(test)}{', by NLL' if rule == 'val_nll' else ''}"


def where_of(test: str) -> str:
    """A test's name; that of the data set's own test split is ``in domain``."""
    return "in domain" if test == "test" else test


def compared(result: Result, dataset: str, test: str, rule: str, method: str) -> list[str]:
    """One field for each rival: the difference in ECE, and the four signs; of dropout at another
    rate with a star.
    """
    found = judged(result, dataset, test, rule, method)
    stars = {CONTROL: "" if same_rate(result, dataset, rule, method) else r" \*"}
    return [
        f"{100 * row['ece'][0]:+.2f} `{''.join(sign for _, sign in row.values())}`{stars.get(title, '')}"
        if row
        else ""
        for title, row in found.items()
    ]


def same_rate(result: Result, dataset: str, rule: str, method: str) -> bool:
    """Whether a form of MACC and its dropout control have the same rate, on every data set of an
    average.
    """
    control = RIVALS[CONTROL][task_and_macc(method)]
    names = members(result, dataset)
    return all(result.dropout(name, method, rule) == result.dropout(name, control, rule) for name in names)


def same_task(result: Result, dataset: str, rule: str, method: str, rival: str) -> bool:
    """Whether grids ended with the same gamma or alpha, on every data set of an average."""
    tasks = {
        (run.dataset, run.method): str(losses.parse(run.settings["loss"]).task)
        for run in result.runs
        if run.rule == rule
    }
    return all(tasks[name, method] == tasks[name, rival] for name in members(result, dataset))


def members(result: Result, dataset: str) -> set[str]:
    """A data set, or those behind an average."""
    return {run.dataset for run in result.runs} if dataset == "Average" else {dataset}


def task_and_macc(method: str) -> str:
    """``NLL+MACC`` of ``NLL+MACC closed form``."""
    return method.removesuffix(" closed form")


def judged(
    result: Result, dataset: str, test: str, rule: str, method: str
) -> dict[str, dict[str, tuple[float, str]]]:
    """Of each rival in ``RIVALS``, for each metric: MACC minus the rival, and the sign after Holm's
    correction over rivals.
    """
    rivals = {title: mapping.get(task_and_macc(method), title) for title, mapping in RIVALS.items()}
    found: dict[str, dict[str, tuple[float, str]]] = {title: {} for title in rivals}
    for metric, direction in METRICS.items():
        verdicts = {
            title: versus(result, dataset, test, rule, metric, method, rival)
            for title, rival in rivals.items()
        }
        present = {title: verdict for title, verdict in verdicts.items() if verdict is not None}
        corrected = metrics.holm([verdict.p for verdict in present.values()])
        for (title, verdict), p in zip(present.items(), corrected, strict=True):
            found[title][metric] = verdict.difference, verdict.sign(direction, p)
    return found


@cache
def tallied() -> tuple[Counter[tuple[str, str, str, str]], dict[str, list[bool]]]:
    """Comparisons by place, rival, metric and sign; and of each rival whether it has MACC's gamma
    and alpha.
    """
    tally: Counter[tuple[str, str, str, str]] = Counter()
    tasks: dict[str, list[bool]] = {}
    for result in filter(None, map(read, COMPARED)):
        for dataset, test, rule in chosen_blocks(result):
            where = "in domain" if where_of(test) == "in domain" else "under shift"
            for method in result.methods:
                if "+MACC" in method:
                    for title, row in judged(result, dataset, test, rule, method).items():
                        if title == CONTROL and not same_rate(result, dataset, rule, method):
                            title = OTHER_RATE
                        elif row and title in ("task loss", CONTROL):
                            rival = RIVALS[title][task_and_macc(method)]
                            same = same_task(result, dataset, rule, method, rival)
                            tasks.setdefault(title, []).append(same)
                        tally.update((where, title, metric, sign) for metric, (_, sign) in row.items())
    return tally, tasks


def counts() -> str:
    """How often MACC is significantly better and worse than its task loss, and than the same head
    with dropout.
    """
    tally, _ = tallied()
    lines = [
        "| MACC against, better / no significant difference / worse | ECE | SCE | NLL | accuracy |",
        "|---|---|---|---|---|",
    ]
    for where in ("in domain", "under shift"):
        for title in ("task loss", CONTROL):
            cells = (
                " / ".join(str(tally[where, title, metric, sign]) for sign in "+·-") for metric in METRICS
            )
            name = "its task loss" if title == "task loss" else "the same network with dropout"
            lines.append(f"| {name}, {where} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gain() -> str:
    """What calibrators win on the test logits of fully trained networks, fitted to one half and
    measured on the other.
    """
    rows = [row for row in json.loads(posthoc_page.FIELD.read_text()) if row["size"] == 5000]
    lines = ["| mean ECE, NLL | as trained | temperature | Dirichlet |", "|---|---|---|---|"]
    for classes in sorted({row["classes"] for row in rows}):
        found = {
            method: [row for row in rows if row["classes"] == classes and row["method"] == method]
            for method in ("Identity", "Temperature", "Dirichlet")
        }
        cells = (
            f"{100 * fmean(row['ece'] for row in part):.1f} %, {fmean(row['nll'] for row in part):.3f}"
            for part in found.values()
        )
        networks = len({row["file"] for row in found["Identity"]})
        lines.append(f"| {networks} networks of CIFAR-{classes} | {' | '.join(cells)} |")
    means = {
        (row["file"], row["method"], metric): fmean(
            other[metric]
            for other in rows
            if (other["file"], other["method"]) == (row["file"], row["method"])
        )
        for row in rows
        for metric in ("ece", "nll")
    }
    files = sorted({row["file"] for row in rows})
    better = sum(
        all(means[file, "Temperature", metric] < means[file, "Identity", metric] for metric in ("ece", "nll"))
        for file in files
    )
    lines += [
        "",
        f"Temperature scaling lowers both on {better} of {len(files)} networks: fitted to 5000 test samples, measured on",
        "5000 others, five times. [More](docs/posthoc.md#beside-other-libraries-on-real-networks).",
    ]
    return "\n".join(lines)


def which() -> str:
    """What to use in which situation, each with the number behind it."""
    rows = [row for row in json.loads(posthoc_page.FIELD.read_text()) if row["size"] == 5000]
    raw, mended = (
        f"{100 * fmean(row['ece'] for row in rows if row['method'] == method):.1f} %"
        for method in ("Identity", "Temperature")
    )
    networks = len({row["file"] for row in rows})
    tally, _ = tallied()
    marked = {
        sign: sum(n for (_, title, _, one), n in tally.items() if (title, one) == ("task loss", sign))
        for sign in "+·-"
    }
    lines = [
        "| if you have | use | the number behind it |",
        "|---|---|---|",
        "| a trained network, and labelled samples it was not trained on | a temperature: `macc calibrate` | "
        f"mean ECE of {networks} networks of CIFAR-10 and CIFAR-100: {raw} as trained, {mended} after it |",
        *(f"| {' | '.join(row)} |" for row in fashion.advice()),
        "| a small network, or a classifier on fixed features | the task loss, then a temperature; try MACC only beside it | "
        f"{calibrated.small()}as trained, MACC is significantly better than its task loss "
        f"{marked['+']} times and worse {marked['-']} times in {sum(marked.values())} comparisons |",
    ]
    return "\n".join(lines)


def summary() -> str:
    """How often MACC is significantly better, not different, and worse, over all data sets, forms
    of it and rules.
    """
    tally, tasks = tallied()
    lines = ["| | against | ECE | SCE | NLL | accuracy |", "|---|---|---|---|---|---|"]
    for where in ("in domain", "under shift"):
        for title in TALLIED:
            counts = [
                " / ".join(str(tally[where, title, metric, sign]) for sign in "+·-") for metric in METRICS
            ]
            lines.append(f"| {where} | {title} | {' | '.join(counts)} |")
    marked = {sign: sum(n for key, n in tally.items() if key[-1] == sign) for sign in "+-"}
    other = {title: f"{same.count(False)} of {len(same)}" for title, same in tasks.items()}
    lines += [
        "",
        f"Of all {tally.total()} comparisons {sum(marked.values())} are significant, {marked['+']} for MACC and {marked['-']} against it. "
        "Each method has a grid of its own: gamma or alpha differs from MACC's in "
        f"{other['task loss']} comparisons with the task loss, and {other[CONTROL]} with dropout at the same rate.",
    ]
    return "\n".join(lines)


CLAIMS = {
    "Lower than its task loss in domain (table 1)": ("in domain", "task loss"),
    "Lower than FL+MDCA in domain (table 2)": ("in domain", "FL+MDCA"),
    "Lower than NLL+MbLS in domain (table 2)": ("in domain", "NLL+MbLS"),
    "Lower than with temperature scaling in place of it (table 3)": ("in domain", "NLL+TS"),
    "Lower than FL+MDCA under shift (tables 5 to 7)": ("under shift", "FL+MDCA"),
    "Lower than NLL+MbLS under shift (tables 5 to 7)": ("under shift", "NLL+MbLS"),
    "Lower than plain dropout of the same rate in domain (table 8)": ("in domain", CONTROL),
}
"""What the paper's tables say of ECE and SCE, and the comparisons that try it."""


def claims() -> str:
    """How often each claim of the paper is found, not seen, and contradicted."""
    tally, _ = tallied()
    return "\n".join(
        f"- {claim}: "
        + ", ".join(
            f"{metric.upper()} " + " / ".join(str(tally[where, title, metric, sign]) for sign in "+·-")
            for metric in ("ece", "sce")
        )
        for claim, (where, title) in CLAIMS.items()
    )


def values() -> str:
    """ECE of every method on every test, with half of its interval over seeds, and the paper's."""
    results = list(filter(None, map(read, COMPARED)))
    parts = []
    for rule, words in RULES.items():
        blocks = [
            (result, *block) for result in results for block in chosen_blocks(result) if block[2] == rule
        ]
        methods = list(dict.fromkeys(method for result in results for method in result.methods))
        parts += [f"Selected by validation {words}:", "", f"| | {' | '.join(titles(blocks))} |"]
        parts.append("|---|" + "--:|" * len(blocks))
        for method in methods:
            cells = [result.cell(dataset, test, method, "ece", rule) for result, dataset, test, _ in blocks]
            fields = [_value(cell, paper=rule == "val_accuracy") for cell in cells]
            parts.append(f"| {method} | {' | '.join(fields)} |")
        parts.append("")
    return "\n".join(parts[:-1])


def _value(cell: Cell | None, *, paper: bool) -> str:
    if cell is None:
        return ""
    ends = interval([100 * value for value in cell.values])
    half = "" if ends is None else f" ±{(ends[1] - ends[0]) / 2:.1f}"
    theirs = f" ({100 * cell.paper:.1f})" if paper and cell.paper is not None else ""
    return f"{100 * cell.mean:.1f}{half}{theirs}"


def titles(blocks: Sequence[Block]) -> list[str]:
    """The names of data sets, with that of the test where there are several."""
    names = [data_name(result.name, dataset) for result, dataset, _, _ in blocks]
    tests = [where_of(test) for _, _, test, _ in blocks]
    return [
        name if names.count(name) == 1 else f"{name}, {test}" for name, test in zip(names, tests, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

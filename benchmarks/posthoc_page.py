"""The tables of docs/posthoc.md: ``python -m benchmarks.evidence write`` puts them into the page.

    python -m benchmarks.posthoc_field LOGITS --json results/posthoc_field.json
    python -m benchmarks.posthoc results/posthoc_speed.json
    python -m benchmarks.certainty_temperature --json results/certainty_temperature.json

measured what they are made of.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

from benchmarks._results import RESULTS
from benchmarks.certainty_temperature import LOSSES, kind, over_networks
from benchmarks.posthoc_field import (
    HEADS,
    REFERENCE,
    SIZES,
    difference,
    groups,
    lines,
    mean_ranks,
    means,
    shown,
)

FIELD = RESULTS / "posthoc_field.json"
SPEED = RESULTS / "posthoc_speed.json"
CHOICE = "best"
MINUS = "\N{MINUS SIGN}0."
# Networks by which constants were chosen, of both sets.
TUNED = ("mobilenetv2_x1_0", "resnet20", "shufflenetv2_x1_0")
FEATURES = {
    "log of the variance": ("variance", LOSSES[0]),
    "the same, with MACC": ("variance", LOSSES[1]),
    "log of variance over spread of logits": ("ratio", LOSSES[0]),
    "log of the margin, no dropout": ("margin", LOSSES[0]),
}

Rows = list[dict[str, Any]]


@cache
def field(*, choice: bool = False) -> dict[tuple[int, int], Rows]:
    """The rows by the number of classes and the size of the fit, with ``best`` or without it."""
    rows = [row for row in json.loads(FIELD.read_text()) if choice or row["method"] != CHOICE]
    return {(classes, size): some for classes, size, some in groups(rows)}


def without_choice() -> Rows:
    """Every row of a single method, for the figure."""
    return [row for rows in field().values() for row in rows]


def is_ours(method: str) -> bool:
    """Whether a method is a calibrator of macc."""
    return method[0].isupper()


def named(method: str) -> str:
    """A method as the page writes it."""
    return f"`{method}`" if is_ours(method) or method == CHOICE else method


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table, with the sign that print has for minus."""
    parts = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in parts).replace("-0.", MINUS)


def table(classes: int) -> str:
    """Every method, fitted to 5000 samples."""
    rows = field()[classes, SIZES[0]]
    networks = len({row["file"] for row in rows})
    heads = [f"{classes} classes, {SIZES[0]} fitted", *HEADS]
    heads[heads.index("first")] += f" of {networks}"
    return markdown(heads, [[named(line[0]), *line[1:]] for line in lines(rows)])


def few() -> str:
    """What is won over the temperature with fewer samples."""
    columns = [(classes, size) for classes, size in field() if size != SIZES[0]]
    values = {column: means(field()[column], "nll") for column in columns}
    order = [name for name in values[columns[0]] if name not in ("Identity", REFERENCE)]
    order.sort(key=lambda name: fmean(difference(values[column], name)[0] for column in columns))
    heads = [
        "NLL minus temperature (95 %)",
        *(f"{classes} classes, {size}" for classes, size in columns),
    ]
    rows = [[named(name), *(shown(difference(values[column], name)) for column in columns)] for name in order]
    return markdown(heads, rows)


def first() -> str:
    """How often a calibrator of macc has the least NLL of all."""
    counts = {}
    for group, rows in field().items():
        values = means(rows, "nll")
        winners = {name: min(values, key=lambda each: values[each][name]) for name in values[REFERENCE]}
        counts[group] = (sum(map(is_ours, winners.values())), winners)
    every = sum(len(winners) for _, winners in counts.values())
    parts = "; ".join(
        f"{ours} of {len(winners)} with {classes} classes and {size} samples"
        for (classes, size), (ours, winners) in counts.items()
    )
    beaten = [
        f"{winner} on {name}"
        for _, winners in counts.values()
        for name, winner in winners.items()
        if not is_ours(winner)
    ]
    where = f" The others: {', '.join(beaten)}." if beaten else ""
    ours = sum(each for each, _ in counts.values())
    return fill(
        f"One of macc's calibrators has the least NLL of all in {ours} of the {every} cases (network and "
        f"fit size, mean over splits): {parts}.{where}",
        width=100,
    )


def apart() -> str:
    """What is won on the networks by which no constant of the penalties was chosen."""
    columns = [(classes, SIZES[0]) for classes, size in field() if size == SIZES[0]]
    rows = [[each for each in field()[column] if not each["file"].endswith(TUNED)] for column in columns]
    order = (
        "Mixture",
        "MatrixScaling",
        "Dirichlet",
        "LocalTemperature",
        "VectorScaling",
        "probmetrics SMS",
        "probmetrics SVS",
    )
    heads = [
        "NLL minus temperature (95 %), other networks",
        *(f"{classes} classes" for classes, _ in columns),
    ]
    found = [means(some, "nll") for some in rows]
    return markdown(
        heads, [[named(name), *(shown(difference(values, name)) for values in found)] for name in order]
    )


def best() -> str:
    """What ``best`` is worth: NLL minus that of the temperature, and the mean rank of all."""
    values = {column: means(rows, "nll") for column, rows in field(choice=True).items()}
    ranks = {column: mean_ranks(each) for column, each in values.items()}

    def overall(name: str) -> float:
        return fmean(each[name] for each in ranks.values())

    def cell(column: tuple[int, int], name: str) -> str:
        gap = "" if name == REFERENCE else f"{shown(difference(values[column], name))}, "
        return f"{gap}{ranks[column][name]:.1f}"

    names = [name for name in sorted(next(iter(ranks.values())), key=overall) if name != "Identity"]
    heads = ["", *(f"{classes} classes, {size}" for classes, size in values), "mean rank"]
    return markdown(
        heads,
        [[named(name), *(cell(each, name) for each in values), f"{overall(name):.1f}"] for name in names],
    )


def choice() -> str:
    """What else the fits of ``best`` say."""
    found = field(choice=True)
    rows = [row for some in found.values() for row in some]
    plain = {key(row): row["nll"] for row in rows if row["method"] == REFERENCE}
    chosen = [row for row in rows if row["method"] == CHOICE]
    mixed = sum(row["chosen"] == "Mixture" for row in chosen)
    ahead = sum(row["nll"] < plain[key(row)] for row in chosen)
    beyond = sum(difference(means(some, "nll"), CHOICE)[2] < 0 for some in found.values())
    values = [means(some, "accuracy") for some in found.values()]
    moved = [100 * (each[CHOICE][name] - each[REFERENCE][name]) for each in values for name in each[CHOICE]]
    seconds = {
        classes: max(row["seconds"] for row in chosen if (row["classes"], row["size"]) == (classes, SIZES[0]))
        for classes in (10, 100)
    }
    points = [
        f"It took `Mixture` in {mixed} of {len(chosen)} fits (network, fit size and half).",
        f"It is ahead of the temperature in {ahead} of these fits. In the mean over networks it is ahead "
        f"beyond chance in {beyond} of {len(found)} columns.",
        f"The accuracy of a network changes by {min(moved):+.2f} to {max(moved):+.2f} points.",
        f"A fit to {SIZES[0]} x 100 took at most {seconds[100]:.0f} s of one thread of the processor, to "
        f"{SIZES[0]} x 10 at most {seconds[10]:.0f} s, beside much other work.",
    ]
    text = "\n".join(fill(point, width=100, initial_indent="- ", subsequent_indent="  ") for point in points)
    return text.replace("-0.", MINUS)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What was fitted to and measured on."""
    return row["file"], row["size"], row["split"]


def speed() -> str:
    """Times of fits over those of the faster peers."""
    kept = json.loads(SPEED.read_text())
    found: dict[str, dict[str, list[str]]] = {}
    for row in kept["ratios"]:
        what, size, against = row["case"].removeprefix("posthoc: ").split(", ")
        if is_ours(what) and against.startswith("time"):
            peer = against.removeprefix("time / ")
            found.setdefault(what, {})[size] = [peer, f"{row['value']:.2f}"]
    sizes = list(dict.fromkeys(size for each in found.values() for size in each))
    rows = [
        [named(what), next(iter(each.values()))[0], *(each.get(size, ["", ""])[1] for size in sizes)]
        for what, each in found.items()
    ]
    heads = ["time of a fit", "over that of", *(size.replace(",", " ") for size in sizes)]
    return f"{kept['machine']}, commit `{kept['commit']}`:\n\n{markdown(heads, rows)}"


def memory() -> str:
    """The most memory that a process held with each fit."""
    peaks: dict[str, list[str]] = {}
    for row in json.loads(SPEED.read_text())["ratios"]:
        what, size, against = row["case"].removeprefix("posthoc: ").split(", ")
        if against.startswith("memory"):
            limit = int(against.split()[-2])
            peaks.setdefault(size, []).append(f"{named(what)} {round(row['value'] * limit, -1):.0f} MB")
    return "\n".join(
        fill(
            f"With logits of {size.replace(',', ' ')} in float32 a process held at most: {', '.join(each)}.",
            width=100,
        )
        for size, each in peaks.items()
    )


def certainty(path: Path, head: str) -> str:
    """What a temperature that depends on a feature is worth: NLL minus that of one temperature."""
    rows = json.loads(path.read_text())
    places = list(dict.fromkeys(map(kind, rows)))
    body = [
        [
            words,
            *(
                shown(
                    over_networks(
                        row for row in rows if (kind(row), row["loss"], row["feature"]) == (where, loss, key)
                    )
                )
                for where in places
            ),
        ]
        for words, (key, loss) in FEATURES.items()
    ]
    return markdown([head, *places], body)


BLOCKS: dict[str, Callable[[], str]] = {
    "field_10": partial(table, 10),
    "field_100": partial(table, 100),
    "field_few": few,
    "field_first": first,
    "field_apart": apart,
    "field_best": best,
    "field_choice": choice,
    "fit_times": speed,
    "fit_memory": memory,
    "certainty_first": partial(certainty, RESULTS / "certainty_temperature.json", "feature"),
    "certainty_again": partial(certainty, RESULTS / "certainty_again.json", "feature, new networks"),
}
"""The page's blocks by name."""

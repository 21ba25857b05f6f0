"""``macc auto``: a calibrated model of a data set within a budget, as an experiment."""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import yaml
from torch import Tensor

from macc import data as datasets
from macc import posthoc
from macc.experiments.estimates import seconds_of_epoch
from macc.experiments.ledger import Job, Ledger, open_ledger
from macc.experiments.listening import Listener
from macc.experiments.result import Result
from macc.experiments.running import folder_of, run
from macc.experiments.spec import Experiment, Rule
from macc.experiments.workers import fit
from macc.io.writing import write_bytes
from macc.io.yaml import parse
from macc.metrics.over_runs import interval
from macc.training.runs import Run
from macc.words import slug

FEWEST_EPOCHS = 3
LARGE_IMAGE = 24
"""Pixels from which on images get the larger network."""
BASELINE = "CE"
RULE: Rule = "val_refinement"
"""What selects epochs, and methods too."""
_MOST_NAMES = 6
_MARGIN = 1.3
"""How much longer than its epochs a training takes, with validation and what follows."""


@dataclass(frozen=True)
class Found:
    """What ``macc auto`` ends with."""

    result: Result
    folder: Path
    run: Run
    """The run to ship."""
    refinement: dict[str, float]
    """Cross-fitted validation refinement of each method, the mean over its seeds."""
    winner: str
    seeds: int
    verdict: str
    left_out: list[str]


def auto(
    data: str,
    *,
    budget: float = 1800.0,
    out: str | PathLike[str] = "runs",
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    listener: Listener | None = None,
) -> Found:
    """Train a short list of methods, and select one by what validation says after temperature
    scaling.

    The list is ``experiments/auto.yaml``. Methods are trained one after another with the first
    seed, then with the next. At the end of the budget the training under way stops after its epoch;
    only the first one is always ended, of at least three epochs, so that there is a model. The same
    call resumes, with a new budget and the epochs that the first one chose. The test set selects
    nothing.

    Args:
        data: A data set's name, ``arrays:PATH`` or ``folder:PATH``.
        budget: Seconds to load and train; measuring and the report come after it.
        out: The folder of run folders.
        root: The folder with data files.
        verify: Compare published files with their checksums before they are opened.
        listener: Hears how far it is; `macc auto` gives one that shows it.
    """
    if not budget > 0:
        raise ValueError(f"`budget` must be above 0 seconds, got {budget:g}")
    began = time.monotonic()
    listener = listener or Listener()
    known = _known()
    listener.say(f"looking for {data}")
    splits = datasets.load(data, root=root, verify=verify)
    name = _name(data, root)
    values = {"dataset": data, "loss": "CrossEntropy", **known["recipes"][_kind(splits)], **known["common"]}
    folder = folder_of(_experiment(name, Path("recipe.yaml"), known["methods"], 1), out)
    recipe = folder / "recipe.yaml"
    most = int(values["epochs"])
    if recipe.is_file():
        epochs = int(dict(parse(recipe.read_text("utf-8"), str(recipe)))["epochs"])
        if epochs < most:
            listener.say(
                f"{epochs} epochs in place of {most}, as the first budget allowed; with another --out it is chosen anew"
            )
    else:
        epoch = _seconds_of_epoch(name, values, known["methods"], out=out, root=root, verify=verify)
        left = began + budget - time.monotonic()
        affordable = int(left / (_MARGIN * epoch * len(known["methods"])))
        epochs = max(min(FEWEST_EPOCHS, most), min(most, affordable))
        if epochs < most:
            enough = "for every method to have its turn"
            few = f"which is the least; the budget is too short for all {len(known['methods'])} methods"
            listener.say(f"{epochs} epochs in place of {most}, {enough if epochs <= affordable else few}")
        # Written once: the next call trains by what it finds here, whenever this one was killed.
        write_bytes(recipe, _yaml({**values, "epochs": epochs}))
    ledger = open_ledger(
        _experiment(name, recipe, known["methods"], known["seeds"]), out, root, verify=verify
    )
    left_out = _train(ledger, began + budget, listener)
    return _select(ledger, name, recipe, known["methods"], left_out, out=out, root=root, verify=verify)


def _seconds_of_epoch(
    name: str,
    values: Mapping[str, Any],
    methods: Sequence[Mapping[str, Any]],
    *,
    out: str | PathLike[str],
    root: str | PathLike[str] | None,
    verify: bool,
) -> float:
    """What an epoch of the slowest kind of method takes here."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "recipe.yaml")
        write_bytes(recipe, _yaml(values))
        ledger = open_ledger(_experiment(name, recipe, methods, 1), out, root, verify=verify)
        return seconds_of_epoch(ledger, ledger.catalog.datasets[0])


def _known() -> dict[str, Any]:
    """The methods, and a recipe for each kind of input."""
    text = (resources.files("macc") / "experiments" / "auto.yaml").read_text("utf-8")
    return dict(parse(text, "auto.yaml"))


def _name(data: str, root: str | PathLike[str] | None) -> str:
    """What the experiment is called; files of one name in two folders are two data sets."""
    kind, _, path = data.partition(":")
    if not path:
        return f"auto-{kind}"
    place = Path(root or "", path).expanduser().resolve()
    return f"auto-{slug(place.stem)[:40] or kind}-{sha256(str(place).encode()).hexdigest()[:6]}"


def _yaml(values: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(values), sort_keys=False).encode()


def _kind(splits: datasets.Splits) -> str:
    if splits.kind != "image":
        return splits.kind
    return "image" if min(splits.shape[1:]) >= LARGE_IMAGE else "small image"


def _experiment(name: str, recipe: Path, methods: Sequence[Mapping[str, Any]], seeds: int) -> Experiment:
    return Experiment.model_validate(
        {
            "name": name,
            "title": "Which loss leaves the best model after temperature scaling?",
            "datasets": [{"name": name.removeprefix("auto-"), "recipe": [str(recipe)]}],
            "methods": [dict(method) for method in methods],
            "tests": {"test": "test"},
            "seeds": seeds,
            "rules": [RULE],
            "notes": ["Selected by cross-fitted validation refinement; the test set chose nothing."],
        }
    )


def _jobs(ledger: Ledger) -> list[Job]:
    """Every training, all methods with the first seed before any with the second."""
    (dataset,) = ledger.catalog.datasets
    return [
        ledger.job(dataset, method, {}, seed) for seed in ledger.seeds for method in ledger.trained(dataset)
    ]


def _train(ledger: Ledger, end: float, listener: Listener) -> list[str]:
    """Train as long as the next training is likely to end in time; what is left out, in words."""
    left_out = []
    jobs = _jobs(ledger)
    longest = max((_seconds(run) for run in map(ledger.run, jobs) if run.finished), default=0.0)
    with listener.of(ledger):
        for number, job in enumerate(jobs):
            text, epochs = f"{job.method}, seed {job.seed}", ledger.recipe(job).epochs
            if ledger.run(job).finished:
                continue
            now = time.monotonic()
            if number and now + longest > end:
                left_out.append(f"{text}: no time")
                continue

            def each(
                row: Mapping[str, Any], text: str = text, epochs: int = epochs, first: bool = not number
            ) -> None:
                listener.tell(("epoch", (text, row["epoch"], epochs)))
                if not first and row["epoch"] < epochs and time.monotonic() > end:
                    raise _OutOfTimeError(f"no time after {row['epoch']} of {epochs} epochs")

            try:
                fit(ledger, job, on_epoch=each)
            except (_OutOfTimeError, ValueError) as error:
                left_out.append(f"{text}: {error}")
                continue
            longest = max(longest, time.monotonic() - now)
            listener.tell(("done", text))
    return left_out


class _OutOfTimeError(Exception):
    """The budget ended within a training, which the next call resumes."""


def _seconds(run: Run) -> float:
    """About what a finished training took."""
    return _MARGIN * math.fsum(row["seconds"] for row in run.history)


def _select(
    ledger: Ledger,
    name: str,
    recipe: Path,
    methods: Sequence[Mapping[str, Any]],
    left_out: list[str],
    *,
    out: str | PathLike[str],
    root: str | PathLike[str] | None,
    verify: bool,
) -> Found:
    done = {(job.method, job.seed) for job in _jobs(ledger) if ledger.run(job).finished}
    trained = [method for method in methods if (method["name"], ledger.seeds[0]) in done]
    if not trained:
        raise ValueError(f"no training finished; {left_out[0]}")
    # Means over seeds are compared, so every method must have the same.
    seeds = 1
    while all((method["name"], ledger.seeds[0] + seeds) in done for method in trained):
        seeds += 1
    final = _experiment(name, recipe, trained, seeds)
    result = run(final, workers=1, out=out, root=root, verify=verify)
    ledger = open_ledger(final, out, root, verify=verify)
    (dataset,) = ledger.catalog.datasets
    runs = {
        method.title: [ledger.run(job) for job in ledger.chosen_runs(dataset, method, RULE)]
        for method in ledger.trained(dataset)
    }
    each = {title: [_refinement(one) for one in found] for title, found in runs.items()}
    refinement = {title: sum(values) / len(values) for title, values in each.items()}
    winner = min(refinement, key=lambda title: refinement[title])
    best = [
        found[values.index(min(values))] for found, values in zip(runs.values(), each.values(), strict=True)
    ]
    chosen = dict(zip(runs, best, strict=True))
    return Found(
        result=result,
        folder=folder_of(final, out),
        run=chosen[winner],
        refinement=dict(sorted(refinement.items(), key=lambda item: item[1])),
        winner=winner,
        seeds=seeds,
        verdict=_verdict(winner, runs),
        left_out=left_out,
    )


def _refinement(one: Run) -> float:
    return float(one.metrics["val"]["refinement"]["value"])


def _verdict(winner: str, runs: Mapping[str, Sequence[Run]]) -> str:
    """Whether the selected method is better than cross-entropy, both after their calibrators, on
    the test set.

    Each sample's difference is the mean over the seeds, so that the interval is over samples of the
    whole comparison.
    """
    usual = "cross-entropy with temperature scaling"
    if BASELINE not in runs:
        return f"{winner} is selected; it was not compared with {usual}, whose training failed."
    if len(runs) == 1:
        return (
            f"Only {usual} was trained, so nothing was compared; the same command with a larger `--budget` goes on "
            "with the other methods."
        )
    if winner == BASELINE:
        return f"{usual.capitalize()} is selected; nothing else did better on validation."
    pairs = list(zip(runs[winner], runs[BASELINE], strict=True))
    each = torch.stack([_sample_nll(mine) - _sample_nll(other) for mine, other in pairs])
    differences = each.mean(0).tolist()
    low, high = interval(differences) or (-math.inf, math.inf)
    seeds = f"{len(pairs)} seed{'s' * (len(pairs) > 1)}"
    text = (
        f"test NLL {winner} minus {BASELINE}, both calibrated, {seeds}: {fmean(differences):+.4f} "
        f"({low:+.4f} to {high:+.4f})"
    )
    if high < 0:
        found = f"{winner} is really better than {usual}; {text}."
    elif low > 0:
        found = f"{winner} is worse than {usual} on the test set; {text}."
    else:
        found = f"{winner} is not significantly better than {usual}; {text}."
    unsure = "; one seed says nothing of others" if len(pairs) == 1 else ", not over seeds"
    return f"{found} The interval is over test samples{unsure}."


def _sample_nll(one: Run) -> Tensor:
    """Of each test sample, after the run's calibrator."""
    logits, labels = one.predictions("test")
    probs: Tensor = posthoc.load(one.path / "calibrator.json")(logits).double()
    return -probs.gather(1, labels[:, None])[:, 0].clamp_min(torch.finfo(torch.float64).tiny).log()


def summary(found: Found) -> str:
    """What was selected and why, and what was left out."""
    seeds = f"{found.seeds} seed{'s' * (found.seeds > 1)}"
    lines = [f"validation refinement (NLL after temperature scaling, cross-fitted; {seeds} each):"]
    lines += [
        f"  {title.ljust(max(map(len, found.refinement)))}  {value:.4f}{'  selected' if title == found.winner else ''}"
        for title, value in found.refinement.items()
    ]
    lines.append(found.verdict)
    reasons: dict[str, list[str]] = {}
    for text in found.left_out:
        name, _, reason = text.partition(": ")
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        some = "; ".join([*names[:_MOST_NAMES], *["…"] * (len(names) > _MOST_NAMES)])
        lines.append(f"left out, {reason}: {len(names)} training{'s' * (len(names) > 1)} ({some})")
    return "\n".join(lines)


def seconds(text: str) -> float:
    """A budget as people write it.

    Example:
        >>> seconds("30m"), seconds("1.5h"), seconds("90")
        (1800.0, 5400.0, 90.0)
    """
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        found = float(number) * unit
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f"a budget is written as 90s, 30m or 2h, got {text!r}")
    return found

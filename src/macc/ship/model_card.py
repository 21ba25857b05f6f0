"""``macc card``: a run as a model card, with the metadata block that the Hugging Face hub reads."""

import math
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from macc import metrics, posthoc
from macc.io.writing import write_whole
from macc.metrics import Report
from macc.ship import files
from macc.ship.files import Trained
from macc.tables import PERCENT, PLAIN, Table, escape_markdown, interval, thousands
from macc.training.recipe import HeadSettings
from macc.training.runs import open_run

PICTURE = "reliability.png"
RISKS = (0.01, 0.02, 0.05, 0.1)
TASKS = {
    "image": "image-classification",
    "tokens": "text-classification",
    "features": "tabular-classification",
}


def card(path: str | PathLike[str], output: str | PathLike[str], *, resamples: int = 1000) -> list[Path]:
    """Write the card of a finished run, and its reliability diagram beside it.

    Args:
        path: The run folder.
        output: The Markdown file, ``README.md`` for the hub.
        resamples: Behind the intervals.

    Returns:
        The files written.
    """
    run, place = open_run(Path(path)), Path(output)
    if place.suffix != ".md":
        raise ValueError(f"a model card is a Markdown file, got {place}; write README.md")
    trained = files.read(run.path)
    logits, labels = run.predictions("test")
    probs = trained.calibrator(logits)
    shown = [name for name, each in metrics.metrics_of(logits.shape[1]).items() if each.prominence <= 2]
    raw, calibrated = (
        metrics.evaluate(scores, labels, metrics=shown, classes=trained.inputs.classes, resamples=resamples)
        for scores in (logits.softmax(1), probs)
    )
    text = "\n\n".join(
        [
            f"---\n{yaml.safe_dump(_metadata(trained, calibrated), sort_keys=False)}---",
            f"# {_title(trained)}",
            *_sections(trained, raw, calibrated, probs, labels),
        ]
    )
    picture = place.with_name(PICTURE)
    _draw(raw, calibrated, picture)
    with write_whole(place) as file:
        file.write(f"{text}\n".encode())
    return [place, picture]


def _title(trained: Trained) -> str:
    return escape_markdown(f"{trained.recipe.model} on {trained.inputs.dataset}, {trained.recipe.loss}")


def _metadata(trained: Trained, report: Report) -> dict[str, Any]:
    """The block between the dashes, as the hub defines it."""
    name = f"{trained.recipe.model} on {trained.inputs.dataset}"
    values = [
        {"type": key, "name": metrics.registry()[key].label, "value": float(report[key].value)}
        for key in report.metrics
        if math.isfinite(report[key].value)
    ]
    result = {
        "task": {"type": TASKS[trained.inputs.kind]},
        "dataset": {"name": trained.inputs.dataset, "type": trained.inputs.dataset, "split": "test"},
        "metrics": values,
    }
    return {
        "library_name": "macc",
        "tags": ["calibration", "uncertainty"],
        "pipeline_tag": TASKS[trained.inputs.kind],
        "metrics": [value["type"] for value in values],
        "model-index": [{"name": name, "results": [result]}],
    }


def _sections(trained: Trained, raw: Report, calibrated: Report, probs: Tensor, labels: Tensor) -> list[str]:
    recipe, inputs = trained.recipe, trained.inputs
    sizes = ", ".join(f"{thousands(sum(counts))} {name}" for name, counts in inputs.counts.items())
    licence = "not known" if inputs.licence is None else inputs.licence
    head = "no MC-dropout head"
    later = "".join(
        f", then in a further stage by {stage.loss or recipe.loss} for {stage.epochs}"
        for stage in recipe.stages
    )
    if isinstance(recipe.head, HeadSettings):
        head = f"an MC-dropout head with p {recipe.head.p:g}"
    calibrator = type(trained.calibrator).__name__
    if isinstance(trained.calibrator, posthoc.Temperature):
        calibrator = f"temperature {trained.calibrator.temperature:.3g}"
    shape = " × ".join(map(str, inputs.shape))
    return [
        "Answers with calibrated probabilities, and with whether to accept each prediction or to hand it to a person.",
        "## Use",
        f'```python\nimport macc\n\npredictor = macc.load("model{files.SUFFIX}")\nprediction = predictor(inputs)\n'
        "prediction.names, prediction.confidence, prediction.accepted\n```",
        "## Data",
        escape_markdown(
            f"{inputs.dataset}: {inputs.kind}, {shape}, {inputs.num_classes} classes; samples: {sizes}. "
            f"Licence of the data: {licence}."
        ),
        "## Method",
        escape_markdown(
            f"{recipe.model}, trained by {recipe.loss} with {head} for {recipe.epochs} epochs{later} (seed {recipe.seed}); "
            f"the epoch was selected by {recipe.selection}. Calibrator, fitted on validation: {calibrator}. "
            f"macc {trained.version}."
        ),
        "## Quality",
        f"On {thousands(len(labels))} test samples, with 95 % intervals.",
        _quality(raw, calibrated).markdown(),
        f"![accuracy against confidence, before and after calibration]({PICTURE})",
        "## Classes",
        _classes(trained, probs, labels).markdown(),
        "## Which predictions to accept",
        "The threshold is chosen on validation, so that with 95 % confidence at most the given share of accepted "
        "predictions is wrong. The last two columns are what it did on the test set.",
        _thresholds(trained, probs, labels).markdown(),
        "## Limits",
        _limits(trained),
    ]


def _quality(raw: Report, calibrated: Report) -> Table:
    rows = []
    for key in calibrated.metrics:
        unit = metrics.registry()[key].unit
        before, after = raw[key], calibrated[key]
        value = [
            f"{unit.write(each.value)} ({interval(each.low, each.high, unit)})"
            if math.isfinite(each.value)
            else "–"
            for each in (before, after)
        ]
        rows.append([f"{metrics.registry()[key].label} {unit.symbol}".strip(), *value])
    return Table.of(["", "raw", "calibrated"], rows)


def _classes(trained: Trained, probs: Tensor, labels: Tensor) -> Table:
    predicted = probs.argmax(1)
    errors = torch.as_tensor(metrics.classwise_ece(probs, labels))
    rows = []
    for k, name in enumerate(trained.inputs.classes):
        own, named = labels == k, predicted == k
        right = int((own & named).sum())
        shares = [f"{PERCENT.write(right / int(n.sum()))} %" if n.any() else "–" for n in (own, named)]
        rows.append([name, str(int(own.sum())), *shares, PLAIN.write(float(errors[k]))])
    return Table.of(["class", "test samples", "recall", "precision", "calibration error"], rows)


def _thresholds(trained: Trained, probs: Tensor, labels: Tensor) -> Table:
    rows = []
    for risk in RISKS:
        rule = files.rule_for(trained.calibrator, trained.logits, trained.labels, risk=risk)
        if rule.threshold is None:
            rows.append([f"{100 * risk:g} %", "none can promise it", "0 %", "–", "–"])
            continue
        seen = posthoc.check(rule, probs, labels)
        wrong = f"{100 * seen.wrong / seen.accepted:.2f} %" if seen.accepted else "–"
        coverage = f"{100 * seen.accepted / seen.samples:.1f} %"
        rows.append(
            [f"{100 * risk:g} %", f"{rule.threshold:.4g}", f"{100 * rule.coverage:.1f} %", wrong, coverage]
        )
    return Table.of(["risk", "confidence from", "coverage", "test: wrong", "test: coverage"], rows)


def _limits(trained: Trained) -> str:
    lines = [
        "Probabilities and thresholds hold for inputs of the same kind as the validation samples; under shift they "
        "may be over-confident. Measure them on data of your own first.",
        "The 95 % of the threshold do not allow for what else its validation samples did: they chose the epoch, fitted "
        "the calibrator and, where methods were compared, chose the method.",
        "An input of none of the classes gets one of them nevertheless.",
        "Certainty, from the variance under dropout, does not rank errors; accept by confidence.",
        *trained.calibrator.notes,
    ]
    return "\n".join(f"- {escape_markdown(line)}" for line in lines)


def _draw(raw: Report, calibrated: Report, path: Path) -> None:
    from macc.report.figures.reliability import reliability_diagrams
    from macc.report.figures.style import save

    figure = reliability_diagrams({"raw": raw, "calibrated": calibrated})
    with write_whole(path) as file:
        save(figure, file, "png", dpi=100)

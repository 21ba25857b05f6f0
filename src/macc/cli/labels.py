"""Files of independent labels, for ``evaluate``, ``check`` and ``threshold --multi-label``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from macc import words
from macc.cli.app import say
from macc.cli.options import Reading, also_write, listed, progress

if TYPE_CHECKING:
    from macc.predictions import ManyLabels

MultiLabel = Annotated[
    bool,
    typer.Option(
        "--multi-label",
        help="Samples have any number of labels: a probability and a 0 or 1 for each, in columns prob_NAME and label_NAME or arrays (N, L).",
    ),
]


def refuse_options(options: dict[str, Any]) -> None:
    """Refuse what means nothing for labels that do not exclude each other."""
    for option, given in options.items():
        if given not in (None, False):
            raise ValueError(f"--multi-label has no use for {option}; leave it out")


def read(file: Path, labels: Path | None, reading: Reading, most: int | None = None) -> "ManyLabels":
    """The scores and the labels of a file."""
    from macc.predictions import read_labels
    from macc.predictions.label_files import LABEL_COLUMNS

    options = dict(reading)
    refuse_options({"--labels-are": options.pop("labels_are")})
    if options["label_column"] == "label":
        options["label_column"] = LABEL_COLUMNS
    return read_labels(file, labels, **options, most=most)


def evaluate(found: "ManyLabels", metrics: list[str] | None, json: Path | None, **asked: Any) -> None:
    """Print the table of all labels and their mean."""
    from macc.metrics import evaluate_labels

    report = evaluate_labels(
        found.scores,
        found.labels,
        names=found.names,
        metrics=listed(metrics),
        from_logits=found.from_logits,
        **asked,
    )
    also_write(json, report.to_dict())
    say(f"{report}\n{found.taken}" if found.taken else str(report))


def check(found: "ManyLabels", asked: dict[str, float], *, bins: int, confidence: float) -> None:
    """Exit 1 unless each label keeps the limits; the worst is named first."""
    from macc.metrics import Report, evaluate_labels
    from macc.metrics.labels import metrics_of_labels, of_label
    from macc.metrics.limits import broken_limits, kept_limits

    limits: dict[str, float] = {}
    for name, limit in asked.items():
        metric = of_label(name)
        if metric not in metrics_of_labels():
            known = [f"--max-{each.removeprefix('positive_')}" for each in metrics_of_labels()]
            raise ValueError(
                f"--max-{name.replace('_', '-')} is not measured of labels; {words.listed(known)} are"
            )
        limits[metric] = limit
    with progress("measuring"):
        report = evaluate_labels(
            found.scores,
            found.labels,
            names=found.names,
            metrics=list(limits),
            bins=bins,
            confidence=confidence,
            from_logits=found.from_logits,
        )
    # How often the upper bound is the limit, of the metric where it is so most often.
    excess = {
        row.name: max(row.metrics[name].high / limit for name, limit in limits.items())
        for row in report.labels
    }
    worse = []
    for row in sorted(report.labels, key=lambda row: -excess[row.name]):
        each = Report(row.metrics, (), (), report.num_samples, 2, confidence)
        broken = broken_limits(each, limits)
        worse += [row.name] if broken else []
        for line in (*broken, *kept_limits(each, limits)):
            say(f"{row.name}: {line}")
    if worse:
        say(f"{len(worse)} of {len(report.labels)} labels do not keep the limits, {worse[0]} first of all")
        raise typer.Exit(1)


def threshold(
    val: "ManyLabels",
    test: "ManyLabels | None",
    *,
    check: Path | None,
    risk: float | None,
    confidence: float,
    json: Path | None,
) -> None:
    """Print the threshold of each label, and what they do on other samples."""
    from macc import posthoc

    found = posthoc.label_thresholds(
        val.scores,
        val.labels,
        risk=risk,
        confidence=confidence,
        names=val.names,
        from_logits=val.from_logits,
    )
    seen = None
    if test is not None:
        if test.names != val.names:
            raise ValueError(f"{check} has other labels, or in another order; make them agree")
        seen = found.on(test.scores, test.labels, from_logits=test.from_logits)
    also_write(json, {"thresholds": found.to_dict(), "check": None if seen is None else seen.to_dict()})
    say("\n".join(part for part in (str(found), val.taken) if part))
    if seen is not None:
        say(f"\n{check}\n\n{seen}")
    none = risk is not None and any(row.threshold is None for row in found.labels)
    if none or (seen is not None and seen.broken):
        raise typer.Exit(1)

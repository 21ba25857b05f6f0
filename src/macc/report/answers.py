"""The first screen of a report: how calibrated, better than what, and what to do next."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from macc import metrics, posthoc
from macc.predictions import Loaded
from macc.report.building import Builder
from macc.report.html import Answer
from macc.report.sources import ReportSource
from macc.tables import PERCENT, number

LEAST = 40
"""Fewer samples are not divided to try a repair."""
WORTHWHILE = 0.9
"""A repair is proposed if it leaves less than this share of the error."""
SMALLEST = 1e-12


def repaired(found: Loaded, metric: str, positive: str | None) -> tuple[float, float] | None:
    """The error as it is and after a temperature, which is fitted to one half of the samples and
    measured on the other; None where that cannot be tried.
    """
    labels = np.asarray(found.labels)
    if found.answers or len(labels) < LEAST:
        return None
    probs = np.asarray(found.probs(), dtype=np.float64)
    if probs.ndim == 1:
        probs = np.stack([1 - probs, probs], axis=1)
    logits = np.log(np.maximum(probs, SMALLEST))
    half = np.random.default_rng(0).permutation(len(labels)) % 2 == 0
    after = np.empty_like(probs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it is a trial; nobody asked for the fit
        try:
            for one, other in ((half, ~half), (~half, half)):
                after[other] = posthoc.Temperature.fit(logits[one], labels[one])(logits[other])
        except ValueError:
            return None
    asked: dict[str, Any] = {
        "metrics": [metric],
        "resamples": 100,
        "classes": found.classes,
        "positive": positive,
    }
    before, then = (metrics.evaluate(each, labels, **asked)[metric].value for each in (probs, after))
    return before, then


def answers(builder: Builder, compared: Sequence[str]) -> list[Answer]:
    """How calibrated the first source is, what it is compared with, and what to do next."""
    if not builder.sources:
        return []
    first = builder.sources[0]
    beside = list(compared[:1]) or [
        "There is nothing to compare it with. Name a second run or file of predictions on the same samples."
    ]
    return [
        Answer("How calibrated is it?", f"{first.name}: {builder.reports[first.name].verdict()}"),
        Answer("Better than what?", *beside),
        Answer("What to do next?", _next(builder, _worst(builder))),
    ]


def _worst(builder: Builder) -> ReportSource:
    """The source with the largest calibration error that is significant; else the first."""

    def low(source: ReportSource) -> float:
        report = builder.reports[source.name]
        return report[metrics.headline_error(report.metrics)].low

    return max(builder.sources, key=low)


def _next(builder: Builder, source: ReportSource) -> str:
    report, found = builder.reports[source.name], builder.loaded[source.name]
    metric = metrics.headline_error(report.metrics)
    error = report[metric]
    if error.low == 0:
        return (
            "Nothing has to be repaired: the calibration error is not significantly above chance. More "
            "test samples would show smaller errors."
        )
    command = (
        f"macc calibrate --fit {source.validation()} --apply {source.file(builder.split)}{source.options()}"
    )
    if source.run is None:
        command += f"`, where `{source.validation()}` is a file of other labelled samples"
    else:
        command += "`"
    tried = repaired(found, metric, source.positive)
    of = metrics.registry()[metric].phrase
    if tried is None:
        return f"Repair the confidence of {source.name}: `{command}"
    width = error.high - error.low
    before, after = (number(value, PERCENT, width, suffix=True) for value in tried)
    what = f"{of} {before} → {after}, fitted to one half of these samples and measured on the other"
    if tried[1] < WORTHWHILE * tried[0]:
        return f"Fit a temperature to {source.name} ({what}): `{command}"
    return f"A temperature does not repair {source.name} ({what}). Add --method auto to try all calibrators: `{command}"

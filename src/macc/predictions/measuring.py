"""Files of predictions, measured and compared: small ones whole, large ones in batches."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from macc.metrics import Calibration, Comparison, Report, compare, evaluate, registry
from macc.metrics.correctness import NOTE, metrics_of_answers
from macc.metrics.streaming import check_streamed
from macc.predictions.array_files import read_variance
from macc.predictions.maps import Maps
from macc.predictions.source import Source, check_same_files, check_same_samples
from macc.predictions.streaming import stream, stream_comparison


class MeasuredFile(NamedTuple):
    """What was measured, and the sums that batches leave: none of a file that was read whole."""

    report: Report
    sums: Calibration | None


def in_batches(source: Source | Maps, most: int) -> bool:
    """Whether a file is too big for memory, where this many rows have room."""
    return isinstance(source, Maps) or source.rows_in_memory() > most


def measured(
    source: Source | Maps,
    *,
    batches: bool,
    metrics: Iterable[str] | None,
    confidence: float,
    resamples: int = 1000,
    summed: Callable[..., Calibration] | None = None,
    on_progress: Callable[[float], None] | None = None,
    **how: Any,
) -> MeasuredFile:
    """Measure a file.

    Args:
        source: The file.
        batches: Read it in batches.
        metrics: Names to measure; all that there are by default.
        confidence: Level of the intervals.
        resamples: Number of resamples.
        summed: What makes the sums of the batches, if they are not those of this file alone.
        on_progress: Called with the share that is done.
        how: ``positive``, ``bins`` and ``normalise``.
    """
    wanted = None if metrics is None else list(metrics)
    if isinstance(source, Maps) or batches:
        if source.answers:
            wanted = metrics_of_answers(wanted, streamed=True)
        check_streamed(wanted, source.num_classes, images=source.dense)
        make = summed or (lambda **more: stream(source, **more))
        sums = make(on_progress=on_progress, **how)
        report = sums.report(confidence=confidence, metrics=wanted, resamples=resamples)
        if source.answers:
            report = replace(report, notes=(NOTE, *report.notes), answers=True)
        return MeasuredFile(report, sums)
    loaded = source.load(normalise=how["normalise"])
    certain = wanted is None or any(
        name in registry() and registry()[name].of == "certainty" for name in wanted
    )
    report = evaluate(
        loaded.scores,
        loaded.labels,
        metrics=wanted,
        variance=read_variance(source.path, loaded) if certain else None,
        classes=loaded.classes,
        confidence=confidence,
        resamples=resamples,
        from_logits=loaded.from_logits,
        weights=loaded.weights,
        answers=source.answers,
        on_progress=on_progress,
        **how,
    )
    return MeasuredFile(report, None)


def compared(
    a: Source | Maps, b: Source | Maps, *, most: int, metrics: Iterable[str] | None, **asked: Any
) -> Comparison:
    """Compare two files of the same samples.

    Args:
        a: The first.
        b: The second.
        most: The most rows that are held in memory.
        metrics: Names to compare; all that there are by default.
        asked: What else :func:`macc.metrics.compare` takes.
    """
    wanted = None if metrics is None else list(metrics)
    large = in_batches(a, most) or in_batches(b, most)
    if a.answers or b.answers:
        if not (a.answers and b.answers):
            raise ValueError(
                f"one of {a.path} and {b.path} has answers and the other classes; they cannot be compared"
            )
        wanted = metrics_of_answers(wanted, streamed=large)
    if large or isinstance(a, Maps) or isinstance(b, Maps):
        return stream_comparison(a, b, metrics=wanted, **asked)
    check_same_files(a, b)
    one, two = (source.load(normalise=asked["normalise"]) for source in (a, b))
    check_same_samples(a, one, b, two)
    both_logits = one.from_logits and two.from_logits
    scores = (one.scores, two.scores) if both_logits else (one.probs(), two.probs())
    return compare(
        *scores,
        one.labels,
        metrics=wanted,
        classes=one.classes or two.classes,
        from_logits=both_logits,
        weights=one.weights,
        **asked,
    )

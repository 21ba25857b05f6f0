"""Files of any size, measured and compared in constant memory."""

from collections.abc import Callable, Sequence

import torch

from macc.metrics import Calibration, Comparison
from macc.metrics.comparing import comparison, paired
from macc.metrics.inputs import check_confidence, check_resamples
from macc.metrics.streaming import check_streamed, left_out
from macc.predictions.source import Batch, Source, paired_batches


def stream(
    source: Source,
    *,
    positive: str | None = None,
    bins: int = 15,
    normalise: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Read a file of any size in constant memory.

    Args:
        source: The file.
        positive: The positive class of two; class 1 by default.
        bins: Number of bins.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        on_progress: Called with the share of the rows read.
    """
    state = _state(source, bins, source.classes, positive, normalise)
    for batch in source.batches():
        _update(state, source, batch)
        if on_progress is not None:
            on_progress(min(1.0, state.num_samples / max(1, source.num_rows)))
    return state


def stream_comparison(
    a: Source,
    b: Source,
    *,
    positive: str | None = None,
    metrics: Sequence[str] | None = None,
    bins: int = 15,
    confidence: float = 0.95,
    resamples: int = 1000,
    normalise: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Compare two files of any size, of the same samples, in constant memory.

    Args:
        a: Predictions of model A.
        b: Predictions of model B.
        positive: The positive class of two; class 1 by default.
        metrics: Names to compare; all that can be by default.
        bins: Number of bins.
        confidence: Level of the intervals.
        resamples: Number of resamples.
        normalise: Divide rows by their sum instead of refusing those that do not sum to 1.
        on_progress: Called with the share of the rows read.
    """
    check_confidence(confidence)
    if a.num_classes != b.num_classes:
        raise ValueError(f"A has {a.num_classes} classes and B has {b.num_classes}; they must agree")
    check_resamples(resamples)
    wanted = check_streamed(metrics, a.num_classes)
    wanted.pop("auroc", None)
    if metrics is not None and "auroc" in metrics:
        raise ValueError(
            "auroc of two models is compared in memory only; raise --max-rows-in-memory, or leave it out"
        )
    # The same seed puts each sample into the same group of both, so that resamples of groups are paired.
    one, two = (_state(source, bins, a.classes or b.classes, positive, normalise) for source in (a, b))
    for batch, other in paired_batches(a, b):
        _update(one, a, batch)
        _update(two, b, other)
        if on_progress is not None:
            on_progress(min(1.0, one.num_samples / max(1, a.num_rows)))
    with torch.device("cpu"):  # whatever the default device is
        first, second = (part.draws(resamples=resamples) for part in (one, two))
        rows = {
            name: paired(metric.sample(first), metric.sample(second), confidence)
            for name, metric in wanted.items()
        }
    return comparison(
        rows,
        one.num_samples,
        1,
        confidence,
        (left_out(wanted, one.num_classes),) if metrics is None else (),
        None if one.positive is None else one.classes[one.positive],
    )


def _state(
    source: Source, bins: int, classes: Sequence[str] | None, positive: str | None, normalise: bool
) -> Calibration:
    return Calibration(
        source.num_classes,
        bins,
        intervals=True,
        classes=classes,
        positive=positive,
        from_logits=source.from_logits,
        normalise=normalise,
    )


def _update(state: Calibration, source: Source, batch: Batch) -> None:
    try:
        state.update(batch.scores, batch.labels)
    except ValueError as error:
        raise source.refusal(error, batch.rows) from None

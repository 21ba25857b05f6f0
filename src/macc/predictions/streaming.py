"""Files of any size, measured and compared in constant memory."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from macc.metrics import Calibration, Comparison
from macc.metrics.comparing import comparison, paired
from macc.metrics.inputs import check_confidence, check_resamples
from macc.metrics.streaming import by_images, check_streamed, left_out, weights_note
from macc.predictions.maps import Maps, check_same_maps
from macc.predictions.source import Source, check_same_files, check_same_samples
from macc.words import documented, shown


@documented
def stream(
    source: Source | Maps,
    *,
    positive: str | None = None,
    bins: int = 15,
    normalise: bool = False,
    seed: int = 0,
    relative_weights: bool | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Calibration:
    """Read a file of any size in constant memory.

    Args:
        source: The file.
        positive: The positive class of two; class 1 by default.
        seed: Of the groups that are resampled.
        relative_weights: Whether weights are relative; by default they are if one of them is not
            whole.
        on_progress: Called with the share of the rows read.
    """
    state = _state(source, bins, source.classes, positive, normalise, seed, relative_weights)
    read = 0
    for batch in source.batches():
        _update(state, source, batch)
        read += len(batch.labels)
        if on_progress is not None:
            on_progress(min(1.0, read / max(1, source.num_rows)))
    if state.num_samples == 0:
        raise ValueError(_nothing(source))
    return state


@documented
def stream_comparison(
    a: Source | Maps,
    b: Source | Maps,
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
        on_progress: Called with the share of the rows read.
    """
    check_confidence(confidence)
    if a.num_classes != b.num_classes:
        raise ValueError(f"A has {a.num_classes} classes and B has {b.num_classes}; they must agree")
    check_resamples(resamples)
    wanted = check_streamed(metrics, a.num_classes, images=a.dense)
    wanted.pop("auroc", None)
    if metrics is not None and "auroc" in metrics:
        raise ValueError(
            "auroc of two models is compared in memory only; raise --max-rows-in-memory, or leave it out"
        )
    # The same seed puts each sample into the same group of both, so that resamples of groups are
    # paired.
    one, two = (_state(source, bins, a.classes or b.classes, positive, normalise) for source in (a, b))
    read = 0
    for batch, other in _paired_batches(a, b):
        _update(one, a, batch)
        _update(two, b, other)
        read += len(batch.labels)
        if on_progress is not None:
            on_progress(min(1.0, read / max(1, a.num_rows)))
    if one.num_samples == 0:
        raise ValueError(_nothing(a))
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
        _notes(one, wanted if metrics is None else None, a.dense),
        None if one.positive is None else one.classes[one.positive],
    )


def _nothing(source: Source | Maps) -> str:
    what = "pixel with a label" if source.dense else "sample that counts"
    return f"{shown(source.path)} has no {what}"


def _paired_batches(one: Source | Maps, two: Source | Maps) -> Iterator[tuple[Any, Any]]:
    """Batches of both files, refused where the files are not of the same samples."""
    check_same_files(one, two)
    pairs: Iterator[tuple[Any, Any]] = zip(one.batches(), two.batches(), strict=False)
    for a, b in pairs:
        if isinstance(one, Maps) and isinstance(two, Maps):
            check_same_maps(one, a, two, b)
        else:
            check_same_samples(one, a, two, b)
        yield a, b


def _notes(state: Calibration, measured: Collection[str] | None, dense: bool) -> tuple[str, ...]:
    """What was resampled, and which metrics were not asked for and could not be had."""
    sums = state.sums()
    said = (
        (by_images(sums.images),) if dense else weights_note(sums.count, sums.size if sums.relative else None)
    )
    return said if measured is None else (*said, left_out(measured, state.num_classes, images=dense))


def _state(
    source: Source | Maps,
    bins: int,
    classes: Sequence[str] | None,
    positive: str | None,
    normalise: bool,
    seed: int = 0,
    relative_weights: bool | None = None,
) -> Calibration:
    if relative_weights is None:
        weighing = None if isinstance(source, Maps) else source.weighing()
        relative_weights = weighing is not None and weighing.relative
    return Calibration(
        source.num_classes,
        bins,
        intervals=True,
        classes=classes,
        positive=positive,
        from_logits=source.from_logits,
        normalise=normalise,
        seed=seed,
        relative_weights=relative_weights,
    )


def _update(state: Calibration, source: Source | Maps, batch: Any) -> None:
    try:
        if isinstance(source, Maps):
            state.update(batch.scores, batch.labels, ignore_index=source.ignore_index)
        else:
            state.update(batch.scores, batch.labels, weights=batch.weights)
    except ValueError as error:
        where = batch.first if isinstance(source, Maps) else batch.rows
        raise source.refusal(error, where) from None

"""Measuring one set of predictions: every metric with its interval, each class, each bin."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from macc.metrics._report import (
    Bin,
    ClassRow,
    Positive,
    Report,
    check_names,
    reliability_bins,
    weights_note,
)
from macc.metrics._resampling import Draws, Resampling, TopCells
from macc.metrics._significance import p_values
from macc.metrics.correctness import CLASSES, NOTE, as_answers, metrics_of_answers
from macc.metrics.dense import as_pixels, is_dense, kept_weights, maps_at_once
from macc.metrics.frames import as_labels, explained, read_columns, read_scores
from macc.metrics.inputs import (
    Array,
    Predictions,
    check_bins,
    check_confidence,
    check_resamples,
    counted,
    predictions,
)
from macc.metrics.intervals import Estimate
from macc.metrics.naming import class_names, named_labels, positive_index
from macc.metrics.refusals import InputError
from macc.metrics.streaming import Calibration, check_streamed
from macc.words import documented


@documented
def evaluate(
    data: Any = None,
    labels: Array | str | None = None,
    *,
    probs: Any = None,
    variance: Array | None = None,
    metrics: Iterable[str] | None = None,
    classes: Sequence[str] | None = None,
    positive: int | str | None = None,
    bins: int = 15,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    from_logits: bool = False,
    normalise: bool = False,
    answers: bool = False,
    ignore_index: int | None = None,
    weights: Array | str | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Report:
    r"""Measure everything: each metric with an interval, each class, and the bins of a reliability
    diagram.

    Calibration errors come with their noise floor, the value that a perfectly calibrated model with
    these confidences would show on this many samples. The interval of a binned error is about the
    error of the whole population with the same bins.

    With two classes the verdict and the diagram are about the positive class: ``positive_ece`` and
    its like measure its probability over all of ``[0, 1]``. ``ece`` and its like are about the
    predicted class, where errors of the two classes can cancel.

    Maps of dense prediction, ``(N, K, H, W)``, are read a few images at a time. Their intervals
    come from resampling whole images, because pixels of one image are not independent; metrics that
    have no such interval are left out.

    Args:
        data: Probabilities ``(N, K)``, or ``(N,)`` of class 1 of two, or maps ``(N, K, H, W)``. Or
            a data frame of pandas, polars or pyarrow, or a data set of Hugging Face, of which
            ``labels`` and ``probs`` name columns.
        labels: Class indices ``(N,)``, or names of ``classes``; of maps ``(N, H, W)``; of a frame
            the name of a column.
        probs: Of a frame, the columns of the classes in their order, or one column with the
            probability of class 1 or with lists; by default every column of numbers but the labels.
            The report says which were taken.
        variance: Variance ``(N, K)`` of the logits under dropout, as :func:`macc.moments` gives it.
            The report then says how well the paper's certainty of the predicted class ranks right
            above wrong predictions (``failure_auroc_by_certainty``), beside confidence.
        metrics: Names to measure; all of them by default. ``ece`` of two classes brings
            ``positive_ece`` along.
        classes: Names of the K classes in their order, for the table and for labels that are names.
        positive: The positive class of two, by its index or name; class 1 by default.
        from_logits: The scores are logits.
        answers: The scores ``(N,)`` are the confidence of answers, and ``labels`` says which were
            right: for language models, judges and retrieval, where no probability of every class is
            known. Only metrics that need none are measured.
        ignore_index: The label of pixels or samples to leave out, for example 255.
        weights: How often each sample counts, ``(N,)``, at least 0; of a frame the name of a
            column. Whole weights are counts, and the report is that of repeated samples. If any
            weight is not whole, they are relative: the bootstrap draws samples together with their
            weights, and limits that are exact for samples are those of the effective number of
            samples, :math:`(\sum w)^2 / \sum w^2`.

    Returns:
        The report: ``report["ece"].value``, ``.low``, ``.high``, ``.noise_floor``; ``to_dict()``,
        ``to_json()``, ``classes``, ``bins`` and, of two classes, ``positive``.

    Example:
        >>> import torch, macc
        >>> generator = torch.Generator().manual_seed(0)
        >>> logits = torch.randn(1000, 3, generator=generator)
        >>> labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        >>> report = macc.evaluate((2 * logits).softmax(1), labels, metrics=["accuracy", "ece"])
        >>> print(report)
        1 000 samples, 3 classes
        <BLANKLINE>
                   value  95 % interval  noise floor
        ────────────────────────────────────────────
        accuracy  59.5 %    56.4 – 62.6
        ECE       15.8 %    11.8 – 18.6        3.1 %
        <BLANKLINE>
        ECE 15.8 % is more than the 3.1 % that a perfectly calibrated model would show: ...
    """
    check_bins(bins)
    check_confidence(confidence)
    check_resamples(resamples)
    notes: tuple[str, ...] = ()
    found = None
    if isinstance(labels, str):
        column = weights if isinstance(weights, str) else None
        found = read_columns(data, labels, probs, classes, column)
        data, labels, classes, notes = found.scores, found.labels, found.classes, (found.note,)
        weights = weights if column is None else found.weights
    elif (beside := read_scores(data, labels, classes)) is not None and probs is None:
        found = beside
        data, labels, classes, notes = found.scores, found.labels, found.classes, (found.note,)
    elif probs is not None:
        if data is not None:
            raise ValueError(
                "probs names columns of a data frame whose column of labels is named too: labels='label'"
            )
        data = probs
    if isinstance(weights, str):
        raise ValueError(
            "weights names a column of a data frame whose column of labels is named too: labels='label'"
        )
    if data is None or labels is None:
        raise ValueError("evaluate needs probabilities and labels: evaluate(probs, labels)")
    if is_dense(data):
        if variance is not None or answers or weights is not None:
            raise ValueError(
                "variance=, answers= and weights= are for rows (N, K), and these are maps; leave them out"
            )
        sums = Calibration(
            data.shape[1],
            bins,
            intervals=True,
            classes=classes,
            positive=positive,
            seed=seed,
            from_logits=from_logits,
            normalise=normalise,
        )
        return _of_maps(
            sums,
            data,
            labels,
            ignore_index,
            on_progress,
            confidence=confidence,
            metrics=[metrics] if isinstance(metrics, str) else metrics and list(metrics),
            resamples=resamples,
        )
    labels = as_labels(labels)
    if answers:
        labels, classes, notes = as_answers(labels), CLASSES, (*notes, NOTE)
    with explained(found):
        targets = named_labels(labels, classes)
        pixels = as_pixels(data, targets, ignore_index)
        given = predictions(pixels.scores, pixels.labels, from_logits=from_logits, normalise=normalise)
    checked = None if variance is None else _check_variance(given, variance)
    if weights is not None:
        counts = counted(kept_weights(weights, targets, ignore_index))
        given = given.chosen(counts)
        checked = checked if checked is None or counts is None else counts.of(checked)
    with explained(found, InputError):  # values are looked at with everything else
        return measured(
            given,
            metrics=metrics,
            classes=classes,
            positive=positive,
            bins=bins,
            confidence=confidence,
            resamples=resamples,
            seed=seed,
            variance=checked,
            notes=notes,
            answers=answers,
            on_progress=on_progress,
        )


def measured(
    given: Predictions,
    *,
    metrics: Iterable[str] | None,
    classes: Sequence[str] | None,
    positive: int | str | None,
    bins: int,
    confidence: float,
    resamples: int,
    seed: int,
    variance: torch.Tensor | None = None,
    notes: tuple[str, ...] = (),
    answers: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Report:
    """The report of predictions on the CPU with relative weights; see :func:`evaluate`."""
    everything = metrics is None
    if answers:
        metrics = metrics_of_answers(metrics)
    wanted = check_names(metrics, given.num_classes, certainty=variance is not None)
    names = class_names(classes, given.num_classes)
    one = positive_index(positive, names)
    draws = Draws(
        given,
        bins=bins,
        resampling=Resampling.of(given, resamples, seed),
        positive=one,
        confidence=confidence,
        variance=variance,
        metrics=wanted.values(),
    )
    estimates = {}
    with torch.device("cpu"):  # whatever the default device is
        for done, (name, metric) in enumerate(wanted.items()):
            if on_progress is not None:
                on_progress(done / len(wanted))
            estimates[name] = metric.sample(draws).estimate(confidence)
    if on_progress is not None:
        on_progress(1.0)

    note = weights_note(given.num_samples, None if given.weights is None else given.total)

    def diagram(cells: TopCells) -> tuple[Bin, ...]:
        sizes = None if given.weights is None else cells.bin_sizes
        return reliability_bins(cells.binned, bins, confidence, sizes)

    return Report(
        estimates,
        _class_rows(given, names, draws) if "sce" in wanted else (),
        diagram(draws.cells),
        given.num_samples,
        given.num_classes,
        confidence,
        notes=(*notes, *_certainty_note(estimates), *note),
        positive=None if one is None else Positive(names[one], diagram(draws.positive.cells)),
        p_values=p_values(draws.sample.top if one is None else draws.sample.positive, given.weights)
        if everything
        else {},
        answers=answers,
    )


def _of_maps(
    sums: Calibration,
    maps: Any,
    labels: Array,
    ignore_index: int | None,
    on_progress: Callable[[float], None] | None,
    **asked: Any,
) -> Report:
    """The report of maps, which are read a few at a time."""
    check_streamed(asked["metrics"], sums.num_classes, images=True)
    if len(labels) != len(maps):
        raise ValueError(f"probs has {len(maps)} maps and labels has {len(labels)}; they must pair up")
    for some in maps_at_once(maps.shape):
        try:
            sums.update(maps[some], labels[some], ignore_index=ignore_index)
        except InputError as error:
            raise error.after(some.start) from None
        if on_progress is not None:
            on_progress(some.stop / len(maps))
    return sums.report(**asked)


def _check_variance(given: Predictions, variance: Array) -> torch.Tensor:
    """Refuse what cannot be the variance of the logits."""
    values = torch.as_tensor(variance).detach().cpu().double()
    if tuple(values.shape) != tuple(given.scores.shape):
        raise ValueError(
            f"variance must have the shape of the scores, {tuple(given.scores.shape)}, got {tuple(values.shape)}"
        )
    if not bool((values >= 0).all() & values.isfinite().all()):
        raise ValueError("variance must be finite and at least 0; repair what wrote it")
    return values


def _certainty_note(estimates: dict[str, Estimate]) -> tuple[str, ...]:
    """A sentence where certainty ranks worse than confidence."""
    if not {"failure_auroc", "failure_auroc_by_certainty"} <= set(estimates):
        return ()
    by_confidence, by_certainty = (
        estimates[name].value for name in ("failure_auroc", "failure_auroc_by_certainty")
    )
    if not by_certainty < by_confidence:
        return ()
    how = "backwards" if by_certainty < 0.5 else "worse than confidence does"
    return (
        f"Certainty ranks right and wrong predictions {how} (failure AUROC {by_certainty:.3f}, by confidence "
        f"{by_confidence:.3f}): choose the cases to hand to a person by confidence.",
    )


def _class_rows(given: Predictions, names: list[str], draws: Draws) -> tuple[ClassRow, ...]:
    samples = torch.bincount(given.labels, minlength=given.num_classes).tolist()
    weighed = torch.bincount(given.labels, given.weights, minlength=given.num_classes).double()
    shares, means = ((part / given.total).tolist() for part in (weighed, draws.sample.totals))
    return tuple(
        ClassRow(name, count, share, mean, estimate)
        for name, count, share, mean, estimate in zip(
            names, samples, shares, means, draws.classes.each, strict=True
        )
    )

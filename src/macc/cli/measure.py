"""``macc evaluate``, ``merge``, ``check`` and ``compare``."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from macc.cli import labels as several
from macc.cli.app import Command, app, say
from macc.cli.labels import MultiLabel
from macc.cli.options import (
    Bins,
    By,
    Confidence,
    FileOrMaps,
    GroupsFile,
    IgnoreIndex,
    Json,
    Labels,
    MaxRows,
    Metrics,
    Normalise,
    Positive,
    Reading,
    Resamples,
    WeightColumn,
    also_write,
    carried,
    listed,
    open_file_or_maps,
    progress,
    reads_predictions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from macc.metrics import Calibration, GroupReport
    from macc.predictions import Maps, Source


@app.command()
@reads_predictions
def evaluate(
    reading: Reading,
    file: FileOrMaps,
    labels: Labels = None,
    normalise: Normalise = False,
    positive: Positive = None,
    metrics: Metrics = None,
    bins: Bins = 15,
    confidence: Confidence = 0.95,
    resamples: Resamples = 1000,
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a reliability diagram (.png, .pdf, .svg).", show_default=False)
    ] = None,
    max_rows_in_memory: MaxRows = 5_000_000,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Also write a state, from which `macc merge` combines parts of a data set.",
            show_default=False,
        ),
    ] = None,
    by: By = None,
    groups: GroupsFile = None,
    ignore_index: IgnoreIndex = None,
    weight_column: WeightColumn = None,
    multi_label: MultiLabel = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Measure on a Dask cluster, whose scheduler has this address: tcp://HOST:8786.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure how calibrated predictions are, with intervals.

    Example: macc evaluate predictions.npz --plot reliability.png

    Writes: nothing, unless --json, --plot or --state names a file.

    An .npz has the keys `labels` and `probs` or `logits`. A .csv or .parquet
    has the column `label` and a column for each class, or `label` and `prob`
    for two classes, or `confidence` and `correct` where only the answer is
    known. An .npy needs a second .npy with the labels.

    With `mean` and `variance` in the .npz (`macc predict --moments`), the table
    says how well certainty separates right from wrong predictions.

    Segmentation: an .npz with `probs` or `logits` (N, K, H, W) and `labels`
    (N, H, W), or a folder with an .npy for each image in `logits` or `probs`
    and in `labels`. Images are read a few at a time; intervals resample images.

    Several files of rows are one data set: 'folder/*.parquet', in quotation
    marks. With --cluster the workers of a Dask cluster read them, and the
    result is the same to the last digit.

    With --multi-label the table has a row for each label and their mean.
    """
    from macc.io.writing import check_outputs, write_whole
    from macc.metrics.correctness import metrics_of_answers
    from macc.predictions import Maps, files_of, in_batches, measured

    check_outputs({"--json": json, "--plot": plot, "--state": state}, [file, labels, groups])
    if plot is not None:
        kind = plot.suffix.lower().removeprefix(".")
        if kind not in ("png", "pdf", "svg"):
            raise ValueError(f"{plot}: a diagram is written as .png, .pdf or .svg")
    if multi_label:
        several.refuse_options(
            {"--plot": plot, "--state": state, "--by": by, "--groups": groups, "--normalise": normalise}
            | {"--positive": positive, "--ignore-index": ignore_index, "--weight-column": weight_column}
        )
        labelled = several.read(file, labels, reading, max_rows_in_memory)
        several.evaluate(labelled, metrics, json, bins=bins, confidence=confidence, resamples=resamples)
        return
    reading["weight_column"] = weight_column
    files = files_of(file)
    source = _opened(files[0], labels, reading, positive, by, groups, max_rows_in_memory, ignore_index)
    parts = cluster is not None or len(files) > 1
    if parts and (isinstance(source, Maps) or labels is not None or by):
        raise ValueError(
            f"{file}: several files, or a --cluster, are for .npz, .csv and .parquet files of rows without --by"
        )
    asked: dict[str, Any] = {
        "metrics": listed(metrics),
        "positive": positive,
        "bins": bins,
        "confidence": confidence,
        "resamples": resamples,
        "normalise": normalise,
    }
    if by:
        if state is not None or plot is not None:
            raise ValueError("--by prints groups; leave --state and --plot out")
        if source.answers:
            asked["metrics"] = metrics_of_answers(listed(metrics))
        found = _by_group(source, file, by, groups, **asked)
        also_write(json, found.to_dict())
        say(str(found))
        return
    with progress("measuring") as on_progress:
        report, sums = measured(
            source,
            batches=parts or state is not None or in_batches(source, max_rows_in_memory),
            summed=partial(_of_files, files, reading, cluster) if parts else None,
            on_progress=on_progress,
            **asked,
        )
    if state is not None and sums is not None:
        from macc.metrics import states

        states.save(sums, state)
    tests = {f"p_{name}": {"value": p} for name, p in report.p_values.items()}
    also_write(json, report.to_dict() | tests)
    if plot is not None:
        from macc.report.figures import reliability_diagram

        figure = reliability_diagram(report)
        with write_whole(plot) as output:
            figure.savefig(output, format=kind, dpi=150)
    say(str(report))


def _of_files(
    files: "list[Path]",
    reading: Reading,
    cluster: str | None,
    *,
    positive: str | None,
    on_progress: "Callable[[float], None]",
    **how: Any,
) -> "Calibration":
    """The sums of several files, here or on a cluster, whose own page says how far it is."""
    options = {**reading, "positive": positive, "answers": True}
    if cluster is None:
        from macc.predictions import stream_files

        return stream_files(files, options, positive=positive, on_progress=on_progress, **how)
    from macc.integrations.dask import of_files

    return of_files(cluster, files, options, positive=positive, **how)


@app.command()
def merge(
    states: Annotated[
        list[Path], typer.Argument(metavar="STATE", help="Files that `macc evaluate --state` wrote.")
    ],
    confidence: Confidence = 0.95,
    json: Json = None,
    state: Annotated[
        Path | None, typer.Option(help="Also write the merged state.", show_default=False)
    ] = None,
) -> None:
    """Combine parts of one data set that were evaluated apart.

    Example: macc merge part-1.state part-2.state --json all.json

    Writes: nothing, unless --json or --state names a file. The numbers are
    those of all samples together.
    """
    from macc.io.writing import check_outputs
    from macc.metrics import states as kept

    check_outputs({"--json": json, "--state": state}, states)
    sums = kept.merged(states)
    report = sums.report(confidence=confidence)
    if state is not None:
        kept.save(sums, state)
    also_write(json, report.to_dict())
    say(str(report))


def _opened(
    file: Path,
    labels: Path | None,
    reading: Reading,
    positive: str | None,
    by: list[str] | None,
    groups: Path | None,
    most: int,
    ignore_index: int | None,
) -> "Source | Maps":
    """A file whose columns of groups are no classes, or maps."""
    carry = carried(file, by, groups)
    options = {**reading, "positive": positive, "carry": carry, "answers": True}
    source = open_file_or_maps(file, labels, options, ignore_index)
    if groups is not None and not by:
        raise ValueError(f"--groups {groups} needs --by COLUMN, a column of it")
    if source.dense and by:
        raise ValueError(f"{file} has maps of whole images, and --by is for rows; leave it out")
    if by and source.num_rows > most:
        raise ValueError(
            f"{file} has more than {most} rows, and --by needs all in memory; raise --max-rows-in-memory"
        )
    return source


def _by_group(
    source: "Source | Maps", file: Path, by: list[str], groups: Path | None, *, normalise: bool, **asked: Any
) -> "GroupReport":
    """Every group of a file that is read whole."""
    from macc.metrics import evaluate_groups
    from macc.predictions import groups_of

    loaded = source.load(normalise=normalise)
    with progress("measuring") as on_progress:
        return evaluate_groups(
            loaded.scores,
            loaded.labels,
            groups_of(file, loaded, by, groups, source.num_rows),
            classes=loaded.classes,
            from_logits=loaded.from_logits,
            weights=loaded.weights,
            normalise=normalise,
            on_progress=on_progress,
            **asked,
        )


class _WithLimits(Command):
    """``check``, whose options ``--max-NAME`` are as many as there are metrics to limit.

    They are found when the command is called, so that help needs no torch.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the limits out of the arguments."""
        limits, others = {}, []
        left = list(args)
        while left:
            option, sign, text = left.pop(0).partition("=")
            if not option.startswith("--max-") or option == "--max-rows-in-memory":
                others.append(option + sign + text)
            elif sign or left:
                limits[option] = text if sign else left.pop(0)
            else:
                raise ValueError(f"{option} needs a number, such as {option} 0.02")
        ctx.meta["limits"] = limits
        return super().parse_args(ctx, others)


def _limits(given: dict[str, str]) -> dict[str, float]:
    """The limit on each metric that ``--max-NAME`` names."""
    from macc.metrics.limits import limitable
    from macc.words import did_you_mean

    known = {f"--max-{name.replace('_', '-')}": name for name in limitable()}
    found = {}
    for option, text in given.items():
        if option not in known:
            raise ValueError(f"macc check has no option {option}; {did_you_mean(option, known)}")
        try:
            found[known[option]] = float(text)
        except ValueError:
            raise ValueError(f"{option} needs a number, got {text!r}") from None
        if not found[known[option]] > 0:
            raise ValueError(f"{option} must be above 0, got {text}")
    if not found:
        raise ValueError("give at least one limit to check, such as --max-ece 0.02")
    return found


@app.command(cls=_WithLimits)
@reads_predictions
def check(
    reading: Reading,
    context: typer.Context,
    file: FileOrMaps,
    labels: Labels = None,
    confidence: Confidence = 0.95,
    normalise: Normalise = False,
    positive: Positive = None,
    bins: Bins = 15,
    max_rows_in_memory: MaxRows = 5_000_000,
    by: By = None,
    groups: GroupsFile = None,
    ignore_index: IgnoreIndex = None,
    weight_column: WeightColumn = None,
    multi_label: MultiLabel = False,
) -> None:
    """Pass or fail predictions against limits, for pipelines.

    Example: macc check predictions.npz --max-ece 0.02

    Writes: nothing. Exits 0 when the upper end of each interval is within its
    limit, 1 when one is not; the last line says why. 2 means that the file
    could not be read.

    Limits: --max-ece, --max-sce, --max-mce, --max-smooth-ece, --max-nll,
    --max-brier, or --max-NAME of any other metric that should be small. Give at
    least one. A limit on an error is a share: 0.02 is 2 %.

    With two classes the errors of the positive class are checked, because the
    errors of both classes can cancel in those of the predicted class;
    --max-top-label-ece limits the latter. With --by every group has to keep the
    limits, and with --multi-label every label; the worst one comes first.
    """
    from macc.metrics.correctness import metrics_of_answers
    from macc.metrics.limits import broken_limits, kept_limits, limited
    from macc.predictions import in_batches, measured

    asked = _limits(context.meta["limits"])
    if multi_label:
        several.refuse_options(
            {"--by": by, "--groups": groups, "--normalise": normalise, "--positive": positive}
            | {"--ignore-index": ignore_index, "--weight-column": weight_column}
        )
        labelled = several.read(file, labels, reading, max_rows_in_memory)
        several.check(labelled, asked, bins=bins, confidence=confidence)
        return
    reading["weight_column"] = weight_column
    source = _opened(file, labels, reading, positive, by, groups, max_rows_in_memory, ignore_index)
    limits: dict[str, float] = {}
    for name, limit in asked.items():
        metric = limited(name, source.num_classes)
        if source.answers:
            metric = metrics_of_answers([metric])[0]
        limits[metric] = min(limit, limits.get(metric, limit))
    how: dict[str, Any] = {
        "positive": positive,
        "bins": bins,
        "confidence": confidence,
        "normalise": normalise,
    }
    if by:
        found = _by_group(source, file, by, groups, metrics=list(limits), **how)
        for name, each in found.groups.items():
            for line in (*broken_limits(each, limits), *kept_limits(each, limits)):
                say(f"{name}: {line}")
        worse = [name for name, each in found.groups.items() if broken_limits(each, limits)]
        if worse:
            say(f"{len(worse)} of {len(found.groups)} groups do not keep the limits, {worse[0]} first of all")
            raise typer.Exit(1)
        return
    with progress("measuring") as on_progress:
        report, _ = measured(
            source,
            batches=in_batches(source, max_rows_in_memory),
            metrics=limits,
            on_progress=on_progress,
            **how,
        )
    for line in kept_limits(report, limits):
        say(line)
    broken = broken_limits(report, limits)
    if broken:
        say("; ".join(broken))
        raise typer.Exit(1)


@app.command()
@reads_predictions
def compare(
    reading: Reading,
    a: Annotated[
        Path,
        typer.Argument(
            help="Predictions of model A: .npz, .npy, .csv or .parquet; for segmentation an .npz, .npy or a folder.",
            show_default=False,
        ),
    ],
    b: Annotated[
        Path, typer.Argument(help="Predictions of model B on the same samples.", show_default=False)
    ],
    labels: Labels = None,
    normalise: Normalise = False,
    positive: Positive = None,
    metrics: Metrics = None,
    bins: Bins = 15,
    confidence: Confidence = 0.95,
    resamples: Resamples = 1000,
    json: Json = None,
    max_rows_in_memory: MaxRows = 5_000_000,
    ignore_index: IgnoreIndex = None,
    weight_column: WeightColumn = None,
) -> None:
    """Compare two models on the same samples, with paired intervals.

    Example: macc compare a.npz b.npz --metrics accuracy,nll,ece

    Writes: nothing, unless --json names a file. The table has the difference of
    each metric, A minus B, and says which are significant.
    """
    from macc.io.writing import check_outputs
    from macc.predictions import compared

    check_outputs({"--json": json}, [a, b, labels])
    # Only an .npy needs labels of its own; the other file may hold them.
    arrays = [file.suffix.lower() == ".npy" for file in (a, b)]
    reading |= {"positive": positive, "beside": [a, b], "answers": True, "weight_column": weight_column}
    sources = [
        open_file_or_maps(file, labels if array or not any(arrays) else None, reading, ignore_index)
        for file, array in zip((a, b), arrays, strict=True)
    ]
    with progress("comparing") as on_progress:
        result = compared(
            *sources,
            most=max_rows_in_memory,
            metrics=listed(metrics),
            positive=positive,
            bins=bins,
            confidence=confidence,
            resamples=resamples,
            normalise=normalise,
            on_progress=on_progress,
        )
    also_write(json, result.to_dict())
    say(f"A  {a}\nB  {b}\n\n{result}")

"""``macc evaluate``, ``merge``, ``check`` and ``compare``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import macc
from macc.cli.app import app, say
from macc.cli.options import (
    Bins,
    By,
    Confidence,
    File,
    GroupsFile,
    Json,
    Labels,
    MaxRows,
    Metrics,
    Normalise,
    Positive,
    Reading,
    Resamples,
    also_write,
    carried,
    groups_of,
    listed,
    open_file,
    progress,
    reads_predictions,
)

if TYPE_CHECKING:
    from macc.predictions import Source


@app.command()
@reads_predictions
def evaluate(
    reading: Reading,
    file: File,
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
        typer.Option(help="Also write what `macc merge` needs to put parts together.", show_default=False),
    ] = None,
    by: By = None,
    groups: GroupsFile = None,
) -> None:
    """Measure how calibrated predictions are, every number with an interval.

    An .npz has the keys `labels` and `probs` or `logits`; with `mean` and `variance`, as `macc predict --moments` writes, the
    report says how well certainty ranks right above wrong predictions. A .csv or .parquet has the column `label` and one for
    each class, or `label` and `prob` for two classes; or the columns `confidence` and `correct` of answers, where no class vector is
    known. An .npy needs a second one with the labels.
    """
    from macc.io.writing import check_outputs, write_whole
    from macc.metrics import evaluate_groups
    from macc.metrics.correctness import NOTE, metrics_of_answers

    check_outputs({"--json": json, "--plot": plot, "--state": state}, [file, labels, groups])
    if plot is not None:
        kind = plot.suffix.lower().removeprefix(".")
        if kind not in ("png", "pdf", "svg"):
            raise ValueError(f"{plot}: a diagram is written as .png, .pdf or .svg")
    source = _opened(file, labels, reading, positive, by, groups, max_rows_in_memory)
    wanted = listed(metrics)
    large = state is not None or source.num_rows > max_rows_in_memory
    if source.answers:
        wanted = metrics_of_answers(wanted, streamed=large)
    asked: dict[str, Any] = {
        "metrics": wanted,
        "positive": positive,
        "bins": bins,
        "confidence": confidence,
        "resamples": resamples,
        "normalise": normalise,
    }
    if by:
        if state is not None or plot is not None:
            raise ValueError("--by prints groups; leave --state and --plot out")
        loaded = source.load(normalise=normalise)
        with progress("measuring") as on_progress:
            found = evaluate_groups(
                loaded.scores,
                loaded.labels,
                groups_of(file, loaded, by, groups, source.num_rows),
                classes=loaded.classes,
                from_logits=loaded.from_logits,
                on_progress=on_progress,
                **asked,
            )
        also_write(json, found.to_dict())
        say(str(found))
        return
    with progress("measuring") as on_progress:
        if large:
            from macc.metrics.streaming import check_streamed
            from macc.predictions import stream

            check_streamed(wanted, source.num_classes)
            sums = stream(source, positive=positive, bins=bins, normalise=normalise, on_progress=on_progress)
            report = sums.report(confidence=confidence, metrics=wanted, resamples=resamples)
            if state is not None:
                from macc.metrics import states

                states.save(sums, state)
        else:
            from macc.predictions import read_variance

            loaded = source.load(normalise=normalise)
            report = macc.evaluate(
                loaded.scores,
                loaded.labels,
                variance=read_variance(file, loaded),
                classes=loaded.classes,
                from_logits=loaded.from_logits,
                on_progress=on_progress,
                **asked,
            )
    if source.answers:
        report = replace(report, notes=(NOTE, *report.notes))
    tests = {f"p_{name}": {"value": p} for name, p in report.p_values.items()}
    also_write(json, report.to_dict() | tests)
    if plot is not None:
        from macc.report.figures import reliability_diagram

        figure = reliability_diagram(report)
        with write_whole(plot) as output:
            figure.savefig(output, format=kind, dpi=150)
    say(str(report))


@app.command()
def merge(
    states: Annotated[list[Path], typer.Argument(help="What `macc evaluate --state` wrote.")],
    confidence: Confidence = 0.95,
    json: Json = None,
    state: Annotated[
        Path | None, typer.Option(help="Also write the merged state.", show_default=False)
    ] = None,
) -> None:
    """Put the parts of one data set together that were evaluated apart, on any machines."""
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
) -> "Source":
    """A file whose columns of groups are no classes."""
    carry = carried(file, by, groups)
    source = open_file(file, labels, {**reading, "positive": positive, "carry": carry, "answers": True})
    if groups is not None and not by:
        raise ValueError(f"--groups {groups} needs --by COLUMN, a column of it")
    if by and source.num_rows > most:
        raise ValueError(
            f"{file} has more than {most} rows, and --by needs all in memory; raise --max-rows-in-memory"
        )
    return source


class _WithLimits(TyperCommand):
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
    file: File,
    labels: Labels = None,
    confidence: Confidence = 0.95,
    normalise: Normalise = False,
    positive: Positive = None,
    bins: Bins = 15,
    max_rows_in_memory: MaxRows = 5_000_000,
    by: By = None,
    groups: GroupsFile = None,
) -> None:
    """Exit 0 when the upper bound of each limited metric keeps its limit, 1 when one does not.

    Give at least one limit: --max-ece 0.02, --max-sce, --max-mce, --max-smooth-ece, --max-nll, --max-brier, or
    --max-NAME of any other metric of which less is better. A limit on an error is a share: 0.02 is 2 %.

    Made for pipelines: the last line says why. With two classes the ECE, MCE and smooth ECE of the positive class
    are checked, because the errors of the two classes can cancel in those of the predicted one, which
    --max-top-label-ece limits. With --by every group has to keep the limits, and the worst one is named first.
    """
    from macc.metrics import evaluate_groups
    from macc.metrics.correctness import metrics_of_answers
    from macc.metrics.limits import broken_limits, kept_limits, limited

    asked = _limits(context.meta["limits"])
    source = _opened(file, labels, reading, positive, by, groups, max_rows_in_memory)
    limits: dict[str, float] = {}
    for name, limit in asked.items():
        metric = limited(name, source.num_classes)
        if source.answers:
            metric = metrics_of_answers([metric])[0]
        limits[metric] = min(limit, limits.get(metric, limit))
    if by:
        loaded = source.load(normalise=normalise)
        with progress("measuring") as on_progress:
            found = evaluate_groups(
                loaded.scores,
                loaded.labels,
                groups_of(file, loaded, by, groups, source.num_rows),
                metrics=list(limits),
                classes=loaded.classes,
                positive=positive,
                bins=bins,
                confidence=confidence,
                from_logits=loaded.from_logits,
                normalise=normalise,
                on_progress=on_progress,
            )
        for name, each in found.groups.items():
            for line in (*broken_limits(each, limits), *kept_limits(each, limits)):
                say(f"{name}: {line}")
        worse = [name for name, each in found.groups.items() if broken_limits(each, limits)]
        if worse:
            say(f"{len(worse)} of {len(found.groups)} groups do not keep the limits, {worse[0]} first of all")
            raise typer.Exit(1)
        return
    with progress("measuring") as on_progress:
        if source.num_rows > max_rows_in_memory:
            from macc.metrics.streaming import check_streamed
            from macc.predictions import stream

            check_streamed(list(limits), source.num_classes)
            sums = stream(source, positive=positive, bins=bins, normalise=normalise, on_progress=on_progress)
            report = sums.report(confidence=confidence, metrics=list(limits))
        else:
            loaded = source.load(normalise=normalise)
            report = macc.evaluate(
                loaded.scores,
                loaded.labels,
                metrics=limits,
                classes=loaded.classes,
                positive=positive,
                bins=bins,
                confidence=confidence,
                from_logits=loaded.from_logits,
                normalise=normalise,
                on_progress=on_progress,
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
        Path, typer.Argument(help="Predictions of model A: .npz, .npy, .csv or .parquet.", show_default=False)
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
) -> None:
    """Show the difference of each metric between two models on the same samples, with paired intervals."""
    from macc.io.writing import check_outputs
    from macc.metrics import compare as difference
    from macc.metrics.correctness import metrics_of_answers
    from macc.predictions import check_same_files, check_same_samples

    check_outputs({"--json": json}, [a, b, labels])
    # Only an .npy needs labels of its own; the other file may hold them.
    arrays = [file.suffix.lower() == ".npy" for file in (a, b)]
    reading |= {"positive": positive, "beside": [a, b], "answers": True}
    sources = [
        open_file(file, labels if array or not any(arrays) else None, reading)
        for file, array in zip((a, b), arrays, strict=True)
    ]
    wanted = listed(metrics)
    large = max(source.num_rows for source in sources) > max_rows_in_memory
    if any(source.answers for source in sources):
        if not all(source.answers for source in sources):
            raise ValueError(f"one of {a} and {b} has answers and the other classes; they cannot be compared")
        wanted = metrics_of_answers(wanted, streamed=large)
    with progress("comparing") as on_progress:
        asked: dict[str, Any] = {
            "metrics": wanted,
            "positive": positive,
            "bins": bins,
            "confidence": confidence,
            "resamples": resamples,
            "normalise": normalise,
            "on_progress": on_progress,
        }
        if large:
            from macc.predictions import stream_comparison

            result = stream_comparison(*sources, **asked)
        else:
            check_same_files(*sources)
            one, two = (source.load(normalise=normalise) for source in sources)
            check_same_samples(sources[0], one, sources[1], two)
            both_logits = one.from_logits and two.from_logits
            scores = (one.scores, two.scores) if both_logits else (one.probs(), two.probs())
            result = difference(
                *scores,
                one.labels,
                classes=one.classes or two.classes,
                from_logits=both_logits,
                **asked,
            )
    also_write(json, result.to_dict())
    say(f"A  {a}\nB  {b}\n\n{result}")

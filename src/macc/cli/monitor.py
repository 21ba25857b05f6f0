"""``macc monitor`` and its commands ``update``, ``show`` and ``merge``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from macc.cli.app import monitor_app, say
from macc.cli.options import (
    Confidence,
    Json,
    Normalise,
    Positive,
    Reading,
    also_write,
    load_file,
    progress,
    reads_predictions,
)

if TYPE_CHECKING:
    from macc.monitor import Monitor
    from macc.monitor.state import Adding
    from macc.predictions import Source

Time = Annotated[
    str,
    typer.Option(
        metavar="COLUMN",
        help="The column of times: ISO 8601, seconds since 1970, or timestamps in a .parquet.",
        show_default=False,
    ),
]
RowId = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column that distinguishes rows with the same time.", show_default=False
    ),
]
Span = Annotated[
    str | None, typer.Option(metavar="LENGTH", help="The length of a window, such as 12h; 1d if not given.")
]
Baseline = Annotated[
    Path | None,
    typer.Option(
        metavar="VAL",
        help="Predictions of a validation set to compare the model with. If not given, it is compared with its own confidence.",
        show_default=False,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        help="The probability of a false alarm over the whole life; 0.01 if not given.", show_default=False
    ),
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        help="How far mean confidence may be from accuracy without an alarm. If not given, 0.01, or 0 with --baseline.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="The name of the model; batches of other models are refused.", show_default=False),
]
Plot = Annotated[
    Path | None, typer.Option(help="Draw the windows over time (.png, .pdf, .svg).", show_default=False)
]
Prometheus = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Also write the state in the text format of Prometheus.", show_default=False
    ),
]
StateFile = Annotated[
    Path, typer.Argument(metavar="STATE", help="The file with the state.", show_default=False)
]


@monitor_app.command("log")
@reads_predictions
def log(
    reading: Reading,
    file: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="Predictions over time: .csv or .parquet.", show_default=False),
    ],
    time: Time,
    row_id: RowId = None,
    window: Span = None,
    baseline: Baseline = None,
    alpha: Alpha = None,
    tolerance: Tolerance = None,
    positive: Positive = None,
    normalise: Normalise = False,
    confidence: Confidence = 0.95,
    json: Json = None,
    plot: Plot = None,
    prometheus: Prometheus = None,
) -> None:
    """Show a whole log over time, and whether there is an alarm.

    Example: macc monitor log.csv --time when --baseline val.npz

    Writes: nothing, unless --json, --plot or --prometheus names a file. Exits 1
    on an alarm.

    Rows stand in the order of their times. Labels may be missing: the accuracy
    of such rows is estimated from their confidences. There is an alarm when the
    mean of accuracy minus confidence is not what it should be. You may look
    after every row: a false alarm has at most the probability --alpha over the
    whole life of the model.
    """
    _check_outputs([file, baseline], json, plot, prometheus)
    from macc.monitor import Monitor
    from macc.monitor.logs import open_log

    reading |= {"positive": positive, "answers": True}
    source, labelled = open_log(file, reading, time=time, row_id=row_id)
    options = _options(
        source,
        reading,
        normalise,
        window=window,
        baseline=baseline,
        alpha=alpha,
        tolerance=tolerance,
    )
    monitor = Monitor(source.num_classes, **options)
    adding = monitor.begin(file.name)
    _count(adding, source, reading, time, row_id, labelled, normalise)
    _report(monitor, confidence, json, plot, prometheus)


@monitor_app.command()
@reads_predictions
def update(
    reading: Reading,
    state: StateFile,
    file: Annotated[
        Path, typer.Argument(metavar="BATCH", help="The new rows: .csv or .parquet.", show_default=False)
    ],
    time: Time,
    batch: Annotated[
        str | None,
        typer.Option(
            help="The name of the batch; the checksum of its file if not given.", show_default=False
        ),
    ] = None,
    late: Annotated[
        bool,
        typer.Option("--late", help="These rows were counted before without labels; now they have labels."),
    ] = False,
    stream: Annotated[
        str,
        typer.Option(metavar="NAME", help="The machine that the rows come from, if there are several."),
    ] = "main",
    streams: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The number of machines whose states will be merged; 1 if not given.",
            show_default=False,
        ),
    ] = None,
    row_id: RowId = None,
    window: Span = None,
    baseline: Baseline = None,
    alpha: Alpha = None,
    tolerance: Tolerance = None,
    model: Model = None,
    positive: Positive = None,
    normalise: Normalise = False,
    confidence: Confidence = 0.95,
    json: Json = None,
    plot: Plot = None,
    prometheus: Prometheus = None,
) -> None:
    """Add a batch to a state; made for a cron job.

    Example: macc monitor update model.state today.csv --time when

    Writes: the state, which the first batch creates, and what --json, --plot
    and --prometheus name. Exits 1 once there was an alarm.

    The state is written as a whole, after the last row. If the command was
    killed, give it again: no batch is counted twice. The options of the alarm
    are those of the first batch.
    """
    from filelock import FileLock

    from macc.monitor import Monitor
    from macc.monitor.logs import checksum, open_log
    from macc.words import quoted

    _check_outputs([file, baseline, state], json, plot, prometheus)
    reading |= {"positive": positive, "answers": True}
    source, labelled = open_log(file, reading, time=time, row_id=row_id)
    if late and not labelled:
        raise ValueError(f"{file} has no labels, and --late says that it brings them")
    mark = checksum(file)
    name = mark if batch is None else batch
    if not state.parent.is_dir():
        raise ValueError(f"{state}: the folder {state.parent} does not exist; create it first")
    options = _options(
        source,
        reading,
        normalise,
        window=window,
        baseline=baseline,
        alpha=alpha,
        tolerance=tolerance,
        model=model,
        streams=streams,
    )
    with FileLock(f"{state}.lock"):
        if state.exists():
            monitor = Monitor.load(state)
            _check_same(monitor, state, source, options)
        else:
            monitor = Monitor(source.num_classes, **options)
        if monitor.counted(name, mark, stream):
            say(f"the batch {quoted(name)} was counted before; nothing to add\n")
        else:
            adding = monitor.begin(name, mark=mark, stream=stream, late=late)
            _count(adding, source, reading, time, row_id, labelled, normalise)
            monitor.save(state)
    _report(monitor, confidence, json, plot, prometheus)


@monitor_app.command()
def show(
    state: StateFile,
    confidence: Confidence = 0.95,
    json: Json = None,
    plot: Plot = None,
    prometheus: Prometheus = None,
) -> None:
    """Show what a state says.

    Example: macc monitor show model.state

    Writes: nothing, unless --json, --plot or --prometheus names a file. Exits 1
    once there was an alarm.
    """
    from macc.monitor import Monitor

    _check_outputs([state], json, plot, prometheus)
    _report(Monitor.load(state), confidence, json, plot, prometheus)


@monitor_app.command()
def merge(
    states: Annotated[
        list[Path], typer.Argument(metavar="STATE", help="The states of the machines.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Also write the merged state.", show_default=False
        ),
    ] = None,
    confidence: Confidence = 0.95,
    json: Json = None,
    plot: Plot = None,
    prometheus: Prometheus = None,
) -> None:
    """Combine the states of several machines.

    Example: macc monitor merge east.state west.state -o all.state

    Writes: the merged state to -o, if given. Rows that several states have
    count once. Exits 1 on an alarm.
    """
    from macc.monitor import Monitor

    _check_outputs(states, json, plot, prometheus)
    merged = Monitor.load(states[0])
    for path in states[1:]:
        merged.merge(Monitor.load(path))
    if output is not None:
        merged.save(output)
    _report(merged, confidence, json, plot, prometheus)


def _count(
    adding: "Adding",
    source: "Source",
    reading: Reading,
    time: str,
    row_id: str | None,
    labelled: bool,
    normalise: bool,
) -> None:
    """Count all rows of a file as one batch."""
    from macc.monitor.logs import count_log

    with progress("counting") as on_progress:
        count_log(
            adding,
            source,
            time=time,
            labelled=labelled,
            labels_are=reading["labels_are"],
            row_id=row_id,
            normalise=normalise,
            on_progress=on_progress,
        )
    adding.finish()


def _options(
    source: "Source",
    reading: Reading,
    normalise: bool,
    *,
    window: str | None,
    baseline: Path | None,
    alpha: float | None,
    tolerance: float | None,
    model: str | None = None,
    streams: int | None = None,
) -> dict[str, Any]:
    """What was asked of a monitor, as arguments of one; what was not given is left out."""
    from macc.monitor.logs import residuals
    from macc.posthoc.repair import check_classes

    known = None
    if baseline is not None:
        val = load_file(baseline, None, {**reading, "beside": [baseline, source.path]}, normalise)
        check_classes(val.classes, source.classes)
        known = residuals(
            val.scores, val.labels, from_logits=val.from_logits, normalise=normalise, answers=val.answers
        )
    given = {
        "classes": source.classes,
        "model": model,
        "window": window,
        "alpha": alpha,
        "tolerance": tolerance,
        "baseline": known,
        "streams": streams,
    }
    return {name: value for name, value in given.items() if value is not None}


def _check_same(known: "Monitor", state: Path, source: "Source", options: dict[str, Any]) -> None:
    """Refuse a state of another model, and options other than those of the first batch."""
    from macc.monitor import Monitor
    from macc.words import listed, quoted

    mine = known.settings
    if source.num_classes != mine.num_classes:
        raise ValueError(
            f"{state} is of a model with {mine.num_classes} classes, and {source.path} has {source.num_classes}; "
            "use the state of this model"
        )
    asked = Monitor(source.num_classes, **{"alpha": mine.alpha, **options}).settings
    for name in options:
        was, now = getattr(mine, name), getattr(asked, name)
        if was == now or (name == "classes" and was is None):
            continue
        if name == "classes":
            raise ValueError(
                f"{state} is of a model with the classes {listed(was)}, and {source.path} has {listed(now)}; use the "
                "state of this model"
            )
        if name == "model":
            raise ValueError(f"{state} is of the model {quoted(was)}, not of {quoted(now)}")
        raise ValueError(
            f"{state} was begun with another --{name}; leave the option out, or begin a new state"
        )


def _check_outputs(inputs: list[Path | None] | list[Path], json: Any, plot: Any, prometheus: Any) -> None:
    from macc.io.writing import check_outputs

    check_outputs({"--json": json, "--plot": plot, "--prometheus": prometheus}, inputs)
    if plot is not None and plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{plot}: a diagram is written as .png, .pdf or .svg")


def _report(
    monitor: "Monitor", confidence: float, json: Path | None, plot: Path | None, prometheus: Path | None
) -> None:
    """Print and write what a monitor has to say."""
    from macc.io.writing import write_whole
    from macc.monitor import report

    if not 0 < confidence < 1:
        raise ValueError(f"--confidence must lie between 0 and 1, got {confidence}")
    if json is not None:
        also_write(json, report.numbers(monitor, level=confidence))
    if prometheus is not None:
        with write_whole(prometheus) as output:
            output.write(report.prometheus(monitor).encode())
    if plot is not None:
        from macc.report.figures import over_time

        figure = over_time(monitor, level=confidence)
        with write_whole(plot) as output:
            figure.savefig(output, format=plot.suffix.lower().removeprefix("."), dpi=150)
    say(report.summary(monitor, level=confidence))
    if monitor.alarm is not None:
        raise typer.Exit(1)

"""The command line: every command is a few lines that call the library.

Nothing heavy is imported here: ``macc --help`` answers without torch.
"""

import inspect
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias

import typer
from typer.core import TyperCommand

import macc
from macc.words import shown

# Longer errors and warnings are cut: a file may hold anything, and messages repeat parts of it.
_LONGEST = 2000

if TYPE_CHECKING:
    from macc.experiments import Estimate
    from macc.metrics import Comparison, Report
    from macc.metrics._files import Loaded
    from macc.metrics._sources import Source

app = typer.Typer(
    name="macc",
    help="Train, measure and repair classifiers so that their confidence can be trusted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


recipe_app = typer.Typer(help="The recipes that come with macc.", no_args_is_help=True)
app.add_typer(recipe_app, name="recipe")


def _say(text: object) -> None:
    """Print a result; whatever names of files it holds, a terminal shows them and does not obey them."""
    typer.echo("\n".join(shown(line, None) for line in str(text).split("\n")))


def _version(wanted: bool) -> None:
    if wanted:
        _say(macc.__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


Verify = Annotated[
    bool, typer.Option(help="Compare files with their published checksums before opening them.")
]


@app.command()
def run(
    name: Annotated[
        str,
        typer.Argument(
            help="An experiment of `macc run list`, a YAML file, or `list`; `demo` needs no data."
        ),
    ],
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this of its data sets; can be given several times.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), cpu (about an hour a data set) or full (the paper).")
    ] = "full",
    seeds: Annotated[int | None, typer.Option(help="How many seeds, in place of the file's.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that train; as many as cores, at most 8, one on an accelerator."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Database for grids, e.g. postgresql://…, else $MACC_STORAGE, else an SQLite file."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of run folders, shared by all experiments.")] = Path(
        "runs"
    ),
    data: Annotated[Path | None, typer.Option(help="The folder with data files; else $MACC_DATA.")] = None,
    verify: Verify = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many trainings it takes and how long.")
    ] = False,
    form: Annotated[str, typer.Option("--format", help="text, md, latex, csv or json.")] = "text",
) -> None:
    """Run an experiment and print its comparison; started again, it goes on."""
    import time

    from macc import experiments, paper, training
    from macc.experiments.running import folder_of
    from macc.experiments.tables import check_format

    chosen = check_format(form)
    if name == "list":
        _say(_list_of_experiments())
        return
    experiment = experiments.load(name, scale=scale, seeds=seeds, datasets=dataset or [])
    if dry_run:
        _say(_estimate_text(experiments.estimate(experiment, out=out, root=data, verify=verify)))
        return
    began = time.monotonic()
    try:
        if experiment.kind == "timing":
            result = paper.time_epochs(experiment, out=out, root=data, verify=verify, show=True)
        else:
            result = experiments.run(
                experiment,
                workers=workers,
                storage=storage or os.environ.get("MACC_STORAGE"),
                out=out,
                root=data,
                verify=verify,
                published=paper.value,
                show=True,
            )
    except training.Interrupted as stopped:
        typer.echo(f"macc: {stopped}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    seconds = time.monotonic() - began
    folder = folder_of(experiment, out)
    made = _reported(folder, data)
    text = experiments.render(result, chosen)
    if chosen == "text":
        text += f"\n\n{_end_of_experiment(folder, seconds, made, experiment.next)}"
    _say(text)


def _list_of_experiments() -> str:
    """Every experiment that comes with macc on two lines."""
    from shutil import get_terminal_size

    from macc import experiments

    rows = []
    for name in experiments.names():
        found = experiments.load(name)
        rows.append((name, found.title, ", ".join(dataset.name for dataset in found.datasets)))
    width = max(len(row[0]) for row in rows)
    columns = get_terminal_size((120, 24)).columns
    lines = []
    for name, title, sets in rows:
        lines.append(f"{name.ljust(width)}  {title}")
        lines.append(f"{' ' * width}  {sets}"[:columns])
    return "\n".join([*lines, "", "or a YAML file of your own: docs/experiments.md"])


def _estimate_text(found: "Estimate") -> str:
    """What an experiment would take, data set by data set."""
    from macc.training.progress import duration

    experiment, here, missing = found.experiment, found.here, found.missing
    lines = [f"{experiment.name}, scale {experiment.scale}, {_many(experiment.seeds, 'seed')}"]
    left_out = [f"  {text}" for text in found.left_out]
    done = sum(share.done for share in here)
    if found.complete:
        return "\n".join([*lines, *left_out, f"all is done: {_many(done, 'training')}"])
    for share in here:
        each = share.seconds or 0.0
        lines.append(
            f"  {share.dataset}: at most {_many(share.trainings, 'training')} of {_many(share.epochs, 'epoch')}, "
            f"{share.done} done; an epoch takes about {f'{each:.2g} s' if each < 10 else duration(each)}, "
            f"what is left about {duration(share.seconds_left)}"
        )
    for share in missing:
        size = "an unknown number of" if share.samples is None else f"{share.samples:,}".replace(",", " ")
        lines.append(
            f"  {share.dataset}: at most {_many(share.trainings, 'training')} of {_many(share.epochs, 'epoch')} of "
            f"{size} training samples; how long is unknown, because its files are missing"
        )
    lines += left_out
    took = "how long is unknown without data"
    if here:
        took = f"about {duration(sum(share.seconds_left for share in here))} by one worker"
        took += f" without {_many(len(missing), 'missing data set')}" if missing else ""
        took += " (from an epoch of each recipe, timed; validation and tests make it longer, simpler losses shorter)"
    count = sum(share.trainings for share in (*here, *missing))
    return "\n".join([*lines, f"at most {_many(count, 'training')}, {done} done; {took}"])


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _reported(folder: Path, root: Path | None) -> list[str]:
    """Write the report of an experiment and its figure; the lines that say where they are, or why there are none."""
    from macc import paper
    from macc.report import experiment, page

    try:
        report, *figure = experiment.write(folder, root=root, draw=paper.draw)
    except ValueError as error:
        return [f"no report: {error}"]
    lines = [f"  {path.name.ljust(12)}  the figure" for path in figure]
    return [*lines, page.how_to_open(report)]


def _end_of_experiment(folder: Path, seconds: float, made: list[str], next_steps: list[str]) -> str:
    """Where the files are, and what to do next."""
    from macc.training.progress import duration

    lines = [
        f"{duration(seconds)}; files in {folder}",
        "  result.json   every value of every seed, tests and runs; `macc.experiments.load_result` reads it",
        "  table.md, table.tex, table.csv",
        *made,
    ]
    if next_steps:
        lines += ["", "Next", *(f"  {step}" for step in next_steps)]
    return "\n".join(lines)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of `macc recipe list`, or a YAML file.")],
    loss: Annotated[
        str | None, typer.Option(help="In place of the recipe's: 'Focal(gamma=2) + 10*MACC'.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other value: optimiser.lr=0.01."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's.")] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), cpu (about an hour) or full (the paper).")
    ] = "full",
    out: Annotated[Path, typer.Option(help="The folder of run folders.")] = Path("runs"),
    data: Annotated[Path | None, typer.Option(help="The folder with data files; else $MACC_DATA.")] = None,
    verify: Verify = True,
) -> None:
    """Train a recipe; started again, it goes on where it was stopped."""
    from rich.console import Console

    from macc import training
    from macc.training.progress import result_text, summary

    chosen = training.load(recipe, scale=scale, loss=loss, seed=seed, overrides=changes or [])
    try:
        run = training.fit(chosen, out=out, root=data, verify=verify, show=True)
    except training.Interrupted as stopped:
        if str(stopped):
            typer.echo(f"macc: {stopped}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    if os.environ.get("RANK", "0") == "0":
        console = Console()
        wide = console if console.is_terminal else Console(width=120)
        wide.print(summary(run.metrics))
        _say(result_text(run.path))


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A data set whose shifted test sets to predict, as in `macc data list`; all of arrays:PATH or "
            "folder:PATH where that has no test split.",
        ),
    ] = None,
    perturb: Annotated[
        bool, typer.Option("--perturb", help="Validation logits under Gaussian noise of ten levels.")
    ] = False,
    moments: Annotated[
        bool,
        typer.Option(
            "--moments",
            help="Add mean and variance of the logits under dropout; the certainty made of them does not rank errors.",
        ),
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A folder for the files.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder with data files; else $MACC_DATA.")
    ] = None,
    verify: Verify = True,
) -> None:
    """Write the logits of a finished run for more data."""
    from macc import data as datasets
    from macc import training

    if data is not None and not data.exists() and str(data).partition(":")[0] in datasets.known():
        raise ValueError(f"`--data` is the folder with data files; the data set to predict is --on {data}")
    chosen = training.open_run(run)
    written = training.predict(
        chosen, data=on, perturb=perturb, moments=moments, out=output, root=data, verify=verify
    )
    _say("\n".join(map(str, written)))


@app.command()
def ensemble(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .npz to write.")],
    split: Annotated[str, typer.Option(help="Which of their predictions.")] = "test",
) -> None:
    """Average the probabilities of several runs."""
    from macc import training

    _say(training.ensemble([training.open_run(run) for run in runs], output, split=split))


@recipe_app.command("list")
def recipe_list() -> None:
    """The recipes that come with macc, and what each needs."""
    from macc.training.progress import recipe_table

    _say(recipe_table())


@recipe_app.command("show")
def recipe_show(
    name: Annotated[str, typer.Argument(help="A recipe, or a YAML file.")],
    loss: Annotated[str | None, typer.Option(help="In place of the recipe's.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As in train.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's.")] = None,
    scale: Annotated[str, typer.Option(help="smoke, cpu or full.")] = "full",
) -> None:
    """A recipe as it would be trained, with the source of each value."""
    from macc import training

    chosen = training.load(name, scale=scale, loss=loss, seed=seed, overrides=changes or [])
    typer.echo(chosen.resolved().to_yaml(), nl=False)


@recipe_app.command("schema")
def recipe_schema() -> None:
    """The JSON schema of a recipe file, for editors."""
    import json

    from macc.training.loading import schema

    _say(json.dumps(schema(), indent=1))


data_app = typer.Typer(
    name="data", help="Data sets: what there is, getting it, looking at it.", no_args_is_help=True
)
app.add_typer(data_app)

DataName = Annotated[
    str, typer.Argument(metavar="NAME", help="A set of `macc data list`, arrays:PATH or folder:PATH.")
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="Where data files are; $MACC_DATA if not given."),
]
ImageSize = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="For folder:PATH: bring images to this height and width.")
]


@data_app.command("list")
def data_list(data: DataFolder = None) -> None:
    """Every data set: classes, sizes, whether it is here or how to get it, licence."""
    from macc.data import _show

    _show.terminal().print(_show.listing(data))


@data_app.command("prepare")
def data_prepare(
    name: DataName, data: DataFolder = None, verify: Verify = True, size: ImageSize = None
) -> None:
    """Download, check and unpack a set, or decode a folder of images, so that later starts are instant."""
    from macc.data import _show

    splits = _show.read(name, root=data, verify=verify, size=size)
    _say(_show.ready(name, splits, root=data, verify=verify))


@data_app.command("show")
def data_show(
    name: DataName = "digits",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PNG", help="The contact sheet; SET-sheet.png if not given."),
    ] = None,
    data: DataFolder = None,
    verify: Verify = True,
    size: ImageSize = None,
    subset: Annotated[int | None, typer.Option(metavar="N", help="Only N training samples.")] = None,
    imbalance: Annotated[
        float | None, typer.Option(metavar="FACTOR", help="Thin out the training classes to this imbalance.")
    ] = None,
    label_noise: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Make this share of the training labels wrong.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the three options above.")] = 0,
) -> None:
    """Print class counts and the imbalance factor, and draw a contact sheet of the images."""
    from macc.data import _show

    splits = _show.read(name, root=data, verify=verify, size=size)
    splits = splits if subset is None else splits.subset(train=subset, seed=seed)
    splits = splits if imbalance is None else splits.make_imbalanced(imbalance, seed=seed)
    splits = splits if label_noise is None else splits.with_label_noise(label_noise, seed=seed)
    _show.terminal().print(_show.description(splits))
    _say(_show.sheet(splits, output))


@data_app.command("corrupt")
def data_corrupt(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, cifar100 or tiny_imagenet.")],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CORRUPTION", help="Only this one; may be given several times."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Write NAME_c_regen there; else where the data are."
        ),
    ] = None,
    data: DataFolder = None,
    verify: Verify = True,
) -> None:
    """Write the test images under 19 corruptions; stopped, the same command goes on."""
    from macc.data import regenerated

    _say(regenerated.write_with_progress(name, root=data, out=output, verify=verify, corruptions=only))


_File = Annotated[Path, typer.Argument(help="Predictions: .npz, .npy, .csv or .parquet.", show_default=False)]
_Labels = Annotated[
    Path | None, typer.Argument(metavar="[LABELS.npy]", help="Labels of an .npy.", show_default=False)
]
_Reading: TypeAlias = dict[str, Any]


def _how_to_read(
    logits: Annotated[
        bool, typer.Option("--logits", help="The scores of an .npy, .csv or .parquet are logits.")
    ] = False,
    label_column: Annotated[str, typer.Option(help="The column of labels in a .csv or .parquet.")] = "label",
    class_columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="The columns of the classes, in their order; 'p_*' works too. All that are left if not given.",
            show_default=False,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="Columns that are not classes.", show_default=False),
    ] = None,
    labels_are: Annotated[
        str | None,
        typer.Option(
            metavar="names|indices",
            help="What labels mean where columns are called 1, 2, 3 and both could be.",
            show_default=False,
        ),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out samples whose label is empty, NaN or null.")
    ] = False,
) -> _Reading:
    """The options of every command that reads files of predictions, as those of ``open_source``."""
    return {
        "logits": logits,
        "label_column": label_column,
        "class_columns": class_columns or (),
        "ignore": ignore or (),
        "labels_are": labels_are,
        "drop_missing": drop_missing,
    }


def _reads_predictions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``_how_to_read``, which reach it as the one argument ``reading``."""
    options = inspect.signature(_how_to_read).parameters
    own = inspect.signature(command)
    kept = [parameter for name, parameter in own.parameters.items() if name != "reading"]

    @wraps(command)
    def run(**given: Any) -> None:
        reading = _how_to_read(**{name: given.pop(name) for name in options})
        command(reading=reading, **given)

    vars(run)["__signature__"] = own.replace(parameters=[*kept, *options.values()])
    run.__annotations__ = {
        name: parameter.annotation for name, parameter in own.parameters.items() if name != "reading"
    } | {name: parameter.annotation for name, parameter in options.items()}
    return run


_Normalise = Annotated[bool, typer.Option("--normalise", help="Divide rows of probabilities by their sum.")]
_Positive = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The positive class of two: its name, or 0 or 1; class 1 if not given.",
        show_default=False,
    ),
]
_Bins = Annotated[int, typer.Option(help="Number of bins.")]
_Confidence = Annotated[float, typer.Option(help="Level of the intervals.")]
_Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Only these metrics, with commas between them or given several times: accuracy,nll,ece.",
        show_default=False,
    ),
]
_Resamples = Annotated[
    int, typer.Option(help="Number of resamples, at least 100: fewer are faster, more are smoother.")
]
_MaxRows = Annotated[
    int,
    typer.Option(metavar="N", help="A .csv or .parquet of more rows is read in batches, in constant memory."),
]
_Json = Annotated[Path | None, typer.Option(help="Also write the numbers to this file.", show_default=False)]


_LabelsOfAll = Annotated[
    Path | None,
    typer.Option("--labels", metavar="LABELS.npy", help="Labels of every .npy.", show_default=False),
]


@app.command()
@_reads_predictions
def plot(
    reading: _Reading,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A figure, or `list` to see all.")],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN…", help="Run folders or prediction files.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file: .svg, .png or .pdf; KIND.svg if not given."),
    ] = None,
    split: Annotated[str, typer.Option(help="Which of a run's predictions.")] = "test",
    labels: _LabelsOfAll = None,
    positive: _Positive = None,
    data: DataFolder = None,
) -> None:
    """Draw a figure of runs or prediction files."""
    from macc.io.writing import check_outputs
    from macc.report import kinds

    if kind == "list":
        _say(kinds.listing())
        return
    path = Path(f"{kind}.svg") if output is None else output
    check_outputs({"-o": path}, [*(runs or []), *([labels] if labels else [])])
    reading |= {"labels": labels, "positive": positive}
    _say(kinds.write(kind, runs or [], path, split=split, root=data, reading=reading))


@app.command()
@_reads_predictions
def report(
    reading: _Reading,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…|EXPERIMENT",
            help="Run folders or prediction files, the first to compare with; or the folder of an experiment.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .html file.")] = Path("report.html"),
    split: Annotated[str, typer.Option(help="Which of a run's predictions.")] = "test",
    title: Annotated[str | None, typer.Option(help="The heading.", show_default=False)] = None,
    labels: _LabelsOfAll = None,
    positive: _Positive = None,
    data: DataFolder = None,
) -> None:
    """Write one HTML page that says and shows what runs found; it opens from disk."""
    from macc import paper
    from macc.io.writing import check_outputs
    from macc.report import experiment, page

    check_outputs({"-o": output}, [*runs, *([labels] if labels else [])])
    reading |= {"labels": labels, "positive": positive}
    found = [folder for folder in map(experiment.find, runs) if folder is not None]
    if found and len(runs) > 1:
        raise ValueError(f"{found[0]} is an experiment, which is reported alone; leave out the others")
    if found and split != "test":
        raise ValueError(
            f"{found[0]} is an experiment, whose own tests are reported, got --split {split}; leave it out"
        )
    with _progress("measuring and drawing") as on_progress:
        if found:
            written, *_ = experiment.write(
                found[0], output, root=data, title=title, draw=paper.draw, on_progress=on_progress
            )
        else:
            written = page.write(
                runs, output, split=split, root=data, title=title, on_progress=on_progress, reading=reading
            )
    _say(page.how_to_open(written))


@app.command()
@_reads_predictions
def evaluate(
    reading: _Reading,
    file: _File,
    labels: _Labels = None,
    normalise: _Normalise = False,
    positive: _Positive = None,
    metrics: _Metrics = None,
    bins: _Bins = 15,
    confidence: _Confidence = 0.95,
    resamples: _Resamples = 1000,
    json: _Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a reliability diagram (.png, .pdf, .svg).", show_default=False)
    ] = None,
    max_rows_in_memory: _MaxRows = 5_000_000,
    state: Annotated[
        Path | None,
        typer.Option(help="Also write what `macc merge` needs to put parts together.", show_default=False),
    ] = None,
) -> None:
    """Measure how calibrated predictions are, every number with an interval.

    An .npz has the keys `labels` and `probs` or `logits`; with `mean` and `variance`, as `macc predict --moments` writes, the
    report says how well certainty ranks right above wrong predictions. A .csv or .parquet has the column `label` and one for
    each class, or `label` and `prob` for two classes. An .npy needs a second one with the labels.
    """
    from macc.io.writing import check_outputs, write_whole

    check_outputs({"--json": json, "--plot": plot, "--state": state}, [file, labels])
    if plot is not None:
        kind = plot.suffix.lower().removeprefix(".")
        if kind not in ("png", "pdf", "svg"):
            raise ValueError(f"{plot}: a diagram is written as .png, .pdf or .svg")
    source = _open(file, labels, {**reading, "positive": positive})
    wanted = _listed(metrics)
    with _progress("measuring") as on_progress:
        if state is not None or source.num_rows > max_rows_in_memory:
            from macc.metrics._partial import check_streamed, stream

            check_streamed(wanted, source.num_classes)
            sums = stream(source, positive=positive, bins=bins, normalise=normalise, on_progress=on_progress)
            report = sums.report(confidence=confidence, metrics=wanted, resamples=resamples)
            if state is not None:
                sums.save(state)
        else:
            from macc.metrics._sources import read_variance

            loaded = source.load(normalise=normalise)
            report = macc.evaluate(
                loaded.scores,
                loaded.labels,
                variance=read_variance(file, loaded),
                metrics=wanted,
                classes=loaded.classes,
                positive=positive,
                bins=bins,
                confidence=confidence,
                resamples=resamples,
                from_logits=loaded.from_logits,
                normalise=normalise,
                on_progress=on_progress,
            )
    _also_write(json, report)
    if plot is not None:
        from macc.report.figures import reliability_diagram

        figure = reliability_diagram(report)
        with write_whole(plot) as output:
            figure.savefig(output, format=kind, dpi=150)
    _say(str(report))


def _listed(names: list[str] | None) -> list[str] | None:
    """Names given several times, or with commas between them."""
    return None if names is None else [name.strip() for words in names for name in words.split(",")]


def _also_write(path: Path | None, result: "Report | Comparison") -> None:
    """Write the numbers of a result as JSON, if a file for them was named."""
    from macc.io.writing import write_whole

    if path is not None:
        with write_whole(path) as output:
            output.write(result.to_json().encode() + b"\n")


@app.command()
def merge(
    states: Annotated[list[Path], typer.Argument(help="What `macc evaluate --state` wrote.")],
    confidence: _Confidence = 0.95,
    json: _Json = None,
    state: Annotated[
        Path | None, typer.Option(help="Also write the merged state.", show_default=False)
    ] = None,
) -> None:
    """Put the parts of one data set together that were evaluated apart, on any machines."""
    from macc.io.writing import check_outputs
    from macc.metrics._partial import merged

    check_outputs({"--json": json, "--state": state}, states)
    sums = merged(states)
    report = sums.report(confidence=confidence)
    if state is not None:
        sums.save(state)
    _also_write(json, report)
    _say(str(report))


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
    from macc.metrics._limits import limitable
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
@_reads_predictions
def check(
    reading: _Reading,
    context: typer.Context,
    file: _File,
    labels: _Labels = None,
    confidence: _Confidence = 0.95,
    normalise: _Normalise = False,
    positive: _Positive = None,
    bins: _Bins = 15,
    max_rows_in_memory: _MaxRows = 5_000_000,
) -> None:
    """Exit 0 when the upper bound of each limited metric keeps its limit, 1 when one does not.

    Give at least one limit: --max-ece 0.02, --max-sce, --max-mce, --max-smooth-ece, --max-nll, --max-brier, or
    --max-NAME of any other metric of which less is better. A limit on an error is a share: 0.02 is 2 %.

    Made for pipelines: the last line says why. With two classes the ECE, MCE and smooth ECE of the positive class
    are checked, because the errors of the two classes can cancel in those of the predicted one, which
    --max-top-label-ece limits.
    """
    from macc.metrics._limits import broken_limits, kept_limits, limited

    asked = _limits(context.meta["limits"])
    source = _open(file, labels, {**reading, "positive": positive})
    limits: dict[str, float] = {}
    for name, limit in asked.items():
        metric = limited(name, source.num_classes)
        limits[metric] = min(limit, limits.get(metric, limit))
    with _progress("measuring") as on_progress:
        if source.num_rows > max_rows_in_memory:
            from macc.metrics._partial import check_streamed, stream

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
        _say(line)
    broken = broken_limits(report, limits)
    if broken:
        _say("; ".join(broken))
        raise typer.Exit(1)


@app.command()
@_reads_predictions
def compare(
    reading: _Reading,
    a: Annotated[
        Path, typer.Argument(help="Predictions of model A: .npz, .npy, .csv or .parquet.", show_default=False)
    ],
    b: Annotated[
        Path, typer.Argument(help="Predictions of model B on the same samples.", show_default=False)
    ],
    labels: _Labels = None,
    normalise: _Normalise = False,
    positive: _Positive = None,
    metrics: _Metrics = None,
    bins: _Bins = 15,
    confidence: _Confidence = 0.95,
    resamples: _Resamples = 1000,
    json: _Json = None,
    max_rows_in_memory: _MaxRows = 5_000_000,
) -> None:
    """Show the difference of each metric between two models on the same samples, with paired intervals."""
    from macc.io.writing import check_outputs
    from macc.metrics import compare as difference
    from macc.metrics._sources import check_same_files, check_same_samples

    check_outputs({"--json": json}, [a, b, labels])
    # Only an .npy needs labels of its own; the other file may hold them.
    arrays = [file.suffix.lower() == ".npy" for file in (a, b)]
    reading |= {"positive": positive, "beside": [a, b]}
    sources = [
        _open(file, labels if array or not any(arrays) else None, reading)
        for file, array in zip((a, b), arrays, strict=True)
    ]
    with _progress("comparing") as on_progress:
        if max(source.num_rows for source in sources) > max_rows_in_memory:
            from macc.metrics._partial import stream_comparison

            result = stream_comparison(
                *sources,
                metrics=_listed(metrics),
                positive=positive,
                bins=bins,
                confidence=confidence,
                resamples=resamples,
                normalise=normalise,
                on_progress=on_progress,
            )
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
                metrics=_listed(metrics),
                positive=positive,
                bins=bins,
                confidence=confidence,
                resamples=resamples,
                from_logits=both_logits,
                normalise=normalise,
                on_progress=on_progress,
            )
    _also_write(json, result)
    _say(f"A  {a}\nB  {b}\n\n{result}")


@app.command()
@_reads_predictions
def calibrate(
    reading: _Reading,
    fit: Annotated[
        list[Path],
        typer.Option(
            "--fit",
            metavar="VAL",
            help="Predictions to fit to; given several times they are pooled, a folder means its .npz files.",
            show_default=False,
        ),
    ],
    apply: Annotated[
        Path, typer.Option("--apply", metavar="TEST", help="Predictions to repair.", show_default=False)
    ],
    fit_labels: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LABELS.npy", help="Labels of each .npy of --fit, in order.", show_default=False
        ),
    ] = None,
    apply_labels: Annotated[
        Path | None,
        typer.Option(metavar="LABELS.npy", help="Labels of the .npy of --apply.", show_default=False),
    ] = None,
    method: Annotated[
        str, typer.Option(help="temperature, vector-scaling, …, or auto: the best of all on VAL.")
    ] = "temperature",
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The .npz, .csv or .parquet to write; TEST-calibrated.npz if not given.",
        ),
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Temperatures 0.1 … 10.0 only, as in the paper.")
    ] = False,
    normalise: _Normalise = False,
    positive: _Positive = None,
    bins: _Bins = 15,
    confidence: _Confidence = 0.95,
    json: _Json = None,
) -> None:
    """Repair confidence without training: fit on VAL, apply to TEST, show before and after.

    Writes the calibrated probabilities to OUT and the calibrator beside it, as OUT with the ending .json.
    """
    from macc.io.writing import check_outputs
    from macc.metrics._files import write_json
    from macc.posthoc._applying import check_kind, write_calibrated
    from macc.posthoc._repair import files_of, pooled, repair

    output = apply.with_name(f"{apply.stem}-calibrated.npz") if output is None else output
    check_kind(output)
    calibrator = output.with_suffix(".json")
    files = files_of(fit)
    check_outputs(
        {"-o": output, "the calibrator of -o": calibrator, "--json": json},
        [*files, *(fit_labels or ()), apply, apply_labels],
    )
    labelled = iter(fit_labels or ())
    reading |= {"positive": positive, "beside": [*files, apply]}
    val = pooled(
        files,
        [
            _load(file, next(labelled, None) if file.suffix.lower() == ".npy" else None, reading, normalise)
            for file in files
        ],
    )
    if next(labelled, None) is not None:
        raise ValueError(
            "there are more --fit-labels than .npy files to fit to; give one for each, in their order"
        )
    test = _load(apply, apply_labels, reading, normalise)
    with _progress("calibrating") as on_progress:
        result = repair(
            val,
            test,
            method=method,
            grid=grid,
            normalise=normalise,
            positive=positive,
            bins=bins,
            confidence=confidence,
            on_progress=on_progress,
        )
    rows = _open(apply, apply_labels, {**reading, "labelled": False})
    write_calibrated(
        result.calibrator, rows, output, label_column=reading["label_column"], normalise=normalise
    )
    result.calibrator.save(calibrator, classes=val.classes)
    if json is not None:
        write_json(json, result.to_dict())
    _say(f"{result}\n\n{output}\n{calibrator}")


@app.command("apply")
@_reads_predictions
def apply_calibrator(
    reading: _Reading,
    calibrator: Annotated[
        Path, typer.Argument(help="A calibrator that `macc calibrate` wrote (.json).", show_default=False)
    ],
    file: _File,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The .npz, .csv or .parquet to write.",
            show_default=False,
        ),
    ],
    labels: _Labels = None,
    normalise: _Normalise = False,
) -> None:
    """Repair the confidence of more predictions, with or without labels, by a calibrator fitted before.

    Classes have to stand in the order of the fit, which is checked where both files name them. Columns keep their
    names; labels, names of samples and other columns come along.
    """
    from macc.io.writing import check_outputs
    from macc.metrics._tables import thousands
    from macc.posthoc._applying import check_kind, write_calibrated
    from macc.posthoc._base import load_with_classes
    from macc.posthoc._repair import check_classes, described

    check_kind(output)
    check_outputs({"-o": output}, [calibrator, file, labels])
    fitted, classes = load_with_classes(calibrator)
    source = _open(file, labels, {**reading, "labelled": False})
    check_classes(classes, source.classes)
    count = write_calibrated(
        fitted, source, output, label_column=reading["label_column"], normalise=normalise
    )
    typer.echo(f"{described(fitted)}, applied to {thousands(count)} samples\n\n{output}")


@app.command()
@_reads_predictions
def threshold(
    reading: _Reading,
    file: _File,
    labels: _Labels = None,
    risk: Annotated[
        float, typer.Option(help="Share of accepted predictions that may be wrong: 0.02 is 2 %.")
    ] = 0.02,
    confidence: Annotated[float, typer.Option(help="Chance with which the risk has to be kept.")] = 0.95,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="TEST", help="See whether it holds on these.")
    ] = None,
    check_labels: Annotated[
        Path | None,
        typer.Option(metavar="LABELS.npy", help="Labels of the .npy of --check.", show_default=False),
    ] = None,
    normalise: _Normalise = False,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The label whose probability a single column has.", show_default=False
        ),
    ] = None,
    json: _Json = None,
) -> None:
    """Find the confidence from which on predictions can be accepted, the rest being handed to a person.

    Exits 1 when there is none, or when it does not hold on TEST.
    """
    from macc import posthoc
    from macc.io.writing import check_outputs
    from macc.metrics._files import write_json

    check_outputs({"--json": json}, [file, labels, check, check_labels])
    reading |= {"positive": positive, "beside": [file] if check is None else [file, check]}
    val = _load(file, labels, reading, normalise)
    test = None if check is None else _load(check, check_labels, reading, normalise)
    found = posthoc.threshold(
        val.scores,
        val.labels,
        risk=risk,
        confidence=confidence,
        from_logits=val.from_logits,
        normalise=normalise,
    )
    seen = None
    if test is not None and found.threshold is not None:
        seen = posthoc.check(
            found, test.scores, test.labels, from_logits=test.from_logits, normalise=normalise
        )
    if json is not None:
        write_json(json, {"threshold": found.to_dict(), "check": None if seen is None else seen.to_dict()})
    _say(str(found) if seen is None else f"{found}\n{check}: {seen}")
    if found.threshold is None or (seen is not None and not seen.held):
        raise typer.Exit(1)


def _load(file: Path, labels: Path | None, reading: _Reading, normalise: bool) -> "Loaded":
    return _open(file, labels, reading).load(normalise=normalise)


def _open(file: Path, labels: Path | None, reading: _Reading) -> "Source":
    from macc.metrics._sources import open_source

    return open_source(file, labels, **reading)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, once the work has lasted a second, gone when it is done."""
    import time

    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    bar = Progress(console=console, transient=True)
    task = bar.add_task(what, total=1.0)
    began = time.monotonic()

    def on_progress(share: float) -> None:
        bar.update(task, completed=share)
        if console.is_terminal and not bar.live.is_started and time.monotonic() - began > 1:
            bar.start()

    try:
        yield on_progress
    finally:
        # Stopping a bar that never showed would print an empty line.
        if bar.live.is_started:
            bar.stop()


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"macc: warning: {shown(message, _LONGEST)}", err=True)


def main() -> None:
    """Run the command line; a user's error is one line on standard error and exit code 2."""
    warnings.showwarning = _print_warning
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character should show the rest.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except ValueError as error:
        _refuse(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        # "File exists" is what the system says of a folder that cannot be made.
        reason = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
        _refuse(f"{error.filename} cannot be written or read: {reason}")
    except SystemExit as end:
        _end(end.code)


def _refuse(reason: str) -> NoReturn:
    rank = os.environ.get("RANK", "0")
    reason = shown(reason, _LONGEST)
    typer.echo(f"macc: {reason}" if rank == "0" else f"macc: process {rank}: {reason}", err=True)
    _end(2)


def _end(code: str | int | None) -> NoReturn:
    if isinstance(code, int | None) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from macc.training.engine import end_process

        end_process(code or 0)
    sys.exit(code)

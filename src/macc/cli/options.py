"""Options that several commands share, and what opens files, shows progress, writes numbers."""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from macc.predictions import Loaded, Maps, Source


Verify = Annotated[
    bool, typer.Option(help="Compare files with their published checksums before opening them.")
]


DataName = Annotated[
    str, typer.Argument(metavar="NAME", help="A set of `macc data list`, arrays:PATH or folder:PATH.")
]


DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="FOLDER", help="The folder with data files; $MACC_DATA if not given."),
]


ImageSize = Annotated[
    int | None,
    typer.Option(metavar="PIXELS", help="For folder:PATH: the height and width that images are scaled to."),
]


File = Annotated[Path, typer.Argument(help="Predictions: .npz, .npy, .csv or .parquet.", show_default=False)]


FileOrMaps = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Predictions: .npz, .npy, .csv or .parquet; for segmentation an .npz, .npy or a folder.",
        show_default=False,
    ),
]


IgnoreIndex = Annotated[
    int | None,
    typer.Option(
        metavar="LABEL",
        help="Segmentation: leave out pixels with this label, such as 255.",
        show_default=False,
    ),
]


Labels = Annotated[
    Path | None,
    typer.Argument(metavar="LABELS.npy", help="The labels, where FILE is an .npy.", show_default=False),
]


Reading: TypeAlias = dict[str, Any]


def how_to_read(
    logits: Annotated[
        bool,
        typer.Option("--logits", help="The scores are logits, not probabilities (.npy, .csv, .parquet)."),
    ] = False,
    label_column: Annotated[
        str, typer.Option(metavar="COLUMN", help="The column of labels (.csv, .parquet).")
    ] = "label",
    class_columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…",
            help="The columns of the classes, in order; 'p_*' works too. All other columns if not given.",
            show_default=False,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,…", help="Columns to ignore: they are not classes.", show_default=False),
    ] = None,
    labels_are: Annotated[
        str | None,
        typer.Option(
            metavar="names|indices",
            help="Whether labels are names or positions of columns, where columns are called 1, 2, 3.",
            show_default=False,
        ),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out samples whose label is empty, NaN or null.")
    ] = False,
) -> Reading:
    """The options of every command that reads files of predictions, as those of ``open_source``."""
    return {
        "logits": logits,
        "label_column": label_column,
        "class_columns": class_columns or (),
        "ignore": ignore or (),
        "labels_are": labels_are,
        "drop_missing": drop_missing,
    }


def reads_predictions(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``how_to_read``, as the one argument ``reading``."""
    options = inspect.signature(how_to_read).parameters
    own = inspect.signature(command)
    kept = [parameter for name, parameter in own.parameters.items() if name != "reading"]

    @wraps(command)
    def run(**given: Any) -> None:
        reading = how_to_read(**{name: given.pop(name) for name in options})
        command(reading=reading, **given)

    vars(run)["__signature__"] = own.replace(parameters=[*kept, *options.values()])
    run.__annotations__ = {
        name: parameter.annotation for name, parameter in own.parameters.items() if name != "reading"
    } | {name: parameter.annotation for name, parameter in options.items()}
    return run


WeightColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The column (.csv, .parquet) or array (.npz) that says how often each sample counts.",
        show_default=False,
    ),
]


Normalise = Annotated[bool, typer.Option("--normalise", help="Divide each row of probabilities by its sum.")]


Positive = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The positive class, where there are two: its name, 0 or 1. Class 1 if not given.",
        show_default=False,
    ),
]


Bins = Annotated[int, typer.Option(help="The number of bins.")]


Confidence = Annotated[float, typer.Option(metavar="LEVEL", help="The level of the intervals.")]


Metrics = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAMES",
        help="Only these metrics, separated by commas: accuracy,nll,ece.",
        show_default=False,
    ),
]


Resamples = Annotated[
    int, typer.Option(help="The number of resamples, at least 100. Fewer are faster, more are more exact.")
]


MaxRows = Annotated[
    int,
    typer.Option(
        metavar="N", help="Read a .csv or .parquet with more rows than this in batches, in constant memory."
    ),
]


Json = Annotated[Path | None, typer.Option(help="Also write the numbers to this file.", show_default=False)]


By = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COLUMN",
        help="Also measure each group: the column that names it. Give it again to combine columns.",
        show_default=False,
    ),
]


GroupsFile = Annotated[
    Path | None,
    typer.Option(
        "--groups",
        metavar="FILE",
        help="The file with the columns of --by, one row per sample, if FILE does not have them.",
        show_default=False,
    ),
]


CalibrateBy = Annotated[
    list[str] | None,
    typer.Option(
        "--by",
        metavar="COLUMN",
        help="Repair each group on its own: the column that names it. Give it again to combine columns.",
        show_default=False,
    ),
]


LabelsOfAll = Annotated[
    Path | None,
    typer.Option("--labels", metavar="LABELS.npy", help="The labels of every .npy.", show_default=False),
]


ApplyLabels = Annotated[
    Path | None,
    typer.Option(metavar="LABELS.npy", help="The labels, where TEST is an .npy.", show_default=False),
]


def listed(names: list[str] | None) -> list[str] | None:
    """Names given several times, or with commas between them."""
    return None if names is None else [name.strip() for words in names for name in words.split(",")]


def also_write(path: Path | None, numbers: dict[str, Any]) -> None:
    """Write numbers as JSON, if a file for them was named; what is not finite becomes null."""
    from macc.io.json import finite
    from macc.io.writing import write_whole

    if path is not None:
        with write_whole(path) as output:
            output.write(json.dumps(finite(numbers), indent=2).encode() + b"\n")


def load_file(file: Path, labels: Path | None, reading: Reading, normalise: bool) -> "Loaded":
    """Everything in a file of predictions."""
    return open_file(file, labels, reading).load(normalise=normalise)


def open_file(file: Path, labels: Path | None, reading: Reading) -> "Source":
    """A file of predictions, opened and not read yet."""
    from macc.predictions import open_source

    return open_source(file, labels, **reading)


def open_file_or_maps(
    file: Path, labels: Path | None, reading: Reading, ignore_index: int | None
) -> "Source | Maps":
    """A file of predictions, or maps of whole images, opened and not read yet."""
    from macc.predictions import open_any

    return open_any(file, labels, ignore_index=ignore_index, **reading)


def carried(file: Path, by: list[str] | None, groups: Path | None) -> list[str]:
    """The columns of groups that a table holds itself, which are no classes."""
    return by if by and groups is None and file.suffix.lower() in (".csv", ".parquet") else []


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None]]:
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

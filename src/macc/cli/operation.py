"""``macc sets``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from macc.cli.app import app, say
from macc.cli.options import (
    ApplyLabels,
    Confidence,
    Json,
    Normalise,
    Reading,
    WeightColumn,
    also_write,
    load_file,
    open_file,
    reads_predictions,
)

if TYPE_CHECKING:
    from macc.predictions import Source


@app.command()
@reads_predictions
def sets(
    reading: Reading,
    fit: Annotated[
        Path | None,
        typer.Option("--fit", metavar="VAL", help="Predictions with labels to fit to.", show_default=False),
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option("--load", metavar="SETS.json", help="Sets that were fitted before.", show_default=False),
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(
            "--apply",
            metavar="TEST",
            help="Predictions to find the sets of, with labels or without.",
            show_default=False,
        ),
    ] = None,
    fit_labels: Annotated[
        Path | None,
        typer.Option(metavar="LABELS.npy", help="The labels, where VAL is an .npy.", show_default=False),
    ] = None,
    apply_labels: ApplyLabels = None,
    coverage: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="How often the set has to contain the right class; 0.9 if not given.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="lac (the smallest sets), aps or raps (larger sets for harder samples).")
    ] = "lac",
    per_class: Annotated[
        bool, typer.Option("--per-class", help="Keep the coverage in each class, not only on average.")
    ] = False,
    randomise: Annotated[
        bool,
        typer.Option(
            "--randomise", help="For aps and raps: smaller sets, by a random number for each sample."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="The seed of the random numbers.", min=0)] = 0,
    penalty: Annotated[
        float | None,
        typer.Option(
            help="For raps: the penalty on large sets. It and --rank are chosen on a fifth of VAL if not given.",
            show_default=False,
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="For raps: classes beyond this rank get the penalty.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The .npz, .csv or .parquet to write the sets of TEST to, or a .json for the fitted sets alone.",
            show_default=False,
        ),
    ] = None,
    normalise: Normalise = False,
    confidence: Confidence = 0.95,
    json: Json = None,
    weight_column: WeightColumn = None,
) -> None:
    """Find sets of classes that contain the right one as often as asked.

    Example: macc sets --fit val.npz --apply test.npz -o sets.csv

    Writes: to OUT a 1 for each class in the set and a 0 for the others, and the
    fitted sets beside it, as OUT with the ending .json, for --load.

    This is split conformal prediction. Whatever the model, the set of a new
    sample contains the right class with probability --coverage, if new samples
    come from the same source as those of VAL. Where TEST has labels, coverage
    is measured, and the command exits 1 when it is significantly too low.
    """
    from macc import posthoc
    from macc.io.writing import check_outputs
    from macc.posthoc.applying import check_kind, load_sets, write_sets
    from macc.posthoc.repair import check_classes

    if (fit is None) == (load is None):
        raise ValueError(
            "give either --fit VAL, predictions to fit sets to, or --load SETS.json, fitted before"
        )
    saved = None if output is None or load is not None else output.with_suffix(".json")
    rows_to = None if output is None or output == saved else output
    if rows_to is not None:
        check_kind(rows_to)
        if apply is None:
            raise ValueError(
                f"-o {rows_to} is for the sets of --apply TEST; name a .json for the fitted sets alone"
            )
    check_outputs(
        {"-o": rows_to, "the fitted sets of -o": saved, "--json": json},
        [fit, load, apply, fit_labels, apply_labels],
    )
    reading |= {"beside": [file for file in (fit, apply) if file is not None], "weight_column": weight_column}
    if fit is not None:
        val = load_file(fit, fit_labels, reading, normalise)
        found = posthoc.Sets.fit(
            val.scores,
            val.labels,
            coverage=0.9 if coverage is None else coverage,
            method=method,
            per_class=per_class,
            randomise=randomise,
            seed=seed,
            penalty=penalty,
            rank=rank,
            from_logits=val.from_logits,
            normalise=normalise,
            weights=val.weights,
        )
        classes = val.classes
    else:
        if coverage is not None:
            raise ValueError(f"the coverage of {load} is fixed; fit sets anew for another one")
        found, classes = load_sets(load or Path())
    seen = None
    if apply is not None:
        source = open_file(apply, apply_labels, {**reading, "labelled": False})
        check_classes(classes, source.classes)
        if _has_labels(source, reading["label_column"]):
            test = load_file(apply, apply_labels, reading, normalise)
            seen = found.measure(
                test.scores,
                test.labels,
                confidence=confidence,
                from_logits=test.from_logits,
                normalise=normalise,
                classes=test.classes or classes,
                weights=test.weights,
            )
        if rows_to is not None:
            write_sets(found, source, rows_to, label_column=reading["label_column"], normalise=normalise)
    if saved is not None:
        found.save(saved, classes=classes)
    also_write(json, found.to_dict() if seen is None else seen.to_dict())
    written = "\n".join(str(path) for path in (rows_to, saved) if path is not None)
    say("\n\n".join(filter(None, [str(found if seen is None else seen), written])))
    if seen is not None and seen.fell_short:
        raise typer.Exit(1)


def _has_labels(source: "Source", label_column: str) -> bool:
    """Whether a file that was opened without a look at labels has them."""
    if source.columns is not None:
        return label_column in source.columns
    return "labels" in next(source.raw()).others

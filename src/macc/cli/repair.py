"""``macc calibrate``, ``apply`` and ``threshold``."""

from pathlib import Path
from typing import Annotated

import typer

from macc.cli import labels as several
from macc.cli.app import app, say
from macc.cli.labels import MultiLabel
from macc.cli.options import (
    ApplyLabels,
    Bins,
    CalibrateBy,
    Confidence,
    File,
    GroupsFile,
    Json,
    Labels,
    Normalise,
    Positive,
    Reading,
    Resamples,
    WeightColumn,
    also_write,
    carried,
    load_file,
    open_file,
    progress,
    reads_predictions,
)


@app.command()
@reads_predictions
def calibrate(
    reading: Reading,
    fit: Annotated[
        list[Path],
        typer.Option(
            "--fit",
            metavar="VAL",
            help="Labelled predictions to fit to. Give it again to pool files; a folder means its .npz files.",
            show_default=False,
        ),
    ],
    apply: Annotated[
        Path, typer.Option("--apply", metavar="TEST", help="Predictions to repair.", show_default=False)
    ],
    fit_labels: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="LABELS.npy",
            help="The labels, where VAL is an .npy; one for each VAL, in order.",
            show_default=False,
        ),
    ] = None,
    apply_labels: ApplyLabels = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="temperature, vector-scaling, …, or auto, which chooses the best on VAL. If not given "
            "temperature, and platt of answers."
        ),
    ] = None,
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
        bool, typer.Option("--grid", help="Try only temperatures 0.1, 0.2, … 10.0, as the paper does.")
    ] = False,
    normalise: Normalise = False,
    positive: Positive = None,
    bins: Bins = 15,
    confidence: Confidence = 0.95,
    resamples: Resamples = 1000,
    json: Json = None,
    by: CalibrateBy = None,
    fit_groups: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="The file with the columns of --by for each VAL, in order, if VAL does not have them.",
        ),
    ] = None,
    apply_groups: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file with the columns of --by for TEST, if TEST does not have them."
        ),
    ] = None,
    weight_column: WeightColumn = None,
) -> None:
    """Repair confidence without training: fit on VAL, apply to TEST.

    Example: macc calibrate --fit val.npz --apply test.npz -o calibrated.npz

    Writes: the calibrated probabilities to OUT, and the calibrator beside it,
    as OUT with the ending .json. Prints the metrics before and after.

    With --by, groups get maps of their own where cross-validation shows a gain,
    and the common map elsewhere.
    """
    from macc.io.writing import check_outputs
    from macc.posthoc.applying import check_kind, write_calibrated
    from macc.posthoc.repair import files_of, pooled, repair
    from macc.predictions import groups_of, groups_of_rows

    reading |= {"answers": True, "weight_column": weight_column}
    if output is None:
        # An .npz has no columns, by which answers are known.
        looked = {**reading, "carry": carried(apply, by, apply_groups)}
        kind = apply.suffix if open_file(apply, apply_labels, looked).answers else ".npz"
        output = apply.with_name(f"{apply.stem}-calibrated{kind}")
    check_kind(output)
    calibrator = output.with_suffix(".json")
    files = files_of(fit)
    check_outputs(
        {"-o": output, "the calibrator of -o": calibrator, "--json": json},
        [*files, *(fit_labels or ()), apply, apply_labels],
    )
    if not by and (fit_groups or apply_groups):
        raise ValueError("--fit-groups and --apply-groups need --by COLUMN, a column of them")
    if fit_groups and len(fit_groups) != len(files):
        raise ValueError(
            f"there are {len(fit_groups)} --fit-groups for {len(files)} files; give one for each"
        )
    labelled = iter(fit_labels or ())
    reading |= {"positive": positive, "beside": [*files, apply]}
    beside: list[Path | None] = list(fit_groups) if fit_groups else [None] * len(files)
    parts, groups = [], []
    for file, second in zip(files, beside, strict=True):
        own = next(labelled, None) if file.suffix.lower() == ".npy" else None
        source = open_file(file, own, {**reading, "carry": carried(file, by, second)})
        parts.append(source.load(normalise=normalise))
        if by:
            groups += groups_of(file, parts[-1], by, second, source.num_rows)
    if next(labelled, None) is not None:
        raise ValueError(
            "there are more --fit-labels than .npy files to fit to; give one for each, in their order"
        )
    val = pooled(files, parts)
    reading["carry"] = carried(apply, by, apply_groups)
    test = load_file(apply, apply_labels, reading, normalise)
    rows = open_file(apply, apply_labels, {**reading, "labelled": False})
    applied = groups_of_rows(apply, by, apply_groups, rows.num_rows) if by else None
    tested = None
    if applied is not None:
        tested = applied if test.rows is None else [applied[row] for row in test.rows.tolist()]
    with progress("calibrating") as on_progress:
        result = repair(
            val,
            test,
            method=method,
            grid=grid,
            normalise=normalise,
            positive=positive,
            bins=bins,
            confidence=confidence,
            resamples=resamples,
            groups=None if tested is None else (groups, tested),
            on_progress=on_progress,
        )
    label_column = "correct" if rows.answers else reading["label_column"]
    write_calibrated(
        result.calibrator,
        rows,
        output,
        label_column=label_column,
        normalise=normalise,
        groups=applied,
        quiet=True,
    )
    result.calibrator.save(calibrator, classes=val.classes)
    also_write(json, result.to_dict())
    say(f"{result}\n\n{output}\n{calibrator}")


@app.command("apply")
@reads_predictions
def apply_calibrator(
    reading: Reading,
    calibrator: Annotated[
        Path,
        typer.Argument(
            metavar="CALIBRATOR", help="A calibrator that `macc calibrate` wrote (.json).", show_default=False
        ),
    ],
    file: File,
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
    labels: Labels = None,
    normalise: Normalise = False,
    by: CalibrateBy = None,
    groups: GroupsFile = None,
) -> None:
    """Repair more predictions with a calibrator that was fitted before.

    Example: macc apply calibrated.json new.npz -o new-calibrated.npz

    Writes: the calibrated probabilities to OUT. The file needs no labels.
    """
    from macc.io.writing import check_outputs
    from macc.posthoc.applying import (
        check_kind,
        is_grouped,
        load_grouped,
        load_with_classes,
        write_calibrated,
    )
    from macc.posthoc.repair import check_classes, described
    from macc.predictions import groups_of_rows
    from macc.tables import thousands

    check_kind(output)
    check_outputs({"-o": output}, [calibrator, file, labels, groups])
    grouped = is_grouped(calibrator)
    if grouped and not by:
        raise ValueError(f"{calibrator} is of groups; say with --by COLUMN which one each sample is of")
    if not grouped and (by or groups):
        raise ValueError(f"{calibrator} has one map for all; leave --by and --groups out")
    fitted, classes = load_grouped(calibrator) if grouped else load_with_classes(calibrator)
    carry = carried(file, by, groups)
    source = open_file(file, labels, {**reading, "labelled": False, "answers": True, "carry": carry})
    check_classes(classes, source.classes)
    label_column = "correct" if source.answers else reading["label_column"]
    count = write_calibrated(
        fitted,
        source,
        output,
        label_column=label_column,
        normalise=normalise,
        groups=groups_of_rows(file, by, groups, source.num_rows) if by else None,
    )
    typer.echo(f"{described(fitted)}, applied to {thousands(count)} samples\n\n{output}")


@app.command()
@reads_predictions
def threshold(
    reading: Reading,
    file: File,
    labels: Labels = None,
    risk: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="The share of accepted predictions that may be wrong; 0.02 (2 %) if not given. With --multi-label "
            "and no SHARE, each label gets the threshold with its largest F1.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(metavar="LEVEL", help="How sure it must be that the risk is kept.")
    ] = 0.95,
    check: Annotated[
        Path | None, typer.Option("--check", metavar="TEST", help="Predictions on which to check it.")
    ] = None,
    check_labels: Annotated[
        Path | None,
        typer.Option(metavar="LABELS.npy", help="The labels, where TEST is an .npy.", show_default=False),
    ] = None,
    normalise: Normalise = False,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The label whose probability a single column has.", show_default=False
        ),
    ] = None,
    json: Json = None,
    multi_label: MultiLabel = False,
    weight_column: WeightColumn = None,
) -> None:
    """Find which predictions to accept and which to hand to a person.

    Example: macc threshold val.npz --risk 0.05 --check test.npz

    Writes: nothing, unless --json names a file. Prints the confidence from
    which predictions can be accepted. Exits 1 when there is none, or when it
    does not hold on TEST.

    With --multi-label it finds, for each label, the probability from which the
    label is given.
    """
    from macc import posthoc
    from macc.io.writing import check_outputs

    check_outputs({"--json": json}, [file, labels, check, check_labels])
    if multi_label:
        several.refuse_options(
            {"--normalise": normalise, "--positive": positive, "--weight-column": weight_column}
        )
        several.threshold(
            several.read(file, labels, reading),
            None if check is None else several.read(check, check_labels, reading),
            check=check,
            risk=risk,
            confidence=confidence,
            json=json,
        )
        return
    reading |= {"positive": positive, "beside": [file] if check is None else [file, check], "answers": True}
    reading["weight_column"] = weight_column
    val = load_file(file, labels, reading, normalise)
    test = None if check is None else load_file(check, check_labels, reading, normalise)
    found = posthoc.threshold(
        val.scores,
        val.labels,
        risk=0.02 if risk is None else risk,
        confidence=confidence,
        from_logits=val.from_logits,
        normalise=normalise,
        answers=val.answers,
        weights=val.weights,
    )
    seen = None
    if test is not None and found.threshold is not None:
        seen = posthoc.check(
            found,
            test.scores,
            test.labels,
            from_logits=test.from_logits,
            normalise=normalise,
            answers=test.answers,
            weights=test.weights,
        )
    also_write(json, {"threshold": found.to_dict(), "check": None if seen is None else seen.to_dict()})
    say(str(found) if seen is None else f"{found}\n{check}: {seen}")
    if found.threshold is None or (seen is not None and not seen.held):
        raise typer.Exit(1)

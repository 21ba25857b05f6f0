"""``macc train``, ``predict``, ``ensemble`` and ``recipe``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from macc.cli.app import app, recipe_app, say
from macc.cli.options import DataFolder, Verify

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change another value of the recipe: optimiser.lr=0.01."),
]
Seed = Annotated[int | None, typer.Option(help="Another seed than the recipe's.")]
Scale = Annotated[
    str,
    typer.Option(
        metavar="smoke|cpu|full",
        help="How much to train: for seconds, for about an hour, or as in the paper.",
    ),
]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe of `macc recipe list`, or a YAML file.")],
    loss: Annotated[
        str | None,
        typer.Option(metavar="LOSS", help="Another loss than the recipe's: 'Focal(gamma=2) + 10*MACC'."),
    ] = None,
    changes: Changes = None,
    seed: Seed = None,
    scale: Scale = "full",
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder in which run folders are made.")
    ] = Path("runs"),
    data: DataFolder = None,
    verify: Verify = True,
) -> None:
    """Train a recipe. The same command again resumes it.

    Example: macc train digits --loss "CrossEntropy + MACC(warmup=100)"

    Writes: a run folder below --out, with weights, predictions, a calibrator
    and metrics. A finished run is found again and not trained twice.
    """
    from macc import training
    from macc.cli import displays, runs
    from macc.training.allocation import keep_freed_memory

    keep_freed_memory()
    chosen = training.load(recipe, scale=scale, loss=loss, seed=seed, overrides=changes or [])
    try:
        run = training.fit(chosen, out=out, root=data, verify=verify, display=displays.of_training())
    except training.Interrupted as stopped:
        if str(stopped):
            typer.echo(f"macc: {stopped}", err=True)
        raise typer.Exit(128 + stopped.number) from None
    if os.environ.get("RANK", "0") == "0":
        say(f"{runs.summary(run.metrics).text()}\n\n{runs.result_text(run.path)}")


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
        bool,
        typer.Option(
            "--perturb", help="Also predict the validation images under ten levels of Gaussian noise."
        ),
    ] = False,
    moments: Annotated[
        bool,
        typer.Option(
            "--moments",
            help="Also write mean and variance of the logits under dropout. Their certainty does not find errors.",
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Write the files to this folder.")
    ] = None,
    data: DataFolder = None,
    verify: Verify = True,
) -> None:
    """Predict more data with a finished run.

    Example: macc predict runs/digits-small_cnn-* --on digits

    Writes: an .npz with logits and labels for each test set, into the
    predictions of the run or to -o.
    """
    from macc import data as datasets
    from macc import training

    if data is not None and not data.exists() and str(data).partition(":")[0] in datasets.known():
        raise ValueError(f"`--data` is the folder with data files; the data set to predict is --on {data}")
    chosen = training.open_run(run)
    written = training.predict(
        chosen, data=on, perturb=perturb, moments=moments, out=output, root=data, verify=verify
    )
    say("\n".join(map(str, written)))


@app.command()
def ensemble(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Finished run folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The .npz to write.")],
    split: Annotated[str, typer.Option(help="The split whose predictions are averaged.")] = "test",
) -> None:
    """Average the probabilities of several runs.

    Example: macc ensemble runs/digits-* -o ensemble.npz

    Writes: an .npz that `macc evaluate` and the other commands read.
    """
    from macc import training

    say(training.ensemble([training.open_run(run) for run in runs], output, split=split))


@recipe_app.command("list")
def recipe_list() -> None:
    """List the recipes that come with macc, and what each needs.

    Example: macc recipe list

    Writes: nothing.
    """
    from macc.cli import runs

    say(runs.recipes().text())


@recipe_app.command("show")
def recipe_show(
    name: Annotated[str, typer.Argument(help="A recipe, or a YAML file.")],
    loss: Annotated[str | None, typer.Option(metavar="LOSS", help="Another loss than the recipe's.")] = None,
    changes: Changes = None,
    seed: Seed = None,
    scale: Scale = "full",
) -> None:
    """Show a complete recipe, with the source of each value.

    Example: macc recipe show digits --scale smoke > mine.yaml

    Writes: nothing. The text is a recipe file: change it and train it.
    """
    from macc import training

    chosen = training.load(name, scale=scale, loss=loss, seed=seed, overrides=changes or [])
    typer.echo(chosen.resolved().to_yaml(), nl=False)


@recipe_app.command("schema")
def recipe_schema() -> None:
    """Print the JSON schema of a recipe file, for editors.

    Example: macc recipe schema > recipe.schema.json

    Writes: nothing. An editor that has the schema checks recipes as you type.
    """
    import json

    from macc.training.loading import schema

    say(json.dumps(schema(), indent=1))

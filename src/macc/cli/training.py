"""``macc train``, ``predict``, ``ensemble`` and ``recipe``."""

import os
from pathlib import Path
from typing import Annotated

import typer

from macc.cli.app import app, recipe_app, say
from macc.cli.options import Verify


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
    """Train a recipe; started again, it resumes where it was stopped."""
    from macc import training
    from macc.cli import runs

    chosen = training.load(recipe, scale=scale, loss=loss, seed=seed, overrides=changes or [])
    try:
        run = training.fit(chosen, out=out, root=data, verify=verify, show=True)
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
    say("\n".join(map(str, written)))


@app.command()
def ensemble(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The .npz to write.")],
    split: Annotated[str, typer.Option(help="Which of their predictions.")] = "test",
) -> None:
    """Average the probabilities of several runs."""
    from macc import training

    say(training.ensemble([training.open_run(run) for run in runs], output, split=split))


@recipe_app.command("list")
def recipe_list() -> None:
    """The recipes that come with macc, and what each needs."""
    from macc.cli import runs

    say(runs.recipes().text())


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

    say(json.dumps(schema(), indent=1))

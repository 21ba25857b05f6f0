"""``macc data``."""

from pathlib import Path
from typing import Annotated

import typer

from macc.cli.app import data_app, say
from macc.cli.options import DataFolder, DataName, ImageSize, Verify


@data_app.command("list")
def data_list(data: DataFolder = None) -> None:
    """List the data sets: classes, sizes, licence, how to get them.

    Example: macc data list

    Writes: nothing.
    """
    from macc.cli import datasets

    say(datasets.listing(data))


@data_app.command("prepare")
def data_prepare(
    name: DataName, data: DataFolder = None, verify: Verify = True, size: ImageSize = None
) -> None:
    """Download, check and unpack a data set.

    Example: macc data prepare cifar10

    Writes: its files, to --data, so that later starts are quick. Folders of
    images are decoded once.
    """
    from macc.cli import datasets

    splits = datasets.read(name, root=data, verify=verify, size=size)
    say(datasets.ready(name, splits, root=data, verify=verify))


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
    subset: Annotated[int | None, typer.Option(metavar="N", help="Take only N training samples.")] = None,
    imbalance: Annotated[
        float | None,
        typer.Option(
            metavar="FACTOR",
            help="Leave out training samples until the largest class has FACTOR times as many as the smallest.",
        ),
    ] = None,
    label_noise: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Make this share of the training labels wrong.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of --subset, --imbalance and --label-noise.")] = 0,
) -> None:
    """Count the classes of a data set and draw some images.

    Example: macc data show digits -o sheet.png

    Writes: a contact sheet of the images.
    """
    from macc.cli import datasets

    splits = datasets.read(name, root=data, verify=verify, size=size)
    splits = splits if subset is None else splits.subset(train=subset, seed=seed)
    splits = splits if imbalance is None else splits.make_imbalanced(imbalance, seed=seed)
    splits = splits if label_noise is None else splits.with_label_noise(label_noise, seed=seed)
    say(datasets.description(splits))
    say(datasets.sheet(splits, output))


@data_app.command("corrupt")
def data_corrupt(
    name: Annotated[str, typer.Argument(metavar="NAME", help="cifar10, cifar100 or tiny_imagenet.")],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CORRUPTION", help="Only this corruption. Give it again for more."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Write NAME_c_regen to this folder; to the folder of the data if not given.",
        ),
    ] = None,
    data: DataFolder = None,
    verify: Verify = True,
) -> None:
    """Write the test images under 19 corruptions.

    Example: macc data corrupt cifar10 --only fog

    Writes: the data set NAME_c_regen. The same command again resumes.
    """
    from macc.cli import displays

    say(displays.write_corrupted(name, root=data, out=output, verify=verify, corruptions=only))

"""Corrupted test sets that we generate: written once in the layout of CIFAR-10-C, read under names of their own.

They are not the published sets: the random draws differ, and frost is made up.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from macc.data._arrays import open_npy
from macc.data._cells import LEVELS, choose, read_cells
from macc.data._datasets import Dataset, dataset
from macc.data._files import Copies, data_root
from macc.data._parts import Part
from macc.data._splits import Splits
from macc.data.cifar import SIZES, cifar10, cifar100
from macc.data.corruptions import corrupt, names
from macc.data.tiny_imagenet import tiny_imagenet

# Raise it whenever the same images would be corrupted differently.
VERSION = 1
CHUNK = 1000
CLEAN: dict[str, Dataset[...]] = {"cifar10": cifar10, "cifar100": cifar100, "tiny_imagenet": tiny_imagenet}


def _regenerated(clean: Dataset[...]) -> Dataset[...]:
    """The data set of generated corruptions of ``clean``."""
    name = f"{clean.name}_c_regen"
    files = Copies(names=(name,), origin=f"`macc data corrupt {clean.name}`")

    def read(
        *,
        root: str | PathLike[str] | None = None,
        verify: bool = True,
        corruptions: Sequence[str] | None = None,
    ) -> Splits:
        place = files.require(name, data_root(root), verify=verify)
        present = {path.stem for path in place.glob("*.npy")}
        chosen = choose(name, present, corruptions, place, standard=names(standard=True), every=names())
        return read_cells(name, place, clean(root=root, verify=verify), corruptions=chosen, verify=verify)

    read.__name__ = read.__qualname__ = name
    read.__doc__ = f"""``{clean.name}`` with its test images under corruptions that ``macc data corrupt {clean.name}`` made.

    Args:
        root: The folder that holds ``{name}`` and the files of ``{clean.name}``.
        verify: Check that labels are those of the clean test images, and the files of ``{clean.name}``.
        corruptions: Which to read; if not given, all 19 where they are there, else the standard 15.
    """
    return dataset(
        summary=f"{clean.name} under 19 generated corruptions at five levels",
        kind="image",
        num_classes=clean.num_classes,
        sizes=SIZES if clean.sizes is None else clean.sizes,
        licence=clean.licence,
        sources=files,
    )(read)


cifar10_c_regen = _regenerated(cifar10)
cifar100_c_regen = _regenerated(cifar100)
tiny_imagenet_c_regen = _regenerated(tiny_imagenet)


def write_corrupted(
    name: str,
    *,
    root: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    verify: bool = True,
    corruptions: Sequence[str] | None = None,
    on_start: Callable[[str, int], None] | None = None,
    on_images: Callable[[int], None] | None = None,
) -> Path:
    """Write the test images of a set under corruptions, in the layout of CIFAR-10-C.

    A file gets its name when it is complete; started again, it goes on with the corruption it was stopped in.

    Args:
        name: One of ``cifar10``, ``cifar100`` and ``tiny_imagenet``.
        root: The folder with the files of the set.
        out: The folder to write ``<name>_c_regen`` into; ``root`` if not given.
        verify: Check the files of the set.
        corruptions: Which to write; all 19 if not given.
        on_start: Called with the name of each corruption and its number of images, 0 if its file is there.
        on_images: Called with the number of images made since the last call.

    Returns:
        The folder.
    """
    if name not in CLEAN:
        raise ValueError(
            f"corrupted files are written of {', '.join(CLEAN)}, got {name!r}; "
            "for any other set of colour images use macc.data.corruptions.corrupted(splits)"
        )
    wanted = names() if corruptions is None else tuple(corruptions)
    if unknown := [one for one in wanted if one not in names()]:
        raise ValueError(f"no corruption is called {unknown[0]!r}; there are {', '.join(names())}")
    test = CLEAN[name](root=root, verify=verify).test
    folder = data_root(root if out is None else out) / f"{name}_c_regen"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=0):
            _prepare(folder, name, test)
            missing = [one for one in wanted if not _complete(folder / f"{one}.npy", test)]
            _check_space(folder, len(missing) * len(LEVELS) * test.inputs.numel())
            for one in wanted:
                if on_start is not None:
                    on_start(one, len(LEVELS) * len(test) if one in missing else 0)
                if one in missing:
                    _write(folder / f"{one}.npy", test, one, on_images)
    except Timeout:
        raise ValueError(f"another process is writing {folder}; wait for it or stop it") from None
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error}") from error
    return folder


def _prepare(folder: Path, name: str, test: Part) -> None:
    """What the folder is made of, compared with what it was made of."""
    digest = hashlib.sha256(test.inputs.contiguous().numpy().data)
    digest.update(test.labels.numpy().data)
    about = {"set": name, "images": digest.hexdigest(), "version": VERSION}
    path = folder / "about.json"
    if path.is_file():
        try:
            found = json.loads(path.read_text())
        except ValueError:
            found = None
        if found != about:
            raise ValueError(
                f"{folder} was made from other images or by another version; delete it and start again"
            )
    for leftover in folder.glob(".writing-*"):
        leftover.unlink()
    labels = np.tile(test.labels.numpy().astype(np.uint8), len(LEVELS))
    with _whole(folder / "labels.npy") as file:
        np.save(file, labels)
    with _whole(path) as file:
        file.write(json.dumps(about).encode())


def _complete(path: Path, test: Part) -> bool:
    if not path.is_file():
        return False
    count, channels, height, width = test.inputs.shape
    return bool(open_npy(path).shape == (len(LEVELS) * count, height, width, channels))


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ValueError(
            f"the corrupted images need {size / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB free; "
            "write fewer corruptions, or elsewhere with --output"
        )


def _write(path: Path, test: Part, corruption: str, on_images: Callable[[int], None] | None) -> None:
    count, channels, height, width = test.inputs.shape
    with _whole(path) as file:
        np.lib.format.write_array_header_1_0(
            file,
            {"descr": "|u1", "fortran_order": False, "shape": (len(LEVELS) * count, height, width, channels)},
        )
        for level in LEVELS:
            for start in range(0, count, CHUNK):
                images = test.inputs[start : start + CHUNK]
                made = corrupt(images, corruption, level, first=start)
                file.write(made.permute(0, 2, 3, 1).contiguous().numpy().data)
                if on_images is not None:
                    on_images(len(images))


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Any]:
    """A file that gets its name when it is complete."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".writing-", delete=False) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def write_with_progress(
    name: str, *, root: Path | None, out: Path | None, verify: bool, corruptions: Sequence[str] | None
) -> Path:
    """Write, with a bar on a terminal and a line for each corruption elsewhere, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    total = len(names() if corruptions is None else corruptions)
    seen = 0
    columns = (TextColumn("{task.description}"), BarColumn(), "{task.completed}/{task.total} images")
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)

        def start(corruption: str, images: int) -> None:
            nonlocal seen
            seen += 1
            words = f"{corruption} ({seen} of {total})"
            bar.reset(task, description=words, total=images)
            if not console.is_terminal:
                console.print(
                    f"{words}: {f'{images} images' if images else 'there already'}", highlight=False
                )

        return write_corrupted(
            name,
            root=root,
            out=out,
            verify=verify,
            corruptions=corruptions,
            on_start=start,
            on_images=lambda count: bar.advance(task, count),
        )

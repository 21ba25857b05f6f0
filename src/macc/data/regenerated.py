"""Corrupted test sets that we generate: written once in the published layouts, read under names of
their own.

They are not the published sets: the random draws differ, and frost is made up.
"""

import hashlib
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from macc.data._cells import LEVELS, choose, read_cells
from macc.data._datasets import Dataset, dataset
from macc.data._parts import Part
from macc.data._splits import Splits
from macc.data.cifar import SIZES, cifar10, cifar100
from macc.data.corruptions import corrupt, names
from macc.data.files import Copies, data_root
from macc.data.tiny_imagenet import read_tree, tiny_imagenet
from macc.io.arrays import Array, open_npy
from macc.io.writing import TEMPORARY, check_room, remove_leftovers, replacing, sync_folder

# Raise it whenever the same images would be corrupted or stored differently.
VERSION = 2
CHUNK = 1000
ABOUT = "about.json"
JPEG_QUALITY = 85  # that of the published trees
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
        layout = _layout(place, clean(root=root, verify=verify))
        _check_made(layout, images=verify)
        present = {one for one in names() if layout.is_there(one)}
        chosen = choose(name, present, corruptions, place, standard=names(standard=True), every=names())
        return layout.read(name, chosen, verify=verify)

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
        levels=True,
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
    """Write the test images of a set under corruptions, in the layout of the published sets.

    That is an ``.npy`` file for each corruption of CIFAR, and a tree of JPEG files of
    Tiny-ImageNet. What is written gets its name when it is complete; the same call resumes with
    the corruption it was stopped in.

    Args:
        name: One of ``cifar10``, ``cifar100`` and ``tiny_imagenet``.
        root: The folder with the files of the set.
        out: The folder to write ``<name>_c_regen`` into; ``root`` if not given.
        verify: Check the files of the set.
        corruptions: Which to write; all 19 if not given.
        on_start: Called with the name of each corruption and its number of images, 0 if its file is
            there.
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
    clean = CLEAN[name](root=root, verify=verify)
    folder = data_root(root if out is None else out) / f"{name}_c_regen"
    layout = _layout(folder, clean)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=0):
            _prepare(layout)
            missing = {one: layout.missing(one) for one in wanted}
            check_room(
                folder,
                layout.level_size * sum(map(len, missing.values())),
                "the corrupted images need",
                "write fewer corruptions, or elsewhere with --output",
            )
            for one, levels in missing.items():
                if on_start is not None:
                    on_start(one, len(levels) * len(clean.test))
                if levels:
                    layout.write(one, levels, on_images)
    except Timeout:
        raise ValueError(f"another process is writing {folder}; wait for it or stop it") from None
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error}") from error
    return folder


def _prepare(layout: "_Layout") -> None:
    """Check what is there, remove what was not finished, and say what the folder is made of."""
    path = layout.folder / ABOUT
    if path.is_file():
        _check_made(layout, images=True)
    remove_leftovers(layout.folder)
    layout.prepare()
    with replacing(path) as file:
        file.write(json.dumps(_about(layout)).encode())


def _about(layout: "_Layout") -> dict[str, object]:
    """What a folder is made of, and how."""
    test = layout.test
    digest = hashlib.sha256(test.inputs.contiguous().numpy().data)
    digest.update(test.labels.numpy().data)
    return {"set": layout.clean.name, "images": digest.hexdigest(), "version": VERSION}


def _check_made(layout: "_Layout", *, images: bool) -> None:
    """Refuse a folder of another version and, with ``images``, one made from other images."""
    try:
        found = json.loads((layout.folder / ABOUT).read_text())
        same = found == _about(layout) if images else found["version"] == VERSION
    except (OSError, ValueError, KeyError, TypeError):
        same = False
    if not same:
        raise ValueError(
            f"{layout.folder} was made from other images or by another version; delete it and start again: "
            f"macc data corrupt {layout.clean.name}"
        )


@dataclass(frozen=True)
class _Layout(ABC):
    """How the corrupted images of a clean set lie in a folder."""

    folder: Path
    clean: Splits

    @property
    def test(self) -> Part:
        return self.clean.test

    @property
    @abstractmethod
    def level_size(self) -> int:
        """How many bytes the images of a level take, about."""

    @abstractmethod
    def path(self, corruption: str) -> Path: ...

    @abstractmethod
    def missing(self, corruption: str) -> tuple[int, ...]:
        """The levels that are yet to be made."""

    def is_there(self, corruption: str) -> bool:
        """Whether there is something to read; damage is reported when it is read."""
        return self.path(corruption).exists()

    @abstractmethod
    def prepare(self) -> None:
        """Write what belongs to all corruptions."""

    @abstractmethod
    def write(
        self, corruption: str, levels: Sequence[int], on_images: Callable[[int], None] | None
    ) -> None: ...

    @abstractmethod
    def read(self, name: str, corruptions: Sequence[str], *, verify: bool) -> Splits: ...

    def corrupted(
        self, corruption: str, level: int, on_images: Callable[[int], None] | None
    ) -> Iterator[tuple[int, Array]]:
        """Some images at a time, ``(n, H, W, C)``, with the place of the first."""
        for start in range(0, len(self.test), CHUNK):
            made = corrupt(self.test.inputs[start : start + CHUNK], corruption, level, first=start)
            yield start, made.permute(0, 2, 3, 1).contiguous().numpy()
            if on_images is not None:
                on_images(len(made))


class _Arrays(_Layout):
    """CIFAR-10-C's: ``<corruption>.npy`` with five levels one after another, and ``labels.npy``."""

    @property
    def level_size(self) -> int:
        return self.test.inputs.numel()

    @property
    def shape(self) -> tuple[int, ...]:
        count, channels, height, width = self.test.inputs.shape
        return len(LEVELS) * count, height, width, channels

    def path(self, corruption: str) -> Path:
        return self.folder / f"{corruption}.npy"

    def missing(self, corruption: str) -> tuple[int, ...]:
        try:
            whole = open_npy(self.path(corruption)).shape == self.shape
        except ValueError:
            whole = False
        return () if whole else LEVELS

    def prepare(self) -> None:
        with replacing(self.folder / "labels.npy") as file:
            np.save(file, np.tile(self.test.labels.numpy().astype(np.uint8), len(LEVELS)))

    def write(self, corruption: str, levels: Sequence[int], on_images: Callable[[int], None] | None) -> None:
        with replacing(self.path(corruption)) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": self.shape}
            np.lib.format.write_array_header_1_0(file, header)
            for level in levels:
                for _, made in self.corrupted(corruption, level, on_images):
                    file.write(made.data)

    def read(self, name: str, corruptions: Sequence[str], *, verify: bool) -> Splits:
        return read_cells(name, self.folder, self.clean, corruptions=corruptions, verify=verify)


class _Tree(_Layout):
    """Tiny-ImageNet-C's: ``<corruption>/<level>/<class>/<image>.JPEG``."""

    @property
    def level_size(self) -> int:
        return 4096 * len(self.test)  # a block of a file system; an image is smaller

    def path(self, corruption: str) -> Path:
        return self.folder / corruption

    def missing(self, corruption: str) -> tuple[int, ...]:
        return tuple(level for level in LEVELS if not (self.path(corruption) / str(level)).is_dir())

    def is_there(self, corruption: str) -> bool:
        return not self.missing(corruption)

    def prepare(self) -> None:
        """Nothing: images lie in the folders of their classes."""

    def write(self, corruption: str, levels: Sequence[int], on_images: Callable[[int], None] | None) -> None:
        try:
            from PIL import Image
        except ImportError:
            raise ValueError("writing JPEG files needs Pillow: pip install 'macc-torch[data]'") from None
        self.path(corruption).mkdir(exist_ok=True)
        for level in levels:
            # Inside a scratch folder, because that one is closed to other users.
            with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=self.folder) as scratch:
                building = Path(scratch) / "level"
                for name in self.clean.classes:
                    (building / name).mkdir(parents=True)
                for first, made in self.corrupted(corruption, level, on_images):
                    for index, pixels in enumerate(made, start=first):
                        # Numbered by their place, so that sorted names keep the order of the clean
                        # images.
                        place = building / self.clean.classes[int(self.test.labels[index])]
                        Image.fromarray(pixels).save(
                            place / f"test_{index:05}.JPEG", quality=JPEG_QUALITY, optimize=True
                        )
                if hasattr(os, "sync"):  # one for all images: one for each would take longer than making them
                    os.sync()
                building.replace(self.path(corruption) / str(level))
                sync_folder(self.path(corruption))

    def read(self, name: str, corruptions: Sequence[str], *, verify: bool) -> Splits:
        return read_tree(name, self.folder, self.clean, corruptions=corruptions, verify=verify)


def _layout(folder: Path, clean: Splits) -> _Layout:
    return (_Tree if clean.name == tiny_imagenet.name else _Arrays)(folder, clean)

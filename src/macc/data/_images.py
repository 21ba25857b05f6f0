"""Image files decoded once into a memory-mapped cache: a user's folders, published trees."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from macc.data._archives import unpacked
from macc.data._parts import Normalisation, Part, Resizing
from macc.data._progress import track
from macc.data.files import cache_folder
from macc.io.arrays import Array
from macc.io.writing import check_room
from macc.words import shown

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Part of the cache's key: raise it whenever the same files would be decoded differently.
CACHE_VERSION = 4
# White of a 16-bit image.
WHITE = 65_535


@dataclass(frozen=True, kw_only=True)
class LabelledImage:
    """An image file and the name of its class."""

    path: Path
    label: str


Scan = Callable[[Path], dict[str, list[LabelledImage]]]


@dataclass(frozen=True, kw_only=True)
class Form:
    """What images are brought to.

    Args:
        channels: 3 for colour, 1 for grey.
        size: Height and width; ``None`` keeps images that all have one size of at most ``largest``
            pixels and brings others to ``largest``.
        largest: See ``size``.
        how: See :data:`Resizing`.
    """

    channels: int = 3
    size: int | None = None
    largest: int = 224
    how: Resizing = "fit"


@dataclass(frozen=True, kw_only=True)
class Images:
    """Decoded images in their parts, with the statistics of the first."""

    classes: tuple[str, ...]
    parts: dict[str, Part]
    normalisation: Normalisation


def decoded(source: Path, *, name: str, layout: Any, scan: Scan, form: Form) -> Images:
    """The images below a folder or in an archive of one, from the cache or decoded into it.

    Images are decoded in parallel, under a key made of the names, sizes and times of the files: a
    second start reads nothing, a changed folder is decoded anew.

    Args:
        source: The folder, or the archive.
        name: What it is called in the cache.
        layout: Whatever else decides what ``scan`` finds.
        scan: The images of each part of a folder, in order; classes are the sorted labels of the
            first part.
        form: What to bring them to.
    """
    settings = [CACHE_VERSION, vars(form), layout]
    cache = cache_folder() / "folders"
    if source.is_file():
        status = source.stat()
        key = _key(settings, [(source.name, status.st_size, status.st_mtime_ns)])
    else:
        parts = scan(source)
        key = _key(settings, _fingerprint(source, parts))
    kept = cache / f"{_slug(name)}-{key}"
    if not (kept / "index.json").is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / f".{key}.lock"):
                # Another process may have done it while this one waited for the lock.
                if not (kept / "index.json").is_file():
                    if source.is_file():
                        _build_from_archive(kept, source, scan, form)
                    else:
                        _build(kept, parts, form)
        except OSError as error:
            raise ValueError(
                f"{cache} cannot hold the decoded images of {source}: {error}; "
                "say where there is room with $MACC_CACHE"
            ) from error
    return _read(kept)


def read_images(files: Sequence[Any], shape: tuple[int, ...], *, resizing: Resizing = "fit") -> Tensor:
    """Image files, decoded and brought to one size as those of a data set are.

    Args:
        files: Paths, open files or images of Pillow.
        shape: ``(C, H, W)``, with one channel or three.
        resizing: How those of other sizes get this one: the ``resizing`` of the data set.

    Returns:
        Images ``(N, C, H, W)``, uint8.
    """
    channels, height, width = shape
    form = Form(channels=channels, how=resizing)
    return torch.from_numpy(np.stack([_decoded(file, height, width, form) for file in files]))


def folders_in(root: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones and what macOS adds to archives."""
    return sorted(
        path
        for path in root.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path.name != "__MACOSX"
    )


def images_in(root: Path) -> list[Path]:
    """The image files in a folder, sorted, without hidden ones and files of other kinds."""
    return sorted(
        path
        for path in root.iterdir()
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )


def only_folder(root: Path) -> Path:
    """``root``, or the folder in it: archives usually hold one folder that holds everything."""
    while len(inside := folders_in(root)) == 1 and not images_in(root) and folders_in(inside[0]):
        root = inside[0]
    return root


def eight_bit(image: Any) -> Any:
    """A Pillow image of 8 bits a channel; 16-bit greys are scaled, which Pillow would cut off."""
    from PIL import Image

    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    pixels = np.asarray(image)
    if image.mode == "F" or pixels.min() < 0 or pixels.max() > WHITE:
        raise ValueError(
            f"its mode {image.mode} with values from {pixels.min():g} to {pixels.max():g} does not say what is "
            "black and white: save it with 8 or 16 bits a channel"
        )
    return Image.fromarray(np.rint(pixels * (255 / WHITE)).astype(np.uint8))


def _slug(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())[:40]


def _key(settings: list[Any], files: list[tuple[str, int, int]]) -> str:
    return hashlib.sha256(json.dumps([settings, files]).encode()).hexdigest()[:16]


def _fingerprint(root: Path, parts: dict[str, list[LabelledImage]]) -> list[tuple[str, int, int]]:
    found = []
    for samples in parts.values():
        for sample in samples:
            status = sample.path.stat()
            found.append((sample.path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns))
    return found


def _build_from_archive(kept: Path, archive: Path, scan: Scan, form: Form) -> None:
    with unpacked(archive, beside=kept.parent) as opened:
        try:
            _build(kept, scan(opened), form)
        except ValueError as error:
            # The folder that a message names is gone when it is read; the archive is not.
            raise ValueError(str(error).replace(str(opened), str(archive))) from error


def _build(kept: Path, parts: dict[str, list[LabelledImage]], form: Form) -> None:
    """Decode all images into a new folder, which gets its name when it is complete."""
    samples = [sample for part in parts.values() for sample in part]
    first = next(iter(parts.values()))
    classes = {label: k for k, label in enumerate(sorted({sample.label for sample in first}))}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        height, width = (
            _common_size(pool, samples, form.largest) if form.size is None else (form.size, form.size)
        )
        shape = (len(samples), form.channels, height, width)
        check_room(
            kept.parent,
            int(np.prod(shape, dtype=np.int64)),
            "the decoded images need",
            "choose a smaller `size`, or say where there is room with $MACC_CACHE",
        )
        # Inside a scratch folder, because that one is closed to other users and the cache may be
        # shared.
        with tempfile.TemporaryDirectory(prefix=".decoding-", dir=kept.parent) as scratch:
            building = Path(scratch) / "new"
            building.mkdir()
            images = np.lib.format.open_memmap(building / "images.npy", "w+", np.uint8, shape)

            def decode(index: int) -> None:
                images[index] = _decoded(samples[index].path, height, width, form)

            with _stopping(pool):
                for _ in track(pool.map(decode, range(len(samples))), total=len(samples), doing="decoding"):
                    pass
            images.flush()
            fitted = Normalisation.fit(torch.from_numpy(images[: len(first)]))
            index = {
                "classes": list(classes),
                "parts": {name: len(part) for name, part in parts.items()},
                "labels": [classes[sample.label] for sample in samples],
                "mean": fitted.mean,
                "std": fitted.std,
            }
            (building / "index.json").write_text(json.dumps(index))
            for path in building.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            shutil.rmtree(kept, ignore_errors=True)
            building.replace(kept)


@contextmanager
def _stopping(pool: ThreadPoolExecutor) -> Iterator[None]:
    """After the first error the images that wait are not decoded in vain."""
    try:
        yield
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise


def _common_size(pool: ThreadPoolExecutor, samples: list[LabelledImage], largest: int) -> tuple[int, int]:
    def measure(sample: LabelledImage) -> tuple[int, int]:
        with _opened(sample.path) as image:
            return image.height, image.width

    with _stopping(pool):
        sizes = set(track(pool.map(measure, samples), total=len(samples), doing="measuring"))
    height, width = next(iter(sizes))
    if len(sizes) == 1 and max(height, width) <= largest:
        return height, width
    return largest, largest


@contextmanager
def _opened(path: Any) -> Iterator[Any]:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("reading images needs Pillow: pip install 'macc-torch[data]'") from None
    try:
        with nullcontext(path) if isinstance(path, Image.Image) else Image.open(path) as image:
            yield image
    except FileNotFoundError:
        raise ValueError(f"there is no image {shown(path)}") from None
    # Pillow's plugins raise what they like on damaged files.
    except Exception as error:
        raise ValueError(f"{path} cannot be decoded ({shown(error)}); replace or remove it") from error


def _decoded(path: Any, height: int, width: int, form: Form) -> Array:
    from PIL import Image, ImageOps

    mode = "RGB" if form.channels == 3 else "L"
    with _opened(path) as image:
        if form.how != "centre":
            # JPEG files can be decoded smaller at once; twice the wanted size leaves the scaling
            # its quality.
            image.draft(mode, (2 * width, 2 * height))
        upright = eight_bit(ImageOps.exif_transpose(image)).convert(mode)
        if upright.size != (width, height):
            left, top = (upright.width - width) // 2, (upright.height - height) // 2
            if form.how == "squash":
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
            elif form.how == "centre" and min(left, top) >= 0:
                upright = upright.crop((left, top, left + width, top + height))
            else:
                upright = ImageOps.fit(upright, (width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(upright)
    return pixels.transpose(2, 0, 1) if form.channels == 3 else pixels[None]


def _read(kept: Path) -> Images:
    index = json.loads((kept / "index.json").read_text())
    # Copy on write: torch wants memory it may write to, and the file stays as it is.
    images = torch.from_numpy(np.load(kept / "images.npy", mmap_mode="c", allow_pickle=False))
    labels = torch.tensor(index["labels"], dtype=torch.int64)
    parts, start = {}, 0
    for part, count in index["parts"].items():
        stretch = slice(start, start + count)
        parts[part] = Part(inputs=images[stretch], labels=labels[stretch])
        start += count
    return Images(
        classes=tuple(index["classes"]),
        parts=parts,
        normalisation=Normalisation(tuple(index["mean"]), tuple(index["std"])),
    )

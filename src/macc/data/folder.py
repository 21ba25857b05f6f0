"""A user's own images: one folder per class, decoded once into a memory-mapped cache."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from macc.data._archives import is_archive, unpacked
from macc.data._arrays import Array
from macc.data._datasets import dataset
from macc.data._files import cache_folder
from macc.data._parts import Augmentation, Normalisation, Part
from macc.data._progress import track
from macc.data._splits import Splits, stratified_split

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
DEFAULT_SIZE = 224
# Part of the cache's key: raise it whenever the same files would be decoded differently.
CACHE_VERSION = 1
SYNONYMS = {"val": ("valid", "validation")}


@dataclass(frozen=True, kw_only=True)
class _Sample:
    path: Path
    label: str


@dataset(
    summary="your own images, one folder per class: folder:PATH",
    kind="image",
    licence="yours",
    needs_path=True,
)
def folder(
    path: str | PathLike[str],
    *,
    size: int | None = None,
    channels: int = 3,
    train: str = "train",
    val: str = "val",
    test: str = "test",
) -> Splits:
    """Your own images: ``PATH/<class>/*.jpg``, or ``PATH/<split>/<class>/*.jpg`` with named splits.

    ``PATH`` may be an archive (.zip, .tar.gz) of such a folder. Where there is no test split, a seeded 20 % of
    the training images of every class become one; where there is no validation split, a seeded 10 % of what
    is left.
    Splits of other names become shifted test sets.

    Images are decoded once, in parallel, into a memory-mapped file below ``$MACC_CACHE``, under a key made
    of the names, sizes and times of the files: a second start reads nothing, a changed folder is decoded anew.

    Args:
        path: The folder, or an archive of it.
        size: Height and width to bring images to: the shorter side is scaled, then the centre is cut out.
            If not given, images that all have one size of at most 224 pixels keep it; others get 224.
        channels: 3 for colour, 1 for grey.
        train: Name of the training split's folder.
        val: Name of the validation split's folder.
        test: Name of the test split's folder.
    """
    source = Path(path).expanduser()
    if channels not in (1, 3):
        raise ValueError(f"`channels` must be 3 (colour) or 1 (grey), got {channels}")
    if size is not None and size < 1:
        raise ValueError(f"`size` must be a number of pixels, at least 1, got {size}")
    if not source.exists():
        raise ValueError(f"there is no folder {source}")
    if source.is_file() and not is_archive(source):
        raise ValueError(f"{source} must be a folder of images, or a .zip or .tar.gz of one")
    names = {"train": train, "val": val, "test": test}
    name = source.name.split(".")[0] or "images"
    settings = [CACHE_VERSION, size, channels, names]
    cache = cache_folder() / "folders"
    if source.is_file():
        status = source.stat()
        key = _key(settings, [(source.name, status.st_size, status.st_mtime_ns)])
    else:
        parts = _scan(source, names)
        key = _key(settings, _fingerprint(source, parts))
    kept = cache / f"{_slug(name)}-{key}"
    if not (kept / "index.json").is_file():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / f".{key}.lock"):
                # Another process may have done it while this one waited for the lock.
                if not (kept / "index.json").is_file():
                    if source.is_file():
                        _build_from_archive(kept, source, names, size, channels)
                    else:
                        _build(kept, parts, size, channels)
        except OSError as error:
            raise ValueError(
                f"{cache} cannot hold the decoded images of {source}: {error}; "
                "say where there is room with $MACC_CACHE"
            ) from error
    return _read(kept, name)


def _slug(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())[:40]


def _key(settings: list[Any], files: list[tuple[str, int, int]]) -> str:
    return hashlib.sha256(json.dumps([settings, files]).encode()).hexdigest()[:16]


def _fingerprint(root: Path, parts: dict[str, list[_Sample]]) -> list[tuple[str, int, int]]:
    found = []
    for samples in parts.values():
        for sample in samples:
            status = sample.path.stat()
            found.append((sample.path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns))
    return found


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] not in "._")


def _images(root: Path) -> list[Path]:
    return sorted(
        path
        for path in root.iterdir()
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )


def _scan(root: Path, names: dict[str, str]) -> dict[str, list[_Sample]]:
    """The images of each split, with the names of their classes."""
    # Archives usually hold one folder that holds everything.
    while len(inside := _folders(root)) == 1 and not _images(root) and _folders(inside[0]):
        root = inside[0]
    below = {path.name: path for path in _folders(root)}
    if names["train"] in below and _folders(below[names["train"]]):
        parts = {}
        for wanted, given in names.items():
            alternatives = SYNONYMS.get(wanted, ()) if given == wanted else ()
            found = next((option for option in (given, *alternatives) if option in below), None)
            if found is not None:
                parts[wanted] = _classes(below.pop(found))
        parts |= {shift: _classes(path) for shift, path in below.items()}
    else:
        parts = {"train": _classes(root)}
    known = {sample.label for sample in parts["train"]}
    for part, samples in parts.items():
        if unknown := sorted({sample.label for sample in samples} - known):
            raise ValueError(
                f"the class {unknown[0]!r} of {root / part} has no folder among the training images; "
                "every class must be trained on"
            )
    return parts


def _classes(root: Path) -> list[_Sample]:
    folders = _folders(root)
    if not folders:
        raise ValueError(f"{root} holds no folders; put the images of each class into one named after it")
    samples = []
    for path in folders:
        images = _images(path)
        if not images and _folders(path):
            raise ValueError(
                f"{path} holds folders and no images: if {', '.join(repr(p.name) for p in folders[:4])} are splits "
                f"and not classes, call the one to train on 'train', or name it: macc.data.folder(path, train={path.name!r})"
            )
        if not images:
            raise ValueError(
                f"the class folder {path} holds no images ({', '.join(SUFFIXES)}); fill it or remove it"
            )
        samples += [_Sample(path=image, label=path.name) for image in images]
    return samples


def _in_order(parts: dict[str, list[_Sample]]) -> dict[str, list[_Sample]]:
    """All parts, the missing ones cut from training: each becomes one stretch of the cache."""
    parts = dict(parts)
    for name, share in (("test", 0.2), ("val", 0.1)):
        if name not in parts:
            labels = [sample.label for sample in parts["train"]]
            index = {label: k for k, label in enumerate(sorted(set(labels)))}
            chosen, rest = stratified_split(torch.tensor([index[label] for label in labels]), share)
            if not len(chosen):
                raise ValueError(
                    f"{len(parts['train'])} images are too few to set some aside for {name}; "
                    f"add images, or a folder {name!r} beside 'train'"
                )
            parts[name] = [parts["train"][k] for k in chosen.tolist()]
            parts["train"] = [parts["train"][k] for k in rest.tolist()]
    first = ("train", "val", "test")
    return {name: parts[name] for name in [*first, *(name for name in parts if name not in first)]}


def _build_from_archive(
    kept: Path, archive: Path, names: dict[str, str], size: int | None, channels: int
) -> None:
    with unpacked(archive, beside=kept.parent) as opened:
        try:
            _build(kept, _scan(opened, names), size, channels)
        except ValueError as error:
            # The folder that a message names is gone when it is read; the archive is not.
            raise ValueError(str(error).replace(str(opened), str(archive))) from error


def _build(kept: Path, parts: dict[str, list[_Sample]], size: int | None, channels: int) -> None:
    """Decode all images into a new folder, which gets its name when it is complete."""
    parts = _in_order(parts)
    samples = [sample for part in parts.values() for sample in part]
    classes = {label: k for k, label in enumerate(sorted({sample.label for sample in parts["train"]}))}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        height, width = _common_size(pool, samples) if size is None else (size, size)
        shape = (len(samples), channels, height, width)
        _check_space(kept.parent, int(np.prod(shape, dtype=np.int64)))
        # Inside a scratch folder, because that one is closed to other users and the cache may be shared.
        with tempfile.TemporaryDirectory(prefix=".decoding-", dir=kept.parent) as scratch:
            building = Path(scratch) / "new"
            building.mkdir()
            images = np.lib.format.open_memmap(building / "images.npy", "w+", np.uint8, shape)

            def decode(index: int) -> None:
                images[index] = _decoded(samples[index].path, height, width, channels)

            with _stopping(pool):
                for _ in track(pool.map(decode, range(len(samples))), total=len(samples), doing="decoding"):
                    pass
            images.flush()
            fitted = Normalisation.fit(torch.from_numpy(images[: len(parts["train"])]))
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


def _check_space(where: Path, size: int) -> None:
    free = shutil.disk_usage(where).free
    if size > free:
        raise ValueError(
            f"the decoded images need {size / 1e9:.1f} GB and {where} has {free / 1e9:.1f} GB free; "
            "choose a smaller `size`, or say where there is room with $MACC_CACHE"
        )


def _common_size(pool: ThreadPoolExecutor, samples: list[_Sample]) -> tuple[int, int]:
    def measure(sample: _Sample) -> tuple[int, int]:
        with _opened(sample.path) as image:
            return image.height, image.width

    with _stopping(pool):
        sizes = set(track(pool.map(measure, samples), total=len(samples), doing="measuring"))
    height, width = next(iter(sizes))
    if len(sizes) == 1 and max(height, width) <= DEFAULT_SIZE:
        return height, width
    return DEFAULT_SIZE, DEFAULT_SIZE


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("reading images needs Pillow: pip install 'macc-torch[data]'") from None
    try:
        with Image.open(path) as image:
            yield image
    # Pillow's plugins raise what they like on damaged files.
    except Exception as error:
        raise ValueError(f"{path} cannot be decoded ({error}); replace or remove it") from error


def _decoded(path: Path, height: int, width: int, channels: int) -> Array:
    from PIL import Image, ImageOps

    with _opened(path) as image:
        # JPEG files can be decoded smaller at once; twice the wanted size leaves the scaling its quality.
        image.draft("RGB" if channels == 3 else "L", (2 * width, 2 * height))
        upright = ImageOps.exif_transpose(image).convert("RGB" if channels == 3 else "L")
        if upright.size != (width, height):
            upright = ImageOps.fit(upright, (width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(upright)
    return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]


def _read(kept: Path, name: str) -> Splits:
    index = json.loads((kept / "index.json").read_text())
    # Copy on write: torch wants memory it may write to, and the file stays as it is.
    images = torch.from_numpy(np.load(kept / "images.npy", mmap_mode="c", allow_pickle=False))
    labels = torch.tensor(index["labels"], dtype=torch.int64)
    parts, start = {}, 0
    for part, count in index["parts"].items():
        stretch = slice(start, start + count)
        parts[part] = Part(inputs=images[stretch], labels=labels[stretch])
        start += count
    return Splits(
        name=name,
        kind="image",
        classes=tuple(index["classes"]),
        train=parts.pop("train"),
        val=parts.pop("val"),
        test=parts.pop("test"),
        shifts=parts,
        normalisation=Normalisation(tuple(index["mean"]), tuple(index["std"])),
        augmentation=Augmentation(flip=True),
    )

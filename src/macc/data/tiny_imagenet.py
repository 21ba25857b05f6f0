"""Tiny-ImageNet and Tiny-ImageNet-C, from their official trees of JPEG files."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import torch

from macc.data._cells import LEVELS, STANDARD, cell, choose
from macc.data._datasets import dataset
from macc.data._images import Form, Images, LabelledImage, decoded, folders_in, images_in
from macc.data._parts import Augmentation, Part
from macc.data._splits import Splits, check_sizes, seeded_split
from macc.data.files import Copies, Download, data_root
from macc.data.pacs import IMAGENET

SIZES = (90_000, 10_000, 10_000)
CLASSES = 200
LICENCE = "non-commercial"
FORM = Form(size=64)
FILES = Copies(
    names=("tiny-imagenet-200", "tiny-imagenet-200.zip"),
    origin="cs231n.stanford.edu/tiny-imagenet-200.zip",
    download=Download(
        name="tiny-imagenet-200.zip",
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        md5="90528d7ca1a48142e341f4ef8d21d0de",
        megabytes=248,
    ),
)
FILES_C = Copies.on_zenodo("Tiny-ImageNet-C", 2536630, md5="f9c9a9dbdc11469f0b850190f7ad8be1", megabytes=1795)


@dataset(
    summary="photographs, 64 × 64, colour",
    kind="image",
    num_classes=CLASSES,
    shape=(3, 64, 64),
    sizes=SIZES,
    licence=LICENCE,
    sources=FILES,
)
def tiny_imagenet(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """Tiny-ImageNet: 90 000 training and 10 000 validation images; the official validation set is
    the test set.

    A class is the rank of its WordNet id among all, sorted; grey images become three equal
    channels.

    Args:
        root: The folder that holds ``tiny-imagenet-200`` or ``tiny-imagenet-200.zip``.
        verify: Check the archive's MD5, and that there are as many images as were published.

    Reference:
        Le and Yang, *Tiny ImageNet Visual Recognition Challenge*, 2015.
    """
    found = _images("tiny_imagenet", root, verify=verify)
    in_val, _ = seeded_split(len(found.parts["train"]), 0.1)
    return _splits("tiny_imagenet", found, found.parts["train"].take(in_val), verify=verify)


@dataset(
    summary="the same with training images to validate on, as published code had it",
    kind="image",
    num_classes=CLASSES,
    shape=(3, 64, 64),
    sizes=SIZES,
    licence=LICENCE,
    sources=FILES,
)
def tiny_imagenet_legacy_val(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """Tiny-ImageNet whose validation set is the first tenth of the training folder, a mistake of
    published code.

    These are the first 20 classes, and 90 % of them are trained on: selection follows training
    accuracy, and a temperature fitted on them corrects nothing. Published numbers rest on it.

    Args:
        root: As for ``tiny_imagenet``.
        verify: As for ``tiny_imagenet``.
    """
    found = _images("tiny_imagenet_legacy_val", root, verify=verify)
    everything = found.parts["train"]
    tenth = int(0.1 * len(everything))
    val = Part(inputs=everything.inputs[:tenth], labels=everything.labels[:tenth])
    return _splits("tiny_imagenet_legacy_val", found, val, verify=verify)


@dataset(
    summary="Tiny-ImageNet with its test images under 15 corruptions at five levels",
    kind="image",
    num_classes=CLASSES,
    sizes=SIZES,
    licence="CC BY 4.0",
    sources=FILES_C,
    levels=True,
)
def tiny_imagenet_c(
    *,
    root: str | PathLike[str] | None = None,
    verify: bool = True,
    corruptions: Sequence[str] | None = None,
) -> Splits:
    """Tiny-ImageNet-C: the splits of Tiny-ImageNet, and the shifts ``gaussian_noise-1`` …
    ``jpeg_compression-5``.

    Each cell is decoded once into ``$MACC_CACHE`` (123 MB each, 9.2 GB in all).

    Args:
        root: The folder that holds ``Tiny-ImageNet-C`` (or its archive) and the files of
            ``tiny_imagenet``.
        verify: Check archives' MD5, and that the labels of every cell are those of the clean test
            images.
        corruptions: Which to read; the 15 of the main archive if not given.

    Reference:
        Hendrycks and Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
        Perturbations*, ICLR 2019.
    """
    name = "tiny_imagenet_c"
    clean = tiny_imagenet(root=root, verify=verify)
    place = FILES_C.require_folder(name, data_root(root), only="Tiny-ImageNet-C", verify=verify)
    chosen = choose(
        name,
        {path.name for path in folders_in(place)},
        STANDARD if corruptions is None else corruptions,
        place,
    )
    return read_tree(name, place, clean, corruptions=chosen, verify=verify)


def read_tree(name: str, folder: Path, clean: Splits, *, corruptions: Sequence[str], verify: bool) -> Splits:
    """The clean set with the images ``<corruption>/<level>/<class>/*`` of ``folder`` as its shifts.

    Args:
        name: Of the new set.
        folder: Holds a folder for each corruption.
        clean: What was corrupted.
        corruptions: Which to read.
        verify: Check that the labels are those of the clean test images.
    """
    shifts = {}
    for corruption in corruptions:
        for level in LEVELS:
            place = folder / corruption / str(level)
            if not place.is_dir():
                raise ValueError(f"{name} is incomplete: there is no folder {place}; get or make it again")
            cached = f"tiny-c-{corruption}-{level}"
            found = decoded(place, name=cached, layout="tiny-c", scan=_scan_cell, form=FORM)
            part = found.parts["test"]
            if found.classes != clean.classes or (verify and not torch.equal(part.labels, clean.test.labels)):
                raise ValueError(
                    f"{place} holds {len(part)} images of {len(found.classes)} classes, the clean test set "
                    f"{len(clean.test)} of {clean.num_classes}, and their labels must be the same; they do not belong "
                    "together"
                )
            shifts[cell(corruption, level)] = part
    return replace(clean, name=name, shifts=shifts)


def _images(name: str, root: str | PathLike[str] | None, *, verify: bool) -> Images:
    source = FILES.require(name, data_root(root), verify=verify)
    return decoded(source, name="tiny-imagenet", layout="tiny-imagenet", scan=_scan, form=FORM)


def _splits(name: str, found: Images, val: Part, *, verify: bool) -> Splits:
    _, in_train = seeded_split(len(found.parts["train"]), 0.1)
    splits = Splits(
        name=name,
        kind="image",
        classes=found.classes,
        train=found.parts["train"].take(in_train),
        val=val,
        test=found.parts["test"],
        normalisation=IMAGENET,
        augmentation=Augmentation(pad=4, flip=True),
    )
    if verify:
        check_sizes(splits, SIZES)
    return splits


def _scan(root: Path) -> dict[str, list[LabelledImage]]:
    base = next((path for path in (root, *folders_in(root)) if (path / "wnids.txt").is_file()), None)
    if base is None:
        raise ValueError(f"{root} must hold wnids.txt and the folders train and val of Tiny-ImageNet")
    ids = sorted(set((base / "wnids.txt").read_text("utf-8", errors="replace").split()))
    trained = []
    for wnid in ids:
        images = base / "train" / wnid / "images"
        if not images.is_dir() or not images_in(images):
            raise ValueError(f"{images} holds no images; every class of {base / 'wnids.txt'} needs some")
        trained += [LabelledImage(path=path, label=wnid) for path in images_in(images)]
    return {"train": trained, "test": _annotated(base / "val", set(ids))}


def _annotated(folder: Path, ids: set[str]) -> list[LabelledImage]:
    listed = folder / "val_annotations.txt"
    if not listed.is_file():
        raise ValueError(f"there is no {listed}; the labels of the official validation set are in it")
    samples = []
    for number, line in enumerate(listed.read_text("utf-8", errors="replace").splitlines(), start=1):
        name, *rest = line.split("\t")
        if not rest or rest[0] not in ids or "/" in name or "\\" in name:
            raise ValueError(
                f"{listed}, line {number}: expected a file and a class of wnids.txt, got {line[:80]!r}"
            )
        path = folder / "images" / name
        if not path.is_file():
            raise ValueError(f"{listed}, line {number}: there is no file {path}")
        samples.append(LabelledImage(path=path, label=rest[0]))
    if not samples:
        raise ValueError(f"{listed} lists no images")
    # In the order of the corrupted trees, which have a folder per class.
    return sorted(samples, key=lambda sample: (sample.label, sample.path.name))


def _scan_cell(root: Path) -> dict[str, list[LabelledImage]]:
    return {
        "test": [
            LabelledImage(path=path, label=inner.name)
            for inner in folders_in(root)
            for path in images_in(inner)
        ]
    }

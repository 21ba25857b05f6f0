"""Chest X-rays of children, with pneumonia or not (Mendeley data, V2): images or features."""

import csv
from dataclasses import replace
from os import PathLike
from pathlib import Path, PurePosixPath

import torch

from macc.data._batches import augment
from macc.data._datasets import dataset
from macc.data._images import Form, LabelledImage, decoded, folders_in, images_in
from macc.data._parts import Augmentation, Part
from macc.data._splits import SPLIT_SEED, Splits, check_sizes, seeded_split
from macc.data.arrays import labelled
from macc.data.files import Copies, data_root
from macc.io.arrays import read_npz

SIZES = (4709, 523, 624)
CLASSES = ("NORMAL", "PNEUMONIA")
LISTS = {"train": "mendley_train.csv", "test": "mendley_test.csv"}
LICENCE = "CC BY 4.0"
# What the paper's code base trained at.
LARGEST = 832
IMAGES = Copies(
    names=("chest_xray", "chest_xray*.zip", "chest_xray*.tar*"),
    origin="data.mendeley.com/datasets/rscbjbr9sj (ZhangLab), or Kaggle, chest-xray-pneumonia",
)
FEATURES = Copies(
    names=("chest_xray-*-features.npz",),
    origin="your own backbone: train, val and test _features (N, D) and _labels (N,), and classes",
)


@dataset(
    summary="chest X-rays, grey, pneumonia or not",
    kind="image",
    num_classes=2,
    sizes=SIZES,
    shape=(1, LARGEST, LARGEST),
    licence=LICENCE,
    sources=IMAGES,
)
def chest_xray(
    *, root: str | PathLike[str] | None = None, verify: bool = True, size: int | None = None
) -> Splits:
    """Chest X-rays, normal or pneumonia: 4709 training, 523 validation and 624 test images.

    The 5232 training images are those of Mendeley's tree, ``{train,test}/{NORMAL,PNEUMONIA}``;
    Kaggle's tree has moved 16 of them to a folder ``val``, and they are taken back. A seeded 10 %
    are the validation set. Where the folder holds ``mendley_train.csv`` and ``mendley_test.csv``
    (rows ``path,label`` with 1 for pneumonia), these say what is what. Images are grey, scaled to
    ``[0, 1]`` and not normalised further, as in the paper's code base.

    Args:
        root: The folder that holds ``chest_xray`` or an archive of it.
        verify: Check that there are as many images as were published.
        size: Height and width to bring images to. If not given, images that all have one size of at
            most 832 pixels keep it; others get 832, which takes 4 GB of ``$MACC_CACHE``.

    Reference:
        Kermany et al., *Identifying Medical Diagnoses and Treatable Diseases by Image-Based Deep
        Learning*, Cell 172, 2018.
    """
    return _from_images("chest_xray", root, verify=verify, size=size)


@dataset(
    summary="the same with a validation set augmented once, as published code had it",
    kind="image",
    num_classes=2,
    sizes=SIZES,
    shape=(1, LARGEST, LARGEST),
    licence=LICENCE,
    sources=IMAGES,
)
def chest_xray_augmented_val(
    *, root: str | PathLike[str] | None = None, verify: bool = True, size: int | None = None
) -> Splits:
    """Chest X-rays whose validation images are mirrored and turned at random, a mistake of
    published code.

    The published code drew anew in every epoch; here they are drawn once, so that epochs can be
    compared.

    Args:
        root: As for ``chest_xray``.
        verify: As for ``chest_xray``.
        size: As for ``chest_xray``.
    """
    splits = _from_images("chest_xray_augmented_val", root, verify=verify, size=size)
    generator = torch.Generator().manual_seed(SPLIT_SEED)
    assert splits.augmentation is not None  # noqa: S101 - for the type checker
    changed = augment(splits.val.inputs, splits.augmentation, generator=generator)
    return replace(splits, val=Part(inputs=changed, labels=splits.val.labels))


@dataset(
    summary="features of a frozen backbone for chest X-rays",
    kind="features",
    num_classes=2,
    sizes=SIZES,
    licence=LICENCE,
    sources=FEATURES,
)
def chest_xray_features(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """Chest X-rays as features of a frozen backbone, split like ``chest_xray``.

    Args:
        root: The folder that holds ``chest_xray-<backbone>-features.npz``: ``train_features`` with
            ``train_labels`` and so on for ``train``, ``val`` and ``test``; the first two are put
            together and split anew.
        verify: Check that there are as many samples as images were published.
    """
    path = FEATURES.require("chest_xray_features", data_root(root), verify=verify)
    classes, parts = labelled(path, read_npz(path), ("train", "val", "test"))
    pooled = Part(
        inputs=torch.cat([parts["train"].inputs, parts["val"].inputs]),
        labels=torch.cat([parts["train"].labels, parts["val"].labels]),
    )
    return _split("chest_xray_features", classes, pooled, parts["test"], verify=verify)


def _from_images(name: str, root: str | PathLike[str] | None, *, verify: bool, size: int | None) -> Splits:
    if size is not None and size < 1:
        raise ValueError(f"`size` must be a number of pixels, at least 1, got {size}")
    source = IMAGES.require(name, data_root(root), verify=verify)
    form = Form(channels=1, size=size, largest=LARGEST, how="squash")
    found = decoded(source, name="chest_xray", layout="chest_xray", scan=_scan, form=form)
    return _split(name, found.classes, found.parts["train"], found.parts["test"], verify=verify)


def _split(name: str, classes: tuple[str, ...], train: Part, test: Part, *, verify: bool) -> Splits:
    in_val, in_train = seeded_split(len(train), 0.1)
    images = train.inputs.ndim == 4
    splits = Splits(
        name=name,
        kind="image" if images else "features",
        resizing="squash",
        classes=classes,
        train=train.take(in_train),
        val=train.take(in_val),
        test=test,
        augmentation=Augmentation(flip=True, rotate=True) if images else None,
    )
    if verify:
        check_sizes(splits, SIZES)
    return splits


def _scan(root: Path) -> dict[str, list[LabelledImage]]:
    for path in (
        root,
        *folders_in(root),
        *(inner for outer in folders_in(root) for inner in folders_in(outer)),
    ):
        if all((path / name).is_file() for name in LISTS.values()):
            return {part: _listed(path / name) for part, name in LISTS.items()}
        if (path / "train").is_dir() and (path / "test").is_dir():
            break
    else:
        raise ValueError(
            f"{root} must hold the folders train and test of the chest X-rays, or {' and '.join(LISTS.values())}"
        )
    trained = _classes(path / "train") + (_classes(path / "val") if (path / "val").is_dir() else [])
    # By class and name, so that Mendeley's and Kaggle's trees give the same split.
    trained.sort(key=lambda sample: (sample.label, sample.path.name))
    return {"train": trained, "test": _classes(path / "test")}


def _classes(root: Path) -> list[LabelledImage]:
    samples = []
    for label in CLASSES:
        if not (root / label).is_dir():
            raise ValueError(f"{root} must hold the folders {' and '.join(CLASSES)}; {label} is missing")
        images = images_in(root / label)
        if not images:
            raise ValueError(f"the class folder {root / label} holds no images")
        samples += [LabelledImage(path=image, label=label) for image in images]
    return samples


def _listed(path: Path) -> list[LabelledImage]:
    samples = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if not row or (number == 1 and row[-1].strip() == "label"):
                continue
            if len(row) != 2 or row[1].strip() not in ("0", "1"):
                raise ValueError(
                    f"{path}, line {number}: expected path,label with a label 0 or 1, got {row!r}"
                )
            name = PurePosixPath(row[0].strip().replace("\\", "/"))
            if name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{path}, line {number}: {row[0]!r} leads outside its folder; refused")
            if not (path.parent / name).is_file():
                raise ValueError(f"{path}, line {number}: there is no file {path.parent / name}")
            samples.append(LabelledImage(path=path.parent / name, label=CLASSES[int(row[1])]))
    if not samples:
        raise ValueError(f"{path} lists no images")
    return samples

"""A user's own images: one folder per class, decoded once into a memory-mapped cache."""

from os import PathLike
from pathlib import Path

import torch

from macc.data._archives import is_archive
from macc.data._datasets import dataset
from macc.data._images import SUFFIXES, Form, LabelledImage, decoded, folders_in, images_in, only_folder
from macc.data._parts import Augmentation
from macc.data._splits import Splits, check_shift, named_split, stratified_split


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
    flip: bool = True,
    train: str = "train",
    val: str = "val",
    test: str = "test",
    cut: bool = True,
) -> Splits:
    """Your own images: ``PATH/<class>/*.jpg``, or ``PATH/<split>/<class>/*.jpg`` with named splits.

    ``PATH`` may be an archive (.zip, .tar.gz) of such a folder. Where there is no test split, a
    seeded 20 % of the training images of every class become one; where there is no validation
    split, a seeded 10 % of what is left. Splits of other names become shifted test sets.

    Images are decoded once, in parallel, into a memory-mapped file below ``$MACC_CACHE``, under a
    key made of the names, sizes and times of the files: a second start reads nothing, a changed
    folder is decoded anew.

    Args:
        path: The folder, or an archive of it.
        size: Height and width to bring images to: the shorter side is scaled, then the centre is
            cut out. If not given, images that all have one size of at most 224 pixels keep it;
            others get 224.
        channels: 3 for colour, 1 for grey.
        flip: Mirror training images left to right at random; not for classes that a mirror changes,
            such as writing, or left and right.
        train: Name of the training split's folder.
        val: Name of the validation split's folder; ``valid`` and ``validation`` are found too.
        test: Name of the test split's folder.
        cut: Whether splits that are not there are cut from the training images. If not, all of
            these stand for them, in the order of their names: to be predicted, not to be trained
            on.
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
    found = decoded(
        source,
        name=name,
        layout=["folder", names] if cut else ["folder", names, "whole"],
        scan=lambda root: _in_order(_scan(root, names), cut),
        form=Form(channels=channels, size=size),
    )
    parts = dict(found.parts)
    fitted = parts.pop("train")
    return Splits(
        name=name,
        kind="image",
        classes=found.classes,
        train=fitted,
        val=parts.pop("val", fitted),
        test=parts.pop("test", fitted),
        shifts=parts,
        normalisation=found.normalisation,
        augmentation=Augmentation(flip=True) if flip else None,
    )


def _scan(root: Path, names: dict[str, str]) -> dict[str, list[LabelledImage]]:
    """The images of each split, with the names of their classes."""
    root = only_folder(root)
    below = {path.name: path for path in folders_in(root)}
    if names["train"] in below and folders_in(below[names["train"]]):
        parts = {}
        for wanted in names:
            found = named_split(wanted, names, below, root)
            if found is not None:
                parts[wanted] = _classes(below.pop(found))
        for shift in below:
            check_shift(shift, root)
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


def _classes(root: Path) -> list[LabelledImage]:
    folders = folders_in(root)
    if not folders:
        raise ValueError(f"{root} holds no folders; put the images of each class into one named after it")
    samples = []
    for path in folders:
        images = images_in(path)
        if not images and folders_in(path):
            raise ValueError(
                f"{path} holds folders and no images: if {', '.join(repr(p.name) for p in folders[:4])} are splits "
                f"and not classes, call the one to train on 'train', or name it: macc.data.folder(path, train={path.name!r})"
            )
        if not images:
            raise ValueError(
                f"the class folder {path} holds no images ({', '.join(SUFFIXES)}); fill it or remove it"
            )
        samples += [LabelledImage(path=image, label=path.name) for image in images]
    return samples


def _in_order(parts: dict[str, list[LabelledImage]], cut: bool) -> dict[str, list[LabelledImage]]:
    """All parts, each one stretch of the cache; missing ones are cut from training if allowed."""
    parts = dict(parts)
    for name, share in (("test", 0.2), ("val", 0.1)):
        if cut and name not in parts:
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
    first = [name for name in ("train", "val", "test") if name in parts]
    return {name: parts[name] for name in [*first, *(name for name in parts if name not in first)]}

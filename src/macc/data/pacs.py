"""PACS: seven classes as photographs, paintings, cartoons and sketches; from images or from frozen
features.

Protocol A trains on photographs and selects on paintings. Protocol B trains on 80 % of one domain
and selects on the rest of it. Both test on the domains that are left: each is a shifted test set
under its own name, and ``test`` is all of them one after another. Published figures are metrics of
each domain and their unweighted mean, which is not the metric of ``test``.
"""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from macc.data._datasets import Dataset, dataset
from macc.data._images import Form, LabelledImage, decoded, folders_in, images_in
from macc.data._parts import Normalisation, Part
from macc.data._splits import Kind, Splits, check_sizes, seeded_split
from macc.data.arrays import labelled
from macc.data.files import Copies, data_root
from macc.io.arrays import read_npz

# The folder of each domain, and the short name that its test set goes by.
DOMAINS = {"photo": "photo", "art_painting": "art", "cartoon": "cartoon", "sketch": "sketch"}
COUNTS = {"photo": 1670, "art": 2048, "cartoon": 2344, "sketch": 3929}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
LICENCE = "none stated"
IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
ORIGIN = (
    "Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017 (domaingeneralization.github.io)"
)
IMAGES = Copies(names=("PACS", "PACS*.zip", "PACS*.tar*"), origin=ORIGIN)
FEATURES = Copies(
    names=("pacs-*-features.npz",),
    origin="your own backbone: <domain>_features (N, D) and <domain>_labels (N,) for the four domains, and classes",
)


@dataclass(frozen=True, kw_only=True)
class _Domains:
    """The samples of each domain by its short name, as images or as features."""

    kind: Kind
    classes: tuple[str, ...]
    parts: dict[str, Part]


def _images(name: str, root: str | PathLike[str] | None, *, verify: bool) -> _Domains:
    source = IMAGES.require(name, data_root(root), verify=verify)
    found = decoded(source, name="pacs", layout="pacs", scan=_scan, form=Form(how="centre"))
    return _Domains(kind="image", classes=found.classes, parts=found.parts)


def _scan(root: Path) -> dict[str, list[LabelledImage]]:
    """The images of each domain, below the first folder that holds the four."""
    for path in (
        root,
        *folders_in(root),
        *(inner for outer in folders_in(root) for inner in folders_in(outer)),
    ):
        if all((path / folder).is_dir() for folder in DOMAINS):
            break
    else:
        raise ValueError(f"{root} must hold the folders {', '.join(DOMAINS)} of PACS")
    parts = {}
    for folder, short in DOMAINS.items():
        below = folders_in(path / folder)
        if [inner.name for inner in below] != list(CLASSES):
            raise ValueError(
                f"{path / folder} must hold the folders {', '.join(CLASSES)}, "
                f"got {', '.join(inner.name for inner in below) or 'none'}"
            )
        parts[short] = [
            LabelledImage(path=file, label=inner.name) for inner in below for file in images_in(inner)
        ]
        for inner in below:
            if not images_in(inner):
                raise ValueError(f"the class folder {inner} holds no images; PACS has some in each")
    return parts


def _features(name: str, root: str | PathLike[str] | None, *, verify: bool) -> _Domains:
    path = FEATURES.require(name, data_root(root), verify=verify)
    found = read_npz(path)
    classes, parts = labelled(path, found, tuple(DOMAINS))
    return _Domains(
        kind="features", classes=classes, parts={short: parts[folder] for folder, short in DOMAINS.items()}
    )


def _protocol_a(name: str, domains: _Domains) -> Splits:
    return _splits(name, domains, domains.parts["photo"], domains.parts["art"], ("cartoon", "sketch"))


def _protocol_b(name: str, domains: _Domains, trained: str) -> Splits:
    everything = domains.parts[trained]
    in_val, in_train = seeded_split(len(everything), 0.2)
    others = tuple(short for short in COUNTS if short != trained)
    return _splits(name, domains, everything.take(in_train), everything.take(in_val), others)


def _splits(name: str, domains: _Domains, train: Part, val: Part, tested: tuple[str, ...]) -> Splits:
    parts = [domains.parts[short] for short in tested]
    return Splits(
        name=name,
        kind=domains.kind,
        resizing="centre",
        classes=domains.classes,
        train=train,
        val=val,
        test=Part(
            inputs=torch.cat([part.inputs for part in parts]),
            labels=torch.cat([part.labels for part in parts]),
        ),
        shifts=dict(zip(tested, parts, strict=True)),
        normalisation=IMAGENET if domains.kind == "image" else None,
    )


def _sizes(trained: str | None) -> tuple[int, int, int]:
    if trained is None:
        return COUNTS["photo"], COUNTS["art"], COUNTS["cartoon"] + COUNTS["sketch"]
    count = COUNTS[trained]
    val = int(0.2 * count)
    return count - val, val, sum(COUNTS.values()) - count


def _variant(trained: str | None, *, features: bool) -> Dataset[...]:
    """A protocol as a data set of its own name; ``trained`` is the domain of protocol B."""
    protocol = "protocol A: photo, select on art" if trained is None else f"protocol B: {trained}"
    name = ("pacs_a" if trained is None else f"pacs_b_{trained}") + ("_features" if features else "")

    def read(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
        domains = (_features if features else _images)(name, root, verify=verify)
        splits = _protocol_a(name, domains) if trained is None else _protocol_b(name, domains, trained)
        if verify:
            check_sizes(splits, _sizes(trained))
        return splits

    tested = [
        short for short in COUNTS if short != trained and not (trained is None and short in ("photo", "art"))
    ]
    where = (
        "``pacs-<backbone>-features.npz``: ``<domain>_features`` and ``<domain>_labels`` for each domain"
        if features
        else "the folder ``PACS`` or an archive of it; images of 227 pixels are cut to 224 around the centre, "
        "smaller ones of one size stay as they are"
    )
    read.__name__ = read.__qualname__ = name
    read.__doc__ = f"""PACS, {protocol}{", as features of a frozen backbone" if features else ""}.

    Shifted test sets: {", ".join(f"``{short}``" for short in tested)}; ``test`` is all of them one after another.

    Args:
        root: The folder that holds {where}.
        verify: Check that every domain has its published number of images.

    Reference:
        {ORIGIN}.
    """
    options: dict[str, Any] = (
        {"kind": "features", "sources": FEATURES} if features else {"kind": "image", "sources": IMAGES}
    )
    return dataset(
        summary=f"PACS, {protocol}", num_classes=7, sizes=_sizes(trained), licence=LICENCE, **options
    )(read)


pacs_a = _variant(None, features=False)
pacs_b_photo = _variant("photo", features=False)
pacs_b_art = _variant("art", features=False)
pacs_b_cartoon = _variant("cartoon", features=False)
pacs_b_sketch = _variant("sketch", features=False)
pacs_a_features = _variant(None, features=True)
pacs_b_photo_features = _variant("photo", features=True)
pacs_b_art_features = _variant("art", features=True)
pacs_b_cartoon_features = _variant("cartoon", features=True)
pacs_b_sketch_features = _variant("sketch", features=True)

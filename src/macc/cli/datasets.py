"""What ``macc data`` prints about data sets."""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from macc.data import Dataset, Splits, known, load
from macc.data.files import Copies, data_root
from macc.data.folder import folder
from macc.data.sheet import write_sheet
from macc.tables import Column, Entry, Table

# More classes than this are shown by their extremes.
MOST_ROWS = 30


def listing(root: str | PathLike[str] | None) -> str:
    """Every data set: what it is, whether it is here, and how to get it."""
    numbers = ("classes", "train/val/test")
    columns = tuple(
        Column(heading, left=heading not in numbers) for heading in ("name", *numbers, "here", "licence")
    )
    # What needs no file first, a user's own last.
    order = sorted(
        known().items(), key=lambda item: (item[1].needs_path, item[1].sources is not None, item[0])
    )
    rows = [
        (
            f"{name}:PATH" if one.needs_path else name,
            "any" if one.num_classes is None or name == "synthetic" else str(one.num_classes),
            "any" if one.sizes is None or name == "synthetic" else "/".join(str(n) for n in one.sizes),
            _status(one, root),
            one.licence,
        )
        for name, one in order
    ]
    return "\n".join(
        [
            Table(columns, tuple(tuple(map(Entry, row)) for row in rows)).text(),
            "",
            "`macc data prepare NAME` gets a missing set and checks it.",
            "`macc data show NAME` looks at one.",
            f"Files are looked for in {data_root(root)};",
            "say otherwise with --data or $MACC_DATA.",
        ]
    )


def _status(one: Dataset[...], root: str | PathLike[str] | None) -> str:
    if one.needs_path:
        return "your files"
    if one.sources is None:
        return "embedded"
    return one.sources.status(data_root(root))


def read(name: str, *, root: str | PathLike[str] | None, verify: bool, size: int | None) -> Splits:
    """A set by its name; ``size`` belongs to image folders alone."""
    if size is None:
        return load(name, root=root, verify=verify)
    head, _, path = name.partition(":")
    if head != "folder" or not path:
        raise ValueError(
            f"--size is for folder:PATH, whose images may have any size; leave it out for {name}"
        )
    return folder(Path(path) if root is None else Path(root) / path, size=size)


def sheet(splits: Splits, output: Path | None) -> str:
    """Draw the contact sheet, where there are images; one line that says where it is."""
    if splits.kind != "image" and output is None:
        return f"no contact sheet: the inputs are {splits.kind}"
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in splits.name)
    path = Path(f"{safe}-sheet.png") if output is None else output
    write_sheet(splits, path)
    return f"contact sheet    {path}"


def ready(name: str, splits: Splits, *, root: str | PathLike[str] | None, verify: bool) -> str:
    """One line after preparing."""
    one = known()[name.partition(":")[0]]
    sizes = f"{len(splits.train)} train, {len(splits.val)} val, {len(splits.test)} test"
    if one.sources is not None:
        place = one.sources.place(data_root(root))
        if isinstance(one.sources, Copies):
            return f"{name} is ready from {place}: {sizes}"
        checked = "checksums match" if verify else "checksums not compared"
        return f"{name} is ready in {place}: {sizes}; {checked}"
    if one.needs_path:
        return f"{name} is ready: {sizes}"
    return f"{name} is embedded, there is nothing to prepare: {sizes}"


def description(splits: Splits) -> str:
    """Counts of every class in every split, the imbalance, and how inputs are prepared."""
    counts = {name: found.tolist() for name, found in splits.counts().items() if name not in splits.shifts}
    rows = [
        ["…"] * (1 + len(counts))
        if k is None
        else [splits.classes[k], *(str(found[k]) for found in counts.values())]
        for k in _rows(splits)
    ]
    rows.append(["all", *(str(sum(found)) for found in counts.values())])
    shape = " × ".join(str(n) for n in splits.shape)
    lines = [
        f"{splits.name}: {splits.num_classes} classes, each input {shape} ({splits.kind})",
        Table.of(["class", *counts], rows).text(),
        "",
        f"imbalance factor {_imbalance(splits)}",
        f"normalisation    {_normalisation(splits)}",
        f"augmentation     {_augmentation(splits)}",
    ]
    if splits.shifts:
        lines.append(f"shifts           {_shifts(splits)}")
    return "\n".join(lines)


def _rows(splits: Splits) -> Iterable[int | None]:
    if splits.num_classes <= MOST_ROWS:
        return range(splits.num_classes)
    order = splits.train.counts(splits.num_classes).argsort(descending=True, stable=True).tolist()
    return [*order[:10], None, *order[-10:]]


def _imbalance(splits: Splits) -> str:
    empty = int((splits.train.counts(splits.num_classes) == 0).sum())
    if empty:
        return f"infinite ({empty} {'classes have' if empty > 1 else 'class has'} no training sample)"
    return f"{splits.imbalance_factor():.2f} (largest to smallest training class)"


def _normalisation(splits: Splits) -> str:
    found = splits.normalisation
    if found is None:
        return "none"
    if splits.kind == "features":
        return "each feature by its mean and standard deviation in training"
    mean, std = (" ".join(f"{value:.4f}" for value in values) for values in (found.mean, found.std))
    return f"mean {mean}, standard deviation {std}"


def _augmentation(splits: Splits) -> str:
    found = splits.augmentation
    if found is None:
        return "none"
    parts = [
        f"crop after {found.pad} pixels of padding" if found.pad else "",
        "mirror" if found.flip else "",
        "quarter turns" if found.rotate else "",
    ]
    return ", ".join(part for part in parts if part) or "none"


def _shifts(splits: Splits) -> str:
    """Levels of one shift together: ``noise 1-5``."""
    levels: dict[str, list[str]] = {}
    for name in splits.shifts:
        head, _, level = name.rpartition("-")
        levels.setdefault(head if head and level.isdigit() else name, []).append(level)
    return ", ".join(
        name if name in splits.shifts else f"{name} {found[0]}-{found[-1]}" for name, found in levels.items()
    )

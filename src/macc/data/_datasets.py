"""Data sets by name. A set is one function with a description, imported in the namespace."""

from collections.abc import Callable
from functools import update_wrapper
from os import PathLike
from pathlib import Path
from typing import Generic, ParamSpec

from macc.data._splits import Kind, Splits
from macc.data.files import Copies, Sources
from macc.words import did_you_mean

P = ParamSpec("P")


class Dataset(Generic[P]):
    """A data set that is read by calling it; :func:`dataset` makes one of a function.

    Args:
        read: Reads it. Takes ``root`` and ``verify`` as keywords, or a path where ``needs_path``.
        summary: What it is, in a few words.
        kind: What an input is; ``None`` where the user's files decide.
        num_classes: ``K``, where it is fixed.
        sizes: Training, validation and test samples, where they are fixed.
        licence: Its terms.
        sources: The files it is read from; ``None`` where there are none to find.
        needs_path: Whether it is a user's own file or folder: ``name:PATH``.
        levels: Whether it has test sets under shift of several levels.
        shape: Shape of one input as published, where that is one.
        vocabulary: Of tokens: how many words are kept.
    """

    def __init__(
        self,
        read: Callable[P, Splits],
        *,
        summary: str,
        kind: Kind | None,
        num_classes: int | None,
        sizes: tuple[int, int, int] | None,
        licence: str,
        sources: Sources | Copies | None,
        needs_path: bool,
        levels: bool,
        shape: tuple[int, ...] | None,
        vocabulary: int | None,
    ) -> None:
        update_wrapper(self, read)
        self.name = read.__name__
        self._read = read
        self.summary = summary
        self.kind = kind
        self.num_classes = num_classes
        self.sizes = sizes
        self.licence = licence
        self.sources = sources
        self.needs_path = needs_path
        self.levels = levels
        self.shape = shape
        self.vocabulary = vocabulary

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Splits:
        """Read it."""
        return self._read(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<data set {self.name}: {self.summary}>"


def dataset(
    *,
    summary: str,
    licence: str,
    kind: Kind | None = None,
    num_classes: int | None = None,
    sizes: tuple[int, int, int] | None = None,
    sources: Sources | Copies | None = None,
    needs_path: bool = False,
    levels: bool = False,
    shape: tuple[int, ...] | None = None,
    vocabulary: int | None = None,
) -> Callable[[Callable[P, Splits]], Dataset[P]]:
    """Describe the function below as a data set; see :class:`Dataset`."""

    def describe(read: Callable[P, Splits]) -> Dataset[P]:
        return Dataset(
            read,
            summary=summary,
            kind=kind,
            num_classes=num_classes,
            sizes=sizes,
            licence=licence,
            sources=sources,
            needs_path=needs_path,
            levels=levels,
            shape=shape,
            vocabulary=vocabulary,
        )

    return describe


def known() -> dict[str, Dataset[...]]:
    """Every data set of this namespace, by name.

    Example:
        >>> "digits" in known()
        True
    """
    from macc import data

    return {name: value for name, value in vars(data).items() if isinstance(value, Dataset)}


def load(
    name: str, *, root: str | PathLike[str] | None = None, verify: bool = True, cut: bool = True
) -> Splits:
    """A data set by its name, in its splits.

    Args:
        name: For example ``"digits"`` (embedded, needs no file) or ``"cifar10"``; your own files
            are ``"arrays:PATH"`` (.npz or .parquet) and ``"folder:PATH"`` (one folder of images per
            class). ``macc data list`` prints all. Sets with options are functions of the same name
            in ``macc.data``: ``macc.data.synthetic(train=10_000)``.
        root: The folder with data files; ``$MACC_DATA`` if not given, then a folder of the user's
            cache. A relative ``PATH`` in ``name`` is below ``root`` where that is given, else below
            the current folder.
        verify: Check files against their published checksums before they are opened.
        cut: Of your own files: cut splits that are not there from the training samples; see
            :func:`macc.data.arrays`.

    Returns:
        ``train``, ``val``, ``test`` and ``shifts``, each with ``len()``, ``.inputs`` and
        ``.labels``.

    Example:
        >>> splits = load("digits")
        >>> len(splits.train), splits.test.inputs.shape, splits.classes[:3]
        (1295, torch.Size([359, 1, 8, 8]), ('0', '1', '2'))
    """
    head, colon, path = name.partition(":")
    sets = known()
    if head not in sets:
        raise ValueError(f"no data set is called {head!r}; {did_you_mean(head, sorted(sets))}")
    found = sets[head]
    if found.needs_path:
        if not path:
            raise ValueError(
                f"{head!r} reads your own files and needs their path: write {head}:PATH "
                f"(got {name!r}{'' if root is None else f' and root={str(root)!r}'})"
            )
        return found(Path(path) if root is None else Path(root) / path, cut=cut)
    if colon:
        own = " and ".join(f"{key}:PATH" for key, value in sets.items() if value.needs_path)
        raise ValueError(
            f"{head!r} takes no path in its name, got {name!r}; "
            f"say where its files are with root=... or $MACC_DATA (paths belong to {own})"
        )
    return found(root=root, verify=verify)

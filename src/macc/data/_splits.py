"""A data set in its splits, with everything a trainer must know about it as plain values."""

import hashlib
import random
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from macc.data._batches import Batches
from macc.data._parts import Augmentation, Normalisation, Part, Resizing, shares

Kind = Literal["image", "tokens", "features"]

# The seed of the published code bases that the paper follows: it drives the split and nothing else.
SPLIT_SEED = 100
# Other names of a split, taken for it where the user gave none of their own.
SYNONYMS = {"val": ("valid", "validation")}
# Predictions are written to files named after a split, and the name may come from a file that
# nobody has to trust.
NO_FILE_NAME = re.compile(r"^$|^\.|\.\.|[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """Training, validation and test samples of one data set, and its shifted test sets.

    Args:
        name: What the set is called in tables and folders.
        kind: What an input is: ``"image"``, ``"tokens"`` or ``"features"``.
        classes: Class names, in the order of the labels.
        train: The training samples.
        val: The validation samples; selection and post-hoc calibration use these and no others.
        test: The test samples.
        shifts: Test sets from another distribution, by name; ``<shift>-<level>`` where there are
            levels.
        normalisation: Applied to every part.
        augmentation: Applied to training batches.
        vocabulary: Of tokens: the number of ids, 0 for padding included.
        vectors: Of tokens: a vector for each id, ``(vocabulary, D)``, to start from.
        words: Of tokens: the word of each id, to show texts by and to read new ones.
        resizing: Of images: how files of other sizes are brought to this one, see
            :func:`macc.data.read_images`.

    Example:
        >>> from macc import data
        >>> digits = data.load("digits")
        >>> digits
        Splits(digits: image (1, 8, 8), 10 classes, 1295 train, 143 val, 359 test, 10 shifts)
        >>> round(digits.imbalance_factor(), 2)
        1.05
    """

    name: str
    kind: Kind
    classes: tuple[str, ...]
    train: Part
    val: Part
    test: Part
    shifts: Mapping[str, Part] = field(default_factory=dict)
    normalisation: Normalisation | None = None
    augmentation: Augmentation | None = None
    vocabulary: int | None = None
    vectors: Tensor | None = None
    words: tuple[str, ...] | None = None
    resizing: Resizing = "fit"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"`kind` must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if len(self.classes) < 2:
            raise ValueError(f"{self.name} has {len(self.classes)} class; a classifier needs at least two")
        for name in self.shifts:
            check_shift(name, self.name)
        for name, part in self.parts().items():
            if not len(part):
                raise ValueError(
                    f"the {name} split of {self.name} is empty; every split needs at least one sample"
                )
            if part.inputs.shape[1:] != self.train.inputs.shape[1:] and self.kind != "tokens":
                raise ValueError(
                    f"the {name} split of {self.name} has inputs of shape {tuple(part.inputs.shape[1:])}, "
                    f"the train split of {tuple(self.train.inputs.shape[1:])}; they must be the same"
                )
            _check_range(part.labels, len(self.classes), f"the {name} split of {self.name}")
        if self.vectors is not None and len(self.vectors) != self.vocabulary:
            raise ValueError(
                f"{self.name} has {self.vocabulary} token ids and {len(self.vectors)} vectors; each id needs one"
            )
        if self.words is not None and len(self.words) != self.vocabulary:
            raise ValueError(
                f"{self.name} has {self.vocabulary} token ids and {len(self.words)} words; each id needs one"
            )

    def __repr__(self) -> str:
        shifts = f", {len(self.shifts)} shift{'s'[: len(self.shifts) > 1]}" if self.shifts else ""
        return (
            f"Splits({self.name}: {self.kind} {self.shape}, {self.num_classes} classes, "
            f"{len(self.train)} train, {len(self.val)} val, {len(self.test)} test{shifts})"
        )

    @property
    def num_classes(self) -> int:
        """``K``."""
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, which is ``(C, H, W)``, ``(D,)`` or ``(L,)``."""
        return tuple(self.train.inputs.shape[1:])

    def text(self, tokens: Tensor) -> str:
        """The known words of one input, if the words of the ids are known."""
        if self.words is None:
            return ""
        return " ".join(self.words[token] for token in tokens.tolist() if token)

    def parts(self) -> dict[str, Part]:
        """Every part by its name: train, val, test, then the shifts."""
        return {"train": self.train, "val": self.val, "test": self.test, **self.shifts}

    def counts(self) -> dict[str, Tensor]:
        """Samples of each class, ``(K,)``, by part."""
        return {name: part.counts(self.num_classes) for name, part in self.parts().items()}

    def imbalance_factor(self) -> float:
        """Training samples of the largest class for one of the smallest; infinite without any."""
        counts = self.train.counts(self.num_classes)
        return float(counts.max() / counts.min())

    def batches(
        self,
        part: str,
        *,
        batch_size: int,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        rank: int = 0,
        processes: int = 1,
    ) -> Batches:
        """Batches of one part, prepared the way this set asks for.

        Args:
            part: ``"train"``, ``"val"``, ``"test"`` or the name of a shift.
            batch_size: Samples in a batch.
            generator: For training: shuffles and augments. Without one, samples come in order,
                unchanged.
            device: Where the batches are wanted.
            drop_last: Leave out a last batch that is smaller than the others.
            rank: Which of the equal shares of every batch this process takes.
            processes: Number of processes that share every batch.

        Example:
            >>> from macc import data
            >>> batches = data.load("digits").batches("val", batch_size=100)
            >>> [tuple(images.shape) for images, labels in batches]
            [(100, 1, 8, 8), (43, 1, 8, 8)]
        """
        parts = self.parts()
        if part not in parts:
            raise ValueError(f"{self.name} has no part {part!r}; there are {', '.join(parts)}")
        if generator is not None and part != "train":
            raise ValueError(
                f"a generator shuffles and augments, which is for training; leave it out for {part!r}"
            )
        return Batches(
            part=parts[part],
            batch_size=batch_size,
            generator=generator,
            augmentation=None if generator is None else self.augmentation,
            normalisation=self.normalisation,
            device=device,
            drop_last=drop_last,
            rank=rank,
            processes=processes,
        )

    def subset(
        self, *, train: int | None = None, val: int | None = None, test: int | None = None, seed: int
    ) -> "Splits":
        """Fewer samples in some splits, every class in the share it has; see :meth:`Part.subset`.

        ``test`` cuts the shifted test sets too.

        Example:
            >>> from macc import data
            >>> data.load("digits").subset(train=100, seed=0)
            Splits(digits: image (1, 8, 8), 10 classes, 100 train, 143 val, 359 test, 10 shifts)
        """

        def cut(part: Part, size: int | None) -> Part:
            return part if size is None else part.subset(size, seed=seed)

        return replace(
            self,
            train=cut(self.train, train),
            val=cut(self.val, val),
            test=cut(self.test, test),
            shifts={name: cut(part, test) for name, part in self.shifts.items()},
        )

    def make_imbalanced(self, factor: float, *, seed: int) -> "Splits":
        """A long tail of training classes; validation and test stay as they are.

        See :meth:`Part.make_imbalanced`.

        Example:
            >>> from macc import data
            >>> data.load("digits").make_imbalanced(10, seed=0).train.counts(10).tolist()
            [128, 101, 79, 61, 47, 36, 28, 22, 17, 13]
        """
        return replace(self, train=self.train.make_imbalanced(factor, seed=seed))

    def with_label_noise(self, rate: float, *, seed: int) -> "Splits":
        """A share of wrong training labels; validation and test stay clean.

        See :meth:`Part.with_label_noise`.

        Example:
            >>> from macc import data
            >>> digits = data.load("digits")
            >>> (digits.with_label_noise(0.1, seed=0).train.labels != digits.train.labels).sum()
            tensor(130)
        """
        noisy = self.train.with_label_noise(rate, num_classes=self.num_classes, seed=seed)
        return replace(self, train=noisy)

    def digest(self) -> str:
        """A hash of samples, labels, class names, preparation and, of tokens, ids and vectors.

        Equal data have an equal digest.

        Example:
            >>> from macc import data
            >>> data.load("digits").digest() == data.load("digits").digest()
            True
        """
        found = hashlib.sha256(
            repr((self.kind, self.classes, self.normalisation, self.augmentation)).encode()
        )
        for name, part in self.parts().items():
            found.update(repr((name, tuple(part.inputs.shape), part.inputs.dtype)).encode())
            for tensor in (part.inputs, part.labels):
                found.update(_bytes_of(tensor))
        # They decide the size of the model's first layer, and what it starts from.
        if self.vocabulary is not None:
            found.update(repr(("vocabulary", self.vocabulary)).encode())
        if self.vectors is not None:
            found.update(repr((tuple(self.vectors.shape), self.vectors.dtype)).encode())
            found.update(_bytes_of(self.vectors))
        return found.hexdigest()


def seeded_split(count: int, *shares: float) -> list[Tensor]:
    """Indices of ``count`` samples: groups of each share, drawn one by one, then the rest.

    The rule of the code the paper follows: shuffle with a fixed seed, and the first ``int(0.1 n)``
    samples are the validation set. It has nothing to do with the seed of a training run.

    Example:
        >>> [len(group) for group in seeded_split(50_000, 0.1)]
        [5000, 45000]
    """
    order = list(range(count))
    random.Random(SPLIT_SEED).shuffle(order)  # noqa: S311 - a published split, not a secret
    groups, start = [], 0
    for share in shares:
        size = int(share * count)
        groups.append(torch.tensor(order[start : start + size], dtype=torch.int64))
        start += size
    return [*groups, torch.tensor(order[start:], dtype=torch.int64)]


def stratified_split(labels: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Indices of ``int(share · n)`` samples and of the rest, by class and by a fixed seed.

    For sets without a published split: a small one keeps every class in its validation samples.

    Example:
        >>> chosen, rest = stratified_split(torch.arange(50) % 5, 0.2)
        >>> (chosen % 5).bincount().tolist(), len(rest)
        ([2, 2, 2, 2, 2], 40)
    """
    (order,) = seeded_split(len(labels))
    wanted = shares(torch.bincount(labels), int(share * len(labels)))
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for k, count in enumerate(wanted.tolist()):
        taken[order[labels[order] == k][:count]] = True
    return order[taken[order]], order[~taken[order]]


def named_split(wanted: str, names: Mapping[str, str], present: Collection[str], where: object) -> str | None:
    """What a split is called among those ``present``, also by a synonym; ``None`` if not there.

    Example:
        >>> named_split("val", {"train": "train", "val": "val"}, ["train", "valid"], "a.npz")
        'valid'
    """
    given = names[wanted]
    synonyms = SYNONYMS.get(wanted, ()) if given == wanted else ()
    options = [given, *(name for name in synonyms if name not in names.values())]
    found = [name for name in options if name in present]
    if len(found) > 1:
        raise ValueError(
            f"{where} has the splits {' and '.join(map(repr, found))}, which mean the same; "
            "keep one of them and rename the others"
        )
    return found[0] if found else None


def vocabulary(parts: Iterable[Part]) -> int:
    """The number of token ids there must be for the largest one in any part."""
    return max((int(part.inputs.max()) for part in parts if part.inputs.numel()), default=0) + 1


def check_shift(name: str, where: object) -> None:
    """An error unless ``name`` can name a file and is no training, validation or test split."""
    if name in ("train", "val", "test"):
        raise ValueError(
            f"{where} has a split {name!r} that is a shifted test set, and another one is its {name} split; rename it"
        )
    if NO_FILE_NAME.search(name):
        raise ValueError(
            f"the split {name!r} of {where} cannot name a file of predictions; "
            "rename it: no slashes, no dot in front, no two dots in a row, no control characters"
        )


def check_sizes(splits: Splits, expected: tuple[int, int, int]) -> None:
    """An error unless the splits have the published sizes."""
    found = (len(splits.train), len(splits.val), len(splits.test))
    if found != expected:
        raise ValueError(
            f"{splits.name} must have {expected} training, validation and test samples, got {found}; "
            "its files are not the published ones"
        )


def _bytes_of(tensor: Tensor) -> memoryview:
    # As one row, because a column of one value may lie in memory in a way that cannot be seen as
    # bytes.
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _check_range(labels: Tensor, num_classes: int, where: str) -> None:
    wrong = ((labels < 0) | (labels >= num_classes)).nonzero()
    if len(wrong):
        index = int(wrong[0])
        raise ValueError(
            f"the labels of {where} must lie in [0, {num_classes - 1}] for {num_classes} classes, "
            f"got {int(labels[index])} at index {index}"
        )

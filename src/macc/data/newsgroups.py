"""20 Newsgroups as tokens, with GloVe vectors where their file is there."""

import gzip
import math
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from macc.data._archives import DAMAGE, is_archive
from macc.data._datasets import dataset
from macc.data._parts import Part
from macc.data._splits import Splits, check_sizes, seeded_split
from macc.data._tokeniser import Tokeniser
from macc.data.files import Copies, data_root
from macc.words import shown

SIZES = (15_098, 900, 3_999)
SIZES_BY_DATE = (10_183, 1_131, 7_532)
DOCUMENTS = 19_997
WORDS = 20_000
WORDS_FLOOR = 2_000
LENGTH = 1_000
BATCH = 128
# Messages are short; whatever is larger is no message.
LARGEST_MESSAGE = 2**20
LONGEST_LINE = 2**16
LICENCE = "none stated"
FILES = Copies(
    names=(
        "20_newsgroups",
        "20_newsgroups*.tar.gz",
        "news20.tar.gz",
        "20news-bydate-train",
        "20news-bydate",
        "20news-bydate*.tar.gz",
    ),
    origin="kdd.ics.uci.edu/databases/20newsgroups (19 997 documents) or qwone.com/~jason/20Newsgroups (by date)",
)
GLOVE = Copies(
    names=("glove.6B.100d.txt", "glove.6B.100d*.txt", "glove.6B.100d*.txt.gz"),
    origin="nlp.stanford.edu/projects/glove",
)


@dataset(
    summary="messages of 20 newsgroups, 1000 tokens",
    kind="tokens",
    num_classes=20,
    sizes=SIZES,
    shape=(LENGTH,),
    vocabulary=WORDS,
    licence=LICENCE,
    sources=FILES,
)
def newsgroups(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """20 Newsgroups: the last 1000 words of each message, headers dropped, as ids of the 20 000
    commonest words.

    From the folder of 19 997 documents (15 098 to train, 900 to validate, 3 999 to test), or, where
    only that is there, from the by-date archive or folders (10 183, 1 131 and the official 7 532;
    the name of the splits is then ``newsgroups_bydate``). Words are counted in the training part
    alone. Where the folder also holds GloVe vectors, ``splits.vectors`` has one for each word, zero
    for those GloVe lacks; otherwise a model learns its own.

    Args:
        root: The folder that holds ``20_newsgroups``, or ``20news-bydate.tar.gz`` or what it
            unpacks to, and perhaps ``glove.6B.100d.txt`` (or ``.txt.gz``).
        verify: Check that there are as many documents as were published.

    Reference:
        Lang, *NewsWeeder: Learning to Filter Netnews*, ICML 1995; Pennington et al., *GloVe*,
        EMNLP 2014.
    """
    found = _read(data_root(root), "newsgroups", verify=verify)
    counted = [text for text, _ in found.parts["train"]]
    return _splits(found, data_root(root), counted=counted, words=WORDS, verify=verify)


@dataset(
    summary="the same as published code read it: 2000 words, whole batches only",
    kind="tokens",
    num_classes=20,
    sizes=(15_098, 896, 3_968),
    shape=(LENGTH,),
    vocabulary=WORDS_FLOOR,
    licence=LICENCE,
    sources=FILES,
)
def newsgroups_floor(*, root: str | PathLike[str] | None = None, verify: bool = True) -> Splits:
    """20 Newsgroups with three mistakes of published code, on which published numbers rest.

    The 2000 commonest words, where 20 000 were meant; words counted in validation and test texts
    too; and validation and test without their last, partial batch of 128: 896 and 3 968 of the 19
    997 documents are scored.

    Args:
        root: As for ``newsgroups``.
        verify: As for ``newsgroups``.
    """
    found = _read(data_root(root), "newsgroups_floor", verify=verify)
    counted = [text for part in found.parts.values() for text, _ in part]
    splits = _splits(found, data_root(root), counted=counted, words=WORDS_FLOOR, verify=verify)

    def floored(part: Part) -> Part:
        whole = max(1, len(part) // BATCH) * BATCH
        return Part(inputs=part.inputs[:whole], labels=part.labels[:whole])

    return replace(splits, val=floored(splits.val), test=floored(splits.test))


@dataclass(frozen=True, kw_only=True)
class _Texts:
    """The texts of each part with the index of their group."""

    name: str
    classes: tuple[str, ...]
    sizes: tuple[int, int, int]
    parts: dict[str, list[tuple[str, int]]]


def _read(root: Path, name: str, *, verify: bool) -> _Texts:
    source = FILES.require(name, root, verify=verify)
    if source.is_dir() and source.name.startswith("20news-bydate"):
        base = source if source.name == "20news-bydate" else source.parent
        halves = [base / f"20news-bydate-{part}" for part in ("train", "test")]
        found = [item for half in halves if half.is_dir() for item in _messages(half, half.name)]
    else:
        found = list(_messages(source, source.name))
    # The layout says what it is: folders of a training and a test part, or none.
    train = [item for item in found if "-train" in item.part]
    test = [item for item in found if "-test" in item.part]
    if not found:
        raise ValueError(
            f"{source} holds no messages; it must hold folders of newsgroups with numbered files"
        )
    if bool(train) != bool(test):
        raise ValueError(f"{source} has a {'train' if train else 'test'} part and lacks the other")
    classes = tuple(sorted({item.group for item in found}))
    index = {group: k for k, group in enumerate(classes)}

    def texts(items: Iterable[_Message]) -> list[tuple[str, int]]:
        return [(item.text, index[item.group]) for item in items]

    if train:
        in_val, in_train = (group.tolist() for group in seeded_split(len(train), 0.1))
        parts = {
            "train": texts(train[k] for k in in_train),
            "val": texts(train[k] for k in in_val),
            "test": texts(test),
        }
        return _Texts(name=f"{name}_bydate", classes=classes, sizes=SIZES_BY_DATE, parts=parts)
    # The published split: shuffled by numpy's seed 1, the test texts last, the validation texts
    # before them.
    order = np.random.RandomState(1).permutation(len(found)).tolist()
    tested, validated = int(0.2 * len(found)), round(900 / DOCUMENTS * len(found))
    cut = len(found) - tested
    groups = {"train": order[: cut - validated], "val": order[cut - validated : cut], "test": order[cut:]}
    parts = {part: texts(found[k] for k in chosen) for part, chosen in groups.items()}
    return _Texts(name=name, classes=classes, sizes=SIZES, parts=parts)


@dataclass(frozen=True, kw_only=True)
class _Message:
    part: str
    group: str
    text: str


def _messages(source: Path, part: str) -> Iterator[_Message]:
    """Every message below a folder or in an archive, by part, group and number."""
    if source.is_dir():
        for group in sorted(path for path in source.iterdir() if path.is_dir()):
            for path in sorted(file for file in group.iterdir() if file.name.isdigit() and file.is_file()):
                yield _Message(part=part, group=group.name, text=_body(_content(path)))
        return
    if not is_archive(source):
        raise ValueError(f"{source} must be a folder of newsgroups or a .tar.gz of one")
    found = []
    try:
        with tarfile.open(source) as tar:
            for member in tar:
                names = PurePosixPath(member.name).parts
                if not member.isreg() or len(names) < 3 or not names[-1].isdigit():
                    continue
                _check_size(f"{source}: {member.name}", member.size)
                content = tar.extractfile(member)
                text = _body(content.read() if content is not None else b"")
                found.append((names[-3], names[-2], names[-1], text))
    except (*DAMAGE, OSError) as error:
        raise ValueError(
            f"{source} is damaged or cut ({shown(error)}); delete it and get it again"
        ) from error
    for part_name, group_name, _, text in sorted(found, key=lambda item: item[:3]):
        yield _Message(part=part_name, group=group_name, text=text)


def _content(path: Path) -> bytes:
    _check_size(str(path), path.stat().st_size)
    return path.read_bytes()


def _check_size(what: str, size: int) -> None:
    if size > LARGEST_MESSAGE:
        raise ValueError(f"{what} has {size / 1e6:.1f} MB; a message has less than 1 MB: remove it")


def _body(content: bytes) -> str:
    """A message without its headers, which end at the first blank line."""
    text = content.decode("latin-1")
    end = text.find("\n\n")
    return text[end:] if end > 0 else text


def _splits(found: _Texts, root: Path, *, counted: list[str], words: int, verify: bool) -> Splits:
    counts = Counter(word for text in counted for word in Tokeniser.split(text))
    # Equally frequent words in the order in which they were first seen.
    common = [word for word, _ in counts.most_common(words - 1)]
    tokeniser = Tokeniser(("", *common), LENGTH)

    def part(texts: list[tuple[str, int]]) -> Part:
        labels = torch.tensor([label for _, label in texts], dtype=torch.int64)
        return Part(inputs=tokeniser([text for text, _ in texts]), labels=labels)

    splits = Splits(
        name=found.name,
        kind="tokens",
        classes=found.classes,
        train=part(found.parts["train"]),
        val=part(found.parts["val"]),
        test=part(found.parts["test"]),
        vocabulary=len(tokeniser.words),
        vectors=_vectors(root, {word: k for k, word in enumerate(common, start=1)}),
        words=tokeniser.words,
    )
    if verify:
        check_sizes(splits, found.sizes)
    return splits


def _vectors(root: Path, ids: dict[str, int]) -> Tensor | None:
    """A vector for each id, zero where GloVe has none; ``None`` if there is no file."""
    path = GLOVE.find(root)
    if path is None:
        return None
    vectors: np.ndarray[tuple[int, int], np.dtype[np.float32]] | None = None
    with _lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            word, *values = line.rstrip().split(" ")
            if vectors is None:
                vectors = np.zeros((len(ids) + 1, len(values)), np.float32)
            if len(values) != vectors.shape[1] or not values:
                raise ValueError(
                    f"{path}, line {number}: expected a word and {vectors.shape[1] or 'some'} numbers, got {len(values)}; "
                    "the file is damaged or cut"
                )
            if word in ids:
                try:
                    vectors[ids[word]] = [float(value) for value in values]
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from None
                if not math.isfinite(vectors[ids[word]].sum()):
                    raise ValueError(f"{path}, line {number}: the vector of {word!r} is not finite")
    if vectors is None:
        raise ValueError(f"{path} is empty; delete it or get it again")
    return torch.from_numpy(vectors)


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    def read(file: BinaryIO) -> Iterator[str]:
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise ValueError(
                    f"{path} has a line of more than {LONGEST_LINE} characters; it is no file of vectors"
                )
            yield line.decode("utf-8", errors="replace")

    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield read(cast("BinaryIO", file))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut ({shown(error)}); delete it and get it again") from error

"""Files that once made a reader fail in its own words, hang or fill the memory, as small as they
can be.
"""

import io
import json
import pickle
import struct
import zipfile
import zlib

import numpy as np
import torch

from fuzz.oracle import Workshop

LONG = "x" * 5000


def npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def archive(name: str, content: bytes = b"x", *, raw_name: bytes | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(zipfile.ZipInfo(name), content)
    found = buffer.getvalue()
    return found if raw_name is None else found.replace(name.encode(), raw_name)


def tensors(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def huge_picture() -> bytes:
    """A PNG of a hundred bytes that says it has four thousand million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 65000, 65000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )


def table(**columns) -> bytes:
    import pyarrow as arrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    return buffer.getvalue()


def twice(name: str) -> bytes:
    import pyarrow as arrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(arrow.table([[1.0], [1], [1]], names=["features", name, name]), buffer)
    return buffer.getvalue()


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def tampered(shop: Workshop, *places: str, value: object, file: str = "state.json") -> bytes:
    """A JSON file with another value."""
    (content,) = [each for name, each in shop.sound.items() if name.name == file]
    state = json.loads(content)
    inner = state
    *before, last = (int(place) if place.isdigit() else place for place in places)
    for place in before:
        inner = inner[place]
    inner[last] = value
    return json.dumps(state).encode()


def overwritten(shop: Workshop, file: str, at: int, by: bytes) -> bytes:
    """A file with other bytes in one place."""
    (content,) = [each for name, each in shop.sound.items() if name.name == file]
    return content[:at] + by + content[at + len(by) :]


FEATURES, LABELS = np.ones((30, 4)), np.arange(30) % 3

# What each reader is given in place of which file.
CORPUS = {
    "labels of 64 bits without a sign": (
        "arrays",
        "f.npz",
        npz(features=FEATURES, labels=LABELS.astype("u8")),
    ),
    "labels that ask for a huge count": ("arrays", "f.npz", npz(features=FEATURES, labels=LABELS * 2**61)),
    "tokens in the order of columns": (
        "arrays",
        "t.npz",
        npz(tokens=np.asfortranarray(np.arange(150).reshape(30, 5)), labels=LABELS),
    ),
    "a picture that fills the memory": (
        "arrow",
        "i.parquet",
        table(image=[huge_picture()] * 30, label=["a", "b"] * 15),
    ),
    "a picture that fills the memory in a folder": ("folder", "images/cat/0.png", huge_picture()),
    "a page of a column that says it has 2 GB": (
        "parquet",
        "p.parquet",
        lambda shop: overwritten(shop, "p.parquet", 11, b"\xff" * 8),
    ),
    "a column twice": ("arrow", "f.parquet", twice("label")),
    "a member without a name": ("archive", "a.zip", archive("")),
    "a member whose name is no text": ("state", "s.npz", archive("é.npy", raw_name=b"\xff\xff.npy")),
    "a member that moves the cursor": ("archive", "a.zip", archive("../\x1b[2J")),
    "an archive of nothing": ("archive", "a.tar.gz", b"\x1f\x8b\x08\0" + bytes(20)),
    "weights of nothing": ("weights", "w.pth", b""),
    "weights of one byte": ("weights", "old.pt", b"\x80"),
    "weights in a list": ("weights", "w.pth", saved([torch.zeros(2)])),
    "weights with a long name": ("weights", "w.pth", saved({LONG + "\n": torch.zeros(2)})),
    "tensors of a long type": ("weights", "w.safetensors", tensors({"a": {"dtype": LONG}})),
    "a pickle that names a long thing": (
        "pickle",
        "cifar-10-batches-py/test_batch",
        b"c" + LONG.encode() + b"\nb\n.",
    ),
    "a pickle that moves the cursor": ("pickle", "cifar-10-batches-py/test_batch", b"cx\x1b[2J\nb\n."),
    "a pickle of a number": ("pickle", "cifar-10-batches-py/test_batch", pickle.dumps(1)),
    "a group that is not there": ("groups", "who.csv", b"id,site\n0\n"),
    "groups in bytes that are no text": ("groups", "who.csv", b"id,site\n0,\xff\n"),
    "groups with a long field": ("groups", "who.csv", b"id,site\n0," + b"x" * 200_000 + b"\n"),
    "groups in rows and columns": (
        "groups",
        "g.npz",
        npz(probs=np.full((30, 3), 1 / 3), labels=LABELS, weight=np.ones(30), site=np.ones((30, 2))),
    ),
    "an epoch that is text": (
        "checkpoint",
        "1.1/state.json",
        lambda shop: tampered(shop, "epoch", value="1"),
    ),
    "more epochs than fit into the memory": (
        "checkpoint",
        "1.1/state.json",
        lambda shop: tampered(shop, "epoch", value=2**31),
    ),
    "a generator of numpy that is short": (
        "checkpoint",
        "1.1/state.json",
        lambda shop: tampered(shop, "unfinished", "0", "generators", "python", value=[3, [1] * 624, None]),
    ),
    "a checkpoint of a long type": (
        "checkpoint",
        "1.1/model.safetensors",
        tensors({"a": {"dtype": "\0" + LONG}}),
    ),
    "checksums nested deeply": ("checksums", "1.1/complete", b"[" * 100_000),
    "a checksum of what is not there": (
        "checksums",
        "1.1/complete",
        json.dumps({"\x1b" + LONG: ""}).encode(),
    ),
    "a group whose name is a list": (
        "calibrator",
        "grouped.json",
        lambda shop: tampered(shop, "scores", "0", "name", value=[], file="grouped.json"),
    ),
    "more rows than a number counts": (
        "monitor_state",
        "m.json",
        lambda shop: tampered(shop, "by_stream", "main", "evidence", "rows", value=2**63, file="m.json"),
    ),
    "a window beyond all numbers": (
        "monitor_state",
        "m.json",
        lambda shop: tampered(shop, "window", value=10**400, file="m.json"),
    ),
    "evidence beyond all numbers": (
        "monitor_state",
        "m.json",
        lambda shop: tampered(
            shop, "by_stream", "main", "evidence", "best", "0", value=10**400, file="m.json"
        ),
    ),
    "a number of classes that is text": (
        "monitor_state",
        "m.json",
        lambda shop: tampered(shop, "num_classes", value="two\nlines", file="m.json"),
    ),
}

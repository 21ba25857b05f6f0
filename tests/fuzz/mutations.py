"""Ways to spoil a file: blindly, byte by byte, and with knowledge of what it is made of."""

import ast
import copy
import gzip
import io
import json
import pickle
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

Mutator = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    *(0, 1, -1, 2, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1),
    *(2**63, 2**64, -(2**63), 10**400),
)
FLOATS = (0.5, -0.0, 1e-320, 1e308, -1e308, 1.0000001, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    "a",
    "0",
    "-1",
    "NaN",
    "nan",
    "null",
    "../../x",
    "/etc/passwd",
    "x" * 5000,
    "\x1b[31m",
    "two\nlines",
    "\0",
    "\u202eabc",
    "é",
    "__class__",
    "{}",
    "9" * 400,
    "1e999",
    "०",
)
NESTED = ([], {}, [[]], [None], {"a": 1}, [1, "a"], [[1, 2], [3]], True, False, None)


def bytes_of(content: bytes, draw: random.Random) -> bytes:
    """One to four blind changes."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        length = draw.choice((1, 2, 4, 8, 64))
        match draw.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = draw.randbytes(length)
            case 4:
                data[at : at + length] = draw.choice((b"\0", b"\xff", b"\x80")) * length
            case 5:
                form = draw.choice("<>") + draw.choice("BHIQ")
                number = struct.pack(form, draw.choice(NUMBERS) % 256 ** struct.calcsize(form))
                data[at : at + len(number)] = number
            case _:
                other = draw.randrange(len(data) + 1)
                data[at : at + length] = data[other : other + length]
    return bytes(data)


def value(draw: random.Random) -> object:
    """Something that stood nowhere before."""
    return copy.deepcopy(draw.choice(draw.choice((NUMBERS, FLOATS, TEXTS, NESTED))))


def tree(content: object, draw: random.Random) -> object:
    """A value of containers with one to three places changed."""
    holder = [copy.deepcopy(content)]
    for _ in range(draw.randint(1, 3)):
        inner, key = _place(holder, draw)
        match draw.randrange(6):
            case 0 if inner is not holder:
                del inner[key]
            case 1 if isinstance(inner, dict):
                inner[draw.choice(TEXTS)] = inner[key]
            case 1 | 2 if isinstance(inner, list) and inner is not holder:
                inner.insert(draw.randrange(len(inner) + 1), copy.deepcopy(draw.choice(inner)))
            case 3 if isinstance(inner[key], int | float) and not isinstance(inner[key], bool):
                inner[key] = draw.choice(
                    (-inner[key], inner[key] + 1, inner[key] * 1e300, str(inner[key]), [inner[key]])
                )
            case 4:
                inner[key] = [inner[key]] * draw.choice((0, 1, 2, 50))
            case _:
                inner[key] = value(draw)
    return holder[0]


def _place(holder: list, draw: random.Random) -> tuple:
    """A container and a key in it, at any depth."""
    inner, key = holder, 0
    while isinstance(inner[key], dict | list) and inner[key] and draw.random() < 0.8:
        inner = inner[key]
        key = draw.choice(list(inner)) if isinstance(inner, dict) else draw.randrange(len(inner))
    return inner, key


def json_text(content: bytes, draw: random.Random) -> bytes:
    """A JSON text with other values, or one that is no JSON."""
    if draw.random() < 0.25:
        return text(content, draw)
    return json.dumps(tree(json.loads(content), draw)).encode(errors="surrogatepass")


def text(content: bytes, draw: random.Random) -> bytes:
    """Lines and words moved, doubled, left out and replaced."""
    mark = draw.choice((b"\n", b",", b" ", b":", b"("))
    parts = content.split(mark)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(parts))
        match draw.randrange(7):
            case 0:
                parts[at] = str(value(draw)).encode(errors="surrogatepass")
            case 1:
                parts.insert(at, draw.choice(parts))
            case 2 if len(parts) > 1:
                del parts[at]
            case 3:
                parts[at] = draw.choice((b"[", b"{", b"(", b"- ")) * draw.choice((1, 3, 2000))
            case 4:
                parts[at] += draw.choice((b'"', b"'", b"#", b"*", b"&a ", b"!!python/name:os.system ", b"<<"))
            case 5:
                parts[at] = parts[at][::-1]
            case _:
                return bytes_of(mark.join(parts), draw)
    return mark.join(parts)


HEADERS = (
    "<f8",
    ">f4",
    "<f2",
    "|O",
    "<U0",
    "<U9",
    "|S3",
    "|b1",
    "<c16",
    "<M8[s]",
    "|V8",
    "<i8",
    "<u8",
    "(2,3)f8",
    "f8,i4",
)


def npy(content: bytes, draw: random.Random) -> bytes:
    """An array file whose header says something else, or whose values are other bytes."""
    if draw.random() < 0.3:
        return bytes_of(content, draw)
    size = int.from_bytes(content[8:10], "little")
    header, values = content[10 : 10 + size].decode("latin1"), content[10 + size :]
    match draw.randrange(4):
        case 0:
            values = bytearray(values)
            for _ in range(draw.randint(1, 3)):
                at = 8 * draw.randrange(max(1, len(values) // 8))
                values[at : at + 8] = struct.pack("<d", draw.choice(FLOATS))
        case 1:
            about = ast.literal_eval(header)
            about["descr"] = draw.choice(HEADERS)
            header = repr(about)
        case 2:
            about = ast.literal_eval(header)
            shape = list(about["shape"]) or [1]
            shape[draw.randrange(len(shape))] = draw.choice(NUMBERS)
            about["shape"] = tuple(shape if draw.random() < 0.7 else reversed(shape * draw.choice((1, 40))))
            header = repr(about)
        case _:
            header = draw.choice(
                (header.replace("False", "True"), "{}", "[" * 3000, header[: len(header) // 2])
            )
    header = header.rstrip() + "\n"
    return content[:8] + len(header).to_bytes(2, "little") + header.encode("latin1") + bytes(values)


def zipped(inner: Mutator) -> Mutator:
    """An archive with a spoiled member, directory or name."""

    def mutated(content: bytes, draw: random.Random) -> bytes:
        if draw.random() < 0.3:
            return bytes_of(content, draw)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
        at = draw.randrange(len(members))
        name, data = members[at]
        match draw.randrange(6):
            case 0:
                members[at] = (draw.choice((*TEXTS[1:], "../up", "a:b", "/root")) or name, data)
            case 1:
                members.append((name, data))
            case 2 if len(members) > 1:
                del members[at]
            case 3:
                members[at] = (name, draw.choice(members)[1])
            case _:
                members[at] = (name, inner(data, draw))
        buffer = io.BytesIO()
        kind = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with zipfile.ZipFile(buffer, "w", kind) as archive:
            for each, data in members:
                archive.writestr(zipfile.ZipInfo(each), data, kind)
        return buffer.getvalue()

    return mutated


def tarred(inner: Mutator) -> Mutator:
    """A packed tar archive with a spoiled member, or with members of other kinds."""

    def mutated(content: bytes, draw: random.Random) -> bytes:
        if draw.random() < 0.3:
            return bytes_of(content, draw)
        buffer = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(content)) as old,
            tarfile.open(fileobj=buffer, mode="w:gz") as new,
        ):
            members = [member for member in old.getmembers() if member.isreg()]
            chosen = draw.randrange(len(members))
            for k, member in enumerate(members):
                data = old.extractfile(member).read()
                if k == chosen:
                    match draw.randrange(4):
                        case 0:
                            member.name = draw.choice((*TEXTS[1:], "../up", "/root"))
                        case 1:
                            member.type = draw.choice(
                                (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
                            )
                            member.linkname = draw.choice(("/etc/passwd", "..", members[0].name))
                        case 2:
                            member.mtime = draw.choice((0, -1, 2**40))
                        case _:
                            data = inner(data, draw)
                member.size = len(data) if member.isreg() else 0
                new.addfile(member, io.BytesIO(data))
        return buffer.getvalue()

    return mutated


def gzipped(content: bytes, draw: random.Random) -> bytes:
    """A packed file with other content, or spoiled itself."""
    if draw.random() < 0.3:
        return bytes_of(content, draw)
    return gzip.compress(bytes_of(gzip.decompress(content), draw), mtime=0)


def safetensors(content: bytes, draw: random.Random) -> bytes:
    """A tensor file whose JSON header says something else."""
    size = int.from_bytes(content[:8], "little")
    if draw.random() < 0.3:
        return bytes_of(content, draw)
    header = json_text(content[8 : 8 + size], draw)
    length = len(header) if draw.random() < 0.9 else draw.choice(NUMBERS) % 2**64
    return length.to_bytes(8, "little") + header + content[8 + size :]


def png(content: bytes, draw: random.Random) -> bytes:
    """An image with another chunk, whose checksum is right."""
    if draw.random() < 0.3:
        return bytes_of(content, draw)
    chunks, at = [], 8
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        chunks.append([content[at + 4 : at + 8], content[at + 8 : at + 8 + length]])
        at += length + 12
    chosen = draw.choice(chunks)
    if draw.random() < 0.5 and chosen[0] == b"IHDR":
        sides = [draw.choice(NUMBERS) % 2**32, draw.choice(NUMBERS) % 2**32]
        chosen[1] = struct.pack(">II", *sides) + chosen[1][8:]
    else:
        chosen[1] = bytes_of(chosen[1], draw)
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return content[:8] + b"".join(parts)


def pickled(content: bytes, draw: random.Random) -> bytes:
    """A pickle of other values, or one that names what it should not."""
    if draw.random() < 0.5:
        return bytes_of(content, draw)
    if draw.random() < 0.2:
        name = draw.choice(
            (b"os\nsystem", b"builtins\neval", b"numpy\nload", b"x\x1b[2J\ny", b"a" * 3000 + b"\nb")
        )
        return b"c" + name + b"\n(V" + draw.choice((b"true", b"")) + b"\ntR."
    return pickle.dumps(tree(pickle.loads(content, encoding="bytes"), draw), protocol=draw.choice((0, 2, 4)))


def parquet(content: bytes, draw: random.Random) -> bytes:
    """A table with other columns, or a spoiled file."""
    import pyarrow as arrow
    from pyarrow import parquet as files

    if draw.random() < 0.5:
        return bytes_of(content, draw)
    table = files.read_table(io.BytesIO(content))
    at = draw.randrange(table.num_columns)
    name, rows = table.column_names[at], table.num_rows
    columns = (
        [None] * rows,
        [draw.choice(FLOATS)] * rows,
        [draw.choice(TEXTS)] * rows,
        [draw.choice(NUMBERS[:12])] * rows,
        [[1.0, 2.0][: k % 3] for k in range(rows)],
        [draw.randbytes(9)] * rows,
        [{"bytes": draw.randbytes(9)}] * rows,
        [True] * rows,
        arrow.array([0] * rows).cast(arrow.timestamp("s")),
        arrow.array(["a"] * rows).dictionary_encode(),
    )
    match draw.randrange(4):
        case 0:
            table = table.append_column(draw.choice((*TEXTS[1:], name)), table.column(at))
        case 1:
            table = table.drop_columns([name])
        case 2:
            table = table.slice(0, draw.choice((0, 1, 2)))
        case _:
            chosen = draw.choice(columns)
            table = table.set_column(
                at, name, chosen if isinstance(chosen, arrow.Array) else arrow.array(chosen)
            )
    buffer = io.BytesIO()
    files.write_table(table, buffer)
    return buffer.getvalue()


def mat(content: bytes, draw: random.Random) -> bytes:
    """A Matlab file of other arrays, or a spoiled one."""
    import numpy as np
    from scipy.io import loadmat, savemat

    if draw.random() < 0.6:
        return bytes_of(content, draw)
    values = {key: item for key, item in loadmat(io.BytesIO(content)).items() if not key.startswith("__")}
    key = draw.choice(sorted(values))
    made = (
        values[key].astype(draw.choice((float, "int8", "uint16"))),
        values[key][..., :1],
        np.zeros((0, 0)),
        np.array([["a"]], object),
        values[key] * 100,
        "text",
        {"a": 1},
        np.full(values[key].shape, np.nan),
    )
    values[key] = draw.choice(made)
    buffer = io.BytesIO()
    savemat(buffer, values, do_compression=draw.random() < 0.5)
    return buffer.getvalue()

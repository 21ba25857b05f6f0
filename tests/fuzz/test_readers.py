"""No reader runs, hangs, fills the memory or fails in its own words, whatever a file holds."""

import gc
import mmap
import sys
from pathlib import Path

import pytest

from fuzz import oracle
from fuzz.corpus import CORPUS
from fuzz.oracle import complaint, workshop
from fuzz.readers import READERS
from macc.training.allocation import keep_freed_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux does")
ATTEMPTS = 8  # of each reader; `make soak` makes as many as there is time for


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("MACC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MACC_OFFLINE", "1")
    monkeypatch.delenv("MACC_DATA", raising=False)


@pytest.mark.parametrize("name", READERS)
def test_spoiled_files_are_read_or_refused_in_one_line(name):
    with workshop(READERS[name]) as shop:
        shop.check_sound()
        past = {what: entry for what, entry in CORPUS.items() if entry[0] == name}
        found = {}
        for what, (_, file, content) in past.items():
            assert Path(file) in shop.sound, f"{what}: there is no {file}"
            found[what] = shop.with_content(Path(file), content(shop) if callable(content) else content)
        for seed in range(ATTEMPTS):
            found[seed] = shop.attempt(f"{name} {seed}")

    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


def test_every_past_failure_is_of_a_reader():
    assert {reader for reader, _, _ in CORPUS.values()} <= set(READERS)


def refuse(words):
    raise ValueError(words)


def fill_the_memory():
    """With 128 MB that come from the system, whatever the process has kept."""
    with mmap.mmap(-1, 2**27) as pages:
        for _ in range(2**7):
            pages.write(bytes(2**20))


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (lambda: 1, None),
        (lambda: refuse("one line"), None),
        (lambda: refuse("two\nlines"), "not one printable line"),
        (lambda: refuse("x" * 5000), "has 5000 characters"),
        (lambda: {}["a"], "KeyError"),
        (lambda: b"\xff".decode(), "UnicodeDecodeError"),
        (fill_the_memory, "it used"),
        (lambda: bytearray(2**43), "MemoryError"),
    ],
)
def test_the_oracle_sees_what_it_looks_for(monkeypatch, read, wrong):
    monkeypatch.setattr(oracle, "MEMORY", 2**26)
    found = complaint(read)

    assert found is None if wrong is None else wrong in found


def fill_the_heap():
    """With 192 MB in blocks that are small enough for memory that the process has kept: more than
    the C library may hold back of it.
    """
    return [bytearray(b"x") * 2**24 for _ in range(12)]


def leave_garbage():
    """256 MB that only the cyclic collector finds, and blocks with holes between them."""
    cycle = [bytearray(b"x") * 2**20 for _ in range(256)]
    cycle.append(cycle)
    return [bytearray(2**20) for _ in range(64)][::2]


def collect_and(fill):
    gc.collect()
    return fill()


@pytest.mark.parametrize("fill", [fill_the_memory, fill_the_heap])
def test_neither_kept_memory_nor_old_garbage_hides_what_is_used(monkeypatch, fill):
    monkeypatch.setattr(oracle, "MEMORY", 2**26)
    keep_freed_memory()
    fill_the_heap()
    held = leave_garbage()

    assert "it used" in complaint(lambda: collect_and(fill))
    assert len(held) == 32

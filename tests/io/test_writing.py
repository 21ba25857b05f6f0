"""Files are there whole or not at all, over nothing that is read, and nothing of a killed process
stays.
"""

import os
import subprocess
import sys
import time
from errno import ENOSPC
from pathlib import Path

import numpy as np
import pytest

from helpers.command import run
from helpers.predictions import sample
from macc.io import writing
from macc.io.writing import TEMPORARY, replacing

# Begins a file in the folder it is given, says so, and waits to be killed.
WRITER = """
import sys, time
from errno import ENOSPC
from pathlib import Path
from macc.io.writing import replacing
with replacing(Path(sys.argv[1]) / "a.bin") as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(600)
"""

posix = pytest.mark.skipif(writing.fcntl is None, reason="there are no such locks on Windows")


def leftovers(folder):
    return sorted(folder.glob(f"{TEMPORARY}*"))


def write(path, content=b"whole"):
    with replacing(path) as file:
        file.write(content)


@posix
def test_what_a_killed_process_left_is_removed_by_the_next_that_writes(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout.readline() == "writing\n"
        write(tmp_path / "b.bin")
        assert len(leftovers(tmp_path)) == 1, "the file of a living process stays"
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert len(leftovers(tmp_path)) == 1
    write(tmp_path / "b.bin")

    assert [path.name for path in tmp_path.iterdir()] == ["b.bin"]


@posix
def test_a_file_of_another_machine_has_to_be_old(tmp_path):
    """Locks may not reach from one machine to another."""
    for name, age in (("fresh", 60), ("old", 2 * 24 * 3600)):
        (tmp_path / f"{TEMPORARY}{name}").write_bytes(b"")
        os.utime(tmp_path / f"{TEMPORARY}{name}", (time.time() - age,) * 2)
    (tmp_path / f"{TEMPORARY}folder").mkdir()
    (tmp_path / f"{TEMPORARY}link").symlink_to(tmp_path / "elsewhere")
    write(tmp_path / "b.bin")

    assert [path.name.removeprefix(TEMPORARY) for path in leftovers(tmp_path)] == ["folder", "fresh", "link"]


@posix
def test_two_files_are_written_at_once(tmp_path):
    with replacing(tmp_path / "a.bin") as one, replacing(tmp_path / "b.bin") as two:
        one.write(b"1")
        two.write(b"2")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.bin": b"1", "b.bin": b"2"}


@posix
def test_a_file_taken_for_abandoned_before_it_was_locked_is_begun_again(tmp_path, monkeypatch):
    made = writing.tempfile.mkstemp
    taken = []

    def taken_once(**options):
        descriptor, name = made(**options)
        if not taken:
            taken.append(name)
            Path(name).unlink()
        return descriptor, name

    monkeypatch.setattr(writing.tempfile, "mkstemp", taken_once)
    write(tmp_path / "a.bin")

    assert (tmp_path / "a.bin").read_bytes() == b"whole"
    assert len(taken) == 1


def test_a_name_may_be_as_long_as_names_may_be(tmp_path):
    write(tmp_path / ("x" * 255))
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "p.npz", "--json", "./p.npz"],
        ["evaluate", "p.npz", "--json", "link.npz"],
        ["evaluate", "p.npz", "--state", "p.npz"],
        ["evaluate", "p.npz", "--json", "new", "--state", "new"],
        ["evaluate", "p.npy", "y.npy", "--json", "y.npy"],
        ["evaluate", "p.png", "--plot", "p.png"],
        ["compare", "p.npz", "p.npz", "--json", "p.npz"],
        ["calibrate", "--fit", "p.npz", "--apply", "p.npz", "-o", "p.npz"],
        ["calibrate", "--fit", "p.npz", "--apply", "p.npz", "-o", "new.npz", "--json", "new.json"],
        ["threshold", "p.npz", "--json", "p.npz"],
        ["threshold", "p.npz", "--check", "q.npz", "--json", "q.npz"],
        ["merge", "state", "--json", "state"],
        ["merge", "state", "--state", "state"],
        ["plot", "reliability", "p.npz", "-o", "p.npz"],
        ["report", "p.npz", "-o", "p.npz"],
    ],
    ids=" ".join,
)
def test_no_output_takes_the_place_of_an_input(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    probs, labels = sample(40, 3)
    np.savez("p.npz", probs=probs, labels=labels)
    np.savez("q.npz", probs=probs, labels=labels)
    np.save("p.npy", probs)
    np.save("y.npy", labels)
    (tmp_path / "p.png").write_bytes(b"")
    (tmp_path / "state").write_bytes(b"")
    (tmp_path / "link.npz").symlink_to("p.npz")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = run(*words)

    assert (code, out) == (2, "")
    assert "would overwrite" in err
    assert err.endswith("; give it another name\n")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_names_the_file(tmp_path):
    """The system does not say which file it had no room for."""
    with pytest.raises(OSError, match=r"No space left.*r\.json'$"), replacing(tmp_path / "r.json"):
        raise OSError(ENOSPC, "No space left on device")

    assert not list(tmp_path.iterdir())

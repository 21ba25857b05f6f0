"""Memory that a command keeps from one training step to the next."""

import platform
import subprocess
import sys

import pytest

from macc.training import allocation

GLIBC = platform.libc_ver()[0] == "glibc"

STEPS = """
import resource, runpy
keeps = runpy.run_path({path!r})["keep_freed_memory"]()
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [b"x" * (16 << 20) for _ in range(4)]
    del tensors
print(keeps, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not GLIBC, reason="the C library is not glibc")
def test_the_next_step_gets_the_pages_of_the_last(monkeypatch):
    for name in [name for name in allocation.os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    code = STEPS.format(path=allocation.__file__)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    keeps, new_pages = found.stdout.split()
    assert keeps == "True"
    assert int(new_pages) < 30  # 128 of 2 MB, or 65 536 of 4 kB, where they go back to the system


def test_settings_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setattr(allocation.ctypes, "CDLL", pytest.fail)

    assert not allocation.keep_freed_memory()


def test_another_library_is_left_alone(monkeypatch):
    for name in [name for name in allocation.os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(allocation.ctypes, "CDLL", lambda _: object())

    assert not allocation.keep_freed_memory()

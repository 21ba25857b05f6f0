"""Memory of one training step kept for the next."""

import ctypes
import os
import sys

_MEGABYTE = 2**20
# Of glibc's malloc.h: what it is called there, and what it is set to. Larger blocks than 32 MB it
# always asks for anew.
_SETTINGS = {
    "M_MMAP_THRESHOLD": (-3, 32 * _MEGABYTE),
    "M_TRIM_THRESHOLD": (-1, 1024 * _MEGABYTE),
    "M_TOP_PAD": (-2, 64 * _MEGABYTE),
}


def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GB that it freed, if it has glibc; whether it does.

    A training step frees all its tensors and the next one asks for as many. By default glibc hands
    them back to the system in between, which takes each page away and clears it again. It is a
    setting of the whole process: a command makes it, a library does not. Whoever has set
    ``MALLOC_…_`` in the environment has decided already.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return all(libc.mallopt(number, value) == 1 for number, value in _SETTINGS.values())

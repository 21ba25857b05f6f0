"""bf16 on a processor that names matrix tiles it does not execute, as some virtual machines do."""

import faulthandler
import os
import signal
import sys
import warnings
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F

LIMIT = "ONEDNN_MAX_CPU_ISA"
WITHOUT_TILES = "AVX512_CORE_BF16"


@cache
def ensure_bf16_runs() -> None:
    """Try it in a process of its own; where it is an illegal instruction, do without matrix tiles.

    Raises:
        ValueError: If it is too late for that in this process.
    """
    if sys.platform != "linux" or LIMIT in os.environ or not names_tiles() or not _illegal():
        return
    os.environ[LIMIT] = WITHOUT_TILES
    if _illegal():
        # torch has asked the processor already and does not ask again; the next call must find that
        # out too.
        del os.environ[LIMIT]
        raise ValueError(
            "precision: this machine names the instructions of bf16 and does not execute them; "
            f"set {LIMIT}={WITHOUT_TILES} in the environment, or write precision: fp32"
        )


def names_tiles() -> bool:
    """Whether the processor says that it has matrix tiles (AMX)."""
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _illegal() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no thread
        child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.disable()  # dying is what the child is for
            torch.set_num_threads(1)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                F.linear(torch.zeros(128, 64), torch.zeros(64, 64))
                F.conv2d(torch.zeros(8, 64, 8, 8), torch.zeros(64, 64, 3, 3))
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGILL

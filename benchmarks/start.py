"""How long a command waits before it works: processor time, in processes of their own."""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks._timing import Ratio


def cases() -> Iterator[Ratio]:
    """Every claim of this file."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.npz"
        np.savez(path, probs=rng.dirichlet(np.ones(3), 200), labels=rng.integers(0, 3, 200))
        torch, asked, measured = _best(
            ("-c", "import torch"), ("-m", "macc", "--help"), ("-m", "macc", "evaluate", str(path)), repeats=5
        )
    yield Ratio("macc --help over python -c 'import torch'", asked / torch, at_most=0.2)
    yield Ratio(
        "macc evaluate of 200 rows over python -c 'import torch'",
        measured / torch,
        at_most=2,
    )


def _best(*commands: tuple[str, ...], repeats: int) -> list[float]:
    """The least processor time of each command over rounds in which all take turns."""
    best = [float("inf")] * len(commands)
    for _ in range(repeats):
        for index, command in enumerate(commands):
            before = _used()
            subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
            best[index] = min(best[index], _used() - before)
    return best


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

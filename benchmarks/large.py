"""Files too big for memory: resident memory and time per row of ``macc evaluate`` and ``monitor``
as files grow.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
from pyarrow import parquet

from benchmarks._timing import Ratio

CLASSES = 10
ROWS = (2_000_000, 20_000_000)
LOG_ROWS = (1_000_000, 10_000_000)
LIMIT_MB = 600


def write(path: Path, rows: int) -> None:
    """Predictions of a calibrated model with the times of the rows, float32, a million rows at a
    time.
    """
    rng = np.random.default_rng(0)
    names = [f"class {j}" for j in range(CLASSES)]
    schema = arrow.schema(
        [(name, arrow.float32()) for name in names] + [("label", arrow.int16()), ("time", arrow.int64())]
    )
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, 1_000_000):
            size = min(1_000_000, rows - start)
            scores = np.exp(3 * rng.standard_normal((size, CLASSES), dtype=np.float32))
            probs = scores / scores.sum(1, keepdims=True)
            labels = (probs.cumsum(1) < rng.random((size, 1))).sum(1).clip(max=CLASSES - 1)
            columns = [arrow.array(probs[:, j]) for j in range(CLASSES)]
            columns += [arrow.array(labels.astype(np.int16)), arrow.array(np.arange(start, start + size))]
            writer.write_table(arrow.table(columns, schema=schema))


def measure(*words: str) -> tuple[float, float]:
    """Processor seconds, and the largest resident memory in MB, of a command in a process of its
    own.
    """
    code = (
        "import sys, resource\n"
        "from macc.cli import main\n"
        "sys.argv[0] = 'macc'\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        # Not ru_maxrss, which counts the memory of the process that started this one.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]\n"
        "print('used', used.ru_utime + used.ru_stime, peak)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    ).stdout
    _, seconds, kilobytes = output.splitlines()[-1].split()
    return float(seconds), int(kilobytes) / 1024


def cases() -> list[Ratio]:
    """Memory against its limit, and time per row against that of a file a tenth as long."""
    batches = ("--ignore", "time", "--max-rows-in-memory", "1000000")
    return [
        *_grown("large", ROWS, ("evaluate",), batches),
        *_grown("monitor", LOG_ROWS, ("monitor",), ("--time", "time")),
    ]


def _grown(name: str, sizes: tuple[int, int], command: tuple[str], options: tuple[str, ...]) -> list[Ratio]:
    seconds, memory = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for rows in sizes:
            path = Path(folder) / "predictions.parquet"
            write(path, rows)
            taken, memory = measure(*command, str(path), *options)
            seconds.append(taken)
            speed = rows / taken
            print(
                f"{name}: {rows:,} rows x {CLASSES} classes: {taken:.1f} s ({speed:,.0f} rows/s), {memory:.0f} MB"
            )
    small, large = (f"{rows // 10**6} M rows" for rows in sizes)
    ratio = seconds[1] / sizes[1] / (seconds[0] / sizes[0])
    return [
        Ratio(f"{name}: resident memory of {large} / {LIMIT_MB} MB", memory / LIMIT_MB, at_most=1),
        Ratio(f"{name}: time per row, {large} / {small}", ratio, at_most=1.2),
    ]

"""Files too big for memory: resident memory and time per row of ``macc evaluate`` as files grow."""

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
LIMIT_MB = 600


def write(path: Path, rows: int) -> None:
    """Predictions of a calibrated model, float32, a million rows at a time."""
    rng = np.random.default_rng(0)
    names = [f"class {j}" for j in range(CLASSES)]
    schema = arrow.schema([(name, arrow.float32()) for name in names] + [("label", arrow.int16())])
    with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, 1_000_000):
            size = min(1_000_000, rows - start)
            scores = np.exp(3 * rng.standard_normal((size, CLASSES), dtype=np.float32))
            probs = scores / scores.sum(1, keepdims=True)
            labels = (probs.cumsum(1) < rng.random((size, 1))).sum(1).clip(max=CLASSES - 1)
            columns = [arrow.array(probs[:, j]) for j in range(CLASSES)]
            writer.write_table(arrow.table([*columns, arrow.array(labels.astype(np.int16))], schema=schema))


def measure(path: Path) -> tuple[float, float]:
    """Processor seconds, and the largest resident memory in MB, of ``macc evaluate`` in a process of its own."""
    code = (
        "import sys, resource\n"
        "from macc.cli import main\n"
        "sys.argv = ['macc', 'evaluate', sys.argv[1], '--max-rows-in-memory', '1000000']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        # Not ru_maxrss, which counts the memory of the process that started this one.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]\n"
        "print('used', used.ru_utime + used.ru_stime, peak)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout
    _, seconds, kilobytes = output.splitlines()[-1].split()
    return float(seconds), int(kilobytes) / 1024


def cases() -> list[Ratio]:
    """Memory against its limit, and time per row against that of a file a tenth as long."""
    seconds, memory = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for rows in ROWS:
            path = Path(folder) / "predictions.parquet"
            write(path, rows)
            taken, memory = measure(path)
            seconds.append(taken)
            print(f"{rows:>12,} rows x {CLASSES} classes: {taken:.1f} s, {memory:.0f} MB")
    per_row = [taken / rows for taken, rows in zip(seconds, ROWS, strict=True)]
    return [
        Ratio(f"large: resident memory of {ROWS[-1]:,} rows / {LIMIT_MB} MB", memory / LIMIT_MB, at_most=1),
        Ratio("large: time per row, 20 M rows / 2 M rows", per_row[1] / per_row[0], at_most=1.2),
    ]

"""``python -m benchmarks [PART ...] [--json FILE]``: every ratio as a table; exit 1 if one misses
its limit.

``--json results/performance.json`` keeps them, with how cost grows (``benchmarks.scaling``), for
the docs.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from macc.training.runs import processor, source_commit

# Training first: it sees to it, before torch asks the processor, that bf16 runs on this machine.
PARTS = (
    "training",
    "core",
    "metrics",
    "start",
    "data",
    "corruptions",
    "posthoc",
    "operation",
    "ship",
    "large",
)


def main(arguments: Sequence[str]) -> int:
    """Run the named parts and print their ratios."""
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if not given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the ratios, and measure growth too")
    given = parser.parse_args(arguments)
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part is called {sorted(unknown)[0]!r}; there are {', '.join(PARTS)}")
    torch.set_flush_denormal(True)
    console = Console(width=110)
    machine = f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    table = Table("case", "ratio", "must be", title=machine)
    missed = 0
    kept: list[dict[str, Any]] = []
    for part in given.parts or PARTS:
        console.print(f"timing {part} ...")
        for ratio in import_module(f"benchmarks.{part}").cases():
            missed += not ratio.reached
            mark = "" if ratio.reached else "  missed"
            row = ratio.case, f"{ratio.value:.3g}", f"{ratio.limit}{mark}"
            console.print(*row, sep="  ", highlight=False)  # known even if the rest is interrupted
            table.add_row(*row)
            kept.append({"part": part, **asdict(ratio)})
    console.print(table)
    if given.json is not None:
        console.print("timing growth ...")
        from benchmarks.scaling import growths

        growth = [asdict(one) for one in growths()]
        found = {"machine": machine, "commit": source_commit(), "ratios": kept, "growth": growth}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

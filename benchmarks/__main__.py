"""``python -m benchmarks [PART ...]``: every ratio as a table; exit 1 if one misses its limit."""

import platform
import sys
from importlib import import_module

import torch
from rich.console import Console
from rich.table import Table

# Training first: it sees to it, before torch asks the processor, that bf16 runs on this machine.
PARTS = ("training", "core", "metrics", "data", "corruptions", "posthoc", "large")


def main(parts: tuple[str, ...]) -> int:
    """Run the named parts and print their ratios."""
    unknown = set(parts) - set(PARTS)
    if unknown:
        print(
            f"benchmarks: no part is called {sorted(unknown)[0]!r}; there are {', '.join(PARTS)}",
            file=sys.stderr,
        )
        return 2
    torch.set_flush_denormal(True)
    console = Console(width=110)
    table = Table(
        "case",
        "ratio",
        "must be",
        title=f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, CPU",
    )
    missed = 0
    for part in parts or PARTS:
        console.print(f"timing {part} ...")
        for ratio in import_module(f"benchmarks.{part}").cases():
            missed += not ratio.reached
            mark = "" if ratio.reached else "  missed"
            table.add_row(ratio.case, f"{ratio.value:.3g}", f"{ratio.limit}{mark}")
    console.print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))

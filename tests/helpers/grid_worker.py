"""One worker of a grid, as a program that can be killed: its trainings are lines on standard
output.
"""

import json
import sys
import time
from pathlib import Path

from macc import experiments
from macc.experiments.ledger import open_ledger
from macc.experiments.workers import Worker


def main() -> None:
    """Arguments: the experiment's file, the folder of runs, the address of the database, epochs
    after which to hang.
    """
    file, out, storage, patience = sys.argv[1:]
    ledger = open_ledger(experiments.load(file), out, None)

    def tell(event):
        kind, content = event
        name = content if isinstance(content, str) else content[0]
        sys.stdout.write(json.dumps([kind, str(name)]) + "\n")
        sys.stdout.flush()
        if kind == "epoch" and content[1] == int(patience):
            time.sleep(600)  # the heart beats on

    Worker(ledger, Path(out) / "experiments" / "grid", storage, tell, heartbeat=1).run()


if __name__ == "__main__":
    main()

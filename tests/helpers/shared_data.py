"""The folder of published data sets that tests of real files read, where a machine has one."""

import os
from pathlib import Path

SHARED = Path(os.environ.get("MACC_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

"""The folder of published data sets that tests of real files read, where a machine has one."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("MACC_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

needs_shared_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared data folder is not on this machine"
)
